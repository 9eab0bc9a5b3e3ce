// The MoE of prompt rows (exl3_prefill.h): list and rotation; gate, up and SwiGLU; down; the sum.
//
// Items are (entry of at most TN rows of one expert, 128 outputs). Gate and up share a thread
// block: two warpgroups each, one fp32 chain over the inputs per output. No weight is reconstructed
// in memory. Bytes: codes once per entry; rotated rows (fp16, per expert and matrix) written once
// and read by every output block through L2.
#include <climits>

#include "kernels/cuda/exl3_prefill.cuh"
#include "kernels/cuda/exl3_prefill.h"
#include "kernels/cuda/gpu_attribute.h"
#include "kernels/cuda/moe_decode_device.cuh"
#include "kernels/cuda/prefill_rotate.h"
#include "kernels/cuda/shared_limit.h"

namespace tensorfold::cuda {
namespace {

constexpr int kGateThreads = 512;
constexpr int kDownThreads = 256;

template <int TN, int kStages>
constexpr int gate_bytes() {
  return kStages * 2 * PrefillStage<TN>::kBytes;
}

__device__ void swiglu(const MoeDecodeArgs& a, const MoeExpertExl3& e, int pair, int column,
                       int lane, float (&g)[4], float (&u)[4]) {
  const int n = column * 128 + 4 * lane;
  const int slot = pair % (a.p.topk + 1), row = pair / (a.p.topk + 1);
  const float weight = slot == a.p.topk ? 1.0f : a.p.weights[row * a.p.topk + slot];
  const float limit = a.p.swiglu_limit;
  float gs[4], us[4], ds[4], z[4];
  load_half4(e.w1.svh + n, gs);
  load_half4(e.w3.svh + n, us);
  load_half4(e.w2.suh + n, ds);
  hadamard_block(g, lane);
  hadamard_block(u, lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float gv = round_bf16(g[i] * gs[i]);
    float uv = round_bf16(u[i] * us[i]);
    gv = gv > limit ? limit : gv;
    uv = uv > limit ? limit : uv;
    uv = uv < -limit ? -limit : uv;
    const float silu = gv / (1.0f + expf(-gv));
    z[i] = n + i < a.p.intermediate ? round_bf16(silu * uv * weight) * ds[i] : 0.0f;
  }
  hadamard_block(z, lane);
  store_prefill_block(z, a.at<uint16_t>(a.l.zq) + int64_t{pair} * a.padded_inter() + column * 128,
                      lane);
}

template <int TN, int kStages>
__global__ void __launch_bounds__(kGateThreads, 1)
    prefill_gate_up_kernel(const __grid_constant__ MoeDecodeArgs a) {
  if constexpr (!prefill_fits(gate_bytes<TN, kStages>())) return;
  extern __shared__ __align__(1024) uint8_t smem[];
  __shared__ int32_t pairs[TN];
  using Stage = PrefillStage<TN>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, matrix = warp >> 3;
  const int h = a.padded_hidden(), steps = h / 64;
  const uint32_t base = shared_address(smem);
  const auto* x = a.at<uint16_t>(a.l.xq);
  const int items = *a.at<int32_t>(a.l.entry_count) * a.down.blocks;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const MoeEntry entry = a.at<MoeEntry>(a.l.entries)[item / a.down.blocks];
    const int column = item % a.down.blocks;
    const MoeExpertExl3& e = a.p.expert[entry.expert];
    __syncthreads();
    for (int r = threadIdx.x; r < TN; r += kGateThreads)
      pairs[r] = a.at<int32_t>(a.l.slots)[entry.first + min(r, entry.count - 1)];
    __syncthreads();
    PrefillLoader<TN> loader(matrix == 0 ? e.w1 : e.w3, column, threadIdx.x & 255,
                             [&](int r) { return x + (int64_t{pairs[r]} * 2 + matrix) * h; });
    auto load = [&](int step, uint32_t to) {
      if (step < steps) loader.next(to);
    };
    float d[TN / 2];
    prefill_product<TN, kStages>((matrix == 0 ? e.w1 : e.w3).half_bits / 2,
                                 base + matrix * Stage::kBytes, 2 * Stage::kBytes, steps, warp & 7,
                                 lane, load, d);
    __syncthreads();
    auto* sums = reinterpret_cast<float*>(smem);
    prefill_store<TN>(d, warp & 7, lane, sums + matrix * TN * kPrefillSumStride);
    __syncthreads();
    for (int r = warp; r < entry.count; r += kGateThreads / 32) {
      const float* at = sums + r * kPrefillSumStride + 4 * lane;
      const float4 s = *reinterpret_cast<const float4*>(at);
      const float4 t = *reinterpret_cast<const float4*>(at + TN * kPrefillSumStride);
      float g[4] = {s.x, s.y, s.z, s.w}, u[4] = {t.x, t.y, t.z, t.w};
      swiglu(a, e, pairs[r], column, lane, g, u);
    }
  }
}

template <int TN, int kStages>
__global__ void __launch_bounds__(kDownThreads, 2)
    prefill_down_kernel(const __grid_constant__ MoeDecodeArgs a) {
  if constexpr (!prefill_fits(gate_bytes<TN, kStages>())) return;
  extern __shared__ __align__(1024) uint8_t smem[];
  __shared__ int32_t pairs[TN];
  using Stage = PrefillStage<TN>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int h = a.padded_hidden(), inter = a.padded_inter(), steps = inter / 64;
  const uint32_t base = shared_address(smem);
  const auto* z = a.at<uint16_t>(a.l.zq);
  const int items = *a.at<int32_t>(a.l.entry_count) * a.gate.blocks;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const MoeEntry entry = a.at<MoeEntry>(a.l.entries)[item / a.gate.blocks];
    const int column = item % a.gate.blocks;
    const Exl3Parts& w = a.p.expert[entry.expert].w2;
    __syncthreads();
    for (int r = threadIdx.x; r < TN; r += kDownThreads)
      pairs[r] = a.at<int32_t>(a.l.slots)[entry.first + min(r, entry.count - 1)];
    __syncthreads();
    PrefillLoader<TN> loader(w, column, threadIdx.x,
                             [&](int r) { return z + int64_t{pairs[r]} * inter; });
    auto load = [&](int step, uint32_t to) {
      if (step < steps) loader.next(to);
    };
    float d[TN / 2];
    prefill_product<TN, kStages>(w.half_bits / 2, base, Stage::kBytes, steps, warp, lane, load, d);
    __syncthreads();
    auto* sums = reinterpret_cast<float*>(smem);
    prefill_store<TN>(d, warp, lane, sums);
    __syncthreads();
    const int at = column * 128 + 4 * lane;
    float scale[4];
    load_half4(w.svh + at, scale);
    for (int r = warp; r < entry.count; r += kDownThreads / 32) {
      const float4 s = *reinterpret_cast<const float4*>(sums + r * kPrefillSumStride + 4 * lane);
      float v[4] = {s.x, s.y, s.z, s.w};
      hadamard_block(v, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] *= scale[i];
        if (a.p.round_outputs) v[i] = round_bf16(v[i]);
      }
      *reinterpret_cast<float4*>(a.at<float>(a.l.ye) + int64_t{pairs[r]} * h + at) =
          make_float4(v[0], v[1], v[2], v[3]);
    }
  }
}

