// SwiGLU, down and the sum over experts of the MoE of generated rows.
//
// First all thread blocks together make the rows for w2: chunks of gate and up
// in ascending order, rotation, SwiGLU and the clamps, rotation, quantisation.
// Then units (entry, column of 128 outputs), as soon as the entry's rows are
// there. The fifth warp rotates finished columns back; the last of a row's
// experts to come so far adds all of them in ascending id. Who is last never
// changes the order of a sum.
#include <climits>

#include "kernels/cuda/moe_group.cuh"

namespace tensorfold::cuda {
namespace {

// Adds the row's experts at four outputs, ascending by id, the shared one last.
__device__ void combine(const MoeDecodeArgs& a, int row, int key, int at, int lane) {
  const int h = a.padded_hidden();
  float v[4] = {0, 0, 0, 0};
  constexpr int kBatch = 8;  // loads in flight
  for (bool more = true; more;) {
    float4 part[kBatch];
    int count = 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int lowest = __reduce_min_sync(0xffffffffu, key);
      if (lowest == INT_MAX) break;
      const int i = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, key == lowest))) - 1;
      if (lane == i) key = INT_MAX;
      const auto* y = a.at<float>(a.l.ye) + (int64_t{row} * (a.p.topk + 1) + i) * h + at;
      part[b] = __ldcg(reinterpret_cast<const float4*>(y));
      count = b + 1;
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (b < count) add4(v, part[b]);
    more = count == kBatch;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (at + i < a.p.hidden) a.p.y[int64_t{row} * a.p.hidden + at + i] = v[i];
}

// One pair's 128 outputs, whose sums lie where the outputs go.
__device__ void finish(const MoeDecodeArgs& a, const uint16_t* svh, int pair, int column,
                       int lane) {
  const int at = column * 128 + 4 * lane, h = a.padded_hidden(), row = pair / (a.p.topk + 1);
  auto* y = reinterpret_cast<float4*>(a.at<float>(a.l.ye) + int64_t{pair} * h + at);
  const float4 sum = __ldcg(y);
  float v[4] = {sum.x, sum.y, sum.z, sum.w}, scale[4];
  load_half4(svh + at, scale);
  hadamard_block(v, lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] *= kMul1Slope * scale[i];
    if (a.p.round_outputs) v[i] = bf16_round(v[i]);
  }
  __stcg(y, make_float4(v[0], v[1], v[2], v[3]));
  int key = INT_MAX;
  if (lane <= a.p.topk) {
    const int id = a.expert_of(row * (a.p.topk + 1) + lane);
    if (a.p.expert[id].w1.trellis != nullptr) key = id;
  }
  const int present = __popc(__ballot_sync(0xffffffffu, key != INT_MAX));
  if (moe_last(a.at<int32_t>(a.l.row_done) + row * a.gate.blocks + column, present, lane))
    combine(a, row, key, at, lane);
}

// Sum of the chunks of one matrix at four outputs of a pair.
__device__ __forceinline__ void sum_chunks(const MoeDecodeArgs& a, int64_t pair, int matrix, int n,
                                           float (&v)[4]) {
  const int inter = a.padded_inter();
  const auto* from = a.at<float>(a.l.parts) + (pair * 2 + matrix) * a.gate.chunks * inter + n;
  float4 part[kMoeGateChunksMax];  // all loads first, then the sum in order
#pragma unroll
  for (int c = 0; c < kMoeGateChunksMax; ++c)
    if (c < a.gate.chunks)
      part[c] = __ldcg(reinterpret_cast<const float4*>(from + int64_t{c} * inter));
  v[0] = v[1] = v[2] = v[3] = 0;
#pragma unroll
  for (int c = 0; c < kMoeGateChunksMax; ++c)
    if (c < a.gate.chunks) add4(v, part[c]);
}

