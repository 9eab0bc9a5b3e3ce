// The kernel of class D products for few rows (4 RG of them a thread block).
//
// A thread block has 128 outputs at a time and its share of the input blocks. Its warps start their
// first copies of codes, wait for the previous kernel, rotate and quantise the rows into shared
// memory, then take steps of 64 outputs by one block in turn and add them to the sums in shared
// memory (integers: any order). A cluster's ranks send their sums to the rank that finishes the
// row. Bytes: the trellis once per 4 RG rows, plus rows.
#pragma once

#include "kernels/cuda/exl3_few_part.cuh"
#include "kernels/cuda/shared_limit.h"

namespace tensorfold::cuda {

// A warp's codes: units of 64 x 64 in the order of its steps, through a ring of its own. Step g of
// a thread block belongs to warp g mod warps: columns one after the other, in each its blocks, of
// each block the two halves of the outputs.
template <int K>
struct FewRing {
  static constexpr uint32_t kUnitBytes = K * 512;
  const uint8_t* codes;  // of the weight
  int64_t strip_bytes;
  uint32_t ring, barriers;  // shared addresses
  int depth, steps, warps, columns_apart;
  int next_step, next_column, end_column;  // what is loaded next
  int next_part = 0, write = 0, read = 0;
  uint32_t parity = 0;
  uint64_t policy;

  __device__ __forceinline__ FewRing(const FewArgs& a, const FewPart& p, int warp, uint8_t* smem)
      : codes(static_cast<const uint8_t*>(a.job[p.job].weight.trellis)),
        strip_bytes(int64_t{a.plan.blocks} * 2 * kUnitBytes),
        ring(shared_place(smem) + warp * a.plan.depth * kUnitBytes),
        barriers(shared_place(smem + a.layout.barriers) + warp * kExl3DepthMax * 8),
        depth(a.plan.depth),
        steps(2 * p.count),
        warps(a.plan.warps),
        columns_apart(p.apart),
        next_step(warp),
        next_column(p.column),
        end_column(p.end_column),
        policy(stream_policy(a.streams)) {
    while (next_step >= steps) {
      next_step -= steps;
      next_column += columns_apart;
    }
  }

  __device__ __forceinline__ void load(int first_block, int lane) {
    if (next_column >= end_column) return;
    if (lane == 0) {
      barrier_expect(barriers + write * 8, kUnitBytes);
      const int64_t strip = 2 * next_column + (next_step & 1);
      const int unit = 2 * (first_block + (next_step >> 1)) + next_part;
      bulk_load_codes(ring + write * kUnitBytes,
                      codes + strip * strip_bytes + int64_t{unit} * kUnitBytes, kUnitBytes,
                      barriers + write * 8, policy);
    }
    write = write + 1 == depth ? 0 : write + 1;
    next_part ^= 1;
    if (next_part != 0) return;
    next_step += warps;
    while (next_step >= steps) {
      next_step -= steps;
      next_column += columns_apart;
    }
  }
  // The next unit's words of this lane.
  __device__ __forceinline__ void take(UnitWords<K>& words, int lane) {
    barrier_wait(barriers + read * 8, parity);
    const uint32_t from = ring + read * kUnitBytes + lane * 16;
#pragma unroll
    for (int c = 0; c < K; ++c)
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(words.v[c].x), "=r"(words.v[c].y), "=r"(words.v[c].z), "=r"(words.v[c].w)
                   : "r"(from + c * 512)
                   : "memory");
    if (++read == depth) {
      read = 0;
      parity ^= 1;
    }
  }
};

// This lane's rows: where their bytes begin, and what their sums are scaled by.
template <int RG>
struct FewRows {
  const uint8_t* q[RG];
  const FixedBlock* block[RG];
  float inverse[RG];
  int* sum[RG];  // nullptr: no such row

