// A device for schedules: a StepRunner that holds blocks, slots, rings and snapshots as a real rank
// does, with a 64-bit digest of the prefix in place of every position's state. So state that is
// stale, shared by mistake or restored from the wrong place shows, and what a reply must be is
// known without running anything (expected_reply()).
//
// What no rank could run is written to `fault`, and the step fails.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/sched/planner.h"
#include "engine/step_executor.h"
#include "tests/engine/scripted_model.h"

namespace tensorfold::scripted {

inline constexpr int kSimWindow = 8;  // decoder positions that a sampled row must see

// Of the prefix behind which the next token is asked for.
inline int32_t sim_next_token(uint64_t digest, unsigned eos_weight) {
  const uint64_t h = mix(digest, 11);
  if (h % 100 < eos_weight) return kEos;
  return static_cast<int32_t>(8 + (h >> 8) % (kVocab - 8));
}

inline uint64_t sim_digest(uint64_t before, int32_t token) {
  return mix(before, static_cast<uint64_t>(token) + 1);
}

struct SimRules {
  unsigned eos_weight = 4;  // of 100 tokens end the reply
  unsigned skill = 60;      // of 100 drafts are right
  int prefill_rows = 256;
  int fail_at_step = 0;  // the n-th step breaks the device
};

// The whole reply, without its end token.
inline std::vector<TokenId> expected_reply(const std::vector<TokenId>& prompt, int64_t most,
                                           const SimRules& rules) {
  uint64_t h = 1;
  for (const TokenId id : prompt) h = sim_digest(h, id);
  std::vector<TokenId> reply;
  while (static_cast<int64_t>(reply.size()) < most) {
    const int32_t next = sim_next_token(h, rules.eos_weight);
    if (next == kEos) break;
    reply.push_back(next);
    h = sim_digest(h, next);
  }
  return reply;
}

class FakeDevice final : public StepRunner {
 public:
  FakeDevice(int64_t blocks, const SimRules& rules)
      : rules_(rules), blocks_(static_cast<size_t>(blocks)) {}

  std::string fault;  // the first one
  int64_t admissions = 0;
  int64_t rows_shared = 0;  // positions that sequences did not have to compute

  Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
    results.clear();
    if (++steps_ == rules_.fail_at_step) return unavailable("the fake device is gone");
    for (const CacheCommand& c : plan.commands) command(c);
    check_rows(plan);
    for (const Slice& s : plan.slices) {
      const auto sample = std::find_if(plan.samples.begin(), plan.samples.end(),
                                       [&](const SampleSpec& x) { return x.slot == s.slot; });
      slice(plan, s, sample == plan.samples.end() ? nullptr : &*sample, results);
    }
    std::sort(results.begin(), results.end(),
              [](const SampledTokens& a, const SampledTokens& b) { return a.slot < b.slot; });
    return fault.empty() ? ok_status() : internal_error(fault);
  }

