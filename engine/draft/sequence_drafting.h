// SequenceDrafting: what the head keeps of one sequence's drafting between steps: the drafts that
// lie ready, how likely they are, and whether the drafter runs at all. Plain data of the engine
// thread; the simulator (tests/bench/depth_sim.cc) drives the same code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "engine/draft/acceptance.h"
#include "engine/draft/depth_policy.h"
#include "engine/draft/draft_pause.h"

namespace tensorfold {

struct SequenceDrafting {
  static constexpr double kReplyMemory = 0.9;  // of one reply, in what is known of their length
  static constexpr double kReplyRoundsPrior = 10;

  Acceptance acceptance;
  DraftPause pause;
  bool begun = false;
  bool pausing = false;   // since this round
  bool proposing = true;  // in the step that is being planned
  int32_t outcomes = 0;   // drafts of the last round that have one
  int32_t right = 0;      // of them
  double experience_weight = 1 / kDraftConstants.experience_rounds;
  double promise_least = kDraftConstants.promise_least;

  SequenceDrafting() = default;
  explicit SequenceDrafting(const DraftConstants& constants)
      : acceptance(constants),
        pause(constants),
        experience_weight(1 / constants.experience_rounds),
        promise_least(constants.promise_least) {}

  // While its prompt is computed: should drafts be proposed behind it? Where drafting gives
  // others nothing, those drafts and the last ones of a short reply cost more than they could give;
  // so not, but for a look when there was none for long.
  bool begin_reply(DepthPolicy& policy) {
    if (begun) return proposing;
    begun = true;
    DraftExperience& known = policy.experience;
    const double rounds = (known.rounds + kReplyRoundsPrior) / (known.replies + 1);
    known.replies = kReplyMemory * known.replies + 1;
    known.rounds *= kReplyMemory;
    const DraftPrice price = policy.draft_price();
    proposing = known.promise >= price.tokens / rounds - promise_least ||
                known.dry_rounds >= pause.look_rounds(price);
    pause.begin(known.promise, proposing, price);
    return proposing;
  }

  // Once a round, before the depth is chosen. `confidence`: of the drafts that lie ready.
  bool begin_round(DepthPolicy& policy, std::span<const float> confidence) {
    begin_reply(policy);
    DraftExperience& known = policy.experience;
    ++known.rounds;
    ++known.dry_rounds;
    if (!confidence.empty()) {
      // What was learned led to the pause; a look is to find out whether it still holds.
      if (pause.looking()) acceptance.forget();
      known.dry_rounds = 0;
      const double promise = policy.promise(acceptance, confidence);
      known.promise += experience_weight * (promise - known.promise);
      pausing = pause.weigh(promise, policy.draft_price());
    }
    return proposing = pause.propose();
  }

  // The round's outcome: `ready` drafts lay there with their `confidence`, the first `verified`
  // were checked, and `accepted` tokens came of it (accepted drafts and one more). True: drafting
  // pauses from now on.
  bool end_round(std::span<const int32_t> ready, std::span<const float> confidence,
                 int32_t verified, std::span<const int32_t> accepted, DepthPolicy& policy) {
    right = outcomes = 0;
    const size_t both =
        std::min({ready.size(), accepted.size(), static_cast<size_t>(kDraftRowsMax)});
    while (static_cast<size_t>(outcomes) < both && right == outcomes) {
      const auto at = static_cast<size_t>(outcomes++);
      right += ready[at] == accepted[at];
    }
    acceptance.learn(confidence, outcomes, right, policy.experience);
    // No token at all: the sequence failed.
    acceptance.count(verified, std::max(0, static_cast<int32_t>(accepted.size()) - 1));
    return std::exchange(pausing, false);
  }
};

}  // namespace tensorfold
