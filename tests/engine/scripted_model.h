// A Model for tests of the engine: deterministic toy logits that depend on every id of the
// sequence's prefix, a drafter that is right as often as asked, and failures on demand. It keeps
// slots, lengths, blocks and snapshots as a real one does and refuses plans that one could not run:
// rows in a block that others hold, a snapshot whose blocks hold something else by now.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/engine.h"
#include "engine/model/model.h"

namespace tensorfold::scripted {

inline constexpr int kVocab = 64;
inline constexpr TokenId kEos = 1;
inline constexpr TokenId kThinkEnd = 2;
inline constexpr TokenId kCallOpen = 3;
inline constexpr TokenId kCallClose = 4;
inline constexpr TokenId kPoison = 5;  // in a prompt: rows behind kPoisonRows replies are NaN
inline constexpr int kPoisonRows = 3;

inline uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9E3779B97F4A7C15ULL + (h << 6) + (h >> 2);
  h *= 0xBF58476D1CE4E5B9ULL;
  return h ^ (h >> 29);
}

class ScriptedModel final : public Model {
 public:
  struct Script {
    int64_t pool_blocks = 64;
    unsigned skill = 60;          // of 100 drafts are what a greedy reader would say
    unsigned eos_weight = 10;     // of 100 rows favor the end token
    int fail_at_forward = 0;      // the n-th forward pass breaks the device
    int storage_fails_every = 0;  // n-th forward pass: after its commands, before its rows
    bool plant_leak = false;      // a planted fault: logits depend on how many rows share the step
    bool plant_stale = false;     // a planted fault: a copied block lacks its last position
  };

