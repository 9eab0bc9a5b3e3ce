#include "daemon/service/oom_score.h"

#include <fstream>

#include "daemon/service/gpu_kind.h"

namespace tensorfold::service {

bool offer_to_oom_killer(const std::string& root) {
  if (gpu_kind(root) != GpuKind::kGb10) return false;
  std::ofstream out(root + "/proc/self/oom_score_adj");
  out << kOomScoreMax << std::flush;
  return out.good();
}

}  // namespace tensorfold::service
