// DraftPause: when drafting keeps costing a sequence more than it gives, the drafter's own time is
// lost: it pauses, and is tried again later, each time later while it keeps failing. Counted in
// rounds, not in time. Plain data of the engine thread, one per sequence.
//
// What counts is the running mean of DepthPolicy::gain. It begins with what is known already: of a
// new sequence, what drafting has given others lately; of a new trial, what it gave this one. So a
// trial is short where everything speaks against it, and one bad round ends nothing that went well.
// Where drafting gives others nothing either, the first pause is a long one.
//
// Before a new trial, and at the start where drafting gave others nothing, the drafter runs once
// and only its confidence is looked at (SequenceDrafting): where that promises too little the pause
// goes on. A look costs one run of the drafter, a trial at least kDoubtfulTrialRounds.
#pragma once

#include <algorithm>

#include "engine/draft/draft_constants.h"

namespace tensorfold {

class DraftPause {
 public:
  static constexpr int kTrialRounds = 6;          // at least, before drafting is judged
  static constexpr int kDoubtfulTrialRounds = 3;  // where what is known speaks against it
  static constexpr int kDoubtfulPauseFactor = 2;  // of the first pause, where
  static constexpr double kOthersFail = -0.3;     // drafting gives others less than this
  static constexpr int kPauseRoundsMax = 512;
  static constexpr int kRecoveredRounds = 64;    // drafting so long: the next pause is short again
  static constexpr double kGainKnownMax = 0.5;   // what is known before counts at most so far
  static constexpr double kGainKnownMin = -0.2;  // and against it
  static constexpr double kLookGrowthMax = 2;    // of the rounds between looks
  static constexpr double kOthersHopeless = -0.5;  // looks are rare where others get less than this
  static constexpr double kRareLooks = 6;          // times as far apart

  explicit DraftPause(const DraftConstants& constants = kDraftConstants)
      : constants_(constants), pause_rounds_(static_cast<int>(constants.pause_rounds)) {}

  // A new sequence. `gain`: what drafting has given others.
  void begin(double gain) { mean_ = bounded(gain); }

  // A round with the drafter running gave the sequence `gain` tokens; lately it has given `others`
  // to all sequences. True: it pauses from now on.
  bool record(double gain, double others) {
    if (paused_left_ > 0) return false;
    if (rounds_++ == 0) trial_rounds_ = mean_ < 0 ? kDoubtfulTrialRounds : kTrialRounds;
    const double weight =
        std::max(1 / constants_.gain_rounds, 1 / (constants_.gain_prior_rounds + rounds_));
    mean_ += weight * (gain - mean_);
    if (rounds_ >= kRecoveredRounds && mean_ > 0)
      pause_rounds_ = static_cast<int>(constants_.pause_rounds);
    if (rounds_ < trial_rounds_ || mean_ >= 0) return false;
    const int first = static_cast<int>(constants_.pause_rounds);
    if (others < kOthersFail) pause_rounds_ = std::max(pause_rounds_, kDoubtfulPauseFactor * first);
    paused_left_ = std::min(pause_rounds_, kPauseRoundsMax);
    pause_rounds_ = std::min(2 * paused_left_, kPauseRoundsMax);
    rounds_ = 0;
    mean_ = bounded(mean_);
    return true;
  }
  // What is known speaks against drafting.
  bool doubtful() const { return mean_ < 0; }
  // A look promised too little; drafting has given `others` that much lately.
  void go_on(double others) {
    const double far = others < kOthersHopeless ? kRareLooks : 1;
    paused_left_ =
        std::min(static_cast<int>(constants_.look_rounds * look_growth_ * far), kPauseRoundsMax);
    look_growth_ = std::min(look_growth_ * constants_.look_growth, kLookGrowthMax);
  }
  // Asked once a round: should drafts be proposed behind it?
  bool propose() {
    if (paused_left_ == 0) return true;
    return --paused_left_ == 0;
  }
  bool paused() const { return paused_left_ > 0; }
  int rounds_left() const { return paused_left_; }

 private:
  static double bounded(double gain) { return std::clamp(gain, kGainKnownMin, kGainKnownMax); }

  DraftConstants constants_;
  double mean_ = 0;
  int rounds_ = 0;  // since it began, or began again
  int trial_rounds_ = kTrialRounds;
  int paused_left_ = 0;
  int pause_rounds_;
  double look_growth_ = 1;
};

}  // namespace tensorfold
