// The MoE of prompt rows (exl3_prefill.h): list and rotation; gate, up and SwiGLU; down; the sum.
//
// Items are (entry of at most TN rows of one expert, 128 outputs). Gate and up share a thread
// block: two warpgroups each, one fp32 chain over the inputs per output. No weight is reconstructed
// in memory. Bytes: codes once per entry; rotated rows (fp16, per expert and matrix) written once
// and read by every output block through L2.
#include <climits>

#include "kernels/cuda/exl3_prefill.h"
#include "kernels/cuda/moe_plan.h"
#include "kernels/cuda/moe_prefill_args.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kGateThreads = 512;
constexpr int kDownThreads = 256;
template <int kTN, int kStages>
constexpr int gate_bytes() {
  return kStages * 2 * PrefillStage<kTN>::kBytes;
}

// Where row r of an entry lies; rows past its last are read from rows that nobody wrote.
__device__ __forceinline__ const uint16_t* entry_row(const uint16_t* rows,
                                                     const MoePrefillEntry& entry, int r) {
  const int placed = static_cast<int>(placed_rows(entry.count));
  return rows + int64_t{entry.first + min(r, placed - 1)} * 64;
}

template <int kTN, int kStages>
__global__ void __launch_bounds__(kGateThreads, 1)
    prefill_gate_up_kernel(const __grid_constant__ MoePrefillArgs a) {
  if constexpr (!prefill_fits(gate_bytes<kTN, kStages>())) return;
  extern __shared__ __align__(1024) uint8_t smem[];
  using Stage = PrefillStage<kTN>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, matrix = warp >> 3;
  const int steps = a.hidden_blocks * 2;
  const uint32_t base = shared_address(smem);
  const int items = a.at<int32_t>(a.l.counts)[0] * a.inner_blocks;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const MoePrefillEntry entry = a.at<MoePrefillEntry>(a.l.entries)[item / a.inner_blocks];
    const int column = item % a.inner_blocks;
    const MoeExpertExl3& e = a.p.expert[entry.expert];
    __syncthreads();
    PrefillLoader<kTN, true> loader(
        matrix == 0 ? e.w1 : e.w3, column, threadIdx.x & 255,
        [&](int r) { return entry_row(a.rotated(matrix), entry, r); }, a.l.positions * 64);
    auto load = [&](int step, uint32_t to) {
      if (step < steps) loader.next(to);
    };
    float d[kTN / 2];
    prefill_product<kTN, kStages>(matrix == 0 ? entry.bits1 : entry.bits3,
                                  base + matrix * Stage::kBytes, 2 * Stage::kBytes, steps, warp & 7,
                                  lane, load, d);
    __syncthreads();
    auto* sums = reinterpret_cast<float*>(smem);
    prefill_store<kTN>(d, warp & 7, lane, sums + matrix * kTN * kPrefillSumStride);
    __syncthreads();
    for (int r = warp; r < entry.count; r += kGateThreads / 32) {
      const float* at = sums + r * kPrefillSumStride + 4 * lane;
      float g[4], u[4];
      load_float4(at, g);
      load_float4(at + kTN * kPrefillSumStride, u);
      moe_swiglu(a, e, entry.first + r, column, lane, g, u);
    }
  }
}

template <int kTN, int kStages>
__global__ void __launch_bounds__(kDownThreads, 2)
    prefill_down_kernel(const __grid_constant__ MoePrefillArgs a) {
  if constexpr (!prefill_fits(gate_bytes<kTN, kStages>())) return;
  extern __shared__ __align__(1024) uint8_t smem[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int steps = a.inner_blocks * 2;
  const uint32_t base = shared_address(smem);
  const int items = a.at<int32_t>(a.l.counts)[0] * a.hidden_blocks;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const MoePrefillEntry entry = a.at<MoePrefillEntry>(a.l.entries)[item / a.hidden_blocks];
    const int column = item % a.hidden_blocks;
    const Exl3Parts& w = a.p.expert[entry.expert].w2;
    __syncthreads();
    PrefillLoader<kTN, true> loader(
        w, column, threadIdx.x, [&](int r) { return entry_row(a.at<uint16_t>(a.l.zq), entry, r); },
        a.l.positions * 64);
    auto load = [&](int step, uint32_t to) {
      if (step < steps) loader.next(to);
    };
    float d[kTN / 2];
    prefill_product<kTN, kStages>(entry.bits2, base, PrefillStage<kTN>::kBytes, steps, warp, lane,
                                  load, d);
    __syncthreads();
    auto* sums = reinterpret_cast<float*>(smem);
    prefill_store<kTN>(d, warp, lane, sums);
    __syncthreads();
    float scale[4];
    load_half4(w.svh + column * 128 + 4 * lane, scale);
    for (int r = warp; r < entry.count; r += kDownThreads / 32) {
      float v[4];
      load_float4(sums + r * kPrefillSumStride + 4 * lane, v);
      moe_store_down(a, scale, entry.first + r, column, lane, v);
    }
  }
}

