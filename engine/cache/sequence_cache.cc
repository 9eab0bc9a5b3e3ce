// Cache commands (engine/cache/sequence_cache.h).
#include "engine/cache/sequence_cache.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tensorfold {
namespace {

const char* command_name(CacheCommand::Kind kind) {
  switch (kind) {
    case CacheCommand::Kind::kOpenSlot:
      return "open slot";
    case CacheCommand::Kind::kCloseSlot:
      return "close slot";
    case CacheCommand::Kind::kAppendBlock:
      return "append block";
    case CacheCommand::Kind::kTruncate:
      return "truncate";
    case CacheCommand::Kind::kSnapshot:
      return "snapshot";
    case CacheCommand::Kind::kRestore:
      return "restore";
    case CacheCommand::Kind::kDropSnapshot:
      return "drop snapshot";
    case CacheCommand::Kind::kSpillBlock:
      return "spill block";
    case CacheCommand::Kind::kFillBlock:
      return "fill block";
    case CacheCommand::Kind::kCopyBlock:
      return "copy block";
    case CacheCommand::Kind::kSpillSnapshot:
      return "spill snapshot";
    case CacheCommand::Kind::kFillSnapshot:
      return "fill snapshot";
    case CacheCommand::Kind::kStage:
      return "stage";
  }
  return "unknown command";
}

}  // namespace

Result<SequenceCache> SequenceCache::create(const CacheLayout& layout, Device& device,
                                            Stream* stream) {
  SequenceCache cache;
  cache.layout_ = layout;
  cache.device_ = &device;
  cache.stream_ = stream;
  TF_ASSIGN_OR_RETURN(cache.pool_,
                      BlockPool::create(layout.pool_blocks, layout.block_bytes, device));
  cache.slots_.reserve(static_cast<size_t>(layout.slots));
  for (int i = 0; i < layout.slots; ++i) {
    TF_ASSIGN_OR_RETURN(SequenceState state, SequenceState::create(layout, device));
    cache.slots_.push_back(std::move(state));
  }
  return cache;
}

SequenceState* SequenceCache::find(SlotId slot) {
  return const_cast<SequenceState*>(std::as_const(*this).find(slot));
}

const SequenceState* SequenceCache::find(SlotId slot) const {
  if (slot < 0 || static_cast<size_t>(slot) >= slots_.size()) return nullptr;
  const SequenceState& s = slots_[static_cast<size_t>(slot)];
  return s.open() ? &s : nullptr;
}

Status SequenceCache::apply(const CacheCommand& c) {
  using Kind = CacheCommand::Kind;
  const std::string where = std::string(command_name(c.kind)) + ", slot " + std::to_string(c.slot);
  if (c.kind == Kind::kOpenSlot) return open_slot(c.slot);
  if (c.kind == Kind::kDropSnapshot) return snapshots_.drop(c.value);
  if (c.kind == Kind::kSpillBlock || c.kind == Kind::kFillBlock || c.kind == Kind::kSpillSnapshot ||
      c.kind == Kind::kFillSnapshot || c.kind == Kind::kStage)
    return unsupported(where + ": this engine keeps no blocks on disk");
  SequenceState* state = find(c.slot);
  if (state == nullptr) return invalid_argument(where + ": the slot is not open");
  Status status;
  switch (c.kind) {
    case Kind::kCloseSlot:
      status = close_slot(*state);
      break;
    case Kind::kAppendBlock:
      status = append_block(*state, c.block);
      break;
    case Kind::kTruncate:
      status = state->truncate(c.value, layout_.window);
      break;
    case Kind::kSnapshot:
      status = snapshots_.save(layout_, *state, c.block != 0, c.value, rings());
      break;
    case Kind::kRestore:
      status = snapshots_.restore(layout_, c.value, *state, rings());
      break;
    default:
      status = unsupported("unknown kind " + std::to_string(static_cast<int>(c.kind)));
  }
  return status.ok() ? status : status.with_context(where);
}

Status SequenceCache::open_slot(SlotId slot) {
  if (slot < 0 || static_cast<size_t>(slot) >= slots_.size())
    return invalid_argument("open slot: there is no slot " + std::to_string(slot) + " of " +
                            std::to_string(slots_.size()));
  SequenceState& state = slots_[static_cast<size_t>(slot)];
  if (state.open())
    return invalid_argument("open slot: slot " + std::to_string(slot) + " is open already");
  state.start();
  return ok_status();
}

Status SequenceCache::close_slot(SequenceState& state) {
  for (const BlockId block : state.blocks()) pool_.drop_reference(block);
  state.blocks().clear();
  state.stop();
  return ok_status();
}

Status SequenceCache::append_block(SequenceState& state, BlockId block) {
  if (!pool_.valid(block))
    return invalid_argument("there is no block " + std::to_string(block) + " of " +
                            std::to_string(pool_.blocks()));
  const int64_t limit = (layout_.context + kBlockPositions - 1) / kBlockPositions;
  if (static_cast<int64_t>(state.blocks().size()) >= limit)
    return invalid_argument("the sequence holds all blocks of its context");
  pool_.add_reference(block);
  state.blocks().push_back(block);
  return ok_status();
}

Status SequenceCache::check_writable(const SequenceState& state, int64_t first, int64_t end) const {
  if (end > layout_.context)
    return invalid_argument("position " + std::to_string(end - 1) + " is past the context of " +
                            std::to_string(layout_.context));
  const int64_t held = static_cast<int64_t>(state.blocks().size()) * kBlockPositions;
  if (end > held)
    return invalid_argument("position " + std::to_string(end - 1) +
                            " has no cache block: the sequence's blocks hold " +
                            std::to_string(held));
  for (int64_t b = first / kBlockPositions; b * kBlockPositions < end; ++b) {
    const BlockId block = state.blocks()[static_cast<size_t>(b)];
    if (pool_.references(block) > 1)
      return invalid_argument("position " + std::to_string(std::max(first, b * kBlockPositions)) +
                              " lies in block " + std::to_string(block) +
                              ", which another sequence shares");
  }
  return ok_status();
}

}  // namespace tensorfold
