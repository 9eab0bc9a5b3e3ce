// The two policies. Pure.
#include "engine/draft/depth_policy.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/sample/portable_math.h"

namespace tensorfold {
namespace {

class FixedDepth final : public DepthPolicy {
 public:
  explicit FixedDepth(int32_t depth) : depth_(depth) {}
  std::vector<int32_t> choose(std::span<const DepthQuery> queries, int32_t) const override {
    std::vector<int32_t> depths;
    for (const DepthQuery& q : queries) depths.push_back(std::min(depth_, q.available));
    return depths;
  }
  bool worth_drafting(const Acceptance&, int32_t) const override { return depth_ > 0; }

 private:
  const int32_t depth_;
};

class ExpectedGain final : public DepthPolicy {
 public:
  explicit ExpectedGain(const RowCost& cost) : cost_(cost) {
    TF_CHECK(cost.base >= 0 && cost.per_row > 0 && cost.draft >= 0);
  }

  std::vector<int32_t> choose(std::span<const DepthQuery> queries,
                              int32_t other_rows) const override {
    std::vector<int32_t> depths(queries.size(), 0);
    std::vector<double> survival(queries.size());
    for (size_t i = 0; i < queries.size(); ++i) survival[i] = chance(queries[i], 0);
    double tokens = static_cast<double>(queries.size());
    double time = cost_.base + cost_.per_row * (static_cast<double>(queries.size()) + other_rows);
    for (;;) {
      const auto best = std::max_element(survival.begin(), survival.end());
      // (tokens + s) / (time + row) > tokens / time
      if (best == survival.end() || *best * time <= tokens * cost_.per_row) return depths;
      const auto i = static_cast<size_t>(best - survival.begin());
      tokens += *best;
      time += cost_.per_row;
      ++depths[i];
      survival[i] *= chance(queries[i], depths[i]);
    }
  }

  // Tokens per time at the best depth against those of a row alone, with this sequence's share of
  // what every step costs.
  bool worth_drafting(const Acceptance& acceptance, int32_t sequences) const override {
    const double base = cost_.base / std::max(sequences, 1);
    const double serial = 1 / (base + cost_.per_row);
    double tokens = 1;
    double survival = 1;
    for (int32_t place = 0; place < kDraftRowsMax; ++place) {
      survival *= acceptance.rate(place);
      tokens += survival;
      if (tokens / (base + cost_.per_row * (2 + place) + cost_.draft) > serial) return true;
    }
    return false;
  }

 private:
  // Chance of the draft at `place`, given those before it; 0 where there is none.
  static double chance(const DepthQuery& q, int32_t place) {
    if (place >= q.available) return 0;
    const double seen = q.acceptance ? q.acceptance->rate(place) : 0.5;
    if (static_cast<size_t>(place) >= q.confidence.size()) return seen;
    const double logit = q.confidence[static_cast<size_t>(place)];
    return 0.5 * (seen + 1 / (1 + portable_exp(-logit)));
  }

  const RowCost cost_;
};

}  // namespace

std::unique_ptr<DepthPolicy> make_fixed_depth_policy(int32_t depth) {
  return std::make_unique<FixedDepth>(depth);
}

std::unique_ptr<DepthPolicy> make_expected_gain_policy(const RowCost& cost) {
  return std::make_unique<ExpectedGain>(cost);
}

}  // namespace tensorfold
