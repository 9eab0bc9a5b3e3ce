// A Model for tests of the engine: deterministic toy logits that depend on every id of the
// sequence's prefix, a drafter that is right as often as asked, and failures on demand. It keeps
// slots, lengths and blocks as a real one does and refuses plans that one could not run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
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
    unsigned skill = 60;       // of 100 drafts are what a greedy reader would say
    unsigned eos_weight = 10;  // of 100 rows favor the end token
    int fail_at_forward = 0;   // the n-th forward pass breaks the device
    bool plant_leak = false;   // a planted fault: logits depend on how many rows share the step
  };

  explicit ScriptedModel(const Script& script) : script_(script) {
    config_.vocab_size = kVocab;
    config_.window = 8;
    config_.eos_token_id = kEos;
    config_.dspark.stages = 3;
    config_.dspark.block_size = 5;
    for (BlockId b = 0; b < script.pool_blocks; ++b) free_.insert(b);
  }

  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return 1; }
  int64_t cache_bytes() const override { return 2; }
  std::string fingerprint() const override { return "scripted"; }
  int64_t length(SlotId slot) const override { return slots_.at(slot).length(); }
  int open_slots() const { return static_cast<int>(slots_.size()); }
  int64_t blocks_used() const { return script_.pool_blocks - static_cast<int64_t>(free_.size()); }
  int forwards() const { return forwards_; }

  Status forward(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                 StepLogits& logits, ForwardProbe*) override {
    if (++forwards_ == script_.fail_at_forward) return unavailable("the scripted device is gone");
    for (const CacheCommand& c : plan.commands) TF_RETURN_IF_ERROR(command(c));
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
    s.hashes.resize(static_cast<size_t>(length));
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
    std::vector<BlockId> blocks;
    bool poisoned = false;
    int64_t prompt = 0;
    int64_t length() const { return static_cast<int64_t>(hashes.size()); }
  };

  Status command(const CacheCommand& c) {
    const bool open = slots_.count(c.slot) > 0;
    if (c.kind == CacheCommand::Kind::kOpenSlot) {
      if (open) return internal_error("opened twice");
      slots_[c.slot] = {};
    } else if (c.kind == CacheCommand::Kind::kCloseSlot) {
      if (!open) return internal_error("closed twice");
      for (const BlockId b : slots_[c.slot].blocks) free_.insert(b);
      slots_.erase(c.slot);
    } else if (c.kind == CacheCommand::Kind::kAppendBlock) {
      if (!open || free_.erase(c.block) == 0) return internal_error("a block is used twice");
      slots_[c.slot].blocks.push_back(c.block);
    } else {
      return internal_error("unknown command");
    }
    return ok_status();
  }

  Status slice(const StepPlan& plan, const Slice& s, std::span<const int32_t> ids,
               StepLogits& logits) {
    if (slots_.count(s.slot) == 0) return internal_error("rows of a closed slot");
    Slot& slot = slots_[s.slot];
    if (s.first_position > slot.length()) return internal_error("a hole in the sequence");
    slot.hashes.resize(static_cast<size_t>(s.first_position));
    for (int32_t i = 0; i < s.rows; ++i) {
      const int32_t id = ids[static_cast<size_t>(i)];
      slot.hashes.push_back(
          mix(slot.hashes.empty() ? 1 : slot.hashes.back(), static_cast<uint64_t>(id)));
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
    const auto room = static_cast<int64_t>(slot.blocks.size()) * kBlockPositions;
    return slot.length() <= room ? ok_status() : internal_error("rows without a block");
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
  std::set<BlockId> free_;
  int forwards_ = 0;
};

}  // namespace tensorfold::scripted
