// What the tests of operations share: numbers, weights in panels, a CPU stream and workspaces.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/cpu/dense.h"
#include "kernels/cpu/parallel.h"
#include "kernels/formats.h"
#include "kernels/weight_view.h"

namespace tensorfold::test {

// Values of about deviation 1 that differ for every (seed, index).
inline float number(uint64_t seed, uint64_t index) {
  uint64_t z = (seed + 1) * 0x9E3779B97F4A7C15u + index * 0xD1B54A32D192ED03u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  const auto a = static_cast<float>(z >> 40) / 8388608.0f - 1.0f;
  const auto b = static_cast<float>((z >> 16) & 0xffffffu) / 8388608.0f - 1.0f;
  return a + b;
}

inline std::vector<float> numbers(uint64_t seed, int64_t count, float scale = 1) {
  std::vector<float> v(static_cast<size_t>(count));
  for (size_t i = 0; i < v.size(); ++i) v[i] = number(seed, i) * scale;
  return v;
}

inline std::vector<uint16_t> bf16(const std::vector<float>& v) {
  std::vector<uint16_t> b;
  for (const float x : v) b.push_back(f32_to_bf16(x));
  return b;
}

inline std::unique_ptr<CpuStream> make_stream(int threads) {
  Result<std::unique_ptr<CpuStream>> stream = CpuStream::create(threads);
  BOOST_REQUIRE(stream.ok());
  return std::move(*stream);
}

// A matrix [out, in] with its bf16 values at hand.
struct TestWeight {
  std::vector<float> values;  // as held: rounded to bf16 unless fp32 panels
  std::vector<std::byte> memory;
  WeightView view;

  TestWeight(int out, int in, uint64_t seed, WeightLayout layout = WeightLayout::kPanelBf16,
             float scale = 0) {
    values = numbers(seed, int64_t{out} * in,
                     scale > 0 ? scale : 1.0f / std::sqrt(static_cast<float>(in)));
    if (layout != WeightLayout::kPanelF32)
      for (float& v : values) v = round_bf16(v);
    view.layout = layout;
    view.out = out;
    view.in = in;
    memory.resize(static_cast<size_t>(view.bytes()) + 64);
    view.data = memory.data();
    if (layout == WeightLayout::kRowsBf16) {
      auto* rows = reinterpret_cast<uint16_t*>(memory.data());
      for (size_t i = 0; i < values.size(); ++i) rows[i] = f32_to_bf16(values[i]);
    } else {
      pack_panels(values.data(), out, in, layout, memory.data());
    }
  }

  // The exact product of row n with x, as near as fp64 comes.
  double times(int n, const float* x) const {
    double sum = 0;
    for (int k = 0; k < view.in; ++k)
      sum += static_cast<double>(values[static_cast<size_t>(n) * static_cast<size_t>(view.in) +
                                        static_cast<size_t>(k)]) *
             static_cast<double>(x[k]);
    return sum;
  }
};

struct TestWorkspace {
  std::vector<std::byte> memory;
  explicit TestWorkspace(int64_t bytes) : memory(static_cast<size_t>(bytes) + 64) {}
  Workspace get() { return {memory.data(), static_cast<int64_t>(memory.size())}; }
};

}  // namespace tensorfold::test
