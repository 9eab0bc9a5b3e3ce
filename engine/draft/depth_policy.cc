// The two policies. Owner: the engine thread.
#include "engine/draft/depth_policy.h"

#include <algorithm>
#include <array>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

class FixedDepth final : public DepthPolicy {
 public:
  explicit FixedDepth(int32_t depth) : DepthPolicy(kDraftConstants), depth_(depth) {}
  std::vector<int32_t> choose(std::span<const DepthQuery> queries, int32_t) override {
    std::vector<int32_t> depths;
    for (const DepthQuery& q : queries) depths.push_back(std::min(depth_, q.available));
    return depths;
  }
  void observe(int64_t) override {}
  double promise(const Acceptance&, std::span<const float>) const override {
    return depth_ > 0 ? 1 : -1;
  }
  DraftPrice draft_price() const override { return {0, 1}; }

 private:
  const int32_t depth_;
};

class ExpectedGain final : public DepthPolicy {
 public:
  ExpectedGain(const CostTable& costs, const DraftConstants& constants)
      : DepthPolicy(constants),
        costs_(costs),
        memory_(1 - 1 / constants.price_rounds),
        prior_rounds_(constants.price_prior_rounds) {
    TF_CHECK_MSG(costs_.check().ok(), "the cost table was not checked");
  }

  std::vector<int32_t> choose(std::span<const DepthQuery> queries, int32_t prompt_rows) override;

  void observe(int64_t tokens) override {
    if (step_.sequences == 0 || step_.prompt_rows > 0) return;
    Price& price = prices_[static_cast<size_t>(step_.sequences)];
    price.tokens = memory_ * price.tokens + static_cast<double>(tokens);
    price.time_us = memory_ * price.time_us + step_time(step_, step_.draft_rows);
  }

  double promise(const Acceptance& acceptance, std::span<const float> confidence) const override {
    if (step_.sequences == 0) return 0;
    const double plain_us = costs_.step(step_.sequences, step_.sequences);
    double best = 0;
    double tokens = 0;
    double survival = 1;
    const auto drafts = static_cast<int32_t>(std::min<size_t>(confidence.size(), kDraftRowsMax));
    for (int32_t k = 0; k < drafts; ++k) {
      survival *= acceptance.chance(k, confidence[static_cast<size_t>(k)], experience);
      tokens += survival;
      const double rows_us = costs_.step(step_.sequences, step_.sequences + k + 1) - plain_us;
      best = std::max(best, tokens - without() * rows_us);
    }
    return best - draft_price().tokens;
  }

  DraftPrice draft_price() const override {
    const int32_t n = std::max(1, step_.sequences);
    const double steps = costs_.draft(n) / costs_.step(n, n);
    if (step_.sequences == 0) return {0, steps};
    return {without() * costs_.draft(n) / n, steps};
  }

 private:
  // What time gives when one of the sequences does without drafts, in tokens per microsecond: that
  // sequence's token a step, and what the others' time has given. For one sequence alone it is a
  // figure of the table; the running price would lag behind its text.
  double without() const {
    const double n = step_.sequences;
    return 1 / costs_.step(step_.sequences, step_.sequences) + step_.price * (n - 1) / n;
  }

  struct Price {
    double tokens = 0;
    double time_us = 0;
  };
  struct Step {
    int32_t sequences = 0;
    int32_t drafting = 0;  // of them
    int32_t prompt_rows = 0;
    int32_t draft_rows = 0;
    double price = 0;  // tokens per microsecond
  };

  // Without what prompt rows take by themselves: that time passes whatever is chosen.
  double step_time(const Step& step, int32_t draft_rows) const {
    const double draft = costs_.draft(step.drafting);
    if (step.prompt_rows > 0) return draft + costs_.prompt_row_us * (step.sequences + draft_rows);
    return draft + costs_.step(step.sequences, step.sequences + draft_rows);
  }

  // Of the step's time. `tokens`: expected with r draft rows.
  double price_of(std::span<const double> tokens) {
    Price& price = prices_[static_cast<size_t>(step_.sequences)];
    if (price.time_us <= 0) {
      Step plain = step_;
      plain.prompt_rows = 0;
      double best = 0;
      for (size_t r = 0; r < tokens.size(); ++r)
        best = std::max(best, tokens[r] / step_time(plain, static_cast<int32_t>(r)));
      price.time_us = prior_rounds_ * step_time(plain, 0);
      price.tokens = best * price.time_us;
    }
    return price.tokens / price.time_us;
  }

  double chance(const DepthQuery& q, int32_t place) const {
    if (place >= q.available) return 0;
    if (q.acceptance == nullptr) return 0.5;
    const auto at = static_cast<size_t>(place);
    return q.acceptance->chance(place, at < q.confidence.size() ? q.confidence[at] : 0.0F,
                                experience);
  }

  const CostTable costs_;
  const double memory_;        // of one round
  const double prior_rounds_;  // that the first price counts for
  std::array<Price, kSequencesMax + 1> prices_;
  Step step_;  // chosen last
};

std::vector<int32_t> ExpectedGain::choose(std::span<const DepthQuery> queries,
                                          int32_t prompt_rows) {
  std::vector<int32_t> depths(queries.size(), 0);
  step_ = {};
  if (queries.empty()) return depths;
  TF_CHECK_LE(queries.size(), static_cast<size_t>(kSequencesMax));
  step_.sequences = static_cast<int32_t>(queries.size());
  step_.prompt_rows = prompt_rows;
  for (const DepthQuery& q : queries) step_.drafting += q.drafting;

  // The drafts of all sequences, likeliest first, and the tokens expected with the first r of them.
  std::vector<size_t> order;
  std::vector<double> tokens = {static_cast<double>(queries.size())};
  std::vector<double> survival(queries.size());
  for (size_t i = 0; i < queries.size(); ++i) survival[i] = chance(queries[i], 0);
  std::vector<int32_t> taken(queries.size(), 0);
  for (;;) {
    const auto best = std::max_element(survival.begin(), survival.end());
    if (*best <= 0) break;
    const auto i = static_cast<size_t>(best - survival.begin());
    order.push_back(i);
    tokens.push_back(tokens.back() + *best);
    survival[i] *= chance(queries[i], ++taken[i]);
  }

  step_.price = price_of(tokens);
  size_t rows = 0;
  double worth = tokens[0] - step_.price * step_time(step_, 0);
  for (size_t r = 1; r < tokens.size(); ++r) {
    const double w = tokens[r] - step_.price * step_time(step_, static_cast<int32_t>(r));
    if (w > worth) worth = w, rows = r;
  }
  step_.draft_rows = static_cast<int32_t>(rows);
  for (size_t r = 0; r < rows; ++r) ++depths[order[r]];
  return depths;
}

}  // namespace

std::unique_ptr<DepthPolicy> make_fixed_depth_policy(int32_t depth) {
  return std::make_unique<FixedDepth>(depth);
}

std::unique_ptr<DepthPolicy> make_expected_gain_policy(const CostTable& costs,
                                                       const DraftConstants& constants) {
  return std::make_unique<ExpectedGain>(costs, constants);
}

}  // namespace tensorfold
