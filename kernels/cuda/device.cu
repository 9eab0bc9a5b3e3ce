// A GPU as a Device (kernels/device.h).
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "engine/base/check.h"
#include "kernels/cuda/exl3_dense.h"
#include "kernels/cuda/exl3_layout.h"
#include "kernels/cuda/exl3_plan.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/hc_fused.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sample_rows.h"

namespace tensorfold::cuda {
namespace {

constexpr Backend kBackend = {"cuda",     rope_table,       embed_rows,   hc_step,
                              project,    attention_append, index_select, attention_core,
                              moe_route,  moe_experts,      engram_gate,  head_logits,
                              markov_step};

Status refuse(const char* what, int64_t value, int64_t most) {
  return unsupported(std::string("the CUDA backend takes ") + what + " up to " +
                     std::to_string(most) + ", not " + std::to_string(value));
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, std::string name, int shared_bytes, bool exl3, bool graphs)
      : index_(index),
        name_(std::move(name)),
        shared_bytes_(shared_bytes),
        exl3_(exl3),
        graphs_(graphs) {}

  const char* name() const override { return name_.c_str(); }
  const Backend& backend() const override { return kBackend; }
  bool host_memory() const override { return false; }
  WeightLayout dense_layout(bool wide) const override {
    return wide ? WeightLayout::kRowsF32 : WeightLayout::kRowsBf16;
  }

  // The run-time decoder takes every other weight, but slowly: those are better widened.
  bool reads_exl3(const Exl3Parts& stored, Exl3Use use) const override {
    Exl3Parts packed = stored;
    packed.order = Exl3Order::kLanes;
    if (!exl3_ || !exl3_is_tuned(packed)) return false;
    return use == Exl3Use::kExpert ||
           exl3_dense_fits(stored.padded_in, stored.padded_out, shared_bytes_);
  }
  Exl3Order pack_exl3(const Exl3Parts& stored, std::byte* to) const override {
    exl3_pack_lanes(stored, to);
    return Exl3Order::kLanes;
  }

  // In groups of 64 inputs, which lie together as stored, through a piece of device memory.
  bool upload_exl3(const Exl3Parts& stored, void* to, Exl3Order& order, Stream& stream) override {
    CudaStream& s = cuda_stream(stream);
    const int bits = stored.half_bits / 2, groups = stored.padded_in / kExl3UnitSide;
    const int64_t group = exl3_trellis_words(kExl3UnitSide, stored.padded_out, bits) * 4;
    std::byte* piece = s.piece();
    if (stored.half_bits % 2 != 0 || group > kPinnedBytes || piece == nullptr) return false;
    const auto most = static_cast<int>(kPinnedBytes / group);
    const auto* from = static_cast<const std::byte*>(stored.trellis);
    for (int first = 0; first < groups; first += most) {
      const int count = std::min(most, groups - first);
      s.upload(piece, from + first * group, count * group);
      s.check(
          exl3_repack_groups(stored, piece, first, count, static_cast<uint32_t*>(to), s.handle()),
          "exl3_repack_groups");
    }
    order = Exl3Order::kLanes;
    return true;
  }

  Status check_shape(const WorkspaceShape& s) const override {
    const struct {
      const char* what;
      int64_t value, most;
    } limits[] = {{"head_dim", s.head_dim, kHeadDimMax},
                  {"index_head_dim", s.index_dim, kIndexDimMax},
                  {"a hidden size", s.hidden, kRowValuesMax},
                  {"inputs of a projection", s.widest_input, kRowValuesMax},
                  {"hidden size x residual streams", int64_t{s.hidden} * s.hc, kStreamsMax},
                  {"experts", s.experts, kExpertsMax}};
    for (const auto& l : limits)
      if (l.value > l.most) return refuse(l.what, l.value, l.most);
    return ok_status();
  }

  int64_t workspace_bytes(const WorkspaceShape& s, const Stream&) const override {
    return std::max({project_bytes(s), attention_append_bytes(s), index_select_bytes(s),
                     moe_experts_bytes(s), head_logits_bytes(s), markov_step_bytes(s),
                     hc_prompt_bytes(s.rows)});
  }

  Result<std::unique_ptr<Stream>> make_stream(int) override {
    cudaSetDevice(index_);
    auto stream = std::make_unique<CudaStream>();
    if (!stream->create()) return unavailable(name_ + ": " + stream->error());
    return std::unique_ptr<Stream>(std::move(stream));
  }

