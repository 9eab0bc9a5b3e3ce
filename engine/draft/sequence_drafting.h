// SequenceDrafting: what the head keeps of one sequence's drafting between steps: the drafts that
// lie ready, how likely they are, and whether the drafter runs at all. Plain data of the engine
// thread; the simulator (tests/bench/depth_sim.cc) drives the same code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "engine/draft/acceptance.h"
#include "engine/draft/depth_policy.h"
#include "engine/draft/draft_pause.h"

namespace tensorfold {

struct SequenceDrafting {
  Acceptance acceptance;
  DraftPause pause;
  bool begun = false;
  bool looking = false;   // the drafter runs, or ran, only to see how confident it is
  bool looked = false;    // in this round
  bool proposing = true;  // in the step that is being planned
  double experience_weight = 1 / kDraftConstants.experience_rounds;
  double promise_least = kDraftConstants.promise_least;

  SequenceDrafting() = default;
  explicit SequenceDrafting(const DraftConstants& constants)
      : acceptance(constants),
        pause(constants),
        experience_weight(1 / constants.experience_rounds),
        promise_least(constants.promise_least) {}

  // Once a round, before the depth is chosen. `confidence`: of the drafts that lie ready.
  bool begin_round(const DepthPolicy& policy, std::span<const float> confidence) {
    if (!begun) {
      pause.begin(policy.experience.gain);
      looking = pause.doubtful();
    }
    begun = true;
    looked = looking && !confidence.empty();
    if (looked) {
      looking = false;
      if (policy.promise(acceptance, confidence) < promise_least) {
        pause.go_on(policy.experience.gain);
        return proposing = false;
      }
    }
    const bool was_paused = pause.paused();
    proposing = pause.propose();
    if (was_paused && proposing) {
      // What was learned led to the pause; a look is to find out whether it still holds.
      acceptance.open_mind();
      looking = true;
    }
    return proposing;
  }

  // The round's outcome: `ready` drafts lay there with their `confidence`, the first `verified`
  // were checked, and `accepted` tokens came of it (accepted drafts and one more). True: drafting
  // pauses from now on.
  bool end_round(std::span<const int32_t> ready, std::span<const float> confidence,
                 int32_t verified, std::span<const int32_t> accepted, DepthPolicy& policy) {
    int32_t right = 0;
    int32_t known = 0;
    const size_t both =
        std::min({ready.size(), accepted.size(), static_cast<size_t>(kDraftRowsMax)});
    while (static_cast<size_t>(known) < both && right == known) {
      const auto at = static_cast<size_t>(known++);
      right += ready[at] == accepted[at];
    }
    acceptance.learn(confidence, known, right, policy.experience);
    // No token at all: the sequence failed.
    const auto kept = std::max(0, static_cast<int32_t>(accepted.size()) - 1);
    acceptance.count(verified, kept);
    if (ready.empty()) return false;
    const double gain = policy.gain(verified, kept);
    if (!pause.paused() || looked)
      policy.experience.gain += experience_weight * (gain - policy.experience.gain);
    return pause.record(gain, policy.experience.gain);
  }
};

}  // namespace tensorfold
