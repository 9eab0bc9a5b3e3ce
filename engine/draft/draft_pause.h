// DraftPause: when drafting keeps costing a sequence more than it gives, the drafter's own time is
// lost: it pauses, and is tried again later, each time later while it keeps failing. Counted in
// rounds, so that it is a function of the sequence's own past. Plain data of the engine thread, one
// per sequence.
#pragma once

#include <algorithm>

#include "engine/draft/draft_constants.h"

namespace tensorfold {

class DraftPause {
 public:
  static constexpr int kTrialRounds = 8;   // at least, before drafting is judged
  static constexpr int kPauseRounds = 64;  // the first pause
  static constexpr int kPauseRoundsMax = 1024;
  static constexpr int kRecoveredRounds =
      64;  // drafting for so long: the next pause is short again

  explicit DraftPause(const DraftConstants& constants = kDraftConstants)
      : weight_(1 / constants.gain_rounds) {}

  // A round with the drafter running gave the sequence `gain` tokens (DepthPolicy::gain). True: it
  // pauses from now on.
  bool record(double gain) {
    if (paused_left_ > 0) return false;
    ++rounds_;
    mean_ += std::max(weight_, 1.0 / rounds_) * (gain - mean_);
    if (rounds_ >= kRecoveredRounds && mean_ > 0) pause_rounds_ = kPauseRounds;
    if (rounds_ < kTrialRounds || mean_ >= 0) return false;
    paused_left_ = pause_rounds_;
    pause_rounds_ = std::min(2 * pause_rounds_, kPauseRoundsMax);
    rounds_ = 0;
    mean_ = 0;
    return true;
  }
  // Asked once a round: should drafts be proposed behind it?
  bool propose() {
    if (paused_left_ == 0) return true;
    return --paused_left_ == 0;
  }
  bool paused() const { return paused_left_ > 0; }
  int rounds_left() const { return paused_left_; }

 private:
  double weight_;
  double mean_ = 0;
  int rounds_ = 0;  // since it began, or began again
  int paused_left_ = 0;
  int pause_rounds_ = kPauseRounds;
};

}  // namespace tensorfold