// One warp a row and 128 outputs: the row's experts in ascending id, the shared
// one last.
__global__ void __launch_bounds__(256) sum_kernel(const __grid_constant__ MoePrefillArgs a) {
  const int lane = threadIdx.x & 31, h = a.padded_hidden();
  const int64_t warp = int64_t{blockIdx.x} * 8 + (threadIdx.x >> 5);
  if (warp >= int64_t{a.p.rows} * a.hidden_blocks) return;
  const int row = static_cast<int>(warp / a.hidden_blocks);
  const int at = static_cast<int>(warp % a.hidden_blocks) * 128 + 4 * lane;
  int key = INT_MAX;
  if (lane <= a.p.topk) {
    const int id = a.expert_of(row * (a.p.topk + 1) + lane);
    if (a.p.expert[id].w1.trellis != nullptr) key = id;
  }
  float v[4] = {0, 0, 0, 0};
  for (;;) {
    const int lowest = __reduce_min_sync(0xffffffffu, key);
    if (lowest == INT_MAX) break;
    const int i = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, key == lowest))) - 1;
    if (lane == i) key = INT_MAX;
    float part[4];
    load_float4(a.at<float>(a.l.ye) + (int64_t{row} * (a.p.topk + 1) + i) * h + at, part);
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] += part[k];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (at + i < a.p.hidden) a.p.y[int64_t{row} * a.p.hidden + at + i] = v[i];
}

MoePrefillLayout prefill_layout(int rows, int hidden, int intermediate, int topk, int experts) {
  const int64_t pairs = int64_t{rows} * (topk + 1);
  const int64_t h = moe_padded(hidden), n = moe_padded(intermediate);
  MoePrefillLayout l;
  l.positions = placed_rows(pairs + 7 * (pairs < experts + 1 ? pairs : experts + 1));
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t here = at;
    at += (bytes + 255) / 256 * 256;
    return here;
  };
  l.counts = take(8);
  l.entries = take(pairs * static_cast<int64_t>(sizeof(MoePrefillEntry)));
  l.slots = take(l.positions * 4);
  l.xq = l.ye = take(l.positions * h * 4);
  l.zq = take(l.positions * n * 2);
  l.bytes = at;
  return l;
}

template <int kTN, int kStages>
cudaError_t products(const MoePrefillArgs& a, int sms, cudaStream_t stream, const char** where) {
  constexpr int kGateBytes = gate_bytes<kTN, kStages>(), kDownBytes = kGateBytes / 2;
  static_assert(kDownBytes >= kTN * kPrefillSumStride * 4);
  if (where != nullptr) *where = "moe_prefill: gate and up";
  cudaError_t error = cudaFuncSetAttribute(prefill_gate_up_kernel<kTN, kStages>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, kGateBytes);
  if (error != cudaSuccess) return error;
  prefill_gate_up_kernel<kTN, kStages>
      <<<static_cast<unsigned>(sms), kGateThreads, kGateBytes, stream>>>(a);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  if (where != nullptr) *where = "moe_prefill: down";
  error = cudaFuncSetAttribute(prefill_down_kernel<kTN, kStages>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, kDownBytes);
  if (error != cudaSuccess) return error;
  prefill_down_kernel<kTN, kStages>
      <<<static_cast<unsigned>(2 * sms), kDownThreads, kDownBytes, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t products_of(const MoePrefillArgs& a, bool large, int sms, cudaStream_t stream,
                        const char** where) {
  if (!large) return products<32, 4>(a, sms, stream, where);
  switch (a.entry_rows) {
    case 32:
      return products<32, 6>(a, sms, stream, where);
    case 64:
      return products<64, 6>(a, sms, stream, where);
    case 96:
      return products<96, 4>(a, sms, stream, where);
    case 128:
      return products<128, 4>(a, sms, stream, where);
    default:
      return products<160, 4>(a, sms, stream, where);
  }
}

}  // namespace

int64_t moe_prefill_workspace_bytes(int rows, int hidden, int intermediate, int topk, int experts) {
  return prefill_layout(rows, hidden, intermediate, topk, experts).bytes;
}

cudaError_t moe_prefill(const MoeDecodeParams& p, cudaStream_t stream, const char** where) {
  if (where != nullptr) *where = "moe_prefill: parameters";
  if (p.rows < 0 || p.rows > kExl3RowsMax || p.experts > kMoeExpertsMax || p.topk > kMoeTopkMax)
    return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  MoePrefillArgs a = {};
  a.p = p;
  a.l = prefill_layout(p.rows, p.hidden, p.intermediate, p.topk, p.experts);
  if (a.l.bytes > p.workspace_bytes) return cudaErrorInvalidValue;
  a.hidden_blocks = moe_padded(p.hidden) / 128;
  a.inner_blocks = moe_padded(p.intermediate) / 128;
  int device = 0, sms = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return error;
  // An entry's rows only decide how often a trellis is decoded: every output is one chain. Most
  // experts should fit one: mean + 3 deviations of a uniform choice.
  const bool wide = major == 9;
  const int rows = prefill_tile_rows(p.rows, p.topk, p.experts);
  a.entry_rows = !wide || rows <= 32 ? 32 : (rows + 31) / 32 * 32;
  if (where != nullptr) *where = "moe_prefill: list and rotation";
  error = launch_moe_prefill_prepare(a, sms, stream);
  if (error == cudaSuccess) error = products_of(a, wide, sms, stream, where);
  if (error != cudaSuccess) return error;
  if (where != nullptr) *where = "moe_prefill: sum";
  const int64_t warps = int64_t{p.rows} * a.hidden_blocks;
  sum_kernel<<<static_cast<unsigned>((warps + 7) / 8), 256, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace tensorfold::cuda
