// The CUDA operations by name, as the backend's table takes them, and the workspace each needs.
#pragma once

#include <string>

#include "kernels/backend.h"
#include "kernels/cuda/stream.h"
#include "kernels/device.h"

namespace tensorfold::cuda {

void rope_table(const RopeTableParams& p, Stream& stream);
void embed_rows(const EmbedRowsParams& p, Stream& stream);
void hc_step(const HcStepParams& p, Stream& stream);
void project(const ProjectParams& p, Stream& stream);
void attention_append(const AttentionAppendParams& p, Stream& stream);
void index_select(const IndexSelectParams& p, Stream& stream);
void attention_core(const AttentionCoreParams& p, Stream& stream);
void moe_route(const MoeRouteParams& p, Stream& stream);
void moe_experts(const MoeExpertsParams& p, Stream& stream);
void engram_gate(const EngramGateParams& p, Stream& stream);
void head_logits(const HeadLogitsParams& p, Stream& stream);
void markov_step(const MarkovStepParams& p, Stream& stream);

int64_t project_bytes(const WorkspaceShape& s);
int64_t attention_append_bytes(const WorkspaceShape& s);
int64_t index_select_bytes(const WorkspaceShape& s);
int64_t moe_experts_bytes(const WorkspaceShape& s);
int64_t head_logits_bytes(const WorkspaceShape& s);
int64_t markov_step_bytes(const WorkspaceShape& s);

// Device::keep_rows and Device::add (device_moves.cu).
void keep_rows(void* data, int64_t row_bytes, const int32_t* source, int rows, CudaStream& stream);
void add(float* y, const float* x, int64_t count, CudaStream& stream);
// Device::sum_parts, narrow and interleave.
void sum_parts(float* y, const void* parts, ValueType type, int ranks, int64_t count,
               CudaStream& stream);
void narrow(uint16_t* y, const float* x, int64_t count, CudaStream& stream);
void interleave(void* to, const void* parts, int ranks, int rows, int64_t bytes,
                CudaStream& stream);
Result<std::unique_ptr<ExchangeLane>> make_exchange_lane(int index);
// The index-th GPU, or nullptr and why.
Device* open_gpu(int abi_version, int index, std::string& problem);
// Why the kernels cannot run on the current device; empty: they can.
std::string kernels_missing();

inline constexpr int64_t kSharedBlockBytes = 99 * 1024;  // of a block on the smallest GPU meant
inline constexpr int kHeadDimMax = 512;                  // attention_core
inline constexpr int kIndexDimMax = 128;                 // index_select keeps a key in registers
inline constexpr int kRowValuesMax = 15872;      // fp32 values of a row that lie in shared memory
inline constexpr int64_t kStreamsMax = 1 << 17;  // hidden size times streams: hc_step's sums
inline constexpr int kExpertsMax = 1023;         // moe_experts sorts by expert in one block

// Bump allocation inside a workspace, in pieces of 256 bytes.
class Pieces {
 public:
  explicit Pieces(const Workspace& w) : at_(w.data), end_(w.data + w.bytes) {}
  template <typename T>
  T* take(int64_t count);
  static constexpr int64_t padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  std::byte* at_;
  std::byte* end_;
};

[[noreturn]] void workspace_too_small();

template <typename T>
T* Pieces::take(int64_t count) {
  std::byte* p = at_;
  at_ += padded(count * static_cast<int64_t>(sizeof(T)));
  if (at_ > end_) workspace_too_small();
  return reinterpret_cast<T*>(p);
}

}  // namespace tensorfold::cuda
