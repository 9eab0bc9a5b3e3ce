// DraftPause: when drafting costs a sequence more than it gives, the drafter's own time is lost: it
// pauses, and is looked at again later. Counted in rounds, not in time. Plain data of the engine
// thread, one per sequence.
//
// What counts is DepthPolicy::promise: what a round's drafts are expected to give, by the drafter's
// confidence and all that was learned of how far to trust it. Outcomes come in by that learning
// only: by themselves they vary by two tokens a round, and a few of them decide nothing. What
// drafting is expected to have lost since it last paid for itself is summed up (Page's test: Page,
// "Continuous inspection schemes", 1954); a sum of so many runs of the drafter is enough. It begins
// with what drafting promised others lately.
//
// While it pauses the drafter runs once now and then, only to see what it promises. In the long run
// looks take a fixed share of the time, so they are frequent where the drafter is cheap. A pause
// that has just been decided rests on a few rounds of one hard stretch: the first look comes soon,
// and each that promises nothing makes the next wait longer, until that share is reached.
#pragma once

#include <algorithm>

#include "engine/draft/draft_constants.h"

namespace tensorfold {

// The drafter's time for one sequence and round.
struct DraftPrice {
  double tokens = 0;  // that it gives elsewhere
  double steps = 0;   // in steps without drafts
};

class DraftPause {
 public:
  static constexpr int kPauseRoundsMin = 4;
  static constexpr int kPauseRoundsMax = 512;
  static constexpr int kWaitGrowth = 2;
  static constexpr double kKnownMost = 0.9;   // of the sum, by what is known before
  static constexpr double kTrialStart = 0.5;  // of it, when a look leads on

  explicit DraftPause(const DraftConstants& constants = kDraftConstants) : constants_(constants) {}

  // A new sequence. `others`: what drafting has promised others. It begins paused without drafts.
  void begin(double others, bool drafts, const DraftPrice& price) {
    lost_ = std::clamp(-others * constants_.promise_prior_rounds, 0.0, kKnownMost * most(price));
    if (!drafts) wait(look_rounds(price));
  }
  // Rounds between two looks, where drafting has long given nothing.
  int look_rounds(const DraftPrice& price) const {
    const double rounds = price.steps / constants_.look_share;
    return static_cast<int>(std::clamp<double>(rounds, kPauseRoundsMin, kPauseRoundsMax));
  }

  // Drafts lie ready and promise so much. True: it pauses from now on.
  bool weigh(double promise, const DraftPrice& price) {
    if (looking_) {
      looking_ = false;
      lost_ = kTrialStart * most(price);
      if (promise < 0) wait_longer(price);
      return false;
    }
    lost_ = std::max(0.0, lost_ - promise);
    if (lost_ == 0) waited_ = 0;  // it paid for itself
    if (lost_ <= most(price)) return false;
    wait_longer(price);
    return true;
  }
  // Asked once a round: should drafts be proposed behind it?
  bool propose() {
    if (rounds_left_ == 0) return true;
    looking_ = --rounds_left_ == 0;
    return looking_;
  }
  bool looking() const { return looking_; }
  bool paused() const { return rounds_left_ > 0 || looking_; }
  int rounds_left() const { return rounds_left_; }

 private:
  double most(const DraftPrice& price) const { return constants_.lost_runs * price.tokens; }
  void wait(int rounds) { rounds_left_ = waited_ = rounds; }
  void wait_longer(const DraftPrice& price) {
    const int longest = look_rounds(price);
    const int first = static_cast<int>(constants_.first_look * longest);
    const int next = waited_ == 0 ? first : kWaitGrowth * waited_;
    wait(std::clamp(next, kPauseRoundsMin, longest));
  }

  DraftConstants constants_;
  double lost_ = 0;  // tokens, since drafting last gave something
  int rounds_left_ = 0;
  int waited_ = 0;        // rounds, before the last look; 0: drafting has paid for itself since
  bool looking_ = false;  // the drafter runs, or ran, only to see what it promises
};

}  // namespace tensorfold
