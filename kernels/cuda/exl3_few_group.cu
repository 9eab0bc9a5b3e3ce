// See exl3_few_group.h.
//
// A group takes steps of 128 outputs by one block of 128 inputs. Warp w of it decodes 32 outputs:
// half w % 2, tile columns 2 (w / 2) and the next. A product of the matrix unit takes 16 outputs by
// 8 inputs, four bytes each, by the high and low bytes of 4 rows. Bytes: the trellis once per 4 or
// 8 rows, plus rows. Instructions a weight: window 2, product 1, matrix 1/4, splats 1/4.
#include "kernels/cuda/exl3_few_group.h"

#include "kernels/cuda/exl3_few.cuh"

// Threads that a multiprocessor's registers must hold.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define TF_GROUP_THREADS(RG) kExl3GroupThreadsMax
#else
#define TF_GROUP_THREADS(RG) ((RG) == 1 ? kExl3GroupThreadsMax : kExl3GroupThreadsMax / 2)
#endif

namespace tensorfold::cuda {
namespace {

constexpr int kGroupThreads = kExl3GroupWarps * 32;

// What a group loads next: in shared memory, its first thread's alone.
struct GroupNext {
  const uint8_t* codes;  // of the weight
  int step, column;
  int stage, taken;
  uint32_t parity;
};

// A group's codes: stages of a step (128 outputs by 128 inputs), through a ring of its own; step g
// of a thread block belongs to group g mod groups. One thread starts copies.
template <int K>
struct GroupRing {
  static constexpr uint32_t kHalfBytes = K * 1024, kStageBytes = 2 * kHalfBytes;
  GroupNext* next;
  uint32_t ring, barriers;  // full ones, then empty ones
  int read = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ GroupRing(const FewArgs& a, int group, uint8_t* smem, GroupNext* next_)
      : next(next_ + group),
        ring(shared_place(smem) + group * a.plan.depth * kStageBytes),
        barriers(shared_place(smem + a.layout.barriers) + group * 2 * kExl3GroupStagesMax * 8) {}

  __device__ __forceinline__ uint32_t full(int stage) const { return barriers + stage * 8; }
  __device__ __forceinline__ uint32_t empty(int stage) const {
    return barriers + (kExl3GroupStagesMax + stage) * 8;
  }
  // The step after `n`, of this group.
  static __device__ __forceinline__ void settle(const FewPart& p, GroupNext& n) {
    while (n.step >= p.count) {
      n.step -= p.count;
      n.column += p.apart;
    }
  }
  // One thread: the barriers and the first copies.
  __device__ __forceinline__ void begin(const FewArgs& a, const FewPart& p, int group) const {
    for (int s = 0; s < a.plan.depth; ++s) {
      barrier_init(full(s));
      barrier_init(empty(s), kExl3GroupWarps);
    }
    barrier_init_done();
    GroupNext n{static_cast<const uint8_t*>(a.job[p.job].weight.trellis), group, p.column, 0, 0, 0};
    settle(p, n);
    for (int s = 0; s < a.plan.depth && n.column < p.end_column; ++s) load(a, p, n);
    *next = n;
  }
  // The next step's codes into stage `n.stage`, which is free.
  __device__ __forceinline__ void load(const FewArgs& a, const FewPart& p, GroupNext& n) const {
    barrier_expect(full(n.stage), kStageBytes);
    const int64_t strip_bytes = int64_t{a.plan.blocks} * kHalfBytes;
    const uint8_t* from =
        n.codes + 2 * n.column * strip_bytes + int64_t{p.first_block + n.step} * kHalfBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      bulk_load_codes(ring + n.stage * kStageBytes + half * kHalfBytes, from + half * strip_bytes,
                      kHalfBytes, full(n.stage), stream_policy(a.streams));
    if (++n.stage == a.plan.depth) n.stage = 0;
    n.step += a.plan.warps / kExl3GroupWarps;
    settle(p, n);
  }
  // One thread, once a step: loads when the group has left the stage before this one.
  __device__ __forceinline__ void refill(const FewArgs& a, const FewPart& p) const {
    GroupNext n = *next;
    const bool wanted = ++n.taken > 1 && n.column < p.end_column;
    if (wanted) {
      barrier_wait(empty(n.stage), n.parity);
      if (n.stage + 1 == a.plan.depth) n.parity ^= 1;
      load(a, p, n);
    }
    *next = n;
  }
};

// The 2 K words of a lane for its two tile columns of a unit; `from`: the first two.
template <int K>
__device__ __forceinline__ void load_words(uint32_t from, int first, uint32_t (&words)[2 * K]) {
#pragma unroll
  for (int j = 0; j < K; ++j) {
    const int word = first + 2 * j;  // of the lane's 4 K
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                 : "=r"(words[2 * j]), "=r"(words[2 * j + 1])
                 : "r"(from + (word >> 2) * 512 + (word & 3) * 4)
                 : "memory");
  }
}

// Adds a block's products of a lane's rows to the sums at `place`: acc[rg][i] of tile column i.
template <int RG>
__device__ __forceinline__ void group_add(const FewRows<RG>& in, int block, int place, float one,
                                          const int (&acc)[RG][2][4]) {
#pragma unroll
  for (int rg = 0; rg < RG; ++rg) {
    if (in.sum[rg] == nullptr) continue;
    const FixedBlock b = in.block[rg][block];
    const int ratio = fixed_ratio(b.scale, in.inverse[rg], one);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int c = fixed_product(acc[rg][i][2 * h], acc[rg][i][2 * h + 1], b.center);
        atomicAdd(in.sum[rg] + place + 16 * i + 8 * h, __mulhi(c, ratio));
      }
  }
}