  __device__ __forceinline__ FewRows(const FewArgs& a, int rows, int lane, uint8_t* smem) {
#pragma unroll
    for (int rg = 0; rg < RG; ++rg) {
      const int column = min(8 * rg + (lane >> 2), 2 * rows - 1), row = 4 * rg + (lane & 3);
      q[rg] = smem + a.layout.q + column * a.layout.stride + 16 * (lane & 3);
      block[rg] = reinterpret_cast<const FixedBlock*>(smem + a.layout.scale) +
                  min(row, rows - 1) * a.plan.cta_blocks;
      sum[rg] = row >= rows ? nullptr
                            : reinterpret_cast<int*>(smem + a.layout.sums) + row * kExl3SumStride +
                                  (lane >> 2);
      inverse[rg] = 0;
    }
  }
  // tops: [ranks][kExl3FewRows], bits.
  __device__ __forceinline__ void scale(const uint32_t* tops, int ranks, int lane) {
#pragma unroll
    for (int rg = 0; rg < RG; ++rg) {
      uint32_t top = 0;
      for (int r = 0; r < ranks; ++r) top = max(top, tops[r * kExl3FewRows + 4 * rg + (lane & 3)]);
      inverse[rg] = fixed_inverse(fixed_row_scale(top));
    }
  }
};

// A step: 64 outputs by block `block` of this thread block's inputs, added to the sums.
template <int K, int RG, typename Take>
__device__ __forceinline__ void few_step(const FewRows<RG>& rows, int block, int place, float one,
                                         int lane, const Take& take) {
  int acc[RG][4][4];
#pragma unroll
  for (int rg = 0; rg < RG; ++rg)
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) acc[rg][i][j] = 0;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    UnitWords<K> words;
    take(words);
    uint4 x[RG];
#pragma unroll
    for (int rg = 0; rg < RG; ++rg)
      x[rg] = *reinterpret_cast<const uint4*>(rows.q[rg] + block * 128 + part * 64);
    unit_product<K, RG>(words, x, lane, acc);
  }
#pragma unroll
  for (int rg = 0; rg < RG; ++rg) {
    if (rows.sum[rg] == nullptr) continue;
    const FixedBlock b = rows.block[rg][block];
    const int ratio = fixed_ratio(b.scale, rows.inverse[rg], one);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int c = fixed_product(acc[rg][i][2 * h], acc[rg][i][2 * h + 1], b.center);
        atomicAdd(rows.sum[rg] + place + 16 * i + 8 * h, __mulhi(c, ratio));
      }
  }
}

__device__ __forceinline__ uint2 load_svh(const Exl3DenseJob& job, int column, int lane) {
  return __ldg(reinterpret_cast<const uint2*>(job.weight.svh + column * 128) + lane);
}

// What a cluster's ranks send each other: the largest bits of their rows, to all; their sums, to
// the rank that finishes the row. Each rank has a barrier for either.
struct FewExchange {
  int size, rank;
  uint32_t tops, parts, barriers;  // shared addresses; the barrier of the sums comes second

  __device__ __forceinline__ FewExchange(const FewArgs& a, int rank_, uint8_t* smem)
      : size(a.plan.cluster),
        rank(rank_),
        tops(shared_place(smem + a.layout.top)),
        parts(shared_place(smem + a.layout.parts)),
        barriers(shared_place(smem + a.layout.exchange)) {}

  // One thread, before the other ranks may send.
  __device__ __forceinline__ void expect(int rows) const {
    barrier_init(barriers);
    barrier_init(barriers + 8);
    barrier_init_done();
    barrier_expect(barriers, static_cast<uint32_t>(size * kExl3FewRows * 4));
    const int mine = rows > rank ? (rows - rank + size - 1) / size : 0;
    barrier_expect(barriers + 8, static_cast<uint32_t>(mine * size * 512));
  }
  // This rank's largest bits: to rank i / kExl3FewRows of row i % kExl3FewRows.
  __device__ __forceinline__ void send_top(int i, uint32_t bits) const {
    const int to = i / kExl3FewRows, row = i % kExl3FewRows;
    const auto place = static_cast<uint32_t>((rank + 1) * kExl3FewRows + row) * 4;
    remote_store(remote_place(tops + place, to), bits, remote_place(barriers, to));
  }
  // This lane's four sums of a row.
  __device__ __forceinline__ void send_sum(int row, int lane, const int4& sum) const {
    const auto place = static_cast<uint32_t>((row / size * size + rank) * 512 + 16 * lane);
    remote_store(remote_place(parts + place, row % size), sum,
                 remote_place(barriers + 8, row % size));
  }
};

