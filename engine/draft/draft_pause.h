// DraftPause: when drafting keeps not paying for a sequence, or the policy verifies none of its
// drafts, the drafter's own time is lost: it pauses for a while and is then tried again. Counted in
// rounds, so that it is a function of the sequence's own past. Plain data of the engine thread, one
// per sequence.
#pragma once

#include <cstdint>

namespace tensorfold {

class DraftPause {
 public:
  // Of `available` drafts the policy chose to verify `depth`, and found drafting `worth` it.
  void chose(int32_t available, int32_t depth, bool worth) {
    if (available == 0) return;
    unused_rounds_ = depth == 0 || !worth ? unused_rounds_ + 1 : 0;
    if (unused_rounds_ < kUnusedRounds) return;
    unused_rounds_ = 0;
    paused_rounds_ = kPausedRounds;
  }
  // Asked once a round: should drafts be proposed behind it?
  bool propose() {
    if (paused_rounds_ == 0) return true;
    --paused_rounds_;
    return false;
  }

 private:
  static constexpr int kUnusedRounds = 8;
  static constexpr int kPausedRounds = 64;
  int unused_rounds_ = 0;
  int paused_rounds_ = 0;
};

}  // namespace tensorfold
