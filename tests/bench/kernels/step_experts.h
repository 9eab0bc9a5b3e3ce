// Which experts the rows of a benched step go to: drawn uniformly, or few in all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/bench/kernels/step_rank.h"

namespace tensorfold::bench {

// Six different experts a row, each as likely as any.
inline std::vector<int32_t> uniform_experts(int rows, std::mt19937& random) {
  std::vector<int32_t> ids;
  for (int r = 0; r < rows; ++r) {
    const size_t first = ids.size();
    while (ids.size() - first < static_cast<size_t>(kExpertsPerToken)) {
      const auto e = static_cast<int32_t>(random() % kExperts);
      if (std::find(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), e) == ids.end())
        ids.push_back(e);
    }
  }
  return ids;
}

// Six experts a row, of `distinct` in all.
inline std::vector<int32_t> draw_experts(int rows, int distinct, std::mt19937& random) {
  std::vector<int32_t> pool(kExperts);
  for (int e = 0; e < kExperts; ++e) pool[static_cast<size_t>(e)] = e;
  std::shuffle(pool.begin(), pool.end(), random);
  pool.resize(static_cast<size_t>(std::clamp(distinct, kExpertsPerToken, kExperts)));
  std::vector<int32_t> ids;
  for (int r = 0; r < rows; ++r) {
    // Every expert of the pool comes up: rows take their six from a place that moves on.
    std::vector<int32_t> row;
    for (size_t i = 0; row.size() < static_cast<size_t>(kExpertsPerToken); ++i) {
      const size_t at =
          i == 0 || r * kExpertsPerToken + static_cast<int>(i) < static_cast<int>(pool.size())
              ? (static_cast<size_t>(r * kExpertsPerToken) + i) % pool.size()
              : random() % pool.size();
      if (std::find(row.begin(), row.end(), pool[at]) == row.end()) row.push_back(pool[at]);
    }
    ids.insert(ids.end(), row.begin(), row.end());
  }
  return ids;
}

inline int distinct_of(const std::vector<int32_t>& ids) {
  std::vector<int32_t> sorted = ids;
  std::sort(sorted.begin(), sorted.end());
  return static_cast<int>(std::unique(sorted.begin(), sorted.end()) - sorted.begin());
}

}  // namespace tensorfold::bench