// The sums of a cluster's ranks to the ranks that finish the rows, and what comes after.
__device__ __forceinline__ void few_finish_cluster(const FewArgs& a, const FewPart& p,
                                                   const FewExchange& exchange, uint8_t* smem,
                                                   const FixedOutput& output) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const int size = exchange.size;
  const auto* sums = reinterpret_cast<const int*>(smem + a.layout.sums);
  const auto* tops = reinterpret_cast<const uint32_t*>(smem + a.layout.top) + kExl3FewRows;
  for (int row = warp; row < p.rows; row += warps)
    exchange.send_sum(row, lane,
                      *reinterpret_cast<const int4*>(sums + row * kExl3SumStride + 4 * lane));
  const int row = p.rank + size * warp;
  if (row >= p.rows) return;
  const uint2 svh = load_svh(a.job[p.job], p.column, lane);
  barrier_wait(exchange.barriers + 8, 0);
  int4 sum = {0, 0, 0, 0};
  uint32_t top = 0;
  for (int r = 0; r < size; ++r) {
    const int4 s = *reinterpret_cast<const int4*>(smem + a.layout.parts +
                                                  (row / size * size + r) * 512 + 16 * lane);
    sum.x += s.x;
    sum.y += s.y;
    sum.z += s.z;
    sum.w += s.w;
    top = max(top, tops[r * kExl3FewRows + row]);
  }
  fixed_finish(a.job[p.job], p.column, p.first_row + row, lane, sum, fixed_row_scale(top), output,
               svh);
}

// Sums and largest bits begin at zero; a cluster's ranks tell each other that they have begun.
__device__ __forceinline__ void few_begin(const FewArgs& a, const FewPart& p,
                                          const FewExchange& exchange, uint8_t* smem) {
  auto* sums = reinterpret_cast<int*>(smem + a.layout.sums);
  const int count = (a.plan.columns > 1 ? 2 : 1) * p.rows * kExl3SumStride;
  for (int i = threadIdx.x; i < count; i += blockDim.x) sums[i] = 0;
  if (threadIdx.x < kExl3FewRows) reinterpret_cast<uint32_t*>(smem + a.layout.top)[threadIdx.x] = 0;
  if (exchange.size > 1 && threadIdx.x == 0) exchange.expect(p.rows);
  __syncthreads();
  if (exchange.size > 1) cluster_begun();
}

// After the rotation: this rank's largest bits to the others.
__device__ __forceinline__ void few_send_tops(const FewExchange& exchange, const uint32_t* tops) {
  cluster_wait();
  const int i = static_cast<int>(threadIdx.x);
  if (i < exchange.size * kExl3FewRows) exchange.send_top(i, tops[i % kExl3FewRows]);
}

// The steps of a thread block and what follows them. A team (a warp, a group of warps) takes every
// `teams`-th of `steps` steps a column; step(at, place): step `at` of a column, its sums at
// `place`.
template <int RG, typename Step>
__device__ __forceinline__ void few_columns(const FewArgs& a, const FewPart& p,
                                            const FewExchange& exchange, FewRows<RG>& in, int steps,
                                            int team, int teams, uint8_t* smem, const Step& step) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const Exl3DenseJob& job = a.job[p.job];
  auto* sums = reinterpret_cast<int*>(smem + a.layout.sums);
  auto* tops = reinterpret_cast<uint32_t*>(smem + a.layout.top);
  const FixedOutput output = fixed_output(a.plan.blocks, a.shift);
  const bool alone = exchange.size == 1;
  bool ready = alone;  // whether the rows' scales are known
  if (alone) in.scale(tops, 1, lane);
  int at = team, offset = 0;  // of this column; where its sums lie
  for (int now = p.column; now < p.end_column; now += p.apart) {
    uint2 svh = {0, 0};
    if (alone && warp < p.rows) svh = load_svh(job, now, lane);
    for (; at < steps; at += teams) {
      if (!ready) {
        barrier_wait(exchange.barriers, 0);
        in.scale(tops + kExl3FewRows, exchange.size, lane);
        ready = true;
      }
      step(at, offset);
    }
    at -= steps;
    __syncthreads();
    if (!alone) break;
    for (int row = warp; row < p.rows; row += warps) {
      int4* from = reinterpret_cast<int4*>(sums + offset + row * kExl3SumStride + 4 * lane);
      const int4 s = *from;
      *from = {0, 0, 0, 0};
      fixed_finish(job, now, p.first_row + row, lane, s, fixed_row_scale(tops[row]), output, svh);
    }
    offset = offset == 0 ? p.rows * kExl3SumStride : 0;
  }
  if (alone) return;
  if (!ready) barrier_wait(exchange.barriers, 0);
  few_finish_cluster(a, p, exchange, smem, output);
}

