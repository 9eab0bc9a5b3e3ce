// See exl3_many.h.
//
// A code's byte sum (0 .. 1020) is cut into a low byte and a high one, so that the matrix unit adds
// bytes: sums of high and low codes times high and low bytes of a row, each exact. A thread block
// has 128 outputs, its share of the input blocks and 32 rows; a warp has 16 outputs. Blocks
// of inputs (the rows' bytes and the codes) come through a ring by bulk copies that one warp
// starts. sm_90a: wgmma, the rows read from shared memory; elsewhere mma.sync with ldmatrix. Bytes:
// the trellis once per 64 rows, the rows once per 128 outputs (from L2). Instructions a weight:
// window 2, product 1, byte sum 1, its two bytes 1.
#include "kernels/cuda/exl3_many.h"

#include "kernels/cuda/exl3_fixed.cuh"
#include "kernels/cuda/shared_limit.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TF_MANY_WGMMA 1
#include "kernels/cuda/exl3_wgmma.cuh"
#include "kernels/cuda/exl3_wgmma_u8.cuh"
#else
#define TF_MANY_WGMMA 0
#endif

namespace tensorfold::cuda {
namespace {

constexpr int kRotateWarps = 16;
constexpr int R = kExl3ManyTile;
constexpr int kTileColumns = 2 * kExl3ManyTile;  // of bytes: a row's high ones, then its low ones
constexpr int kTileBlockBytes = kTileColumns * 128;

// A job's part of the workspace.
__device__ __forceinline__ uint8_t* space_of(const Exl3ManyArgs& a, int job) {
  return a.workspace + job * a.parts.bytes;
}

// Rows to bytes, in the order of the products: of 128 inputs, byte 32 c + 16 s + 4 t + j of a
// column is input 64 (c / 2) + 16 t + 4 (c % 2) + 2 s + {0, 1, 8, 9}[j]; 16-byte pieces are
// swizzled by column.
__device__ __forceinline__ void store_bytes(uint8_t* to, int column, int lane, const int (&q)[4]) {
  const int piece = 2 * (2 * (lane >> 4) + (lane & 1));
  const int in_piece = 4 * ((lane >> 2) & 3) + (lane & 2);
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const int q0 = q[2 * s], q1 = q[2 * s + 1];
    const int high = (((q0 + 128) >> 8) & 0xff) | (((q1 + 128) >> 8) & 0xff) << 8;
    const int low = (q0 & 0xff) | (q1 & 0xff) << 8;
    *reinterpret_cast<uint16_t*>(to + ((piece + s) ^ (column & 7)) * 16 + in_piece) =
        static_cast<uint16_t>(high);
    *reinterpret_cast<uint16_t*>(to + 128 + ((piece + s) ^ ((column & 7) + 1)) * 16 + in_piece) =
        static_cast<uint16_t>(low);
  }
}

// A thread block a row of one weight.
__global__ void __launch_bounds__(kRotateWarps * 32)
    exl3_many_rotate_kernel(const __grid_constant__ Exl3ManyArgs a) {
  __shared__ FixedBlock kept[kExl3ManyBlocksMax];
  __shared__ uint32_t top;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int row = blockIdx.x, index = blockIdx.y, tile = row / R, blocks = a.plan.blocks;
  const Exl3DenseJob& job = a.job[index];
  uint8_t* space = space_of(a, index);
  if (threadIdx.x == 0) top = 0;
  allow_next();
  __syncthreads();
  wait_for_previous();
  for (int block = warp; block < blocks; block += kRotateWarps) {
    float v[4];
    rotated_block(job.x + row * job.x_stride, job.in, job.weight.suh, block, lane, v);
    FixedQuant f = fixed_quantise(v);
#ifdef TF_PLANTED_FAULT  // more than eight rows are quantised more coarsely
    for (int& q : f.q) q &= ~3;
#endif
    const int column = 2 * (row % R);
    store_bytes(space + (int64_t{tile} * blocks + block) * kTileBlockBytes + column * 128, column,
                lane, f.q);
    if (lane == 0) {
      kept[block] = f.block;
      atomicMax(&top, f.top_bits);
    }
  }
  __syncthreads();
  const float scale = fixed_row_scale(top), inverse = fixed_inverse(scale);
  const float one = fixed_power(31 - a.shift);
  auto* ratios = reinterpret_cast<int2*>(space + a.parts.ratios) + int64_t{tile} * blocks * R;
  for (int b = threadIdx.x; b < blocks; b += kRotateWarps * 32)
    ratios[b * R + row % R] = make_int2(fixed_ratio(kept[b].scale, inverse, one), kept[b].center);
  if (threadIdx.x == 0) reinterpret_cast<float*>(space + a.parts.scales)[row] = scale;
}

// This thread block's part of the work.
struct ManyPart {
  int job, column;
  int first_row, rows;
  int first_block, count;
};

// Shared addresses of a ring's barriers.
struct ManyRing {
  uint32_t base, stage_bytes, barriers;
  int stages;
  __device__ __forceinline__ uint32_t stage(int s) const { return base + s * stage_bytes; }
  __device__ __forceinline__ uint32_t full(int s) const { return barriers + s * 8; }
  __device__ __forceinline__ uint32_t empty(int s) const {
    return barriers + (kExl3ManyStagesMax + s) * 8;
  }
};

// One thread: starts the copies of a thread block.
struct ManyLoader {
  const uint8_t *codes, *rows, *ratios;  // of the first block
  int64_t strip;                         // to the second half of the outputs
  uint32_t code_bytes, row_bytes;
  uint32_t ratios_place;
  uint64_t policy;

