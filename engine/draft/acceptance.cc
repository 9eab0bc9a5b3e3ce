// Running acceptance by place. Owner: the engine thread.
#include "engine/draft/acceptance.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tensorfold {

void Acceptance::record(int32_t verified, int32_t accepted) {
  TF_CHECK(verified >= 0 && verified <= kDraftRowsMax);
  TF_CHECK(accepted >= 0 && accepted <= verified);
  drafted_ += verified;
  accepted_ += accepted;
  // A place behind the first wrong draft was never really tried.
  for (int32_t i = 0; i < verified && i <= accepted; ++i) {
    const auto at = static_cast<size_t>(i);
    const double before = rate(i);
    const double weight = std::max(kMemory, 1.0 / static_cast<double>(kPriorWeight + tried_[at]));
    ++tried_[at];
    rate_[at] = before + weight * ((i < accepted ? 1.0 : 0.0) - before);
  }
}

double Acceptance::rate(int32_t place) const {
  const auto at = static_cast<size_t>(place);
  if (place == 0 || tried_[at] > 0) return rate_[at];
  return std::max(rate_[at], rate(place - 1));
}

}  // namespace tensorfold