  int64_t blocks_referenced() const {
    return std::count_if(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.refs > 0; });
  }
  size_t open_slots() const { return slots_.size(); }

 private:
  struct Block {
    int refs = 0;  // sequences that have it in their table
    std::array<uint64_t, kBlockPositions> state{};
  };
  struct Slot {
    std::vector<BlockId> table;
    std::vector<uint64_t> rings;  // by position; the last one is what the next row needs
    int64_t decoder_low = 0, decoder_end = 0;
    int64_t prompt_end = 0;
    bool poisoned = false;
    int64_t announced_at = -1;  // position of the id that stood behind a scored chunk
    int32_t announced = 0;
    std::vector<int32_t> left;
    int64_t length() const { return static_cast<int64_t>(rings.size()); }
  };
  struct Snapshot {
    std::vector<uint64_t> rings;
    int64_t decoder_low = 0, decoder_end = 0;
    bool poisoned = false;
    bool encoder_only = false;
  };

  bool require(bool ok, const std::string& what) {
    if (!ok && fault.empty()) fault = "step " + std::to_string(steps_) + ": " + what;
    return ok;
  }
  Block* block(BlockId id) {
    if (!require(id >= 0 && static_cast<size_t>(id) < blocks_.size(), "there is no such block"))
      return nullptr;
    return &blocks_[static_cast<size_t>(id)];
  }
  Slot* slot(SlotId id) {
    const auto it = slots_.find(id);
    require(it != slots_.end(), "slot " + std::to_string(id) + " is not open");
    return it == slots_.end() ? nullptr : &it->second;
  }

  void command(const CacheCommand& c) {
    using Kind = CacheCommand::Kind;
    if (c.kind == Kind::kOpenSlot) {
      require(slots_.try_emplace(c.slot).second, "a slot is opened twice");
      ++admissions;
      return;
    }
    if (c.kind == Kind::kDropSnapshot) {
      require(snapshots_.erase(c.value) == 1, "drops a snapshot that is not there");
      return;
    }
    if (c.kind == Kind::kCopyBlock) {
      Block* from = block(static_cast<BlockId>(c.value));
      Block* to = block(c.block);
      if (from == nullptr || to == nullptr) return;
      require(to->refs == 1, "copies into a block that is shared or nobody's");
      to->state = from->state;
      return;
    }
    if (Slot* s = slot(c.slot)) slot_command(c, *s);
  }

  void slot_command(const CacheCommand& c, Slot& s) {
    using Kind = CacheCommand::Kind;
    switch (c.kind) {
      case Kind::kCloseSlot:
        for (const BlockId b : s.table) --block(b)->refs;
        slots_.erase(c.slot);
        break;
      case Kind::kAppendBlock:
        if (Block* b = block(c.block)) ++b->refs;
        s.table.push_back(c.block);
        break;
      case Kind::kTruncate:
        if (!require(c.value >= 0 && c.value <= s.length(), "truncates to more than there is"))
          return;
        s.rings.resize(static_cast<size_t>(c.value));
        s.decoder_end = std::min(s.decoder_end, c.value);
        break;
      case Kind::kSnapshot:
        snapshots_[c.value] = {s.rings, s.decoder_low, s.decoder_end, s.poisoned, c.block != 0};
        break;
      case Kind::kRestore:
        restore(c.value, c.block, s);
        break;
      default:
        require(false, "a command that this device does not know");
    }
  }

  // The snapshot's rings as they were `cut` positions before it.
  void restore(int64_t number, int64_t cut, Slot& s) {
    const auto it = snapshots_.find(number);
    if (!require(it != snapshots_.end(), "restores a snapshot that is not there")) return;
    const Snapshot& from = it->second;
    require(s.rings.empty(), "restores into a sequence that has begun");
    s.rings = from.rings;
    if (!require(cut >= 0 && cut < s.length(), "cuts a snapshot back to nothing")) return;
    s.rings.resize(s.rings.size() - static_cast<size_t>(cut));
    s.poisoned = from.poisoned;
    s.decoder_low = from.encoder_only ? s.length() : from.decoder_low;
    s.decoder_end = from.encoder_only ? s.length() : std::min(from.decoder_end, s.length());
    rows_shared += s.length();
    const auto held = static_cast<int64_t>(s.table.size()) * kBlockPositions;
    for (int64_t p = 0; p < std::min(s.length(), held); ++p)
      if (!require(stored(s, p) == s.rings[static_cast<size_t>(p)],
                   "a cached block is not what its name says"))
        return;
  }

  uint64_t& stored(Slot& s, int64_t position) {
    Block& b =
        blocks_[static_cast<size_t>(s.table[static_cast<size_t>(position / kBlockPositions)])];
    return b.state[static_cast<size_t>(position % kBlockPositions)];
  }

  // No step is longer than one chunk beside the replies, and no reply misses a step.
  void check_rows(const StepPlan& plan) {
    int64_t filled = 0;
    for (const Slice& s : plan.slices) {
      const bool replayed = s.source == TokenSource::kGiven && s.rows > kGivenRowsMax;
      if (s.row_class == RowClass::kPrompt || replayed) filled += s.rows;
    }
    require(filled <= rules_.prefill_rows, "more prompt rows than one chunk");
    for (const auto& [id, s] : slots_) {
      const bool has_rows = std::any_of(plan.slices.begin(), plan.slices.end(),
                                        [id = id](const Slice& x) { return x.slot == id; });
      require(s.left.empty() || has_rows, "a reply that generates has no rows in a step");
    }
  }

  std::vector<int32_t> tokens_of(const StepPlan& plan, const Slice& s, const Slot& slot) {
    if (s.source == TokenSource::kDevice) {
      if (!require(static_cast<size_t>(s.rows) <= slot.left.size(),
                   "asks for ids that the last step did not leave"))
        return {};
      return {slot.left.begin(), slot.left.begin() + s.rows};
    }
    const auto from = plan.tokens.begin() + s.token_offset;
    return {from, from + s.rows};
  }

  void slice(const StepPlan& plan, const Slice& s, const SampleSpec* sample,
             std::vector<SampledTokens>& results) {
    Slot* found = slot(s.slot);
    if (found == nullptr) return;
    Slot& to = *found;
    const std::vector<int32_t> ids = tokens_of(plan, s, to);
    if (!require(s.first_position == to.length(), "rows do not follow the sequence")) return;
    const bool as_announced = to.announced_at != s.first_position || to.announced == ids[0];
    if (!require(as_announced, "another id follows a scored chunk than it was scored with")) return;
    for (const int32_t id : ids) {
      if (!compute(to, id)) return;
    }
    if (s.row_class == RowClass::kPrompt) to.prompt_end = to.length();
    const int64_t first_decoder = to.length() - s.decoder_rows;
    if (s.decoder_rows > 0) {
      if (first_decoder != to.decoder_end) to.decoder_low = first_decoder;
      to.decoder_end = to.length();
    }
    to.left.clear();
    if (sample == nullptr) return;
    const int64_t sampled = to.length() - s.logits_rows;
    require(to.decoder_low <= std::max<int64_t>(0, sampled - kSimWindow + 1),
            "samples a row whose decoder window is not there");
    SampledTokens out;
    out.slot = s.slot;
    score(plan, s, *sample, to, out);
    if (sample->verify_rows > 0) return verify(to, ids, *sample, std::move(out), results);
    results.push_back(std::move(out));
  }

  // What is said of a token follows from all before it, and from itself.
  void score(const StepPlan& plan, const Slice& s, const SampleSpec& sample, Slot& to,
             SampledTokens& out) {
    if (sample.scored_rows == 0) return;
    require(sample.scored_rows + sample.verify_rows == s.rows && s.decoder_rows == s.rows,
            "rows of a scored chunk that are not scored");
    const size_t behind = static_cast<size_t>(s.token_offset) + 1;
    for (int32_t r = 0; r < sample.scored_rows; ++r) {
      const int32_t next = plan.tokens[behind + static_cast<size_t>(r)];
      const int64_t at = s.first_position + r;
      const uint64_t said = sim_digest(to.rings[static_cast<size_t>(at)], next);
      out.scores.push_back({-static_cast<float>(said % 1000), {}, 1});
      to.announced_at = at + 1;
      to.announced = next;
    }
  }

  bool compute(Slot& s, int32_t id) {
    const int64_t p = s.length();
    const auto at = static_cast<size_t>(p / kBlockPositions);
    if (!require(at < s.table.size(), "a row without a block")) return false;
    if (!require(blocks_[static_cast<size_t>(s.table[at])].refs == 1,
                 "writes into a block that another sequence shares"))
      return false;
    const uint64_t before = p == 0 ? 1 : stored(s, p - 1);
    if (!require(p == 0 || before == s.rings.back(), "blocks and rings disagree")) return false;
    s.poisoned |= id == kPoison;
    const uint64_t digest = sim_digest(before, id);
    stored(s, p) = digest;
    s.rings.push_back(digest);
    return true;
  }

  void verify(Slot& s, const std::vector<int32_t>& ids, const SampleSpec& sample, SampledTokens out,
              std::vector<SampledTokens>& results) {
    const int64_t first = s.length() - sample.verify_rows;
    require(sample.position == first + 1, "samples a position that does not follow its rows");
    const auto drafts = std::span(ids).last(static_cast<size_t>(sample.verify_rows) - 1);
    for (size_t r = 0; r <= drafts.size(); ++r) {
      if (s.poisoned && first + static_cast<int64_t>(r) + 1 >= s.prompt_end + kPoisonRows) {
        out.status = Status(StatusCode::kInternal, "NaN in a row", "", "non_finite_logits");
        results.push_back(std::move(out));
        return;
      }
      const int32_t token =
          sim_next_token(s.rings[static_cast<size_t>(first) + r], rules_.eos_weight);
      out.accepted.push_back(token);
      if (r == drafts.size() || drafts[r] != token) break;
    }
    const auto kept = first + static_cast<int64_t>(out.accepted.size());
    s.rings.resize(static_cast<size_t>(kept));
    s.decoder_end = std::min(s.decoder_end, kept);
    draft(s, sample, out);
    s.left = {out.accepted.back()};
    s.left.insert(s.left.end(), out.drafts.begin(), out.drafts.end());
    results.push_back(std::move(out));
  }

  void draft(const Slot& s, const SampleSpec& sample, SampledTokens& out) {
    uint64_t h = sim_digest(s.rings.back(), out.accepted.back());
    for (int32_t i = 0; i < sample.draft_rows; ++i) {
      const int32_t right = sim_next_token(h, rules_.eos_weight);
      const bool is_right = mix(h, 77) % 100 < rules_.skill;
      out.drafts.push_back(is_right ? right : 8);
      out.draft_confidence.push_back(is_right ? 2.0F : -1.0F);
      h = sim_digest(h, out.drafts.back());
    }
  }

  const SimRules rules_;
  std::vector<Block> blocks_;
  std::map<SlotId, Slot> slots_;
  std::map<int64_t, Snapshot> snapshots_;
  int steps_ = 0;
};

}  // namespace tensorfold::scripted