// One block of 128 of a pair's row for w2.
__device__ __forceinline__ void make_z(const MoeDecodeArgs& a, const MoeExpertExl3& e, int pair,
                                       int block, int lane) {
  const int n = block * 128 + 4 * lane;
  const int slot = pair % (a.p.topk + 1), row = pair / (a.p.topk + 1);
  const float weight = slot == a.p.topk ? 1.0f : a.p.weights[row * a.p.topk + slot];
  float g[4], u[4], gs[4], us[4], ds[4], z[4];
  load_half4(e.w1.svh + n, gs);
  load_half4(e.w3.svh + n, us);
  load_half4(e.w2.suh + n, ds);
  sum_chunks(a, pair, 0, n, g);
  sum_chunks(a, pair, 1, n, u);
  hadamard_block(g, lane);
  hadamard_block(u, lane);
  const float limit = a.p.swiglu_limit;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float gv = bf16_round(g[i] * (kMul1Slope * gs[i]));
    float uv = bf16_round(u[i] * (kMul1Slope * us[i]));
    gv = gv > limit ? limit : gv;
    uv = uv > limit ? limit : uv;
    uv = uv < -limit ? -limit : uv;
    const float silu = gv / (1.0f + expf(-gv));
    z[i] = n + i < a.p.intermediate ? bf16_round(silu * uv * weight) * ds[i] : 0.0f;
  }
  hadamard_block(z, lane);
  const QuantBlock q = quantise_block(z);
  const int inter = a.padded_inter();
  auto* to = a.at<uint8_t>(a.l.zq) + int64_t{pair} * 2 * inter + block * 128;
  __stcg(reinterpret_cast<uint32_t*>(to) + lane, q.high);
  __stcg(reinterpret_cast<uint32_t*>(to + inter) + lane, q.low);
  if (lane == 0)
    __stcg(a.at<float2>(a.l.zs) + int64_t{pair} * a.down.blocks + block,
           make_float2(q.scale, q.shift));
}

// This warp's part of all rows for w2.
__device__ __forceinline__ void make_rows(const MoeDecodeArgs& a, int slots, int warp, int lane) {
  const int warps = static_cast<int>(gridDim.x) * kGroupWarps;
#pragma unroll 1
  for (int task = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
       task < slots * a.down.blocks; task += warps) {
    const int slot = task / a.down.blocks, block = task % a.down.blocks;
    const int entry = __ldcg(a.at<int32_t>(a.l.slot_entry) + slot);
    const int pair = __ldcg(a.at<int32_t>(a.l.slots) + slot);
    make_z(a, a.p.expert[__ldcg(a.at<int32_t>(a.l.entries) + 4 * entry)], pair, block, lane);
    __syncwarp();
    if (lane == 0)
      asm volatile(
          "red.release.gpu.global.add.s32 [%0], 1;" ::"l"(a.at<int32_t>(a.l.z_done) + entry)
          : "memory");
  }
}

struct DownJob {
  const MoeDecodeArgs& a;
  static constexpr bool kFollowed = true;

  __device__ __forceinline__ const int32_t* slots() const { return a.at<int32_t>(a.l.slots); }
  __device__ __forceinline__ GroupPhase phase(int64_t at, int64_t end) const {
    const int columns = a.gate.blocks;
    GroupPhase p;
    p.column = static_cast<int>(at % columns);
    p.columns = static_cast<int>(min(int64_t{columns - p.column}, end - at));
    p.number = static_cast<int>(at / columns);
    p.matrix = p.chunk = p.begin = 0;
    const int4 e = __ldcg(a.at<int4>(a.l.entries) + p.number);
    p.entry = MoeEntry{e.x, e.y, e.z, e.w};
    p.weight = a.p.expert[p.entry.expert].w2;
    p.count = a.down.blocks;
    return p;
  }
  template <int RG>
  __device__ __forceinline__ void fill(GroupShared& s, const GroupPhase& p, int sub, int blocks,
                                       int warp, int lane) const {
    const int rows = p.entry.count;
    if (sub == 0) {  // the entry's rows are there
      const auto* done = a.at<int32_t>(a.l.z_done) + p.number;
      int count = 0, tries = 0;
      do {
        if (++tries > (1 << 22)) __trap();
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(done) : "memory");
      } while (count < rows * a.down.blocks);
    }
    const int inter = a.padded_inter();
    TileWords<RG> word;
#pragma unroll
    for (int rg = 0; rg < RG; ++rg) {
      const int column = rg * 8 + (lane >> 2), row = min(column >> 1, rows - 1);
      const auto* from = a.at<uint8_t>(a.l.zq) + int64_t{s.pair[row]} * 2 * inter +
                         (column & 1) * inter + sub * 128 + 16 * (lane & 3) + 4 * warp;
#pragma unroll
      for (int b = 0; b < kTileBlocks / RG; ++b)
#pragma unroll
        for (int u = 0; u < 2; ++u)
          word[b][u][rg] =
              b < blocks ? __ldcg(reinterpret_cast<const uint32_t*>(from + b * 128 + u * 64)) : 0;
    }
    for (int i = static_cast<int>(threadIdx.x); i < blocks * rows; i += 32 * kGroupWarps)
      s.scale[i / rows * 4 * RG + i % rows] =
          __ldcg(a.at<float2>(a.l.zs) + int64_t{s.pair[i % rows]} * a.down.blocks + sub + i / rows);
    spread_tile<RG>(s, word, blocks, warp, lane);
    group_sync();
    add_shifts<RG>(s, rows, blocks);
  }
  __device__ __forceinline__ float* sums(const GroupPhase&, int pair) const {
    return a.at<float>(a.l.ye) + int64_t{pair} * a.padded_hidden();
  }
};