// One warp a row and 128 outputs: the row's experts in ascending id, the shared one last.
__global__ void __launch_bounds__(256) sum_kernel(const __grid_constant__ MoeDecodeArgs a) {
  const int lane = threadIdx.x & 31, h = a.padded_hidden();
  const int64_t warp = int64_t{blockIdx.x} * 8 + (threadIdx.x >> 5);
  if (warp >= int64_t{a.p.rows} * a.gate.blocks) return;
  const int row = static_cast<int>(warp / a.gate.blocks);
  const int at = static_cast<int>(warp % a.gate.blocks) * 128 + 4 * lane;
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
    add4(v, *reinterpret_cast<const float4*>(a.at<float>(a.l.ye) +
                                             (int64_t{row} * (a.p.topk + 1) + i) * h + at));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (at + i < a.p.hidden) a.p.y[int64_t{row} * a.p.hidden + at + i] = v[i];
}

// Rotated rows and the experts' outputs share their place: the former are read by gate and up only.
MoeDecodeLayout prefill_layout(int rows, int hidden, int intermediate, int topk) {
  const int64_t pairs = int64_t{rows} * (topk + 1);
  const int64_t h = moe_padded(hidden), n = moe_padded(intermediate);
  MoeDecodeLayout l;
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t here = at;
    at += (bytes + 255) / 256 * 256;
    return here;
  };
  l.entry_count = take(4);
  l.entries = take(pairs * 16);
  l.slots = take(pairs * 4);
  l.xq = l.ye = take(pairs * h * 4);
  l.zq = take(pairs * n * 2);
  l.bytes = at;
  return l;
}