// A step's codes, unit by unit: multiply(words, unit).
template <int K, typename Multiply>
__device__ __forceinline__ void group_units(const FewArgs& a, const FewPart& p, GroupRing<K>& ring,
                                            int warp, int lane, const Multiply& multiply) {
  const uint32_t stage = ring.ring + ring.read * GroupRing<K>::kStageBytes +
                         (warp & 1) * GroupRing<K>::kHalfBytes + lane * 16;
  const bool second = (warp >> 1) != 0;  // half of a lane's words
  barrier_wait(ring.full(ring.read), ring.parity);
#pragma unroll
  for (int unit = 0; unit < 2; ++unit) {
    uint32_t words[2 * K];
    if (second)
      load_words<K>(stage + unit * (K * 512), 2 * K, words);
    else
      load_words<K>(stage + unit * (K * 512), 0, words);
    __syncwarp();
    if (unit == 0) {
      if (threadIdx.x % kGroupThreads == 0) ring.refill(a, p);
      __syncwarp();
    } else if (lane == 0) {
      barrier_arrive(ring.empty(ring.read));
    }
    multiply(words, unit);
  }
  if (++ring.read == a.plan.depth) {
    ring.read = 0;
    ring.parity ^= 1;
  }
}

// A unit's products by mma.sync; x: this lane's 16 bytes of each row group.
template <int K, int RG>
__device__ __forceinline__ void group_product(const uint32_t (&words)[2 * K], const uint4 (&x)[RG],
                                              int lane, int (&acc)[RG][2][4]) {
  uint32_t run[2][K + 1];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < K; ++j) run[i][j + 1] = words[i * K + j];
    run[i][0] = __shfl_sync(0xffffffffu, run[i][K], (lane + 28) & 31);
  }
