// On a GB10 the GPU driver holds the model's memory, which the kernel's OOM killer does not count:
// it would end something small and innocent. There the service offers itself first.
#pragma once

#include <string>

namespace tensorfold::service {

inline constexpr int kOomScoreMax = 1000;  // the kernel's highest oom_score_adj

// Sets this process's oom_score_adj to kOomScoreMax on a GB10; elsewhere it changes nothing.
// Returns whether it did. `root` lets tests use a recorded tree.
bool offer_to_oom_killer(const std::string& root = "");

}  // namespace tensorfold::service
