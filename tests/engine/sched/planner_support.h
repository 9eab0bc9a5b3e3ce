// What the planner's tests share: sequences, slices, and commits of steps in which nothing ends.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sched/planner.h"

namespace tensorfold {

inline SequenceSpec spec(uint64_t request, int64_t prompt, int64_t reply, bool background = false) {
  SequenceSpec s;
  s.request = request;
  for (int64_t i = 0; i < prompt; ++i)
    s.prompt.push_back(static_cast<int32_t>((request * 31 + static_cast<uint64_t>(i)) % 1000));
  s.reply_tokens = reply;
  s.blocks = blocks_for(prompt + reply);
  s.background = background;
  return s;
}

inline const Slice* slice_of(const StepPlan& plan, SlotId slot) {
  for (const Slice& s : plan.slices) {
    if (s.slot == slot) return &s;
  }
  return nullptr;
}

// Commits a step in which nothing ends: chunks advance, generated rows give one token.
inline void commit_plain(Planner& planner, const StepPlan& plan) {
  for (const Slice& s : plan.slices) {
    const std::vector<int32_t> token = {7};
    planner.advance(
        s.slot, s.logits_rows > 0 ? std::span<const int32_t>(token) : std::span<const int32_t>(),
        0);
  }
}

}  // namespace tensorfold
