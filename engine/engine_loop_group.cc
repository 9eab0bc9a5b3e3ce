// What the engine loop does when its model's ranks lose each other and come together again
// (engine/engine_loop.h, engine/group/group_life.h). Owner: the engine thread.
#include <utility>

#include "engine/base/check.h"
#include "engine/engine_loop.h"

namespace tensorfold {

using State = EngineStats::State;

// False: apart; the turn is spent on coming together.
bool EngineLoop::together() {
  if (options_.group == nullptr) return true;
  if (!apart()) {
    const Status status = options_.group->check();
    if (status.ok()) {
      watch_leaving();
      return true;
    }
    lose(status);
  }
  std::string waits_for;
  const auto regained = options_.group->regain(waits_for);
  if (regained) {
    come_back(*regained);
  } else if (const std::string detail = lost_.message() + "; " + waits_for;
             parts_.board.detail() != detail) {
    parts_.board.set_state(State::kWaiting, detail);
  }
  return !apart();
}

// The requests in flight end with one clear status; new ones are refused until ranks are together.
void EngineLoop::lose(const Status& why) {
  lost_ = unavailable(why.message(), why.reason().empty() ? "peer_lost" : why.reason());
  held_ = false;
  // First: whoever hears of the end of a request must not get in again.
  parts_.board.set_state(State::kWaiting, why.message());
  end_requests(
      unavailable("the reply was broken off: " + why.message() + "; try again", lost_.reason()));
}

void EngineLoop::come_back(const GroupLife::Regained& regained) {
  // What was open is closed and, unless memory is the same on all ranks, everything forgotten.
  if (!regained.kept) planner_.flush_cache(false);
  spilled_.poll();
  const StepPlan closing = planner_.plan({}, {}, 0);
  TF_CHECK(closing.slices.empty());
  const Status status = options_.group->resume(closing, regained);
  if (!status.ok()) {
    lost_ = unavailable(status.message(), "peer_lost");
    return;
  }
  lost_ = {};
  parts_.board.set_state(State::kReady, "ready");
  publish_gauges();
}

// A rank that is being stopped: what runs ends, nothing new begins, then it may go.
void EngineLoop::watch_leaving() {
  const std::string who = options_.group->leaving();
  if (who.empty() == held_) {
    held_ = !who.empty();
    parts_.board.set_state(held_ ? State::kWaiting : State::kReady, held_ ? who : "ready");
  }
  if (held_ && planner_.busy() == 0 && waiting_.empty() && set_aside_.empty())
    options_.group->resting();
}

}  // namespace tensorfold
