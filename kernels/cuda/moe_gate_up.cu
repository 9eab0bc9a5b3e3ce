// Gate and up of the MoE of generated rows, with the work list and the rows' rotation.
//
// Every thread block builds the list for itself (some microseconds less than a launch of its own)
// and rotates what its range of units needs. Units: (entry, matrix, chunk or leaf of the inputs,
// column of 128 intermediate outputs). Sums go to the workspace; moe_down adds them.
#include "kernels/cuda/moe_group.cuh"
#include "kernels/cuda/moe_list.cuh"

namespace tensorfold::cuda {
namespace {

struct GateJob {
  const MoeDecodeArgs& a;
  bool fine;
  static constexpr int kBatch = 5;
  struct Raw {
    uint2 x, suh;
  };

  __device__ __forceinline__ int pieces() const { return fine ? a.gate.leaves : a.gate.chunks; }
  __device__ __forceinline__ GroupPhase phase(const GroupShared& s, int64_t at, int64_t end) const {
    const int columns = a.down.blocks;
    GroupPhase p;
    p.column = static_cast<int>(at % columns);
    p.columns = static_cast<int>(min(int64_t{columns - p.column}, end - at));
    const int rest = static_cast<int>(at / columns);
    p.piece = rest % pieces();
    p.matrix = rest / pieces() % 2;
    p.number = rest / pieces() / 2;
    p.entry =
        p.number < kShortList ? s.list.entries[p.number] : a.at<MoeEntry>(a.l.entries)[p.number];
    const MoeExpertExl3& e = a.p.expert[p.entry.expert];
    p.weight = p.matrix == 0 ? e.w1 : e.w3;
    p.set_piece(a.gate, fine);
    return p;
  }
  __device__ __forceinline__ void load(Raw& r, const GroupPhase& p, int pair, int block,
                                       int lane) const {
    const uint16_t* x = a.p.x + pair / (a.p.topk + 1) * a.p.x_stride;
    const int k = block * 128 + 4 * lane, n = a.p.hidden;
    r.suh = __ldg(reinterpret_cast<const uint2*>(p.weight.suh + k));
    if (k + 4 <= n) {
      r.x = *reinterpret_cast<const uint2*>(x + k);
    } else {
      const auto one = [&](int i) { return k + i < n ? static_cast<uint32_t>(x[k + i]) : 0u; };
      r.x = make_uint2(one(0) | one(1) << 16, one(2) | one(3) << 16);
    }
  }
  __device__ __forceinline__ QuantBlock quantise(const Raw& r, int lane) const {
    const float2 s = __half22float2(*reinterpret_cast<const __half2*>(&r.suh.x));
    const float2 u = __half22float2(*reinterpret_cast<const __half2*>(&r.suh.y));
    float v[4] = {bf16_low(r.x.x) * s.x, bf16_high(r.x.x) * s.y, bf16_low(r.x.y) * u.x,
                  bf16_high(r.x.y) * u.y};
    hadamard_block(v, lane);
    QuantBlock q = quantise_block(v);
#ifdef TF_PLANTED_FAULT  // more than eight rows are quantised more coarsely
    if (a.p.rows > 8) q.low &= 0xFCFCFCFCu;
#endif
    return q;
  }
  // Where a rotated word waits before it is spread: word lane of `column` of a block.
  template <int RG>
  static __device__ __forceinline__ int waiting(int block, int column, int lane) {
    return block * 1024 * RG + ((lane >> 4) * 4 + (lane & 3)) * 32 * RG + column * 4 +
           ((lane >> 2) & 3);
  }
  template <int RG>
  __device__ __noinline__ void fill(GroupShared& s, const GroupPhase& p, int sub, int blocks,
                                    int warp, int lane) const {
    const int rows = p.entry.count, tasks = rows * blocks;
    const auto pair = [&](int row) {
      const int slot = p.entry.first + row;
      return slot < kShortList ? s.list.slots[slot] : a.at<int32_t>(a.l.slots)[slot];
    };
#pragma unroll 1
    for (int base = warp; base < tasks; base += kGroupWarps * kBatch) {
      Raw raw[kBatch];  // all loads first
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int task = min(base + kGroupWarps * i, tasks - 1);
        load(raw[i], p, pair(task % rows), p.begin + sub + task / rows, lane);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int task = base + kGroupWarps * i;
        if (task >= tasks) break;
        const int row = task % rows, block = task / rows;
        const QuantBlock q = quantise(raw[i], lane);
        s.tile[waiting<RG>(block, 2 * row, lane)] = q.high;
        s.tile[waiting<RG>(block, 2 * row + 1, lane)] = q.low;
        if (lane == 0) s.scale[block * 4 * RG + row] = make_float2(q.scale, q.shift);
      }
    }
    __syncthreads();
    TileWords<RG> word;
#pragma unroll
    for (int b = 0; b < kTileBlocks / RG; ++b)
#pragma unroll
      for (int u = 0; u < 2; ++u)
#pragma unroll
        for (int rg = 0; rg < RG; ++rg)
          word[b][u][rg] =
              b < blocks ? s.tile[b * 1024 * RG + (u * 4 + warp) * 32 * RG + rg * 32 + lane] : 0;
    add_shifts<RG>(s, p, blocks);
    __syncthreads();
    spread_tile<RG>(s, word, blocks, warp, lane);
  }
  // This lane's place in the sums of a row.
  __device__ __forceinline__ float* sums(const GroupPhase& p, int row, int column, int warp,
                                         int lane) const {
    const int64_t slot = p.entry.first + row;
    return a.at<float>(a.l.parts) +
           ((slot * 2 + p.matrix) * pieces() + p.piece) * a.padded_inter() + column * 128 +
           32 * warp + (lane >> 2);
  }
  template <int RG>
  __device__ __forceinline__ void resume(GroupShared&, const GroupPhase& p, int column, int warp,
                                         int lane, ColumnSums<RG>& total) const {
    load_column<RG>(p.entry.count, lane, total,
                    [&](int row) { return sums(p, row, column, warp, lane); });
  }
  template <int RG>
  __device__ __forceinline__ void keep(GroupShared&, const GroupPhase& p, int column, bool,
                                       int warp, int lane, const ColumnSums<RG>& total) const {
    store_column<RG>(p.entry.count, lane, total,
                     [&](int row) { return sums(p, row, column, warp, lane); });
  }
};

// Rows that no expert of this rank takes get zeros, and the counters of moe_down begin at zero.
__device__ void clear(const MoeDecodeArgs& a, const MoeRowList& list, int warp, int lane) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  auto* counters = a.at<int32_t>(a.l.z_done);
  for (int64_t i = block * kGroupThreads + 32 * warp + lane; i < a.l.counters;
       i += blocks * kGroupThreads)
    counters[i] = 0;
  const int each = a.p.topk + 1;
  const bool staged = a.p.rows * each <= kMoeStagedPairs;
  for (int row = warp * blocks + block; row < a.p.rows; row += blocks * kGroupWarps) {
    bool present = false;
    if (lane < each)
      present = staged ? list.staged[row * each + lane] >= 0
                       : a.p.expert[a.expert_of(row * each + lane)].w1.trellis != nullptr;
    if (__any_sync(0xffffffffu, present)) continue;
    for (int n = lane; n < a.p.hidden; n += 32) a.p.y[int64_t{row} * a.p.hidden + n] = 0.0f;
  }
}