// High and low bytes of a block's integers, as the products of warps read them.
struct FewStore {
  uint8_t* q;
  int stride;
  __device__ __forceinline__ void operator()(int row, int block, int lane,
                                             const int (&v)[4]) const {
    const uint32_t a = __byte_perm(v[0], v[1], 0x5410), b = __byte_perm(v[2], v[3], 0x5410);
    const uint32_t c = __byte_perm(v[0] + 128, v[1] + 128, 0x5410);
    const uint32_t d = __byte_perm(v[2] + 128, v[3] + 128, 0x5410);
    auto* to = reinterpret_cast<uint32_t*>(q + 2 * row * stride + block * 128) + lane;
    to[0] = __byte_perm(c, d, 0x7531);
    to[stride / 4] = __byte_perm(a, b, 0x6420);
  }
};

template <int K, int RG>
__global__ void __launch_bounds__(kExl3LargeWarps * 32, 1)
    exl3_dense_kernel(const __grid_constant__ FewArgs a) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const FewPart p(a, 4 * RG);
  FewRing<K> ring(a, p, warp, smem);
  if (lane < ring.depth) barrier_init(ring.barriers + lane * 8);
  barrier_init_done();
  __syncwarp();
  for (int i = 0; i < ring.depth; ++i) ring.load(p.first_block, lane);
  const FewExchange exchange(a, p.rank, smem);
  few_begin(a, p, exchange, smem);
  allow_next();
  few_rotate(a, p, smem, warp, FewStore{smem + a.layout.q, a.layout.stride});
  __syncthreads();
  if (exchange.size > 1)
    few_send_tops(exchange, reinterpret_cast<const uint32_t*>(smem + a.layout.top));
  FewRows<RG> in(a, p.rows, lane, smem);
  const float one = fixed_power(31 - a.shift);
  const auto take = [&](UnitWords<K>& words) {
    ring.take(words, lane);
    __syncwarp();
    ring.load(p.first_block, lane);
  };
  few_columns(a, p, exchange, in, 2 * p.count, warp, a.plan.warps, smem, [&](int at, int offset) {
    few_step<K, RG>(in, at >> 1, offset + 64 * (at & 1), one, lane, take);
  });
}

// Output blocks (clusters) of a launch's grid: all, or as many as run at once.
inline int few_grid_columns(const FewArgs& args, const Exl3Gpu& gpu) {
  const int slots = gpu.multiprocessors * args.plan.on_sm;
  const bool in_turn = args.jobs == 1 && args.plan.columns > 1 && args.columns > slots;
  return in_turn ? slots : args.columns;
}

// All of a multiprocessor's memory as shared memory: the next kernel's thread blocks find room.
template <typename Kernel>
cudaError_t few_launch(Kernel* kernel, const FewArgs& args, int columns, int rows_of_block,
                       cudaStream_t stream) {
  const cudaError_t e =
      allow_shared_bytes(reinterpret_cast<const void*>(kernel), args.layout.bytes, true);
  if (e != cudaSuccess) return e;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(columns * args.plan.cluster),
                        static_cast<unsigned>((args.rows + rows_of_block - 1) / rows_of_block));
  config.blockDim = dim3(static_cast<unsigned>(args.plan.warps * 32));
  config.dynamicSmemBytes = static_cast<size_t>(args.layout.bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(args.plan.cluster);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = args.plan.cluster == 1 ? 1 : 2;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace tensorfold::cuda