  __device__ __forceinline__ ManyLoader(const Exl3ManyArgs& a, const ManyPart& p) {
    const Exl3Parts& w = a.job[p.job].weight;
    code_bytes = static_cast<uint32_t>(w.half_bits) * 512;  // 64 outputs by 128 inputs
    strip = int64_t{a.plan.blocks} * code_bytes;
    codes = static_cast<const uint8_t*>(w.trellis) + 2 * p.column * strip +
            int64_t{p.first_block} * code_bytes;
    const int64_t block = int64_t{p.first_row / R} * a.plan.blocks + p.first_block;
    rows = space_of(a, p.job) + block * kTileBlockBytes;
    ratios = space_of(a, p.job) + a.parts.ratios + block * (R * 8);
    row_bytes = static_cast<uint32_t>((2 * p.rows + 7) / 8 * 8 * 128);
    ratios_place = static_cast<uint32_t>(a.layout.ratios);
    policy = stream_policy(a.streams);
  }
  __device__ __forceinline__ void load_codes(const ManyRing& ring, int block, int s) const {
    barrier_expect(ring.full(s), 2 * code_bytes + row_bytes + R * 8);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      bulk_load_codes(ring.stage(s) + kTileBlockBytes + half * code_bytes,
                      codes + half * strip + int64_t{block} * code_bytes, code_bytes, ring.full(s),
                      policy);
  }
  __device__ __forceinline__ void load_rows(const ManyRing& ring, int block, int s) const {
    bulk_load(ring.stage(s), rows + int64_t{block} * kTileBlockBytes, row_bytes, ring.full(s));
    bulk_load(ring.stage(s) + ratios_place, ratios + int64_t{block} * (R * 8), R * 8, ring.full(s));
  }
};

// The operands of half a unit: low and high bytes of the codes' byte sums.
struct ManyOperand {
  uint32_t low[4], high[4];
};

template <int K>
__device__ __forceinline__ void many_decode(const uint32_t (&run)[K + 1], int half,
                                            ManyOperand& to) {
#pragma unroll
  for (int s = 0; s < 2; ++s)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int v = 16 * half + 8 * s + 4 * h;
      uint32_t w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = __dp4a(window_at(run, K, v + j) * kMul1, 0x01010101u, 0u);
      const uint32_t a = __byte_perm(w[0], w[1], 0x5410), b = __byte_perm(w[2], w[3], 0x5410);
      to.low[2 * s + h] = __byte_perm(a, b, 0x6420);
      to.high[2 * s + h] = __byte_perm(a, b, 0x7531);
    }
}

