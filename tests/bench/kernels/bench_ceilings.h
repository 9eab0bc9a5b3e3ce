// The ceilings of the machine that a bench's rows are held against, measured in the same run.
#pragma once

#include "tests/bench/kernels/bench_device.h"
#include "tests/bench/kernels/bench_timing.h"
#include "tests/bench/kernels/bench_weights.h"

namespace tensorfold::bench {

// A bf16 product of 8192 x 8192 x 8192 on random data, as measured on an H200.
inline constexpr double kMatrixOperationsPerUs = 790e6;

inline Ceilings measure_ceilings() {
  Ceilings c;
  const int64_t bytes = int64_t{1} << 30;
  auto* a = device_memory<std::byte>(bytes);
  auto* b = device_memory<std::byte>(bytes);
  TF_BENCH_CUDA(fill_words(a, bytes / 4, 1, nullptr));
  auto* sink = device_memory<uint32_t>(1);
  c.bytes_per_us =
      static_cast<double>(bytes) /
      time_calls(
          2, [&](int, cudaStream_t s) { TF_BENCH_CUDA(read_all(a, bytes, sink, s)); }, 20)
          .median_us;
  c.copy_per_us = 2.0 * static_cast<double>(bytes) /
                  time_calls(
                      2,
                      [&](int, cudaStream_t s) {
                        TF_BENCH_CUDA(cudaMemcpyAsync(b, a, static_cast<size_t>(bytes),
                                                      cudaMemcpyDeviceToDevice, s));
                      },
                      20)
                      .median_us;
  int64_t weights = 0;
  const double us =
      time_calls(
          4, [&](int, cudaStream_t s) { TF_BENCH_CUDA(decode_ceiling(sink, &weights, s)); }, 20)
          .median_us;
  c.weights_per_us = static_cast<double>(weights) / us;
  c.gap_us = time_calls(
                 200, [](int, cudaStream_t s) { TF_BENCH_CUDA(empty_kernel(s)); }, 20)
                 .median_us;
  TF_BENCH_CUDA(cudaFree(a));
  TF_BENCH_CUDA(cudaFree(b));
  return c;
}

}  // namespace tensorfold::bench
