// What the kernels of few rows share first: their arguments, a thread block's part, and its rows'
// rotation.
#pragma once

#include "kernels/cuda/exl3_fixed.cuh"

namespace tensorfold::cuda {

struct FewArgs {
  int rows = 0, jobs = 0, columns = 0;  // columns of all jobs
  int shift = 0;                        // exl3_sum_shift
  Exl3DensePlan plan;
  Exl3DenseShared layout;
  int first_column[kExl3JobsMax + 1] = {};  // first output block of each job
  Exl3DenseJob job[kExl3JobsMax];
};

// A thread block's part of a call.
struct FewPart {
  int job, column, end_column, apart;  // columns of the job: this one, then every apart-th
  int first_row, rows;
  int rank, first_block, count;  // of the cluster; input blocks

  __device__ __forceinline__ FewPart(const FewArgs& a, int rows_max) {
    const int size = a.plan.cluster;
    const int ctas = static_cast<int>(gridDim.x) / size, mine = static_cast<int>(blockIdx.x) / size;
    rank = size == 1 ? 0 : static_cast<int>(cluster_rank());
    job = 0;
    while (mine >= a.first_column[job + 1]) ++job;
    column = mine - a.first_column[job];
    end_column = a.first_column[job + 1] - a.first_column[job];
    apart = a.jobs == 1 ? ctas : end_column;  // one column, unless the launch has one job
    first_row = blockIdx.y * rows_max;
    rows = min(rows_max, a.rows - first_row);
    first_block = rank * a.plan.cta_blocks;
    count = min(a.plan.cta_blocks, a.plan.blocks - first_block);
  }
};

// Sixteen consecutive values of a block of 128, which eight lanes share: the same operations in the
// same order as rotated_block, fixed_quantise (a warp a block), so the same bits.
struct FewSixteen {
  float v[16];

  // suh's as loaded by load_suh().
  __device__ __forceinline__ void load(const uint16_t* x, int in, int k, const uint2 (&suh)[4]) {
    if (k + 16 <= in) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 u = *reinterpret_cast<const uint2*>(x + k + 4 * i);
        v[4 * i] = bf16_low(u.x);
        v[4 * i + 1] = bf16_high(u.x);
        v[4 * i + 2] = bf16_low(u.y);
        v[4 * i + 3] = bf16_high(u.y);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i)
        v[i] = k + i < in ? __uint_as_float(static_cast<uint32_t>(x[k + i]) << 16) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&suh[i].x));
      const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&suh[i].y));
      v[4 * i] *= a.x;
      v[4 * i + 1] *= a.y;
      v[4 * i + 2] *= b.x;
      v[4 * i + 3] *= b.y;
    }
  }
  __device__ __forceinline__ void rotate(int lane) {
#pragma unroll
    for (int step = 1; step < 16; step *= 2)
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if ((i & step) != 0) continue;
        const float a = v[i], b = v[i + step];
        v[i] = a + b;
        v[i + step] = a - b;
      }
#pragma unroll
    for (int mask = 1; mask < 8; mask *= 2) {
      const float sign = (lane & mask) != 0 ? -1.0f : 1.0f;
#pragma unroll
      for (int i = 0; i < 16; ++i)
        v[i] = fmaf(v[i], sign, __shfl_xor_sync(0xffffffffu, v[i], mask));
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] *= kHadamard128Scale;
  }
  __device__ __forceinline__ FixedBlock quantise(int (&q)[16], uint32_t* top_bits) const {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) bits = max(bits, __float_as_uint(fabsf(v[i])));
#pragma unroll
    for (int mask = 1; mask < 8; mask *= 2)
      bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, mask));
    const float top = __uint_as_float(bits), inverse = fixed_quant_inverse(top);
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      q[i] = __float2int_rn(v[i] * inverse);
      sum += q[i];
    }
#pragma unroll
    for (int mask = 1; mask < 8; mask *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    *top_bits = bits;
    return {top / kQuantMax, fixed_center(sum)};
  }
};

__device__ __forceinline__ void load_suh(const uint16_t* suh, int k, uint2 (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = __ldg(reinterpret_cast<const uint2*>(suh + k) + i);
}

// Waits for the previous kernel. Rows of this thread block's inputs: rotated, quantised, each given
// to `store(row, block, sixteenth, integers)`, scales and centers kept, the largest bits of a row
// in top[row]. Eight lanes a block.
template <typename Store>
__device__ __forceinline__ void few_rotate(const FewArgs& a, const FewPart& p, uint8_t* smem,
                                           const Store& store) {
  const int lane = threadIdx.x & 31, sub = lane & 7, all = p.rows * p.count;
  const Exl3DenseJob& job = a.job[p.job];
  auto* blocks = reinterpret_cast<FixedBlock*>(smem + a.layout.scale);
  auto* top = reinterpret_cast<uint32_t*>(smem + a.layout.top);
  const uint16_t* suh = job.weight.suh + p.first_block * 128 + 16 * sub;
  const int first = static_cast<int>(threadIdx.x / 8), apart = static_cast<int>(blockDim.x / 8);
  uint2 scales[4];
  load_suh(suh, (min(first, all - 1) % p.count) * 128, scales);
  wait_for_previous();
  for (int begin = first - (lane >> 3); begin < all; begin += apart) {  // the same of a warp
    const int item = begin + (lane >> 3), i = min(item, all - 1);
    const int row = i / p.count, block = i % p.count;
    if (begin != first - (lane >> 3)) load_suh(suh, block * 128, scales);
    FewSixteen of;
    of.load(job.x + (p.first_row + row) * job.x_stride, job.in,
            (p.first_block + block) * 128 + 16 * sub, scales);
    of.rotate(lane);
    int q[16];
    uint32_t bits;
    const FixedBlock kept = of.quantise(q, &bits);
#ifdef TF_PLANTED_FAULT  // more than eight rows are quantised more coarsely
    if (gridDim.y > 1)
      for (int& v : q) v &= ~3;
#endif
    if (item >= all) continue;
    store(row, block, sub, q);
    if (sub == 0) {
      blocks[row * a.plan.cta_blocks + block] = kept;
      atomicMax(top + row, bits);
    }
  }
}

}  // namespace tensorfold::cuda