  explicit ScriptedModel(const Script& script) : script_(script) {
    config_.vocab_size = kVocab;
    config_.window = 8;
    config_.eos_token_id = kEos;
    config_.dspark.stages = 3;
    config_.dspark.block_size = 5;
    pool_.resize(static_cast<size_t>(script.pool_blocks));
  }

  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return 1; }
  int64_t cache_bytes() const override { return 2; }
  std::string fingerprint() const override { return "scripted"; }
  int64_t length(SlotId slot) const override { return slots_.at(slot).length(); }
  int open_slots() const { return static_cast<int>(slots_.size()); }
  int64_t blocks_used() const {  // by slots
    return std::count_if(pool_.begin(), pool_.end(), [](const Block& b) { return b.slots > 0; });
  }
  size_t snapshots() const { return snapshots_.size(); }
  int forwards() const { return forwards_; }

  Status apply(const StepPlan& plan) override {
    for (const CacheCommand& c : plan.commands) TF_RETURN_IF_ERROR(command(c));
    commands_done_ = true;
    return ok_status();
  }
  std::span<const int32_t> ids(SlotId slot) const override {
    const auto at = slots_.find(slot);
    return at == slots_.end() ? std::span<const int32_t>() : at->second.ids;
  }

  Status forward(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                 StepLogits& logits, ForwardProbe*) override {
    if (++forwards_ == script_.fail_at_forward) return unavailable("the scripted device is gone");
    if (!commands_done_) TF_RETURN_IF_ERROR(apply(plan));
    commands_done_ = false;
    if (script_.storage_fails_every > 0 && forwards_ % script_.storage_fails_every == 0)
      return {StatusCode::kUnavailable, "a file cannot be read", {}, std::string(kReasonStorage)};
    TF_CHECK_EQ(device_tokens.size(), plan.slices.size());
    for (size_t i = 0; i < plan.slices.size(); ++i) {
      const Slice& s = plan.slices[i];
      const bool given = s.source == TokenSource::kGiven;
      std::span<const int32_t> ids = device_tokens[i];
      if (given) {
        const auto offset = static_cast<size_t>(s.token_offset);
        ids = std::span(plan.tokens).subspan(offset, static_cast<size_t>(s.rows));
      }
      TF_RETURN_IF_ERROR(slice(plan, s, ids, logits));
    }
    return ok_status();
  }

  Status accept(SlotId slot, int64_t length) override {
    Slot& s = slots_.at(slot);
    if (length < 0 || length > s.length()) return internal_error("accepts what was not computed");
    s.cut(length);
    return ok_status();
  }

  Status draft(std::span<const DraftRequest> requests, std::vector<DraftResult>& results,
               ForwardProbe*) override {
    for (const DraftRequest& r : requests) {
      const Slot& s = slots_.at(r.slot);
      TF_CHECK_EQ(r.position + 1, s.length());
      uint64_t h = mix(s.hashes.back(), static_cast<uint64_t>(r.token));
      DraftResult d;
      d.slot = r.slot;
      for (int32_t i = 0; i < r.rows; ++i) {
        const std::vector<float> row = logits_of(h, 1);
        const auto best = std::max_element(row.begin(), row.end()) - row.begin();
        const bool right = mix(h, 77) % 100 < script_.skill;
        d.tokens.push_back(static_cast<int32_t>(right ? best : (best + 1) % kVocab));
        d.confidence.push_back(right ? 2.0F : -1.0F);
        h = mix(h, static_cast<uint64_t>(d.tokens.back()));
      }
      results.push_back(std::move(d));
    }
    return ok_status();
  }

  Status read_entry(SlotId, int, int64_t, std::vector<float>&, std::vector<float>&) const override {
    return unsupported("scripted");
  }

 private:
  struct Slot {
    std::vector<uint64_t> hashes;  // of the prefix up to each position
    std::vector<int32_t> ids;
    std::vector<BlockId> blocks;
    bool poisoned = false;
    int64_t prompt = 0;
    int64_t length() const { return static_cast<int64_t>(hashes.size()); }
    void cut(int64_t length) {
      hashes.resize(static_cast<size_t>(length));
      ids.resize(static_cast<size_t>(length));
    }
  };
  struct Block {
    int slots = 0;  // that have it in their table
    std::vector<uint64_t> hashes = std::vector<uint64_t>(kBlockPositions);
    std::vector<int32_t> ids = std::vector<int32_t>(kBlockPositions);
  };
  struct Snapshot {
    int64_t length = 0;
    uint64_t hash = 0;
    bool poisoned = false;
    int64_t prompt = 0;
  };

  Status command(const CacheCommand& c) {
    using Kind = CacheCommand::Kind;
    const bool open = slots_.count(c.slot) > 0;
    if (c.kind == Kind::kOpenSlot) {
      if (open) return internal_error("opened twice");
      slots_[c.slot] = {};
      return ok_status();
    }
    if (c.kind == Kind::kDropSnapshot)
      return snapshots_.erase(c.value) > 0 ? ok_status() : internal_error("no such snapshot");
    if (!open) return internal_error("a command for a closed slot");
    Slot& slot = slots_[c.slot];
    switch (c.kind) {
      case Kind::kCloseSlot:
        for (const BlockId b : slot.blocks) --block(b).slots;
        slots_.erase(c.slot);
        return ok_status();
      case Kind::kAppendBlock:
        ++block(c.block).slots;
        slot.blocks.push_back(c.block);
        return ok_status();
      case Kind::kCopyBlock: {
        Block& to = block(c.block);
        if (to.slots != 1) return internal_error("copies into a block that others hold");
        const Block& from = block(static_cast<BlockId>(c.value));
        to.hashes = from.hashes;
        to.ids = from.ids;
        if (script_.plant_stale) to.hashes.assign(kBlockPositions, 1);
        return ok_status();
      }
      case Kind::kSnapshot:
        snapshots_[c.value] = {slot.length(), slot.hashes.back(), slot.poisoned, slot.prompt};
        return ok_status();
      case Kind::kRestore:
        return restore(slot, c.value, c.block);
      case Kind::kTruncate:
        if (c.value < 1 || c.value > slot.length()) return internal_error("cuts what is not there");
        slot.cut(c.value);
        return ok_status();
      default:
        return internal_error("unknown command");
    }
  }

  Block& block(BlockId b) { return pool_.at(static_cast<size_t>(b)); }
  // The block and the place in it of a position.
  std::pair<Block&, size_t> place(const Slot& slot, int64_t position) {
    const auto p = static_cast<size_t>(position);
    return {block(slot.blocks.at(p / kBlockPositions)), p % kBlockPositions};
  }

  Status restore(Slot& slot, int64_t number, int64_t cut) {
    const auto at = snapshots_.find(number);
    if (at == snapshots_.end()) return internal_error("restores a snapshot that is not there");
    const Snapshot& s = at->second;
    slot.poisoned = s.poisoned;
    slot.prompt = s.prompt;
    slot.hashes.clear();
    slot.ids.clear();
    for (int64_t p = 0; p < s.length - cut; ++p) {
      const auto [held, i] = place(slot, p);
      slot.hashes.push_back(held.hashes[i]);
      slot.ids.push_back(held.ids[i]);
    }
    uint64_t h = 1;
    for (size_t p = 0; p < slot.ids.size(); ++p) {
      h = mix(h, static_cast<uint64_t>(slot.ids[p]));
      if (h != slot.hashes[p]) return internal_error("a restored block holds something else");
    }
    return cut > 0 || h == s.hash ? ok_status() : internal_error("a snapshot of another text");
  }

  Status slice(const StepPlan& plan, const Slice& s, std::span<const int32_t> ids,
               StepLogits& logits) {
    if (slots_.count(s.slot) == 0) return internal_error("rows of a closed slot");
    Slot& slot = slots_[s.slot];
    if (s.first_position > slot.length()) return internal_error("a hole in the sequence");
    slot.cut(s.first_position);
    const auto room = static_cast<int64_t>(slot.blocks.size()) * kBlockPositions;
    if (s.first_position + s.rows > room) return internal_error("rows without a block");
    for (int32_t i = 0; i < s.rows; ++i) {
      const int32_t id = ids[static_cast<size_t>(i)];
      slot.hashes.push_back(
          mix(slot.hashes.empty() ? 1 : slot.hashes.back(), static_cast<uint64_t>(id)));
      slot.ids.push_back(id);
      const auto [held, at] = place(slot, slot.length() - 1);
      if (held.slots != 1) return internal_error("writes into a block that others hold");
      held.hashes[at] = slot.hashes.back();
      held.ids[at] = id;
      if (s.row_class == RowClass::kPrompt) {
        slot.prompt = slot.length();
        slot.poisoned |= id == kPoison;
      }
      if (i < s.rows - s.logits_rows) continue;
      logits.rows.push_back({s.slot, s.first_position + i, true});
      std::vector<float> row = logits_of(slot.hashes.back(), plan.total_rows());
      if (slot.poisoned && slot.length() >= slot.prompt + kPoisonRows) {
        row[7] = std::numeric_limits<float>::quiet_NaN();
        logits.rows.back().finite = false;
      }
      logits.values.insert(logits.values.end(), row.begin(), row.end());
    }
    return ok_status();
  }

  std::vector<float> logits_of(uint64_t h, int rows) const {
    std::vector<float> row(kVocab);
    uint64_t x = h;
    for (float& v : row) {
      x = mix(x, 3);
      v = static_cast<float>(x % 4096) / 512.0F;
    }
    if (mix(h, 5) % 100 < script_.eos_weight) row[kEos] += 9.0F;
    if (script_.plant_leak) row[8] += static_cast<float>(rows);
    return row;
  }

  const Script script_;
  ModelConfig config_;
  std::map<SlotId, Slot> slots_;
  std::vector<Block> pool_;
  std::map<int64_t, Snapshot> snapshots_;
  bool commands_done_ = false;
  int forwards_ = 0;
};

}  // namespace tensorfold::scripted
