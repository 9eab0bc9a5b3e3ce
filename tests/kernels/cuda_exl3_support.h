// What the tests of EXL3 kernels on a GPU share: the skip without one, device memory, random
// layers in both orders, and their products in fp64.
#pragma once

#include <cuda_runtime_api.h>

#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "engine/base/half.h"
#include "engine/weights/exl3_codec.h"
#include "kernels/cuda/exl3_layout.h"
#include "kernels/formats.h"
#include "kernels/weight_view.h"

namespace tensorfold::test {

// Ends the program with the skip code where there is no GPU.
struct NeedsGpu {
  NeedsGpu() {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return;
    std::printf("skipped: no CUDA device (%s)\n", cudaGetErrorString(error));
    std::fflush(stdout);
    std::_Exit(77);
  }
};

#define TF_CUDA(call)                                                                              \
  do {                                                                                             \
    const cudaError_t tf_error = (call);                                                           \
    BOOST_REQUIRE_MESSAGE(tf_error == cudaSuccess, #call << ": " << cudaGetErrorString(tf_error)); \
  } while (0)

// Device memory of `n` values, poisoned with NaN bytes unless filled.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : size_(n) {
    TF_CUDA(cudaMalloc(&data_, n * sizeof(T) + 256));
    TF_CUDA(cudaMemset(data_, 0xFF, n * sizeof(T) + 256));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    TF_CUDA(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(DeviceArray&& other) noexcept : data_(other.data_), size_(other.size_) {
    other.data_ = nullptr;
  }
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  T* get() { return static_cast<T*>(data_); }
  std::vector<T> host() const {
    std::vector<T> values(size_);
    TF_CUDA(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

// A layer of random codes with scales of about `scale`, on the host as stored and on the device.
struct RandomLayer {
  int in, out;  // padded
  int half_bits;
  exl3::Codebook codebook;
  std::vector<uint16_t> trellis, suh, svh;
  DeviceArray<uint32_t> tiles, lanes;
  DeviceArray<uint16_t> suh_device, svh_device;

  RandomLayer(int in_, int out_, int half_bits_, exl3::Codebook codebook_, uint32_t seed,
              double scale = 1)
      : in(in_),
        out(out_),
        half_bits(half_bits_),
        codebook(codebook_),
        trellis(words(seed)),
        suh(scales(in_, seed + 1, scale)),
        svh(scales(out_, seed + 2, 1)),
        tiles(as_words(trellis)),
        lanes(half_bits % 2 == 0 ? to_lanes() : std::vector<uint32_t>(1)),
        suh_device(suh),
        svh_device(svh) {}

  exl3::LayerView view() const { return {trellis, suh, svh, in, out, half_bits, codebook}; }
  Exl3Parts parts(Exl3Order order) {
    Exl3Parts p;
    p.trellis = order == Exl3Order::kTiles ? tiles.get() : lanes.get();
    p.suh = suh_device.get();
    p.svh = svh_device.get();
    p.padded_in = in;
    p.padded_out = out;
    p.half_bits = static_cast<unsigned char>(half_bits);
    p.codebook = static_cast<unsigned char>(codebook);
    p.order = order;
    return p;
  }
  static std::vector<uint32_t> as_words(const std::vector<uint16_t>& v) {
    std::vector<uint32_t> w(v.size() / 2);
    std::memcpy(w.data(), v.data(), v.size() * 2);
    return w;
  }
  std::vector<uint32_t> to_lanes() const {
    const std::vector<uint32_t> from = as_words(trellis);
    std::vector<uint32_t> to(from.size());
    cuda::exl3_lanes_from_tiles(from, in, out, half_bits / 2, to);
    return to;
  }

 private:
  std::vector<uint16_t> words(uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<uint16_t> v(static_cast<size_t>(in) * static_cast<size_t>(out) *
                            static_cast<size_t>(half_bits) / 32);
    for (uint16_t& w : v) w = static_cast<uint16_t>(random());
    return v;
  }
  static std::vector<uint16_t> scales(int n, uint32_t seed, double scale) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> size(0.5, 1.5);
    std::vector<uint16_t> v;
    for (int i = 0; i < n; ++i)
      v.push_back(
          fp64_to_fp16((random() & 1u) != 0 ? scale * size(random) : -scale * size(random)));
    return v;
  }
};

// H x / sqrt(128) in blocks of 128, fp64.
inline void hadamard_exact(std::vector<double>& x) {
  for (size_t at = 0; at < x.size(); at += 128)
    for (size_t step = 1; step < 128; step *= 2)
      for (size_t i = 0; i < 128; ++i) {
        if ((i & step) != 0) continue;
        const double a = x[at + i], b = x[at + i + step];
        x[at + i] = a + b;
        x[at + i + step] = a - b;
      }
  for (double& v : x) v /= std::sqrt(128.0);
}

// y = ((((x * suh) H) W_q) H) * svh in fp64; W_q [in][out] as the codec gives it.
class ExactLayer {
 public:
  explicit ExactLayer(const RandomLayer& layer)
      : layer_(layer), w_(static_cast<size_t>(layer.in) * static_cast<size_t>(layer.out)) {
    exl3::decode_region(layer.view(), 0, layer.in / 16, 0, layer.out / 16, w_.data(), layer.out);
  }
  std::vector<double> times(std::vector<double> x) const {
    x.resize(static_cast<size_t>(layer_.in), 0.0);
    const auto n = static_cast<size_t>(layer_.out);
    for (size_t k = 0; k < x.size(); ++k) x[k] *= static_cast<double>(fp16_to_fp32(layer_.suh[k]));
    hadamard_exact(x);
    std::vector<double> y(n, 0.0);
    for (size_t k = 0; k < x.size(); ++k)
      for (size_t i = 0; i < n; ++i) y[i] += x[k] * static_cast<double>(w_[k * n + i]);
    hadamard_exact(y);
    for (size_t i = 0; i < n; ++i) y[i] *= static_cast<double>(fp16_to_fp32(layer_.svh[i]));
    return y;
  }

 private:
  const RandomLayer& layer_;
  std::vector<float> w_;
};

// Built over kernels with a planted fault: bounds are not held then, only the fault is looked for.
#ifdef TF_PLANTED_FAULT
inline constexpr bool kFaulty = true;
#else
inline constexpr bool kFaulty = false;
#endif

// Comparisons of a row's bits in calls of different sizes. Built over kernels with a planted fault
// at least one of them must differ, else none.
class SameRows {
 public:
  explicit SameRows(const char* what) : what_(what) {}
  // After the last comparison.
  void check() const {
    BOOST_CHECK_GT(compared_, 0);
    if (kFaulty)
      BOOST_CHECK_MESSAGE(differing_ > 0, what_ << ": the planted fault went unnoticed");
    else
      BOOST_CHECK_MESSAGE(differing_ == 0,
                          what_ << ": " << differing_ << " of " << compared_ << " calls differ");
  }
  void compare(const float* some, const float* all, size_t count) {
    ++compared_;
    differing_ += std::memcmp(some, all, count * sizeof(float)) == 0 ? 0 : 1;
  }

 private:
  const char* what_;
  int compared_ = 0, differing_ = 0;
};

// ||a - b|| / ||b||; NaN where a has one.
class RelativeNorm {
 public:
  void add(double a, double b) {
    error_ += (a - b) * (a - b);
    size_ += b * b;
  }
  double value() const { return std::sqrt(error_ / size_); }

 private:
  double error_ = 0, size_ = 0;
};

inline std::vector<uint16_t> random_bf16(int64_t count, uint32_t seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<uint16_t> v(static_cast<size_t>(count));
  for (uint16_t& x : v) x = f32_to_bf16(normal(random));
  return v;
}

}  // namespace tensorfold::test