  void* allocate(int64_t bytes) override {
    cudaSetDevice(index_);
    void* memory = nullptr;
    if (cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))) != cudaSuccess) {
      cudaGetLastError();  // reported by the caller, who knows what it was for
      return nullptr;
    }
    if (cudaMemset(memory, 0, static_cast<size_t>(bytes)) == cudaSuccess &&
        cudaDeviceSynchronize() == cudaSuccess)
      return memory;
    cudaGetLastError();
    cudaFree(memory);
    return nullptr;
  }
  void release(void* memory) override {
    if (memory == nullptr) return;
    cudaSetDevice(index_);
    cudaFree(memory);
  }
  int64_t free_bytes() const override {
    size_t free = 0, total = 0;
    cudaSetDevice(index_);
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(free) : 0;
  }

  void upload(void* to, const void* host, int64_t bytes, Stream& stream) override {
    cuda_stream(stream).upload(to, host, bytes);
  }
  Status download(void* host, const void* from, int64_t bytes, Stream& stream) override {
    CudaStream& s = cuda_stream(stream);
    if (s.error().empty()) s.wait();  // a copy to memory that isn't pinned would wait, uncounted
    if (s.error().empty())
      s.check(cudaMemcpyAsync(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                              s.handle()),
              "cudaMemcpyAsync to the host");
    return synchronise(stream);
  }
  void keep_rows(void* data, int64_t row_bytes, const int32_t* source, int rows,
                 Stream& stream) override {
    cuda::keep_rows(data, row_bytes, source, rows, cuda_stream(stream));
  }
  void add(float* y, const float* x, int64_t count, Stream& stream) override {
    cuda::add(y, x, count, cuda_stream(stream));
  }
  void* native_queue(Stream& stream) override { return cuda_stream(stream).handle(); }
  void sum_parts(float* y, const void* parts, ValueType type, int ranks, int64_t count,
                 Stream& stream) override {
    cuda::sum_parts(y, parts, type, ranks, count, cuda_stream(stream));
  }
  void narrow(uint16_t* y, const float* x, int64_t count, Stream& stream) override {
    cuda::narrow(y, x, count, cuda_stream(stream));
  }
  void interleave(void* to, const void* parts, int ranks, int rows, int64_t bytes,
                  Stream& stream) override {
    cuda::interleave(to, parts, ranks, rows, bytes, cuda_stream(stream));
  }
  bool samples_rows() const override { return true; }
  void sample_rows(const SampleRowsParams& p, Stream& stream) override {
    CudaStream& s = cuda_stream(stream);
    s.check(cuda::sample_rows(p, s.handle()), "sample_rows");
    s.launched("sample_rows", p.rows, p.vocab);
  }
  bool records_graphs() const override { return graphs_; }
  Status begin_graph(Stream& stream) override { return cuda::begin_graph(cuda_stream(stream)); }
  Result<std::unique_ptr<StepGraph>> end_graph(Stream& stream) override {
    return cuda::end_graph(cuda_stream(stream));
  }
  void run_graph(StepGraph& graph, Stream& stream) override {
    cuda::run_graph(graph, cuda_stream(stream));
  }
  Status synchronise(Stream& stream) override {
    CudaStream& s = cuda_stream(stream);
    if (s.error().empty()) s.wait();
    if (s.error().empty()) return ok_status();
    return unavailable(name_ + ": " + s.error());
  }

  int64_t waited_ns(const Stream& stream) const override {
    return static_cast<const CudaStream&>(stream).waited_ns();
  }

  Result<std::unique_ptr<ExchangeLane>> make_exchange_lane() override {
    return cuda::make_exchange_lane(index_);
  }

 private:
  int index_;
  std::string name_;
  int shared_bytes_;  // of a block, when asked for
  bool exl3_;         // EXL3 weights are read as they are
  bool graphs_;       // steps are recorded
};

std::string open_error(int abi_version, int index) {
  if (abi_version != kDeviceAbiVersion)
    return "libtensorfold_cuda.so is of interface version " + std::to_string(kDeviceAbiVersion) +
           ", the program of " + std::to_string(abi_version);
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess)
    return std::string("no GPU can be used: ") + cudaGetErrorString(code) + " (" +
           cudaGetErrorName(code) + ")";
  if (index >= count)
    return "cuda:" + std::to_string(index) + " is not there: this machine has " +
           std::to_string(count) + " GPUs";
  return "";
}

// A switch (docs/kernels/device.md): whether it says `on`, which is what an absent one says.
std::string switch_error(const char* name, const char* on, const char* off, bool& is_on) {
  const char* wanted = std::getenv(name);
  is_on = wanted == nullptr || std::strcmp(wanted, on) == 0;
  if (is_on || std::strcmp(wanted, off) == 0) return "";
  return std::string(name) + " must be \"" + on + "\" or \"" + off + "\", not \"" + wanted + "\"";
}

// Whether the library holds code for the device: a kernel's attributes can be read.
std::string image_error(const cudaDeviceProp& properties) {
  const std::string problem = kernels_missing();
  if (problem.empty()) return "";
  return std::string(properties.name) + " has compute capability " +
         std::to_string(properties.major) + "." + std::to_string(properties.minor) +
         ", for which libtensorfold_cuda.so holds no code: " + problem;
}

}  // namespace

void workspace_too_small() {
  check_failed(__FILE__, __LINE__, "workspace", "operation workspace too small");
}

Device* open_gpu(int abi_version, int index, std::string& problem) {
  problem = open_error(abi_version, index);
  cudaDeviceProp properties{};
  bool exl3 = false, graphs = false, read_elsewhere = false;
  if (problem.empty()) problem = switch_error("TENSORFOLD_CUDA_EXL3", "native", "widened", exl3);
  if (problem.empty()) problem = switch_error("TENSORFOLD_CUDA_GRAPHS", "on", "off", graphs);
  for (const auto& [name, on, off] : {std::array{"TENSORFOLD_CUDA_STREAM", "on", "off"},
                                      std::array{"TENSORFOLD_CUDA_WARM", "on", "off"},
                                      std::array{"TENSORFOLD_CUDA_AS", "itself", "gb10"}})
    if (problem.empty()) problem = switch_error(name, on, off, read_elsewhere);
  if (problem.empty()) {
    const cudaError_t code = cudaGetDeviceProperties(&properties, index);
    if (code != cudaSuccess)
      problem = std::string("cudaGetDeviceProperties: ") + cudaGetErrorString(code);
  }
  if (problem.empty()) {
    cudaSetDevice(index);
    problem = image_error(properties);
  }
  if (!problem.empty()) return nullptr;
  // The name is part of what is kept on disk: rows of the two forms must not meet.
  const std::string name =
      "cuda:" + std::to_string(index) + " " + properties.name + (exl3 ? " (EXL3 as stored)" : "");
  return new CudaDevice(index, name, static_cast<int>(properties.sharedMemPerBlockOptin), exl3,
                        graphs);
}

}  // namespace tensorfold::cuda
