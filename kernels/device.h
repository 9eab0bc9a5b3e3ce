// Device: where the operations of a Backend run and where the memory lies that they read and write.
// The forward pass takes all its memory from one and moves bytes through it, so the same code runs
// over the CPU and over a GPU.
//
// Owned by whoever opened it; it outlives its memory and its streams. Used by one thread at a time.
// Nothing here is on an operation's path: operations allocate nothing and never wait.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/base/status.h"
#include "kernels/backend.h"
#include "kernels/exchange_lane.h"
#include "kernels/sample_rows.h"
#include "kernels/step_graph.h"

namespace tensorfold {

// Bumped with every change of Device, Backend, WeightView or a params struct: a backend library of
// another version is refused.
inline constexpr int kDeviceAbiVersion = 9;
inline constexpr int kDeviceErrorBytes = 512;  // of the message that a library may leave

// What a workspace must serve: the largest call of every operation.
struct WorkspaceShape {
  int rows = 0;
  int widest_input = 0;  // of any projection
  int hidden = 0;
  int hc = 0;
  int heads = 0;
  int head_dim = 0;
  int index_heads = 0;
  int index_dim = 0;
  int64_t entries = 0;  // global entries that a row may see
  int candidate_block_size = 0;
  int intermediate = 0;
  int experts = 0;
  int topk = 0;
  int markov_rank = 0;
  bool exl3 = false;  // some weights are kExl3
};

// What reads a weight.
enum class Exl3Use : unsigned char {
  kDense,   // project and head_logits
  kExpert,  // moe_experts
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const = 0;  // "cpu", "cuda:0 NVIDIA GB10"
  virtual const Backend& backend() const = 0;
  // Device memory is host memory: pointers may be read and written directly, tables need no copy.
  virtual bool host_memory() const = 0;
  // Which layout matrices have; wide: stored as F16 or F32.
  virtual WeightLayout dense_layout(bool wide) const = 0;
  // Whether the operations of `use` take a stored EXL3 weight as kExl3; otherwise it is widened
  // when it is loaded. Of `stored` only sizes, width and codebook are looked at.
  virtual bool reads_exl3(const Exl3Parts& stored, Exl3Use use) const = 0;
  // The trellis of such a weight (host memory, order kTiles) in the order that is returned, as many
  // bytes; `to` is host memory, 16-byte aligned.
  virtual Exl3Order pack_exl3(const Exl3Parts& stored, std::byte* to) const = 0;
  // The same into device memory, packed there; queued like upload(). False: the device leaves it to
  // pack_exl3() and upload().
  virtual bool upload_exl3(const Exl3Parts&, void* /*to*/, Exl3Order& /*order*/, Stream&) {
    return false;
  }
  // kUnsupported when no operation of this device takes the shape.
  virtual Status check_shape(const WorkspaceShape& shape) const = 0;
  virtual int64_t workspace_bytes(const WorkspaceShape& shape, const Stream& stream) const = 0;

  // threads: lanes of a CPU stream, 0: one per core.
  virtual Result<std::unique_ptr<Stream>> make_stream(int threads) = 0;

  // Zeroed memory aligned to kDeviceAlignBytes; nullptr when refused.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual int64_t free_bytes() const = 0;  // of memory that allocate can still hand out

  // Queued on the stream; `host` may be changed as soon as the call returns.
  virtual void upload(void* to, const void* host, int64_t bytes, Stream& stream) = 0;
  // Waits until the bytes are there.
  virtual Status download(void* host, const void* from, int64_t bytes, Stream& stream) = 0;
  // Keeps rows source[0..rows) of `data` (ascending, source[r] >= r) as rows 0..rows, in place.
  // `source` is device memory; rows are row_bytes apart and as long.
  virtual void keep_rows(void* data, int64_t row_bytes, const int32_t* source, int rows,
                         Stream& stream) = 0;
  // y[i] += x[i], fp32.
  virtual void add(float* y, const float* x, int64_t count, Stream& stream) = 0;
  // Whether tokens can be chosen where the logits are (kernels/sample_rows.h). Everything that the
  // parameters point at is device memory; queued.
  virtual bool samples_rows() const { return false; }
  virtual void sample_rows(const SampleRowsParams&, Stream&) {}
  // Waits for everything queued. An error names the kernel that failed and its shapes; it stays.
  virtual Status synchronise(Stream& stream) = 0;
  // How long the host has stood waiting for the stream so far; 0 where it is not counted.
  virtual int64_t waited_ns(const Stream&) const { return 0; }

  // What a library of exchanges queues its work on (cudaStream_t), behind all that is queued so far
  // and ahead of what comes; nullptr: none can.
  virtual void* native_queue(Stream&) { return nullptr; }
  // y[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + ..., fp32; parts [ranks][count] of `type`.
  virtual void sum_parts(float* y, const void* parts, ValueType type, int ranks, int64_t count,
                         Stream& stream) = 0;
  // y[i] = x[i] rounded to bf16.
  virtual void narrow(uint16_t* y, const float* x, int64_t count, Stream& stream) = 0;
  // to [rows][ranks][bytes] = parts [ranks][rows][bytes].
  virtual void interleave(void* to, const void* parts, int ranks, int rows, int64_t bytes,
                          Stream& stream) = 0;
  // For exchanges between ranks by a library that works on device memory (engine/cluster/nccl).
  // kUnsupported: host memory will do.
  virtual Result<std::unique_ptr<ExchangeLane>> make_exchange_lane() {
    return unsupported("exchanges are made from host memory");
  }

  // Whether steps should be recorded (docs/kernels/graphs.md).
  virtual bool records_graphs() const { return false; }
  // What is queued between the two is recorded and not run. An error of end_graph means that it
  // could not be recorded; the stream is then as if nothing had been queued since begin_graph.
  virtual Status begin_graph(Stream&) { return unsupported("this device records nothing"); }
  virtual Result<std::unique_ptr<StepGraph>> end_graph(Stream&) {
    return unsupported("this device records nothing");
  }
  virtual void run_graph(StepGraph&, Stream&) {}
};

inline constexpr int64_t kDeviceAlignBytes = 64;

// The host's own memory and the CPU's operations.
Device& cpu_device();

// "cpu", "cuda" or "cuda:N" (the N-th GPU); "auto": a GPU where the backend library and a GPU are
// there, else the CPU. The library libtensorfold_cuda.so is looked for beside the program, in
// ../lib/tensorfoldd, in the build tree, then where the system's loader looks; or
// TENSORFOLD_CUDA_LIBRARY names it. What is missing is one line.
Result<std::shared_ptr<Device>> open_device(const std::string& spec);

// The entry point of a backend library: a new device, or nullptr and the reason in `error`
// (kDeviceErrorBytes long).
inline constexpr const char* kDeviceEntryPoint = "tensorfold_open_device";
using OpenDeviceFn = Device* (*)(int abi_version, int index, char* error);

struct ReleaseMemory {
  Device* device = nullptr;
  void operator()(void* memory) const { device->release(memory); }
};
// Device memory with an owner.
template <typename T>
using DeviceArray = std::unique_ptr<T[], ReleaseMemory>;

template <typename T>
DeviceArray<T> allocate_array(Device& device, int64_t count) {
  return DeviceArray<T>(
      static_cast<T*>(device.allocate((count > 0 ? count : 1) * static_cast<int64_t>(sizeof(T)))),
      ReleaseMemory{&device});
}

}  // namespace tensorfold
