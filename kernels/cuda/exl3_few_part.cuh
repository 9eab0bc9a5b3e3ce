// What the kernels of few rows share first: their arguments, a thread block's part, and its rows'
// rotation.
#pragma once

#include "kernels/cuda/exl3_fixed.cuh"

namespace tensorfold::cuda {

struct FewArgs {
  int rows = 0, jobs = 0, columns = 0;  // columns of all jobs
  int shift = 0;                        // exl3_sum_shift
  bool streams = false;                 // stream_hint()
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
    const bool alone = a.plan.cluster == 1;
    const int ctas = alone ? static_cast<int>(gridDim.x) : cluster_count();
    const int mine = alone ? static_cast<int>(blockIdx.x) : cluster_index();
    rank = alone ? 0 : static_cast<int>(cluster_rank());
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

// Waits for the previous kernel. Rows of this thread block's inputs: rotated, quantised, each block
// given to `store(row, block, lane, integers)`, scales and centers kept, the largest bits of a row
// in top[row]. A warp a block, in little code: it is fetched cold. `turn`: this warp's place.
template <typename Store>
__device__ __forceinline__ void few_rotate(const FewArgs& a, const FewPart& p, uint8_t* smem,
                                           int turn, const Store& store) {
  const int lane = threadIdx.x & 31, warps = a.plan.warps;
  const Exl3DenseJob& job = a.job[p.job];
  auto* blocks = reinterpret_cast<FixedBlock*>(smem + a.layout.scale);
  auto* top = reinterpret_cast<uint32_t*>(smem + a.layout.top);
  int row = 0, block = turn;
  const auto settle = [&]() {
    while (block >= p.count) {
      block -= p.count;
      ++row;
    }
  };
  settle();
  float scale[4];
  const auto load_scale = [&]() {
    if (row < p.rows) load_half4(job.weight.suh + (p.first_block + block) * 128 + 4 * lane, scale);
  };
  load_scale();
  wait_for_previous();
#pragma unroll 1
  while (row < p.rows) {
    float v[4];
    load_row4(job.x + (p.first_row + row) * job.x_stride, job.in,
              (p.first_block + block) * 128 + 4 * lane, v);
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] *= scale[j];
    const int this_row = row, this_block = block;
    block += warps;
    settle();
    load_scale();
    hadamard_block(v, lane);
    FixedQuant f = fixed_quantise(v);
#ifdef TF_PLANTED_FAULT  // more than eight rows are quantised more coarsely
    if (gridDim.y > 1)
      for (int& q : f.q) q &= ~3;
#endif
    store(this_row, this_block, lane, f.q);
    if (lane == 0) {
      blocks[this_row * a.plan.cta_blocks + this_block] = f.block;
      atomicMax(top + this_row, f.top_bits);
    }
  }
}

}  // namespace tensorfold::cuda
