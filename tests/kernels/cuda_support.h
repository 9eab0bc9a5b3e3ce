// What the tests of CUDA operations share: the GPU or the skip, fresh random inputs, device copies,
// poisoned outputs, and the measure of error.
//
// Error: relative norm ||gpu - cpu|| / ||cpu|| of a whole output, a NaN never passing; bit equality
// where formats or integers are compared. Both sides get the same bytes as inputs.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "tests/kernels/ops_support.h"

namespace tensorfold::test {

// The GPU of this program. Without one the program ends with the skip code, or fails where
// TENSORFOLD_REQUIRE names gpu.
class Gpu {
 public:
  static Gpu& get() {
    static Gpu gpu;
    return gpu;
  }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  const Backend& ops() { return device_->backend(); }

  void wait() {
    const Status status = device_->synchronise(*stream_);
    BOOST_REQUIRE_MESSAGE(status.ok(), status.message());
  }

 private:
  Gpu() {
    Result<std::shared_ptr<Device>> device = open_device("cuda");
    if (!device.ok()) {
      std::printf("skipped: %s\n", device.status().message().c_str());
      std::fflush(stdout);
      const char* require = std::getenv("TENSORFOLD_REQUIRE");
      const bool needed = require != nullptr && std::strstr(require, "gpu") != nullptr;
      std::_Exit(needed ? 1 : 77);
    }
    device_ = *device;
    Result<std::unique_ptr<Stream>> stream = device_->make_stream(0);
    BOOST_REQUIRE_MESSAGE(stream.ok(), stream.status().message());
    stream_ = std::move(*stream);
    const char* seed = std::getenv("TENSORFOLD_TEST_SEED");
    seed_ = seed != nullptr ? std::strtoull(seed, nullptr, 10) : std::random_device{}();
    std::printf("%s, TENSORFOLD_TEST_SEED=%llu\n", device_->name(),
                static_cast<unsigned long long>(seed_));
    random_.seed(seed_);
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  uint64_t seed_ = 0;

 public:
  std::mt19937_64 random_;
};

struct GpuOrSkip {
  GpuOrSkip() { Gpu::get(); }
};

inline int pick(int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(Gpu::get().random_);
}
inline bool coin() { return pick(0, 1) == 1; }
inline std::vector<float> fresh(int64_t count, float scale = 1) {
  return numbers(Gpu::get().random_(), count, scale);
}

// Host values and their copy in device memory. `out`: poisoned with NaN bytes on both sides.
template <typename T>
class Both {
 public:
  explicit Both(std::vector<T> values) : host(std::move(values)) {
    Gpu& gpu = Gpu::get();
    memory_ = allocate_array<T>(gpu.device(), static_cast<int64_t>(host.size()));
    BOOST_REQUIRE(memory_ != nullptr);
    push();
  }
  static Both out(int64_t count) {
    std::vector<T> poison(static_cast<size_t>(count));
    if (count > 0) std::memset(poison.data(), 0xFF, poison.size() * sizeof(T));
    return Both(std::move(poison));
  }

  void push() {
    Gpu& gpu = Gpu::get();
    if (!host.empty())
      gpu.device().upload(memory_.get(), host.data(), static_cast<int64_t>(host.size() * sizeof(T)),
                          gpu.stream());
  }
  T* cpu() { return host.data(); }
  T* gpu() { return memory_.get(); }
  std::vector<T> fetch() const {
    Gpu& gpu = Gpu::get();
    std::vector<T> values(host.size());
    const Status status =
        gpu.device().download(values.data(), memory_.get(),
                              static_cast<int64_t>(values.size() * sizeof(T)), gpu.stream());
    BOOST_REQUIRE_MESSAGE(status.ok(), status.message());
    return values;
  }

  std::vector<T> host;

 private:
  DeviceArray<T> memory_;
};

// A weight in the CPU's panels and in rows on the device.
struct BothWeight {
  TestWeight panels;
  Both<std::byte> rows;
  WeightView cpu, gpu;

  static std::vector<std::byte> row_bytes(const TestWeight& w, bool wide) {
    WeightView v = w.view;
    v.layout = wide ? WeightLayout::kRowsF32 : WeightLayout::kRowsBf16;
    std::vector<std::byte> bytes(static_cast<size_t>(v.bytes()));
    pack_panels(w.values.data(), v.out, v.in, v.layout, bytes.data());
    return bytes;
  }
  BothWeight(int out, int in, WeightLayout layout = WeightLayout::kPanelBf16, bool quantise = false)
      : panels(out, in, Gpu::get().random_(), layout),
        rows(row_bytes(panels, layout == WeightLayout::kPanelF32)) {
    panels.view.quantise_input = quantise;
    cpu = gpu = panels.view;
    if (layout != WeightLayout::kRowsBf16)
      gpu.layout =
          layout == WeightLayout::kPanelF32 ? WeightLayout::kRowsF32 : WeightLayout::kRowsBf16;
    gpu.data = rows.gpu();
  }
};

inline double value_of(float v) { return v; }
inline double value_of(uint16_t v) { return bf16_to_f32(v); }

template <typename T>
double relative_norm(const std::vector<T>& got, const std::vector<T>& want) {
  double difference = 0, norm = 0;
  BOOST_REQUIRE_EQUAL(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = value_of(got[i]) - value_of(want[i]);
    difference += d * d;
    norm += value_of(want[i]) * value_of(want[i]);
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

template <typename T>
void check_near(const Both<T>& output, double bound, const std::string& what) {
  const double error = relative_norm(output.fetch(), output.host);
  BOOST_CHECK_MESSAGE(error <= bound, what << ": relative norm " << error << ", bound " << bound);
}

template <typename T>
void check_same(const Both<T>& output, const std::string& what) {
  const std::vector<T> got = output.fetch();
  size_t differing = 0;
  for (size_t i = 0; i < got.size(); ++i)
    differing += std::memcmp(&got[i], &output.host[i], sizeof(T)) != 0 ? 1 : 0;
  BOOST_CHECK_MESSAGE(differing == 0,
                      what << ": " << differing << " of " << got.size() << " values differ");
}

// Room for any call of a test, in both memories.
struct BothWorkspace {
  TestWorkspace cpu_memory;
  DeviceArray<std::byte> gpu_memory;
  int64_t gpu_bytes;
  explicit BothWorkspace(const WorkspaceShape& shape, const Stream& cpu_stream)
      : cpu_memory(cpu_device().workspace_bytes(shape, cpu_stream)),
        gpu_bytes(Gpu::get().device().workspace_bytes(shape, Gpu::get().stream())) {
    gpu_memory = allocate_array<std::byte>(Gpu::get().device(), gpu_bytes);
    BOOST_REQUIRE(gpu_memory != nullptr);
  }
  Workspace cpu() { return cpu_memory.get(); }
  Workspace gpu() { return {gpu_memory.get(), gpu_bytes}; }
};

}  // namespace tensorfold::test
