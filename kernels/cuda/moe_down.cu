// SwiGLU, down and the sum over experts of the MoE of generated rows.
//
// First all thread blocks together make the rows for w2: parts of gate and up in ascending order,
// rotation, SwiGLU and the clamps, rotation, quantisation. Then units (entry, all inputs or a leaf
// of them, column of 128 outputs), as soon as the entry's rows are there. Whoever has the last leaf
// of a column adds them in ascending order and rotates back; the last of a row's experts to come so
// far adds all of them in ascending id. Who is last never changes the order of a sum.
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

// The end of 128 outputs of a pair, from four sums a lane.
__device__ __forceinline__ void finish(const MoeDecodeArgs& a, int pair, int key,
                                       const float (&scale)[4], int column, int lane,
                                       float (&v)[4]) {
  const int at = column * 128 + 4 * lane, h = a.padded_hidden(), row = pair / (a.p.topk + 1);
  hadamard_block(v, lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] *= kMul1Slope * scale[i];
    if (a.p.round_outputs) v[i] = bf16_round(v[i]);
  }
  __stcg(reinterpret_cast<float4*>(a.at<float>(a.l.ye) + int64_t{pair} * h + at),
         make_float4(v[0], v[1], v[2], v[3]));
  const int present = __popc(__ballot_sync(0xffffffffu, key != INT_MAX));
  if (moe_last(a.at<int32_t>(a.l.row_done) + row * a.gate.blocks + column, present, lane))
    combine(a, row, key, at, lane);
}

// Sum of the parts of one matrix at four outputs of a slot: of leaves, of chunks.
__device__ __forceinline__ void sum_parts(const MoeDecodeArgs& a, int64_t slot, int matrix, int n,
                                          bool fine, float (&v)[4]) {
  constexpr int kBatch = 4;  // chunks whose loads come first
  const int inter = a.padded_inter(), pieces = fine ? a.gate.leaves : a.gate.chunks;
  const auto* from = a.at<float>(a.l.parts) + (slot * 2 + matrix) * pieces * inter + n;
  const auto part_at = [&](int i) {
    return __ldcg(reinterpret_cast<const float4*>(from + int64_t{i} * inter));
  };
  v[0] = v[1] = v[2] = v[3] = 0;
#pragma unroll 1
  for (int first = 0; first < a.gate.chunks; first += kBatch) {
    float4 part[kBatch], more[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int chunk = first + i;
      if (chunk >= a.gate.chunks) break;
      part[i] = part_at(fine ? kMoeGateChunkLeaves * chunk : chunk);
      if (fine && 2 * chunk + 1 < a.gate.leaves) more[i] = part_at(2 * chunk + 1);
    }
    static_assert(kMoeGateChunkLeaves == 2);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int chunk = first + i;
      if (chunk >= a.gate.chunks) break;
      float sum[4] = {part[i].x, part[i].y, part[i].z, part[i].w};
      if (fine && 2 * chunk + 1 < a.gate.leaves) add4(sum, more[i]);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] += sum[j];
    }
  }
}

// One block of 128 of a slot's row for w2. What the kernel before did not make is read ahead.
struct RowBlock {
  int slot, entry, block;
  float gate[4], up[4], down[4], weight;  // scales of the outputs, of the inputs of w2

  __device__ __forceinline__ void read(const MoeDecodeArgs& a, int task, int lane) {
    slot = task / a.down.blocks;
    block = task % a.down.blocks;
    const int pair = __ldcg(a.at<int32_t>(a.l.slots) + slot);
    const int2 of = __ldcg(a.at<int2>(a.l.slot_entry) + slot);
    entry = of.x;
    const MoeExpertExl3& e = a.p.expert[of.y];
    const int n = block * 128 + 4 * lane;
    load_half4(e.w1.svh + n, gate);
    load_half4(e.w3.svh + n, up);
    load_half4(e.w2.suh + n, down);
    const int i = pair % (a.p.topk + 1), row = pair / (a.p.topk + 1);
    weight = i == a.p.topk ? 1.0f : a.p.weights[row * a.p.topk + i];
  }
  __device__ __forceinline__ void run(const MoeDecodeArgs& a, bool fine, int lane) const {
    const int n = block * 128 + 4 * lane;
    float g[4], u[4], z[4];
    sum_parts(a, slot, 0, n, fine, g);
    sum_parts(a, slot, 1, n, fine, u);
    hadamard_block(g, lane);
    hadamard_block(u, lane);
    const float limit = a.p.swiglu_limit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float gv = bf16_round(g[i] * (kMul1Slope * gate[i]));
      float uv = bf16_round(u[i] * (kMul1Slope * up[i]));
      gv = gv > limit ? limit : gv;
      uv = uv > limit ? limit : uv;
      uv = uv < -limit ? -limit : uv;
      const float silu = gv / (1.0f + expf(-gv));
      z[i] = n + i < a.p.intermediate ? bf16_round(silu * uv * weight) * down[i] : 0.0f;
    }
    hadamard_block(z, lane);
    const QuantBlock q = quantise_block(z);
    const int inter = a.padded_inter();
    auto* to = a.at<uint8_t>(a.l.zq) + int64_t{slot} * 2 * inter + block * 128;
    __stcg(reinterpret_cast<uint32_t*>(to) + lane, q.high);
    __stcg(reinterpret_cast<uint32_t*>(to + inter) + lane, q.low);
    if (lane == 0)
      __stcg(a.at<float2>(a.l.zs) + int64_t{slot} * a.down.blocks + block,
             make_float2(q.scale, q.shift));
    __syncwarp();
    if (lane == 0)
      asm volatile(
          "red.release.gpu.global.add.s32 [%0], 1;" ::"l"(a.at<int32_t>(a.l.z_done) + entry)
          : "memory");
  }
};

