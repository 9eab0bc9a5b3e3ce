// Work list of the MoE of generated rows, and the rows rotated for each expert's gate and up.
//
// Block 0 counts the pairs of each expert, lays the pairs out by expert and cuts them into entries
// of at most entry_rows rows. The other blocks rotate: one warp a (pair, matrix, block of 128).
#include "kernels/cuda/moe_decode_device.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

struct List {
  int count[kMoeExpertsMax + 1], slot[kMoeExpertsMax + 1], entry[kMoeExpertsMax + 1];
};

// Exclusive sums over the experts, by one warp: of counts and of entries.
__device__ void scan(List& list, int experts, int entry_rows, int lane, int* entries) {
  const int each = (experts + 31) / 32;
  int slots = 0, cuts = 0;
  for (int e = lane * each; e < min(experts, lane * each + each); ++e) {
    slots += list.count[e];
    cuts += (list.count[e] + entry_rows - 1) / entry_rows;
  }
  int slots_at = slots, cuts_at = cuts;
  for (int step = 1; step < 32; step *= 2) {
    const int s = __shfl_up_sync(0xffffffffu, slots_at, step);
    const int c = __shfl_up_sync(0xffffffffu, cuts_at, step);
    if (lane >= step) {
      slots_at += s;
      cuts_at += c;
    }
  }
  if (lane == 31) *entries = cuts_at;
  slots_at -= slots;
  cuts_at -= cuts;
  for (int e = lane * each; e < min(experts, lane * each + each); ++e) {
    list.slot[e] = slots_at;
    list.entry[e] = cuts_at;
    slots_at += list.count[e];
    cuts_at += (list.count[e] + entry_rows - 1) / entry_rows;
  }
}

__device__ void build_list(const MoeDecodeArgs& a) {
  __shared__ List list;
  const int experts = a.p.experts + 1, pairs = a.p.rows * (a.p.topk + 1);
  auto* entries = a.at<MoeEntry>(a.l.entries);
  auto* slots = a.at<int32_t>(a.l.slots);
  for (int e = threadIdx.x; e < experts; e += kThreads) list.count[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    const int e = a.expert_of(i);
    if (a.p.expert[e].w1.trellis != nullptr) atomicAdd(&list.count[e], 1);
  }
  __syncthreads();
  if (threadIdx.x < 32)
    scan(list, experts, a.entry_rows, static_cast<int>(threadIdx.x),
         a.at<int32_t>(a.l.entry_count));
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kThreads) {
    for (int at = 0, i = list.entry[e]; at < list.count[e]; at += a.entry_rows, ++i)
      entries[i] = MoeEntry{e, list.slot[e] + at, min(a.entry_rows, list.count[e] - at), 0};
  }
  __syncthreads();
  // The order of an expert's pairs is left to the atomics: no row sees the others.
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    const int e = a.expert_of(i);
    if (a.p.expert[e].w1.trellis != nullptr) slots[atomicAdd(&list.slot[e], 1)] = i;
  }
}

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
  if (blockIdx.x == 0) return build_list(a);
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
    const QuantBlock q = quantise_block(v);
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