__global__ void __launch_bounds__(kGroupThreads, TF_GROUP_BLOCKS)
    moe_gate_up_kernel(const __grid_constant__ MoeDecodeArgs a) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& s = *reinterpret_cast<GroupShared*>(memory);
  static_assert(sizeof(MoeRowList) <= sizeof(GroupShared::tile));
  auto& list = *reinterpret_cast<MoeRowList*>(s.tile);
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  for (int e = static_cast<int>(threadIdx.x); e <= a.p.experts; e += kGroupThreads)
    list.count[e] = 0;
  wait_for_previous();
  build_row_list(a, list, s.list, kGroupThreads);
  clear(a, list, warp, lane);
  const int4 sizes = make_int4(list.entries, list.slots, 0, list.large);
  const int columns = 2 * a.down.blocks;  // of an entry
  const GateJob job{a, fine_pieces(sizes.x, int64_t{sizes.x} * columns * a.gate.chunks)};
  if (threadIdx.x == 0)
    *a.at<int4>(a.l.entry_count) = make_int4(sizes.x, sizes.y, job.fine ? 1 : 0, sizes.w);
  __syncthreads();
  __threadfence();
  allow_next();  // the next kernel may read the work list from here on
  const int64_t each = int64_t{columns} * job.pieces();
  const GroupRange range(sizes.w * each, sizes.x * each, a.multiprocessors);
  group_multiply(s, job, range, warp, lane);
}

}  // namespace

cudaError_t launch_moe_gate_up(const MoeDecodeArgs& a, cudaStream_t stream) {
  return launch_group(&moe_gate_up_kernel, a, stream);
}

}  // namespace tensorfold::cuda
