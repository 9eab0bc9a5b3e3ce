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
    case CacheCommand::Kind::kForget:
      return "forget";
    case CacheCommand::Kind::kCompareBlock:
      return "compare block";
    case CacheCommand::Kind::kCompareRings:
      return "compare rings";
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
  TF_ASSIGN_OR_RETURN(cache.snapshots_, SnapshotStore::create(layout));
  cache.staging_.resize(static_cast<size_t>(layout.block_bytes));
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

Status SequenceCache::apply(const CacheCommand& c, std::span<const CacheNote> notes) {
  using Kind = CacheCommand::Kind;
  const std::string where = std::string(command_name(c.kind)) + ", slot " + std::to_string(c.slot);
  if (c.kind == Kind::kOpenSlot) return open_slot(c.slot);
  if (c.kind == Kind::kDropSnapshot) return snapshots_.drop(c.value);
  if (c.kind == Kind::kSpillBlock || c.kind == Kind::kFillBlock || c.kind == Kind::kSpillSnapshot ||
      c.kind == Kind::kFillSnapshot || c.kind == Kind::kStage || c.kind == Kind::kForget ||
      c.kind == Kind::kCompareBlock || c.kind == Kind::kCompareRings) {
    if (tier_ == nullptr) return unsupported(where + ": this engine keeps no blocks on disk");
    if (c.value < 0 || static_cast<size_t>(c.value) >= notes.size())
      return invalid_argument(where + ": there is no note " + std::to_string(c.value));
    const Status status = use_tier(c, notes[static_cast<size_t>(c.value)]);
    return status.ok() ? status : status.with_context(where);
  }
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
      status = snapshot(*state, c.block != 0, c.value);
      break;
    case Kind::kRestore:
      status = restore(*state, c.value, c.block);
      break;
    case Kind::kCopyBlock:
      status = copy_block(*state, c.block, c.value);
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

Status SequenceCache::copy_block(const SequenceState& state, BlockId to, int64_t from) {
  const bool known = from >= 0 && from < pool_.blocks();
  if (!known) return invalid_argument("there is no block " + std::to_string(from));
  if (state.blocks().empty() || state.blocks().back() != to || pool_.references(to) != 1)
    return invalid_argument("block " + std::to_string(to) + " is not the slot's own last one");
  const auto source = static_cast<BlockId>(from);
  const int64_t bytes = layout_.block_bytes;
  TF_RETURN_IF_ERROR(rings().save(staging_.data(), pool_.bytes(source), bytes));
  rings().restore(pool_.bytes(to), staging_.data(), bytes);
  std::copy_n(pool_.ids(source), 2 * kBlockPositions, pool_.ids(to));
  return ok_status();
}

Status SequenceCache::snapshot(SequenceState& state, bool encoder_only, int64_t number) {
  if (static_cast<int64_t>(state.blocks().size()) * kBlockPositions < state.length())
    return invalid_argument("the slot has fewer blocks than positions");
  TF_RETURN_IF_ERROR(snapshots_.save(layout_, state, encoder_only, number, rings()));
  state.write_ids(pool_);
  return ok_status();
}

Status SequenceCache::restore(SequenceState& state, int64_t number, int64_t cut) {
  TF_RETURN_IF_ERROR(snapshots_.restore(layout_, number, cut, state, rings()));
  state.read_ids(pool_);
  return ok_status();
}

// ---------------------------------------------------------------- the disk tier

Status SequenceCache::use_tier(const CacheCommand& c, const CacheNote& note) {
  using Kind = CacheCommand::Kind;
  if (c.kind == Kind::kStage || c.kind == Kind::kForget) {
    c.kind == Kind::kStage ? tier_->stage(note) : tier_->forget(note);
    return ok_status();
  }
  if (c.kind == Kind::kCompareBlock || c.kind == Kind::kCompareRings) return compare(c, note);
  const bool of_block = c.kind == Kind::kSpillBlock || c.kind == Kind::kFillBlock;
  if (of_block && !pool_.valid(c.block))
    return invalid_argument("there is no block " + std::to_string(c.block));
  if (c.kind == Kind::kSpillBlock) return spill_block(c.block, note);
  if (c.kind == Kind::kSpillSnapshot) {
    TF_RETURN_IF_ERROR(snapshots_.export_record(layout_, c.block, record_));
    (void)tier_->spill(note, {}, {}, record_);  // not taken: it stays unwritten
    return ok_status();
  }
  const CacheRecord* record = tier_->record(note.name, note.kind);
  if (record == nullptr) return data_loss("the record is not there");
  Status status = of_block ? fill_block(c.block, *record)
                           : snapshots_.import_record(layout_, c.block, record->bytes);
  tier_->unstage(note.name, note.kind);
  return status;
}

// Bytes of blocks and rings that rows do not reach are equal because they were copied.
Status SequenceCache::compare(const CacheCommand& c, const CacheNote& note) {
  const SequenceState* state = find(c.slot);
  if (state == nullptr) return invalid_argument("the slot is not open");
  if (c.kind == CacheCommand::Kind::kCompareRings) {
    TF_ASSIGN_OR_RETURN(const bool equal, snapshots_.equal(layout_, c.block, *state, rings()));
    tier_->compared(note, equal && block_equal_);
    block_equal_ = true;
    return ok_status();
  }
  if (state->blocks().empty() || !pool_.valid(c.block))
    return invalid_argument("there are no such blocks");
  const int64_t bytes = layout_.block_bytes;
  record_.resize(static_cast<size_t>(bytes));
  TF_RETURN_IF_ERROR(rings().save(staging_.data(), pool_.bytes(state->blocks().back()), bytes));
  TF_RETURN_IF_ERROR(rings().save(record_.data(), pool_.bytes(c.block), bytes));
  block_equal_ = staging_ == record_;
  return ok_status();
}

Status SequenceCache::spill_block(BlockId block, const CacheNote& note) {
  const auto positions = static_cast<size_t>(note.positions);
  TF_RETURN_IF_ERROR(rings().save(staging_.data(), pool_.bytes(block), layout_.block_bytes));
  (void)tier_->spill(note, {pool_.ids(block), positions}, {pool_.engram_ids(block), positions},
                     staging_);
  return ok_status();
}

Status SequenceCache::fill_block(BlockId block, const CacheRecord& record) {
  const auto positions = static_cast<size_t>(record.note.positions);
  if (pool_.references(block) != 0)
    return invalid_argument("block " + std::to_string(block) + " is in use");
  if (static_cast<int64_t>(record.bytes.size()) != layout_.block_bytes ||
      record.ids.size() != positions || record.engram_ids.size() != positions)
    return data_loss("the record is not one of a block of this layout");
  rings().restore(pool_.bytes(block), record.bytes.data(), layout_.block_bytes);
  std::copy(record.ids.begin(), record.ids.end(), pool_.ids(block));
  std::copy(record.engram_ids.begin(), record.engram_ids.end(), pool_.engram_ids(block));
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