// The fifth warp: copies codes ahead of the products, and finishes columns behind them.
__device__ __forceinline__ void copy_and_finish(GroupShared& s, const MoeDecodeArgs& a,
                                                const DownJob& job, const GroupRange& range,
                                                int lane) {
  CodeCopier<DownJob> copier(s, job, range);
  while (copier.step(false, lane)) {
  }
  wait_for_previous();
  Place<kDoneSlots> place;
#pragma unroll 1
  for (int64_t at = range.first; at < range.end;) {
    const GroupPhase p = job.phase(at, range.end);
    at += p.columns;
    if (!p.tuned()) continue;
#pragma unroll 1
    for (int column = p.column; column < p.column + p.columns; ++column) {
      while (!barrier_passed(&s.done[place.slot], place.parity)) copier.step(false, lane);
#pragma unroll 1
      for (int r = 0; r < p.entry.count; ++r) {
        finish(a, p.weight.svh, job.slots()[p.entry.first + r], column, lane);
        while (copier.step(false, lane)) {
        }
      }
      if (lane == 0) barrier_arrive(&s.taken[place.slot]);
      place.next();
    }
  }
}

__global__ void __launch_bounds__(kGroupThreads, TF_GROUP_BLOCKS)
    moe_down_kernel(const __grid_constant__ MoeDecodeArgs a) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& s = *reinterpret_cast<GroupShared*>(memory);
  group_init(s);
  // The work list is complete: gate and up let this kernel begin after they had it.
  const int2 count = __ldcg(a.at<int2>(a.l.entry_count));
  const GroupRange range(int64_t{count.x} * a.gate.blocks, a.multiprocessors);
  const DownJob job{a};
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  if (warp == kGroupWarps) return copy_and_finish(s, a, job, range, lane);
  wait_for_previous();
  allow_next();
  make_rows(a, count.y, warp, lane);
  group_multiply(s, job, range, warp, lane);
}

}  // namespace

cudaError_t launch_moe_down(const MoeDecodeArgs& a, cudaStream_t stream) {
  return launch_group(&moe_down_kernel, a, stream);
}

int64_t moe_decode_workspace_bytes(int rows, int hidden, int intermediate, int topk) {
  return moe_decode_layout(rows, hidden, intermediate, topk).bytes;
}

cudaError_t moe_decode(const MoeDecodeParams& p, cudaStream_t stream, const char** where) {
  const auto at = [where](const char* kernel) {
    if (where != nullptr) *where = kernel;
  };
  at("moe_decode: parameters");
  if (p.rows < 0 || p.rows > kExl3RowsMax || p.experts > kMoeExpertsMax || p.topk > kMoeTopkMax)
    return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  MoeDecodeArgs a = {};
  a.p = p;
  a.l = moe_decode_layout(p.rows, p.hidden, p.intermediate, p.topk);
  if (a.l.bytes > p.workspace_bytes) return cudaErrorInvalidValue;
  a.gate = moe_gate_cut(p.hidden);
  a.down = moe_down_cut(p.intermediate);
  a.entry_rows = p.rows <= 4 ? 4 : kMoeRowsPerEntry;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&a.multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  at("moe_gate_up");
  error = launch_moe_gate_up(a, stream);
  if (error != cudaSuccess) return error;
  at("moe_down");
  return launch_moe_down(a, stream);
}

}  // namespace tensorfold::cuda
