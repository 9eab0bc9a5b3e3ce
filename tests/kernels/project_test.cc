// project: every output equals the exact product rounded once, for row counts that take every path
// of the matrix product, ragged output counts, normed and quantised inputs.
#include "kernels/project.h"

#include "kernels/cpu/row_ops.h"
#include "tests/kernels/ops_support.h"

namespace tensorfold::test {
namespace {

constexpr int kIn = 96;

void check_rows(int rows, int threads) {
  const auto stream = make_stream(threads);
  TestWeight plain(50, kIn, 1), wide(33, kIn, 2, WeightLayout::kPanelF32), fp8(160, kIn, 3);
  fp8.view.quantise_input = true;
  const std::vector<float> norm = numbers(4, kIn);
  const std::vector<uint16_t> x = bf16(numbers(5, int64_t{rows} * kIn, 3));
  std::vector<uint16_t> y0(static_cast<size_t>(rows) * 50);
  std::vector<float> y1(static_cast<size_t>(rows) * 40, -7.0f);
  std::vector<uint16_t> y2(static_cast<size_t>(rows) * 160);
  TestWorkspace workspace(project_workspace_bytes(rows, kIn));
  ProjectParams p;
  p.rows = rows;
  p.in = kIn;
  p.x = x.data();
  p.x_stride = kIn;
  p.norm_weight = norm.data();
  p.norm_eps = 1e-6f;
  p.outputs = 3;
  p.output[0] = {&plain.view, y0.data(), 50, ValueType::kBf16};
  p.output[1] = {&wide.view, y1.data(), 40, ValueType::kF32};
  p.output[2] = {&fp8.view, y2.data(), 160, ValueType::kBf16};
  p.workspace = workspace.get();
  cpu::project(p, *stream);
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    float in[kIn], quantised[kIn];
    cpu::widen_bf16(x.data() + r * kIn, kIn, in);
    cpu::rms_norm(in, norm.data(), kIn, 1e-6f, in);
    fake_quantise_fp8(in, kIn, quantised);
    for (int n = 0; n < 50; ++n)
      BOOST_REQUIRE_EQUAL(y0[r * 50 + static_cast<size_t>(n)],
                          f32_to_bf16(static_cast<float>(plain.times(n, in))));
    for (int n = 0; n < 33; ++n)
      BOOST_REQUIRE_EQUAL(y1[r * 40 + static_cast<size_t>(n)],
                          static_cast<float>(wide.times(n, in)));
    for (size_t n = 33; n < 40; ++n) BOOST_REQUIRE_EQUAL(y1[r * 40 + n], -7.0f);  // not written
    for (int n = 0; n < 160; ++n)
      BOOST_REQUIRE_EQUAL(y2[r * 160 + static_cast<size_t>(n)],
                          f32_to_bf16(static_cast<float>(fp8.times(n, quantised))));
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_row_count_gives_the_rounded_product) {
  for (int rows = 1; rows <= 9; ++rows) check_rows(rows, 1);
  check_rows(131, 1);
  check_rows(131, 3);
}

BOOST_AUTO_TEST_CASE(outputs_may_take_parts_of_a_row) {
  constexpr int kRows = 3;
  const auto stream = make_stream(1);
  TestWeight first(50, kIn, 1), second(50, kIn, 2);
  second.view.quantise_input = true;
  const std::vector<uint16_t> x = bf16(numbers(5, int64_t{kRows} * 2 * kIn, 3));
  std::vector<float> y(kRows * 100, -7.0f);
  TestWorkspace workspace(project_workspace_bytes(kRows, kIn));
  ProjectParams p;
  p.rows = kRows;
  p.in = kIn;
  p.x = x.data();
  p.x_stride = 2 * kIn;
  p.outputs = 2;
  p.output[0] = {&first.view, y.data(), 100, ValueType::kF32};
  p.output[1] = {&second.view, y.data() + 50, 100, ValueType::kF32, kIn};
  p.workspace = workspace.get();
  cpu::project(p, *stream);
  for (size_t r = 0; r < kRows; ++r) {
    float in[2 * kIn], quantised[kIn];
    cpu::widen_bf16(x.data() + r * 2 * kIn, 2 * kIn, in);
    fake_quantise_fp8(in + kIn, kIn, quantised);
    for (int n = 0; n < 50; ++n) {
      const auto at = r * 100 + static_cast<size_t>(n);
      BOOST_REQUIRE_EQUAL(y[at], static_cast<float>(first.times(n, in)));
      BOOST_REQUIRE_EQUAL(y[at + 50], static_cast<float>(second.times(n, quantised)));
    }
  }
}

BOOST_AUTO_TEST_CASE(the_cost_counts_weights_once_and_products_per_row) {
  TestWeight w(64, kIn, 1);
  ProjectParams p;
  p.rows = 5;
  p.in = kIn;
  p.outputs = 1;
  p.output[0] = {&w.view, nullptr, 64, ValueType::kF32};
  const OpCost cost = project_cost(p);
  BOOST_CHECK_EQUAL(cost.operations, 2 * 5 * 64 * kIn);
  BOOST_CHECK_EQUAL(cost.bytes, 64 * kIn * 2 + 5 * kIn * 2 + 5 * 64 * 4);
}

}  // namespace tensorfold::test