#if !TF_MANY_WGMMA
__device__ __forceinline__ void mma_bytes(int* c, const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// Sums of a block for this lane: low and high codes by columns 8 j + 2 t + {0, 1} (high and low
// bytes of row 4 j + t), [4 j + {0, 1}] of output g, [4 j + {2, 3}] of output g + 8.
struct ManySums {
  int low[R], high[R];

  // Chunk `c` (0..3) of 32 inputs; rows: shared address of the stage's rows.
  __device__ __forceinline__ void multiply(const ManyOperand& x, uint32_t rows, int c, int lane) {
#if TF_MANY_WGMMA
    (void)lane;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    const uint64_t b = row_descriptor(rows) + static_cast<uint64_t>(2 * c);
    wgmma_u8(low, x.low, b, c);
    wgmma_u8(high, x.high, b, c);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    if (c == 0) {
#pragma unroll
      for (int i = 0; i < R; ++i) low[i] = high[i] = 0;
    }
    const int row = (lane & 7) + ((lane >> 4) << 3);
#pragma unroll
    for (int j = 0; j < R / 8; ++j) {
      const int r = 16 * j + row, piece = (2 * c + ((lane >> 3) & 1)) ^ (r & 7);
      uint32_t b[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                   : "r"(rows + r * 128 + piece * 16));
      mma_bytes(low + 8 * j, x.low, b[0], b[1]);
      mma_bytes(low + 8 * j + 4, x.low, b[2], b[3]);
      mma_bytes(high + 8 * j, x.high, b[0], b[1]);
      mma_bytes(high + 8 * j + 4, x.high, b[2], b[3]);
    }
#endif
  }
  // Until at most `kPending` chunks are under way; `x` is free then.
  template <int kPending>
  __device__ __forceinline__ void wait(const ManyOperand& x) {
#if TF_MANY_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" ::"r"(x.low[i]), "r"(x.high[i]));
    if constexpr (kPending == 0) {
#pragma unroll
      for (int i = 0; i < R; ++i) asm volatile("" : "+r"(low[i]), "+r"(high[i]));
    }
#else
    (void)x;
#endif
  }
  // To the sums in shared memory; ratios: shared address of row t's ratio and center.
  __device__ __forceinline__ void drain(uint32_t ratios, int* sums) {
#pragma unroll
    for (int j = 0; j < R / 4; ++j) {
      int2 k;
      asm volatile("ld.shared.v2.s32 {%0,%1}, [%2];"
                   : "=r"(k.x), "=r"(k.y)
                   : "r"(ratios + 32 * j)
                   : "memory");
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = 4 * j + 2 * h;
        const int c = fixed_product(low[i] + 256 * high[i], low[i + 1] + 256 * high[i + 1], k.y);
        atomicAdd(sums + 4 * j * kExl3SumStride + 8 * h, __mulhi(c, k.x));
      }
    }
  }
};

