// GroupLife: what the engine loop of the head asks of ranks that can lose each other. Where there
// is one rank there is none of it.
//
// A step that fails, or a rank that goes silent while nothing runs, breaks the group: the loop ends
// the requests in flight and from then on asks regain() every turn. When the ranks are together
// again, resume() closes what was open, and work goes on. Owner: the engine thread.
#pragma once

#include <optional>
#include <string>

#include "engine/base/status.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

class GroupLife {
 public:
  struct Regained {
    bool kept = false;  // what is cached in memory is the same on all ranks; else it is on none
  };

  virtual ~GroupLife() = default;

  // While together, every turn: takes what the ranks tell. Not ok: one is lost (the message says
  // which and why).
  virtual Status check() = 0;
  // While apart, every turn; waits a little. nullopt: not yet, and `waits_for` says for what.
  virtual std::optional<Regained> regain(std::string& waits_for) = 0;
  // The first plan after it, commands only: it closes what requests had open. Not ok: apart again.
  virtual Status resume(const StepPlan& closing, const Regained& regained) = 0;
  // A rank that is being stopped and waits for replies to end: why nothing new is begun, or "".
  virtual std::string leaving() const = 0;
  // A turn without a step: other ranks need not wait for one.
  virtual void idle() = 0;
  // Nothing runs and nothing waits: a rank that is leaving may go.
  virtual void resting() = 0;
};

}  // namespace tensorfold