template <int TN, int kStages>
cudaError_t run(MoeDecodeArgs& a, int sms, cudaStream_t stream, const char** where) {
  a.entry_rows = TN;
  const auto at = [where](const char* kernel) {
    if (where != nullptr) *where = kernel;
  };
  const int bytes = gate_bytes<TN, kStages>();
  const int down_bytes = kStages * PrefillStage<TN>::kBytes;
  static_assert(PrefillStage<TN>::kBytes * kStages >= TN * kPrefillSumStride * 4);
  at("moe_prefill: list and rotation");
  cudaError_t error = launch_moe_prefill_prepare(a, sms, stream);
  if (error != cudaSuccess) return error;
  at("moe_prefill: gate and up");
  error = allow_shared_bytes(reinterpret_cast<const void*>(&prefill_gate_up_kernel<TN, kStages>),
                             bytes);
  if (error != cudaSuccess) return error;
  prefill_gate_up_kernel<TN, kStages>
      <<<static_cast<unsigned>(sms), kGateThreads, static_cast<size_t>(bytes), stream>>>(a);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  at("moe_prefill: down");
  error = allow_shared_bytes(reinterpret_cast<const void*>(&prefill_down_kernel<TN, kStages>),
                             down_bytes);
  if (error != cudaSuccess) return error;
  prefill_down_kernel<TN, kStages>
      <<<static_cast<unsigned>(2 * sms), kDownThreads, static_cast<size_t>(down_bytes), stream>>>(
          a);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  at("moe_prefill: sum");
  const int64_t warps = int64_t{a.p.rows} * a.gate.blocks;
  sum_kernel<<<static_cast<unsigned>((warps + 7) / 8), 256, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace

int64_t moe_prefill_workspace_bytes(int rows, int hidden, int intermediate, int topk) {
  return prefill_layout(rows, hidden, intermediate, topk).bytes;
}

cudaError_t moe_prefill(const MoeDecodeParams& p, cudaStream_t stream, const char** where) {
  if (where != nullptr) *where = "moe_prefill: parameters";
  if (p.rows < 0 || p.rows > kExl3RowsMax || p.experts > kMoeExpertsMax || p.topk > kMoeTopkMax)
    return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  MoeDecodeArgs a = {};
  a.p = p;
  a.l = prefill_layout(p.rows, p.hidden, p.intermediate, p.topk);
  if (a.l.bytes > p.workspace_bytes) return cudaErrorInvalidValue;
  a.gate = moe_gate_cut(p.hidden);
  a.down = moe_down_cut(p.intermediate);
  int device = 0, sms = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = gpu_attribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = gpu_attribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  // The tile's rows only decide how often a trellis is decoded: every output is one chain. Most
  // experts should fit one tile: mean + 3 deviations of a uniform choice.
  const bool large = shared >= 220 * 1024;  // else the 99 KB of a GB10
  const int rows = prefill_tile_rows(p.rows, p.topk, p.experts);
  if (!large) return run<32, 4>(a, sms, stream, where);
  if (rows <= 32) return run<32, 6>(a, sms, stream, where);
  if (rows <= 64) return run<64, 6>(a, sms, stream, where);
  if (rows <= 96) return run<96, 4>(a, sms, stream, where);
  if (rows <= 128) return run<128, 4>(a, sms, stream, where);
  return run<160, 4>(a, sms, stream, where);
}

}  // namespace tensorfold::cuda