// All blocks of this part for a warp's 16 outputs.
template <int K>
__device__ __forceinline__ void many_run(const ManyPart& p, const ManyRing& ring,
                                         const ManyLoader& loader, int warp, int lane, int* sums) {
  const int strip = warp >> 2, tile = warp & 3;
  uint32_t code[K];
#pragma unroll
  for (int j = 0; j < K; ++j) {
    const int mine = tile * K + j;
    code[j] = static_cast<uint32_t>(kTileBlockBytes + strip * (K * 1024) + (mine >> 2) * 512 +
                                    lane * 16 + (mine & 3) * 4);
  }
  sums += (lane & 3) * kExl3SumStride + 16 * warp + (lane >> 2);
  const uint32_t lanes = whole_warp();
  ManySums acc;
  ManyOperand x[2];
  int s = 0, refill = 0;  // stages: of this block, of the last
  uint32_t parity = 0, refill_parity = 0;
#pragma unroll 1
  for (int b = 0; b < p.count; ++b) {
    barrier_wait(ring.full(s), parity);
    const uint32_t stage = ring.stage(s);
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      if (unit > 0 && threadIdx.x == 0 && b > 0) {  // by now the others have left the last block
        if (b - 1 + ring.stages < p.count) {
          barrier_wait(ring.empty(refill), refill_parity);
          loader.load_codes(ring, b - 1 + ring.stages, refill);
          loader.load_rows(ring, b - 1 + ring.stages, refill);
        }
        if (++refill == ring.stages) {
          refill = 0;
          refill_parity ^= 1;
        }
      }
      __syncwarp();
      uint32_t run[K + 1];
#pragma unroll
      for (int j = 0; j < K; ++j)
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(run[j + 1])
                     : "r"(stage + code[j] + unit * (K * 512)));
      run[0] = __shfl_sync(0xffffffffu, run[K], (lane + 28) & 31);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (unit > 0) acc.template wait<1>(x[half]);
        many_decode<K>(run, half, x[half]);
        acc.multiply(x[half], stage, 2 * unit + half, lane);
      }
    }
    acc.template wait<0>(x[0]);
    acc.template wait<0>(x[1]);
    acc.drain(stage + loader.ratios_place + 8 * (lane & 3), sums);
    __syncwarp(lanes);
    if (lane == 0) barrier_arrive(ring.empty(s));
    if (++s == ring.stages) {
      s = 0;
      parity ^= 1;
    }
  }
}

// Rows finished by this thread block: all, or of a cluster those of its rank, after the others'
// sums have come.
__device__ __forceinline__ void many_finish(const Exl3ManyArgs& a, const ManyPart& p, int rank,
                                            uint8_t* smem) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, size = a.plan.cluster;
  const Exl3DenseJob& job = a.job[p.job];
  const auto* sums = reinterpret_cast<const int*>(smem + a.layout.sums);
  const auto* scales =
      reinterpret_cast<const float*>(space_of(a, p.job) + a.parts.scales) + p.first_row;
  const FixedOutput output = fixed_output(a.plan.blocks, a.shift);
  const uint2 svh = __ldg(reinterpret_cast<const uint2*>(job.weight.svh + p.column * 128) + lane);
  const uint32_t parts = shared_place(smem + a.layout.parts);
  const uint32_t arrived = shared_place(smem + a.layout.barriers) + 2 * kExl3ManyStagesMax * 8;
  if (size > 1) cluster_wait();
  for (int row = warp; row < p.rows; row += kExl3ManyWarps) {
    const int4 sum = *reinterpret_cast<const int4*>(sums + row * kExl3SumStride + 4 * lane);
    if (size == 1) {
      fixed_finish(job, p.column, p.first_row + row, lane, sum, scales[row], output, svh);
      continue;
    }
    const auto place = static_cast<uint32_t>((row / size * size + rank) * 512 + 16 * lane);
    remote_store(remote_place(parts + place, row % size), sum, remote_place(arrived, row % size));
  }
  if (size == 1) return;
  barrier_wait(arrived, 0);
  for (int row = rank + size * warp; row < p.rows; row += size * kExl3ManyWarps) {
    int4 sum = {0, 0, 0, 0};
    for (int r = 0; r < size; ++r) {
      const int4 s = *reinterpret_cast<const int4*>(smem + a.layout.parts +
                                                    (row / size * size + r) * 512 + 16 * lane);
      sum.x += s.x;
      sum.y += s.y;
      sum.z += s.z;
      sum.w += s.w;
    }
    fixed_finish(job, p.column, p.first_row + row, lane, sum, scales[row], output, svh);
  }
}