#pragma unroll
  for (int h = 0; h < 8; ++h) {
    constexpr uint32_t kSplat[4] = {0x0000, 0x1111, 0x2222, 0x3333};
    const int tt = h >> 1, half = h & 1, v = tt * 8 + half * 2;
    uint32_t b[RG][2];
#pragma unroll
    for (int rg = 0; rg < RG; ++rg) {
      const int at = (tt >> 1) + 2 * half;
      const uint32_t word = at == 0 ? x[rg].x : at == 1 ? x[rg].y : at == 2 ? x[rg].z : x[rg].w;
      b[rg][0] = __byte_perm(word, 0, kSplat[2 * (tt & 1)]);
      b[rg][1] = __byte_perm(word, 0, kSplat[2 * (tt & 1) + 1]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t a0 = window_at(run[i], K, v) * kMul1;
      const uint32_t a1 = window_at(run[i], K, v + 4) * kMul1;
      const uint32_t a2 = window_at(run[i], K, v + 1) * kMul1;
      const uint32_t a3 = window_at(run[i], K, v + 5) * kMul1;
#pragma unroll
      for (int rg = 0; rg < RG; ++rg) mma_u8s8(acc[rg][i], a0, a1, a2, a3, b[rg][0], b[rg][1]);
    }
  }
}

// A step: 128 outputs by block `block` of this thread block's inputs, added to the sums at `place`.
template <int K, int RG>
__device__ __forceinline__ void group_step(const FewArgs& a, const FewPart& p, GroupRing<K>& ring,
                                           const FewRows<RG>& in, int block, int place, float one,
                                           int warp, int lane) {
  int acc[RG][2][4] = {};
  group_units<K>(a, p, ring, warp, lane, [&](const uint32_t(&words)[2 * K], int unit) {
    uint4 x[RG];
#pragma unroll
    for (int rg = 0; rg < RG; ++rg)
      x[rg] = *reinterpret_cast<const uint4*>(in.q[rg] + block * 128 + unit * 64);
    group_product<K, RG>(words, x, lane, acc);
  });
  group_add<RG>(in, block, place, one, acc);
}

template <int K, int RG>
__global__ void __launch_bounds__(TF_GROUP_THREADS(RG), 1)
    exl3_dense_group_kernel(const __grid_constant__ FewArgs a) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) % kExl3GroupWarps;
  const int group = threadIdx.x / kGroupThreads;
  __shared__ GroupNext next[kExl3GroupThreadsMax / kGroupThreads];
  const FewPart p(a, 4 * RG);
  GroupRing<K> ring(a, group, smem, next);
  const FewExchange exchange(a, p.rank, smem);
  few_begin(a, p, exchange, smem);
  if (threadIdx.x % kGroupThreads == 0) ring.begin(a, p, group);
  __syncwarp();
  allow_next();
  // The warps that start copies come last.
  const int groups = a.plan.warps / kExl3GroupWarps;
  const int turn =
      warp == 0 ? groups * (kExl3GroupWarps - 1) + group : group * (kExl3GroupWarps - 1) + warp - 1;
  few_rotate(a, p, smem, turn, FewStore{smem + a.layout.q, a.layout.stride});
  __syncthreads();
  if (exchange.size > 1)
    few_send_tops(exchange, reinterpret_cast<const uint32_t*>(smem + a.layout.top));
  FewRows<RG> in(a, p.rows, lane, smem);
  const float one = fixed_power(31 - a.shift);
  const int outputs = 64 * (warp & 1) + 32 * (warp >> 1);  // this warp's first
  few_columns(a, p, exchange, in, p.count, group, groups, smem, [&](int at, int offset) {
    group_step<K, RG>(a, p, ring, in, at, offset + outputs, one, warp, lane);
  });
}

template <int K>
cudaError_t launch_rows(const FewArgs& args, int columns, cudaStream_t stream) {
  return args.rows <= 4
             ? few_launch(&exl3_dense_group_kernel<K, 1>, args, columns, 4, stream)
             : few_launch(&exl3_dense_group_kernel<K, 2>, args, columns, kExl3FewRows, stream);
}

}  // namespace

cudaError_t exl3_few_group(FewArgs& args, int bits, const Exl3Gpu& gpu, cudaStream_t stream) {
  const int columns = few_grid_columns(args, gpu);
  switch (bits) {
#define TF_CASE(K) \
  case K:          \
    return launch_rows<K>(args, columns, stream);
    TF_CASE(2)
    TF_CASE(3)
    TF_CASE(4)
    TF_CASE(5)
    TF_CASE(6)
#undef TF_CASE
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace tensorfold::cuda
