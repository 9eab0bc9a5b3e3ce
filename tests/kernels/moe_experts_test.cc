// moe_experts: against the formula one row and expert at a time, whatever rows share the call.
#include "kernels/moe_experts.h"

#include <algorithm>

#include "tests/kernels/ops_support.h"

namespace tensorfold::test {
namespace {

constexpr int kHidden = 64, kInner = 32, kExperts = 5, kTopk = 2;

struct Experts {
  std::vector<std::unique_ptr<TestWeight>> held;
  std::vector<ExpertWeights> views;

  Experts() {
    for (int e = 0; e <= kExperts; ++e) {
      const auto seed = static_cast<uint64_t>(100 + 10 * e);
      held.push_back(
          std::make_unique<TestWeight>(kInner, kHidden, seed, WeightLayout::kPanelBf16, 0.7f));
      held.push_back(
          std::make_unique<TestWeight>(kInner, kHidden, seed + 1, WeightLayout::kPanelBf16, 0.7f));
      held.push_back(std::make_unique<TestWeight>(kHidden, kInner, seed + 2));
      views.push_back(
          {held[held.size() - 3]->view, held[held.size() - 2]->view, held.back()->view});
    }
  }

  // y_e of the formula, rounded to bf16.
  std::vector<float> run(int e, const float* x, float weight) const {
    const TestWeight& w1 = *held[static_cast<size_t>(3 * e)];
    const TestWeight& w3 = *held[static_cast<size_t>(3 * e + 1)];
    const TestWeight& w2 = *held[static_cast<size_t>(3 * e + 2)];
    std::vector<float> z(kInner), y(kHidden);
    for (int i = 0; i < kInner; ++i) {
      const float g = std::min(round_bf16(static_cast<float>(w1.times(i, x))), 2.0f);
      const float u = std::clamp(round_bf16(static_cast<float>(w3.times(i, x))), -2.0f, 2.0f);
      const float silu = g / (1.0f + std::exp(-g));
      z[static_cast<size_t>(i)] = round_bf16(silu * u * weight);
    }
    for (int i = 0; i < kHidden; ++i)
      y[static_cast<size_t>(i)] = round_bf16(static_cast<float>(w2.times(i, z.data())));
    return y;
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(equals_the_formula_alone_and_among_others) {
  const Experts experts;
  const int rows = 300;  // more than are taken at once
  const auto stream = make_stream(2);
  const std::vector<uint16_t> x = bf16(numbers(1, int64_t{rows} * kHidden));
  std::vector<int32_t> ids;
  std::vector<float> weights;
  for (int r = 0; r < rows; ++r) {
    ids.push_back((r * 3 + r / 7) % kExperts);
    ids.push_back((ids.back() + 1 + r % (kExperts - 1)) % kExperts);
    weights.push_back(0.25f + 0.01f * static_cast<float>(r % 50));
    weights.push_back(1.25f - 0.01f * static_cast<float>(r % 40));
  }
  TestWorkspace workspace(moe_experts_workspace_bytes(rows, kHidden, kInner, kExperts, kTopk));
  std::vector<float> y(static_cast<size_t>(rows) * kHidden), one(kHidden);
  MoeExpertsParams p;
  p.rows = rows;
  p.hidden = kHidden;
  p.intermediate = kInner;
  p.experts = kExperts;
  p.topk = kTopk;
  p.swiglu_limit = 2.0f;
  p.round_outputs = true;
  p.x = x.data();
  p.ids = ids.data();
  p.weights = weights.data();
  p.expert = experts.views.data();
  p.shared = &experts.views[kExperts];
  p.y = y.data();
  p.workspace = workspace.get();
  cpu::moe_experts(p, *stream);
  double distance = 0, norm = 0;
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    float in[kHidden];
    for (size_t i = 0; i < kHidden; ++i) in[i] = bf16_to_f32(x[r * kHidden + i]);
    size_t first = 2 * r, second = 2 * r + 1;
    if (ids[first] > ids[second]) std::swap(first, second);  // ascending id
    const auto a = experts.run(ids[first], in, weights[first]);
    const auto b = experts.run(ids[second], in, weights[second]);
    const auto s = experts.run(kExperts, in, 1.0f);
    for (size_t i = 0; i < kHidden; ++i) {
      const double want = (a[i] + b[i]) + s[i];
      distance += (want - y[r * kHidden + i]) * (want - y[r * kHidden + i]);
      norm += want * want;
    }
    if (r % 37 != 0) continue;
    p.rows = 1;
    p.x = x.data() + r * kHidden;
    p.ids = ids.data() + 2 * r;
    p.weights = weights.data() + 2 * r;
    p.y = one.data();
    cpu::moe_experts(p, *stream);
    BOOST_CHECK(
        std::equal(one.begin(), one.end(), y.begin() + static_cast<std::ptrdiff_t>(r * kHidden)));
  }
  // The exponential's last bit may turn a bf16 rounding of z now and then.
  BOOST_CHECK_LT(std::sqrt(distance / norm), 1e-4);
}

BOOST_AUTO_TEST_CASE(experts_of_other_ranks_contribute_nothing) {
  Experts experts;
  const auto stream = make_stream(1);
  const std::vector<uint16_t> x = bf16(numbers(1, kHidden));
  const int32_t ids[] = {3, 1};
  const float weights[] = {0.5f, 0.75f};
  TestWorkspace workspace(moe_experts_workspace_bytes(1, kHidden, kInner, kExperts, kTopk));
  MoeExpertsParams p;
  p.rows = 1;
  p.hidden = kHidden;
  p.intermediate = kInner;
  p.experts = kExperts;
  p.topk = kTopk;
  p.swiglu_limit = 2.0f;
  p.x = x.data();
  p.ids = ids;
  p.weights = weights;
  p.expert = experts.views.data();
  p.workspace = workspace.get();
  std::vector<float> both(kHidden), low(kHidden), high(kHidden);
  p.y = both.data();
  cpu::moe_experts(p, *stream);
  const ExpertWeights third = experts.views[3];
  experts.views[3] = {};
  p.y = low.data();
  cpu::moe_experts(p, *stream);
  experts.views[3] = third;
  experts.views[1] = {};
  p.y = high.data();
  cpu::moe_experts(p, *stream);
  for (size_t i = 0; i < kHidden; ++i) BOOST_CHECK_EQUAL(both[i], low[i] + high[i]);
}

}  // namespace tensorfold::test