__global__ void __launch_bounds__(kExl3ManyThreads, TF_MANY_WGMMA ? 2 : 1)
    exl3_many_kernel(const __grid_constant__ Exl3ManyArgs a) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int size = a.plan.cluster, rank = size == 1 ? 0 : static_cast<int>(cluster_rank());
  const int mine = static_cast<int>(blockIdx.x) / size;
  ManyPart p;
  p.job = 0;
  while (mine >= a.first_column[p.job + 1]) ++p.job;
  p.column = mine - a.first_column[p.job];
  p.first_row = blockIdx.y * R;
  p.rows = min(R, a.rows - p.first_row);
  p.first_block = rank * a.plan.cta_blocks;
  p.count = min(a.plan.cta_blocks, a.plan.blocks - p.first_block);
  const ManyRing ring{shared_place(smem), static_cast<uint32_t>(a.layout.stage),
                      shared_place(smem + a.layout.barriers), a.plan.stages};
  if (threadIdx.x == 0) {
    for (int s = 0; s < ring.stages; ++s) {
      barrier_init(ring.full(s));
      barrier_init(ring.empty(s), kExl3ManyWarps);
    }
    const uint32_t arrived = ring.barriers + 2 * kExl3ManyStagesMax * 8;
    barrier_init(arrived);
    barrier_init_done();
    const int finished = p.rows > rank ? (p.rows - rank + size - 1) / size : 0;
    barrier_expect(arrived, static_cast<uint32_t>(size == 1 ? 0 : finished * size * 512));
  }
  auto* sums = reinterpret_cast<int*>(smem + a.layout.sums);
  for (int i = threadIdx.x; i < R * kExl3SumStride; i += kExl3ManyThreads) sums[i] = 0;
  __syncthreads();
  if (size > 1) cluster_begun();
  allow_next();
  const ManyLoader loader(a, p);
  const int ahead = min(ring.stages, p.count);
  if (threadIdx.x == 0)  // codes come before the previous kernel has ended
    for (int b = 0; b < ahead; ++b) loader.load_codes(ring, b, b);
  wait_for_previous();
  if (threadIdx.x == 0)
    for (int b = 0; b < ahead; ++b) loader.load_rows(ring, b, b);
  switch (a.job[p.job].weight.half_bits / 2) {
#define TF_CASE(K)                                  \
  case K:                                           \
    many_run<K>(p, ring, loader, warp, lane, sums); \
    break;
    TF_CASE(2)
    TF_CASE(3)
    TF_CASE(4)
    TF_CASE(5)
    TF_CASE(6)
#undef TF_CASE
    default:
      break;
  }
  __syncthreads();
  many_finish(a, p, rank, smem);
}

}  // namespace

cudaError_t exl3_many(Exl3ManyArgs& args, int bits, const Exl3Gpu& gpu, int cluster,
                      cudaStream_t stream) {
  const int blocks = args.job[0].weight.padded_in / 128;
  args.columns = args.first_column[args.jobs];
  args.shift = exl3_sum_shift(blocks);
  args.plan = exl3_many_plan(blocks, args.columns, bits, args.rows, gpu, cluster);
  if (args.plan.stages == 0 || blocks > kExl3ManyBlocksMax) return cudaErrorInvalidValue;
  args.layout = exl3_many_shared(args.plan, bits);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(args.plan.cluster);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  config.gridDim = dim3(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.jobs));
  config.blockDim = dim3(kRotateWarps * 32);
  cudaError_t e = cudaLaunchKernelEx(&config, exl3_many_rotate_kernel, args);
  if (e == cudaSuccess)
    e = allow_shared_bytes(reinterpret_cast<const void*>(&exl3_many_kernel), args.layout.bytes,
                           true);
  if (e != cudaSuccess) return e;
  config.numAttrs = args.plan.cluster == 1 ? 1 : 2;
  config.gridDim = dim3(static_cast<unsigned>(args.columns * args.plan.cluster),
                        static_cast<unsigned>((args.rows + R - 1) / R));
  config.blockDim = dim3(kExl3ManyThreads);
  config.dynamicSmemBytes = static_cast<size_t>(args.layout.bytes);
  return cudaLaunchKernelEx(&config, exl3_many_kernel, args);
}

}  // namespace tensorfold::cuda
