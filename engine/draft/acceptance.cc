// Running acceptance by place. Owner: the engine thread.
#include "engine/draft/acceptance.h"

#include "engine/base/check.h"

namespace tensorfold {

void Acceptance::record(int32_t verified, int32_t accepted) {
  TF_CHECK(verified >= 0 && verified <= kDraftRowsMax);
  TF_CHECK(accepted >= 0 && accepted <= verified);
  drafted_ += verified;
  accepted_ += accepted;
  // A place behind the first wrong draft was never really tried.
  for (int32_t i = 0; i < verified && i <= accepted; ++i) {
    double& rate = rate_[static_cast<size_t>(i)];
    rate += kMemory * ((i < accepted ? 1.0 : 0.0) - rate);
  }
}

}  // namespace tensorfold
