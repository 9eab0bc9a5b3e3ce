#include "daemon/service/oom_score.h"

#include <filesystem>
#include <fstream>
#include <iterator>

namespace tensorfold::service {
namespace {

bool has_gb10(const std::string& root) {
  std::error_code error;
  std::filesystem::directory_iterator gpu(root + "/proc/driver/nvidia/gpus", error);
  for (; !error && gpu != std::filesystem::directory_iterator(); gpu.increment(error)) {
    std::ifstream in(gpu->path() / "information");
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (text.find("GB10") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

bool offer_to_oom_killer(const std::string& root) {
  if (!has_gb10(root)) return false;
  std::ofstream out(root + "/proc/self/oom_score_adj");
  out << kOomScoreMax << std::flush;
  return out.good();
}

}  // namespace tensorfold::service
