// PlanFlow: how the head's plans reach its workers while work flows: by a broadcast over the ranks'
// exchanges, where they wait next anyway. A worker that waits in an exchange is not to be kept
// there: each plan says whether the next one comes this way, and when there is no next one the head
// says that too. Then workers wait on the link again, where waiting costs nothing.
//
// A plan is one broadcast of kPlanFlowFirstBytes, its size first; what does not fit follows in a
// second one. Size 0: back to the link. Owner: the thread that drives the rank's model.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/cluster/collective.h"

namespace tensorfold {

inline constexpr size_t kPlanFlowFirstBytes = 4096;  // a step without masks fits
inline constexpr size_t kPlanFlowBytesMax = size_t{32} << 20;

class PlanFlow {
 public:
  // Head. An empty body: workers go back to the link.
  Status send(Collective& collective, std::span<const std::byte> body);
  // Worker: the next plan; empty: back to the link.
  Result<std::vector<std::byte>> receive(Collective& collective);

 private:
  std::vector<std::byte> first_, rest_;
};

}  // namespace tensorfold