// This warp's part of all rows for w2, from when the kernel before has ended.
__device__ __forceinline__ void make_rows(const MoeDecodeArgs& a, int slots, bool fine, int warp,
                                          int lane) {
  const int blocks = static_cast<int>(gridDim.x), tasks = slots * a.down.blocks;
  int task = warp * blocks + static_cast<int>(blockIdx.x);
  RowBlock of;
  if (task < tasks) of.read(a, task, lane);
  wait_for_previous();
  allow_next();
#pragma unroll 1
  while (task < tasks) {
    of.run(a, fine, lane);
    task += blocks * kGroupWarps;
    if (task < tasks) of.read(a, task, lane);
  }
}

__device__ __forceinline__ float* leaf_sums(const MoeDecodeArgs& a, int slot, int leaf) {
  return a.at<float>(a.l.down_parts) + (int64_t{slot} * a.down.leaves + leaf) * a.padded_hidden();
}

// A finished column of an entry's rows, a row a warp.
__device__ __noinline__ void finish_column(const MoeDecodeArgs& a, const GroupShared& s,
                                           const uint16_t* svh, const MoeEntry& entry, int column,
                                           bool fine, int warp, int lane) {
  float scale[4];
  load_half4(svh + column * 128 + 4 * lane, scale);
#pragma unroll 1
  for (int r = warp; r < entry.count; r += kGroupWarps) {
    float v[4] = {0, 0, 0, 0};
    if (fine) {
      const float* from = leaf_sums(a, entry.first + r, 0) + column * 128 + 4 * lane;
      for (int leaf = 0; leaf < a.down.leaves; ++leaf)
        add4(v, __ldcg(reinterpret_cast<const float4*>(from + int64_t{leaf} * a.padded_hidden())));
    } else {
      add4(v, *reinterpret_cast<const float4*>(&s.sums[r * kSumStride + 4 * lane]));
    }
    finish(a, s.pair[r], s.key[r][lane], scale, column, lane, v);
  }
}

struct DownJob {
  const MoeDecodeArgs& a;
  bool fine;

