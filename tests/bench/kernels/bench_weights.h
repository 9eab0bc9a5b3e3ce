// Random EXL3 weights on the device for the kernel benches, and fp64-checked products.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/cuda/exl3_dense.h"
#include "tests/bench/kernels/bench_device.h"
#include "tests/bench/kernels/bench_timing.h"

namespace tensorfold::bench {

template <typename T>
T* device_memory(int64_t count) {
  void* p = nullptr;
  TF_BENCH_CUDA(cudaMalloc(&p, static_cast<size_t>(count) * sizeof(T)));
  return static_cast<T*>(p);
}

template <typename T>
std::vector<T> to_host(const T* from, int64_t count) {
  std::vector<T> v(static_cast<size_t>(count));
  TF_BENCH_CUDA(cudaMemcpy(v.data(), from, v.size() * sizeof(T), cudaMemcpyDeviceToHost));
  return v;
}

template <typename T>
T* to_device(const std::vector<T>& v) {
  T* p = device_memory<T>(static_cast<int64_t>(v.size()));
  TF_BENCH_CUDA(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

// A random mul1 matrix in order "lanes"; freed with the process.
inline Exl3Parts random_matrix(int in, int out, int bits, uint32_t seed, float scale = 0.02f) {
  Exl3Parts w;
  const int64_t words = int64_t{in} * out * bits / 32;
  auto* trellis = device_memory<uint32_t>(words);
  auto* suh = device_memory<uint16_t>(in);
  auto* svh = device_memory<uint16_t>(out);
  TF_BENCH_CUDA(fill_words(trellis, words, seed, nullptr));
  TF_BENCH_CUDA(fill_scales(suh, in, scale, seed + 1, nullptr));
  TF_BENCH_CUDA(fill_scales(svh, out, 1, seed + 2, nullptr));
  w.trellis = trellis;
  w.suh = suh;
  w.svh = svh;
  w.padded_in = in;
  w.padded_out = out;
  w.half_bits = static_cast<unsigned char>(2 * bits);
  w.codebook = 2;
  w.order = Exl3Order::kLanes;
  return w;
}

inline double matrix_bytes(const Exl3Parts& w) {
  return static_cast<double>(w.padded_in) * w.padded_out * w.half_bits / 16 +
         2.0 * (w.padded_in + w.padded_out);
}
inline double matrix_weights(const Exl3Parts& w) {
  return static_cast<double>(w.padded_in) * w.padded_out;
}

inline double relative_norm(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    error += d * d;
    size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(error / size);
}

}  // namespace tensorfold::bench
