// Gate and up of the MoE of generated rows, with the work list and the rows'
// rotation.
//
// Every thread block builds the list for itself (some microseconds less than a
// launch of its own) and rotates what its range of units needs. Units: (entry,
// matrix, chunk of the inputs, column of 128 intermediate outputs). Sums of
// chunks go to the workspace; moe_down adds them.
#include "kernels/cuda/moe_group.cuh"
#include "kernels/cuda/moe_list.cuh"

namespace tensorfold::cuda {
namespace {

struct GateJob {
  const MoeDecodeArgs& a;
  static constexpr bool kFollowed = false;  // sums wait for the next kernel
  static constexpr int kBatch = 3;
  struct Raw {
    uint2 x, suh;
  };

  __device__ __forceinline__ const int32_t* slots() const { return a.at<int32_t>(a.l.slots); }
  __device__ __forceinline__ GroupPhase phase(int64_t at, int64_t end) const {
    const int columns = a.down.blocks;
    GroupPhase p;
    p.column = static_cast<int>(at % columns);
    p.columns = static_cast<int>(min(int64_t{columns - p.column}, end - at));
    const int rest = static_cast<int>(at / columns);
    p.chunk = rest % a.gate.chunks;
    p.matrix = rest / a.gate.chunks % 2;
    p.number = rest / a.gate.chunks / 2;
    p.entry = a.at<MoeEntry>(a.l.entries)[p.number];
    const MoeExpertExl3& e = a.p.expert[p.entry.expert];
    p.weight = p.matrix == 0 ? e.w1 : e.w3;
    p.begin = p.chunk * a.gate.chunk_blocks;
    p.count = min(a.gate.chunk_blocks, a.gate.blocks - p.begin);
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
  // Where a rotated word waits before it is spread: word lane of `column` of a
  // block.
  template <int RG>
  static __device__ __forceinline__ int waiting(int block, int column, int lane) {
    return block * 1024 * RG + ((lane >> 4) * 4 + (lane & 3)) * 32 * RG + column * 4 +
           ((lane >> 2) & 3);
  }
  template <int RG>
  __device__ __forceinline__ void fill(GroupShared& s, const GroupPhase& p, int sub, int blocks,
                                       int warp, int lane) const {
    const int rows = p.entry.count, tasks = rows * blocks;
#pragma unroll 1
    for (int base = warp; base < tasks; base += kGroupWarps * kBatch) {
      Raw raw[kBatch];  // all loads first
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int task = min(base + kGroupWarps * i, tasks - 1);
        load(raw[i], p, s.pair[task % rows], p.begin + sub + task / rows, lane);
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
    group_sync();
    TileWords<RG> word;
#pragma unroll
    for (int b = 0; b < kTileBlocks / RG; ++b)
#pragma unroll
      for (int u = 0; u < 2; ++u)
#pragma unroll
        for (int rg = 0; rg < RG; ++rg)
          word[b][u][rg] =
              b < blocks ? s.tile[b * 1024 * RG + (u * 4 + warp) * 32 * RG + rg * 32 + lane] : 0;
    add_shifts<RG>(s, rows, blocks);
    group_sync();
    spread_tile<RG>(s, word, blocks, warp, lane);
  }
  __device__ __forceinline__ float* sums(const GroupPhase& p, int pair) const {
    return a.at<float>(a.l.parts) +
           ((int64_t{pair} * 2 + p.matrix) * a.gate.chunks + p.chunk) * a.padded_inter();
  }
};

// Rows that no expert of this rank takes get zeros; the counters of moe_down
// start at zero.
__device__ void clear(const MoeDecodeArgs& a, int warp, int lane) {
  const int thread = (static_cast<int>(blockIdx.x) * kGroupWarps + warp) * 32 + lane;
  const int threads = static_cast<int>(gridDim.x) * kGroupWarps * 32;
  auto* counters = a.at<int32_t>(a.l.z_done);
  for (int64_t i = thread; i < a.l.counters; i += threads) counters[i] = 0;
  for (int row = thread / 32; row < a.p.rows; row += threads / 32) {
    bool present = false;
    if (lane <= a.p.topk)
      present = a.p.expert[a.expert_of(row * (a.p.topk + 1) + lane)].w1.trellis != nullptr;
    if (__any_sync(0xffffffffu, present)) continue;
    for (int n = lane; n < a.p.hidden; n += 32) a.p.y[int64_t{row} * a.p.hidden + n] = 0.0f;
  }
}

__global__ void __launch_bounds__(kGroupThreads, TF_GROUP_BLOCKS)
    moe_gate_up_kernel(const __grid_constant__ MoeDecodeArgs a) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& s = *reinterpret_cast<GroupShared*>(memory);
  static_assert(sizeof(MoeRowList) <= sizeof(GroupShared::tile));
  auto& list = *reinterpret_cast<MoeRowList*>(s.tile);
  group_init(s);
  wait_for_previous();
  build_row_list(a, list, kGroupThreads);
  __syncthreads();
  const int entries = list.entries;
  __syncthreads();
  __threadfence();
  allow_next();  // the next kernel may read the work list from here on
  const int units = 2 * a.gate.chunks * a.down.blocks;  // of an entry
  const GroupRange range(int64_t{entries} * units, a.multiprocessors);
  const GateJob job{a};
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  if (warp < kGroupWarps) {
    clear(a, warp, lane);
    group_multiply(s, job, range, warp, lane);
  } else {
    CodeCopier<GateJob> copier(s, job, range);
    while (copier.step(true, lane)) {
    }
  }
}

}  // namespace

cudaError_t launch_moe_gate_up(const MoeDecodeArgs& a, cudaStream_t stream) {
  return launch_group(&moe_gate_up_kernel, a, stream);
}

}  // namespace tensorfold::cuda
