// Class D products of EXL3 weights: a row's bits for every number of rows in its call and for every
// cut of the work, and its value against fp64.
#include "kernels/cuda/exl3_dense.h"
#include "tests/kernels/cuda_exl3_support.h"

namespace tensorfold::test {
namespace {

using exl3::Codebook;

BOOST_GLOBAL_FIXTURE(NeedsGpu);

constexpr double kFp32Bound = 3e-4;  // relative norm, fp32 outputs

struct Case {
  RandomLayer layer;
  std::vector<uint16_t> x;
  DeviceArray<uint16_t> on_device;
  int rows;

  Case(int in, int out, int bits, int rows_, uint32_t seed)
      : layer(in, out, 2 * bits, Codebook::kMul1, seed),
        x(random_bf16(int64_t{rows_} * in, seed + 7)),
        on_device(x),
        rows(rows_) {}

  // `many`: with the workspace of more than a few rows.
  std::vector<float> run(int first, int count, int cluster = 0, bool many = true,
                         cuda::Exl3DenseKernels kernels = cuda::Exl3DenseKernels::kChosen) {
    DeviceArray<float> y(static_cast<size_t>(count) * static_cast<size_t>(layer.out));
    cuda::Exl3DenseParams p;
    p.rows = count;
    p.jobs = 1;
    p.cluster = cluster;
    p.kernels = kernels;
    p.workspace_bytes = many ? cuda::exl3_dense_workspace_bytes(count, layer.in, 1) : 0;
    DeviceArray<std::byte> workspace(static_cast<size_t>(p.workspace_bytes));
    p.workspace = workspace.get();
    p.job[0] = {layer.parts(Exl3Order::kLanes),
                layer.in,
                layer.out,
                on_device.get() + int64_t{first} * layer.in,
                layer.in,
                y.get(),
                layer.out,
                ValueType::kF32};
    TF_CUDA(cuda::exl3_dense(p, nullptr));
    TF_CUDA(cudaDeviceSynchronize());
    return y.host();
  }
  double error(const std::vector<float>& all, const std::vector<int>& which) const {
    const ExactLayer exact(layer);
    RelativeNorm norm;
    const auto in = static_cast<size_t>(layer.in), out = static_cast<size_t>(layer.out);
    for (const int r : which) {
      const auto at = static_cast<size_t>(r);
      std::vector<double> row;
      for (size_t k = 0; k < in; ++k)
        row.push_back(static_cast<double>(bf16_to_f32(x[at * in + k])));
      const std::vector<double> y = exact.times(row);
      for (size_t n = 0; n < out; ++n) norm.add(static_cast<double>(all[at * out + n]), y[n]);
    }
    return norm.value();
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(rows_of_every_count_have_the_same_bits) {
  const struct {
    int in, out, bits;
  } shapes[] = {{1280, 1024, 5}, {640, 2560, 6}, {384, 384, 4}, {1408, 256, 3}, {128, 640, 2}};
  for (const auto& s : shapes) {
    BOOST_TEST_CONTEXT(s.in << " x " << s.out << ", " << s.bits << " bits") {
      constexpr int kRows = 384;
      Case c(s.in, s.out, s.bits, kRows, 11u + static_cast<uint32_t>(s.bits));
      const std::vector<float> all = c.run(0, kRows);
      const double error = c.error(all, {0, 5, 127, 128, 383});
      BOOST_TEST_MESSAGE(s.in << " x " << s.out << ": relative norm " << error);
      BOOST_CHECK(kFaulty || error <= kFp32Bound);
      SameRows same("class D");
      for (const int rows : {1,  2,  3,  4,  5,  6,  7,  8,  9,   12,  16,  17,
                             24, 31, 32, 33, 48, 64, 65, 96, 128, 129, 200, 383})
        for (const int first : {0, (kRows - rows) / 2, kRows - rows}) {
          const std::vector<float> some = c.run(first, rows);
          same.compare(some.data(), all.data() + int64_t{first} * s.out, some.size());
        }
      same.check();
      if (kFaulty) continue;
      SameRows few("without a workspace");
      for (const int rows : {9, 24, 70}) {
        const std::vector<float> some = c.run(10, rows, 0, false);
        few.compare(some.data(), all.data() + int64_t{10} * s.out, some.size());
      }
      few.check();
    }
  }
}

// Weights of several widths and input sizes, each its own rows, in one call.
BOOST_AUTO_TEST_CASE(grouped_weights_get_what_they_get_alone) {
  if (kFaulty) return;
  for (const int rows : {6, 40, 600}) {
    Case c[] = {{640, 384, 6, rows, 1},
                {640, 128, 3, rows, 2},
                {256, 256, 5, rows, 3},
                {640, 256, 6, rows, 4}};
    cuda::Exl3DenseParams p;
    p.rows = rows;
    std::vector<DeviceArray<float>> y;
    y.reserve(4);
    for (Case& one : c) {
      y.emplace_back(static_cast<size_t>(rows) * static_cast<size_t>(one.layer.out));
      p.job[p.jobs++] = {one.layer.parts(Exl3Order::kLanes),
                         one.layer.in,
                         one.layer.out,
                         one.on_device.get(),
                         one.layer.in,
                         y.back().get(),
                         one.layer.out,
                         ValueType::kF32};
    }
    p.workspace_bytes = cuda::exl3_dense_workspace_bytes(rows, 640, 4);
    DeviceArray<std::byte> workspace(static_cast<size_t>(p.workspace_bytes));
    p.workspace = workspace.get();
    TF_CUDA(cuda::exl3_dense(p, nullptr));
    TF_CUDA(cudaDeviceSynchronize());
    for (size_t i = 0; i < 4; ++i) {
      const std::vector<float> alone = c[i].run(0, rows), together = y[i].host();
      BOOST_CHECK(std::memcmp(alone.data(), together.data(), together.size() * 4) == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(no_cut_changes_a_bit) {
  if (kFaulty) return;  // the fault goes by the number of rows
  for (const int bits : {2, 3, 4, 5, 6})
    for (const int rows : {1, 6, 24, 70}) {
      Case c(1408, 512, bits, rows, 60u + static_cast<uint32_t>(bits));
      const std::vector<float> chosen = c.run(0, rows);
      SameRows same("cuts");
      using Kernels = cuda::Exl3DenseKernels;
      for (const auto kernels : {Kernels::kWarps, Kernels::kGroups, Kernels::kMany})
        for (int cluster = 0; cluster <= 8; ++cluster) {
          const std::vector<float> cut = c.run(0, rows, cluster, true, kernels);
          same.compare(cut.data(), chosen.data(), chosen.size());
        }
      same.check();
    }
}

// A thread block with several output blocks, one after the other.
BOOST_AUTO_TEST_CASE(many_output_blocks) {
  if (kFaulty) return;
  for (const int rows : {1, 6, 24}) {
    Case c(384, 70016, 6, rows, 5);
    const std::vector<float> all = c.run(0, rows);
    const double error = c.error(all, {0, rows - 1});
    BOOST_TEST_MESSAGE("rows " << rows << ": relative norm " << error);
    BOOST_CHECK_LE(error, kFp32Bound);
    SameRows same("cuts");
    for (const int cluster : {1, 2, 3}) {
      const std::vector<float> cut = c.run(0, rows, cluster);
      same.compare(cut.data(), all.data(), all.size());
    }
    same.check();
  }
}

// Rows of zeros, of one value, of sizes far apart, and rows whose rotation is one value throughout
// (the largest sums that a block can have) or lies in one place; a NaN stays in its row.
BOOST_AUTO_TEST_CASE(extreme_rows) {
  if (kFaulty) return;
  constexpr int kRows = 40, kIn = 640, kOut = 256;
  Case c(kIn, kOut, 4, kRows, 17);
  const auto set = [&](int row, int k, float v) {
    c.x[static_cast<size_t>(row * kIn + k)] = f32_to_bf16(v);
  };
  for (int k = 0; k < kIn; ++k) {
    set(0, k, 0);
    set(1, k, 1e-20f);
    set(2, k, 1e20f);
    set(3, k, k % 128 == 0 ? 8.0f : 0.0f);
    set(4, k, k == 300 ? 1000.0f : 0.01f);
    set(5, k, k < 128 ? 1e-6f : 1.0f);
    set(6, k, k == 100 ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
    set(7, k, k == 100 ? std::numeric_limits<float>::infinity() : 1.0f);
  }
  TF_CUDA(cudaMemcpy(c.on_device.get(), c.x.data(), c.x.size() * 2, cudaMemcpyHostToDevice));
  const std::vector<float> all = c.run(0, kRows);
  for (int n = 0; n < kOut; ++n) {
    BOOST_CHECK_EQUAL(all[static_cast<size_t>(n)], 0.0f);
    BOOST_CHECK(!std::isfinite(all[static_cast<size_t>(6 * kOut + n)]));
    BOOST_CHECK(!std::isfinite(all[static_cast<size_t>(7 * kOut + n)]));
  }
  for (const int row : {1, 2, 3, 4, 5, 8}) BOOST_CHECK_LE(c.error(all, {row}), 3.5e-4);
  SameRows same("extreme rows");
  for (const int rows : {1, 3, 8, 20})
    for (int first = 0; first + rows <= kRows; first += rows) {
      if (first <= 7 && first + rows > 6) continue;  // NaN has no one form
      const std::vector<float> some = c.run(first, rows);
      same.compare(some.data(), all.data() + int64_t{first} * kOut, some.size());
    }
  same.check();
}

}  // namespace tensorfold::test
