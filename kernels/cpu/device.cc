// The CPU as a Device: host memory, the CPU's operations.
#include "kernels/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/formats.h"

namespace tensorfold {
namespace {

class CpuDevice final : public Device {
 public:
  const char* name() const override { return "cpu"; }
  const Backend& backend() const override { return cpu_backend(); }
  bool host_memory() const override { return true; }
  WeightLayout dense_layout(bool wide) const override {
    return wide ? WeightLayout::kPanelF32 : WeightLayout::kPanelBf16;
  }
  bool reads_exl3(const Exl3Parts&, Exl3Use) const override { return false; }
  Exl3Order pack_exl3(const Exl3Parts&, std::byte*) const override { return Exl3Order::kTiles; }
  Status check_shape(const WorkspaceShape&) const override { return ok_status(); }

  int64_t workspace_bytes(const WorkspaceShape& s, const Stream& stream) const override {
    const int lanes = stream.lanes();
    return std::max<int64_t>(
        {project_workspace_bytes(s.rows, s.widest_input),
         hc_step_workspace_bytes(s.rows, s.hidden, s.hc),
         attention_append_workspace_bytes(s.rows, s.head_dim, s.index_dim),
         index_select_workspace_bytes(s.index_heads, s.index_dim, s.entries, lanes),
         attention_core_workspace_bytes(s.heads, s.head_dim, lanes),
         moe_experts_workspace_bytes(s.rows, s.hidden, s.intermediate, s.experts, s.topk),
         head_logits_workspace_bytes(s.rows, s.hidden),
         markov_step_workspace_bytes(s.rows, s.markov_rank, s.hidden)});
  }

  Result<std::unique_ptr<Stream>> make_stream(int threads) override {
    return make_cpu_stream(threads);
  }

  // calloc: the system hands pages out when they are touched. The place of the block that calloc
  // gave lies just below the aligned memory.
  void* allocate(int64_t bytes) override {
    const auto extra = static_cast<size_t>(kDeviceAlignBytes) + sizeof(void*);
    // NOLINTNEXTLINE: the block's owner is whoever calls release()
    void* block = std::calloc(1, static_cast<size_t>(bytes) + extra);
    if (block == nullptr) return nullptr;
    auto at = reinterpret_cast<uintptr_t>(block) + extra;
    at -= at % static_cast<uintptr_t>(kDeviceAlignBytes);
    reinterpret_cast<void**>(at)[-1] = block;
    return reinterpret_cast<void*>(at);
  }
  void release(void* memory) override {
    // NOLINTNEXTLINE: from allocate()
    if (memory != nullptr) std::free(static_cast<void**>(memory)[-1]);
  }
  int64_t free_bytes() const override { return INT64_MAX; }

  void upload(void* to, const void* host, int64_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(to, host, static_cast<size_t>(bytes));
  }
  Status download(void* host, const void* from, int64_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(host, from, static_cast<size_t>(bytes));
    return ok_status();
  }
  void keep_rows(void* data, int64_t row_bytes, const int32_t* source, int rows, Stream&) override {
    auto* bytes = static_cast<std::byte*>(data);
    for (int r = 0; r < rows; ++r)
      if (source[r] != r)
        std::memmove(bytes + r * row_bytes, bytes + source[r] * row_bytes,
                     static_cast<size_t>(row_bytes));
  }
  void sum_parts(float* y, const void* parts, ValueType type, int ranks, int64_t count,
                 Stream&) override {
    const auto sum = [&](const auto& value) {
      for (int64_t i = 0; i < count; ++i) y[i] = value(i);
      for (int r = 1; r < ranks; ++r)
        for (int64_t i = 0; i < count; ++i) y[i] += value(r * count + i);
    };
    if (type == ValueType::kF32)
      sum([from = static_cast<const float*>(parts)](int64_t i) { return from[i]; });
    else
      sum([from = static_cast<const uint16_t*>(parts)](int64_t i) { return bf16_to_f32(from[i]); });
  }
  void narrow(uint16_t* y, const float* x, int64_t count, Stream&) override {
    for (int64_t i = 0; i < count; ++i) y[i] = f32_to_bf16(x[i]);
  }
  void interleave(void* to, const void* parts, int ranks, int rows, int64_t bytes,
                  Stream&) override {
    const auto* from = static_cast<const std::byte*>(parts);
    for (int64_t rank = 0; rank < ranks; ++rank)
      for (int64_t row = 0; row < rows; ++row)
        std::memcpy(static_cast<std::byte*>(to) + (row * ranks + rank) * bytes,
                    from + (rank * rows + row) * bytes, static_cast<size_t>(bytes));
  }
  void add(float* y, const float* x, int64_t count, Stream&) override {
    for (int64_t i = 0; i < count; ++i) y[i] += x[i];
  }
  Status synchronise(Stream&) override { return ok_status(); }
};

}  // namespace

Device& cpu_device() {
  static CpuDevice device;
  return device;
}

}  // namespace tensorfold
