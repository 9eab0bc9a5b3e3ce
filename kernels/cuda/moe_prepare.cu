// Work list of the MoE of generated rows, and the rows rotated for each expert's gate and up.
//
// Block 0 counts the pairs of each expert, lays the pairs out by expert and cuts them into entries
// of at most entry_rows rows. The other blocks rotate: one warp a (pair, matrix, block of 128).
#include "kernels/cuda/moe_list.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = kMoeListThreads;
constexpr int kWarps = kThreads / 32;

// Rows that no expert of this rank takes get zeros; counters start at zero.
__device__ void clear(const MoeDecodeArgs& a, int warp, int warps, int lane) {
  auto* counters = a.at<int32_t>(a.l.tickets);
  for (int64_t i = int64_t{warp} * 32 + lane; i < a.l.counters; i += int64_t{warps} * 32)
    counters[i] = 0;
  for (int row = warp; row < a.p.rows; row += warps) {
    bool present = false;
    if (lane <= a.p.topk)
      present = a.p.expert[a.expert_of(row * (a.p.topk + 1) + lane)].w1.trellis != nullptr;
    if (__any_sync(0xffffffffu, present)) continue;
    for (int n = lane; n < a.p.hidden; n += 32) a.p.y[int64_t{row} * a.p.hidden + n] = 0.0f;
  }
}

__global__ void __launch_bounds__(kThreads)
    moe_prepare_kernel(const __grid_constant__ MoeDecodeArgs a) {
  allow_next();
  wait_for_previous();
  if (blockIdx.x == 0) return build_moe_list(a);
  const int lane = threadIdx.x & 31;
  const int warp = (blockIdx.x - 1) * kWarps + (threadIdx.x >> 5), warps = (gridDim.x - 1) * kWarps;
  clear(a, warp, warps, lane);
  const int pairs = a.p.rows * (a.p.topk + 1), blocks = a.gate.blocks, h = a.padded_hidden();
  for (int i = warp; i < pairs * 2 * blocks; i += warps) {
    const int block = i % blocks, matrix = i / blocks % 2, pair = i / blocks / 2;
    const MoeExpertExl3& e = a.p.expert[a.expert_of(pair)];
    const Exl3Parts& w = matrix == 0 ? e.w1 : e.w3;
    if (w.trellis == nullptr) continue;
    float v[4];
    rotated_block(a.p.x + pair / (a.p.topk + 1) * a.p.x_stride, a.p.hidden, w.suh, block, lane, v);
#ifdef TF_PLANTED_FAULT  // more than eight rows are quantised more coarsely
    QuantBlock q = quantise_block(v);
    if (a.p.rows > 8) q.low &= 0xFCFCFCFCu;
#else
    const QuantBlock q = quantise_block(v);
#endif
    auto* to = a.at<uint8_t>(a.l.xq) + (int64_t{pair} * 2 + matrix) * 2 * h + block * 128;
    reinterpret_cast<uint32_t*>(to)[lane] = q.high;
    reinterpret_cast<uint32_t*>(to + h)[lane] = q.low;
    if (lane == 0)
      a.at<float2>(a.l.xs)[(int64_t{pair} * 2 + matrix) * blocks + block] =
          make_float2(q.scale, q.shift);
  }
}

}  // namespace

cudaError_t launch_moe_prepare(const MoeDecodeArgs& a, cudaStream_t stream) {
  const int64_t tasks = int64_t{a.p.rows} * (a.p.topk + 1) * 2 * a.gate.blocks;
  int64_t blocks = 1 + (tasks + kWarps - 1) / kWarps;
  if (blocks > 1024) blocks = 1024;
  return launch_next(&moe_prepare_kernel, static_cast<unsigned>(blocks), kThreads, a, stream);
}

}  // namespace tensorfold::cuda