  __device__ __forceinline__ GroupPhase phase(const GroupShared&, int64_t at, int64_t end) const {
    const int columns = a.gate.blocks, pieces = fine ? a.down.leaves : a.down.chunks;
    GroupPhase p;
    p.column = static_cast<int>(at % columns);
    p.columns = static_cast<int>(min(int64_t{columns - p.column}, end - at));
    p.piece = static_cast<int>(at / columns) % pieces;
    p.number = static_cast<int>(at / columns) / pieces;
    p.matrix = 0;
    const int4 e = __ldcg(a.at<int4>(a.l.entries) + p.number);
    p.entry = MoeEntry{e.x, e.y, e.z, e.w};
    p.weight = a.p.expert[p.entry.expert].w2;
    p.set_piece(a.down, fine);
    return p;
  }
  // The pairs of the entry's rows, and of each row the ids of its experts that are here.
  __device__ __forceinline__ void read_rows(GroupShared& s, const GroupPhase& p, int warp,
                                            int lane) const {
    for (int r = warp; r < p.entry.count; r += kGroupWarps) {
      const int pair = __ldcg(a.at<int32_t>(a.l.slots) + p.entry.first + r), each = a.p.topk + 1;
      int key = INT_MAX;
      if (lane < each) {
        const int id = a.expert_of(pair / each * each + lane);
        if (a.p.expert[id].w1.trellis != nullptr) key = id;
      }
      s.key[r][lane] = key;
      if (lane == 0) s.pair[r] = pair;
    }
  }
  template <int RG>
  __device__ __noinline__ void fill(GroupShared& s, const GroupPhase& p, int sub, int blocks,
                                    int warp, int lane) const {
    const int rows = p.entry.count, begin = p.begin + sub;
    if (sub == 0) {
      read_rows(s, p, warp, lane);
      const auto* done = a.at<int32_t>(a.l.z_done) + p.number;
      int count = 0, tries = 0;
      do {
        if (++tries > (1 << 22)) __trap();  // seconds: no thread block left to make them
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(done) : "memory");
      } while (count < rows * a.down.blocks);
    }
    const int inter = a.padded_inter();
    const auto slot = [&](int row) { return int64_t{p.entry.first + row}; };
    TileWords<RG> word;
#pragma unroll
    for (int rg = 0; rg < RG; ++rg) {
      const int column = rg * 8 + (lane >> 2), row = min(column >> 1, rows - 1);
      const auto* from = a.at<uint8_t>(a.l.zq) + slot(row) * 2 * inter + (column & 1) * inter +
                         begin * 128 + 16 * (lane & 3) + 4 * warp;
#pragma unroll
      for (int b = 0; b < kTileBlocks / RG; ++b)
#pragma unroll
        for (int u = 0; u < 2; ++u)
          word[b][u][rg] =
              b < blocks ? __ldcg(reinterpret_cast<const uint32_t*>(from + b * 128 + u * 64)) : 0;
    }
    for (int i = static_cast<int>(threadIdx.x); i < blocks * rows; i += kGroupThreads)
      s.scale[i / rows * 4 * RG + i % rows] =
          __ldcg(a.at<float2>(a.l.zs) + slot(i % rows) * a.down.blocks + begin + i / rows);
    spread_tile<RG>(s, word, blocks, warp, lane);
    __syncthreads();
    add_shifts<RG>(s, p, blocks);
  }
  __device__ __forceinline__ float* place(const GroupShared& s, int row, int column, int warp,
                                          int lane) const {
    return a.at<float>(a.l.ye) + int64_t{s.pair[row]} * a.padded_hidden() + column * 128 +
           32 * warp + (lane >> 2);
  }
  template <int RG>
  __device__ __forceinline__ void resume(GroupShared& s, const GroupPhase& p, int column, int warp,
                                         int lane, ColumnSums<RG>& total) const {
    load_column<RG>(p.entry.count, lane, total,
                    [&](int row) { return place(s, row, column, warp, lane); });
  }
  template <int RG>
  __device__ __forceinline__ void keep(GroupShared& s, const GroupPhase& p, int column, bool last,
                                       int warp, int lane, const ColumnSums<RG>& total) const {
    if (!last)
      return store_column<RG>(p.entry.count, lane, total,
                              [&](int row) { return place(s, row, column, warp, lane); });
    if (fine) {
      store_column<RG>(p.entry.count, lane, total, [&](int row) {
        return leaf_sums(a, p.entry.first + row, p.piece) + column * 128 + 32 * warp + (lane >> 2);
      });
      if (!last_leaf(s, p, column, warp, lane)) return;
    } else {
      __syncthreads();  // the column before has been read
#pragma unroll
      for (int rg = 0; rg < RG; ++rg)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            s.sums[(4 * rg + (lane & 3)) * kSumStride + 32 * warp + 16 * i + 8 * h + (lane >> 2)] =
                total.v[rg][i][h];
      __syncthreads();
    }
    finish_column(a, s, p.weight.svh, p.entry, column, fine, warp, lane);
  }
  __device__ __forceinline__ bool last_leaf(GroupShared& s, const GroupPhase& p, int column,
                                            int warp, int lane) const {
    __syncthreads();
    if (warp == 0) {
      auto* done = a.at<int32_t>(a.l.leaf_done) + p.number * a.gate.blocks + column;
      const bool last = moe_last(done, a.down.leaves, lane);
      if (lane == 0) s.last = last ? 1 : 0;
    }
    __syncthreads();
    return s.last != 0;
  }
};

__global__ void __launch_bounds__(kGroupThreads, TF_GROUP_BLOCKS)
    moe_down_kernel(const __grid_constant__ MoeDecodeArgs a) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& s = *reinterpret_cast<GroupShared*>(memory);
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  // The work list is complete: gate and up let this kernel begin after they had it.
  const int4 count = __ldcg(a.at<int4>(a.l.entry_count));
  const DownJob job{a, fine_pieces(count.x, int64_t{count.x} * a.gate.blocks)};
  make_rows(a, count.y, count.z != 0, warp, lane);
  const int64_t each = int64_t{a.gate.blocks} * (job.fine ? a.down.leaves : a.down.chunks);
  const GroupRange range(count.w * each, count.x * each, a.multiprocessors);
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
  a.entry_rows = kMoeRowsPerEntry;
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
