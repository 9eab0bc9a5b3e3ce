// Class D products with EXL3 weights (exl3_dense.h, exl3_plan.h, exl3_step.cuh).
//
// A thread block: 128 outputs of one weight, its share of the input blocks, 4 RG rows. It starts
// its first weight loads, rotates and quantises its part of the rows into shared memory, multiplies
// (a warp takes chunks of one half of the outputs), and adds the chunks in order; the cluster's
// parts are added through distributed shared memory, then comes the output rotation.
// Bytes: the trellis once per 4 RG rows, plus rows. RG = 1 to 4 rows, 2 above.
#include "kernels/cuda/exl3_dense.h"

#include <cooperative_groups.h>

#include "kernels/cuda/exl3_plan.h"
#include "kernels/cuda/exl3_rotate.cuh"

namespace tensorfold::cuda {
namespace {

namespace cg = cooperative_groups;

// Registers bound the threads: 20 warps of one chunk each fill a multiprocessor at up to 5 bits.
template <int K, int RG>
constexpr int kThreadsMax = RG == 2  ? 384
                            : K <= 5 ? 640
                                     : 512;

constexpr int kManyBlocks = 264, kManyThreads = 256;

struct LaunchArgs {
  int rows;
  int jobs;
  Exl3DensePlan plan[kExl3JobsMax];
  int first_column[kExl3JobsMax + 1];  // first output block of each job in the grid
  Exl3DenseJob job[kExl3JobsMax];
};

// This thread block's part of a product.
struct Part {
  const uint4* words;  // this lane's, of the matrix
  int column, first_block, count;
  int units_in;  // units of 64 inputs of the matrix
};

template <int K>
__device__ __forceinline__ const uint4* chunk_words(const Part& part, const Exl3DensePlan& plan,
                                                    int unit) {
  const int64_t strip = int64_t{2 * part.column + (unit & 1)} * part.units_in;
  const int64_t at = strip + 2 * (part.first_block + (unit >> 1) * plan.chunk_blocks);
  return part.words + at * (K * 32);
}

// 640 threads have 96 registers, 5 bits need more: there the sums are kept where they are to be.
// On an H200 this instance was measured with registers and stays so.
template <int K, int RG>
__device__ constexpr bool sums_in_place() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
  return K == 5 && RG == 1;
#else
  return false;
#endif
}

// Where this lane's sums of a chunk go.
template <int RG>
__device__ __forceinline__ float* chunk_place(float* sums, int chunk, int half, int lane) {
  return sums + (chunk * 4 * RG + (lane & 3)) * kExl3SumStride + 64 * half + (lane >> 2);
}

template <int RG>
__device__ __forceinline__ void store_chunk(const ChunkSums<RG>& out, int chunk, int half, int lane,
                                            float* sums) {
  float* to = chunk_place<RG>(sums, chunk, half, lane);
#pragma unroll
  for (int rg = 0; rg < RG; ++rg)
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) to[4 * rg * kExl3SumStride + 16 * i + 8 * h] = out.v[rg][i][h];
}

// A unit's product, its sums in their place. unit: 2 chunk + half of the outputs.
template <int K, int RG>
__device__ __forceinline__ void run_unit(Chunk<K, RG>& work, const uint4* words, int blocks,
                                         const LaneRows<RG>& in, int unit, int lane, float* sums) {
  if constexpr (sums_in_place<K, RG>()) {
    SharedSums<RG> out{chunk_place<RG>(sums, unit >> 1, unit & 1, lane), 4 * kExl3SumStride, {}};
    work.run(words, blocks, in, lane, out);
  } else {
    ChunkSums<RG> out;
    work.run(words, blocks, in, lane, out);
    store_chunk<RG>(out, unit >> 1, unit & 1, lane, sums);
  }
}

// Four outputs of a row from their sum: rotation, svh, store.
__device__ void finish(const Exl3DenseJob& job, int column, int64_t row, int lane, float (&v)[4]) {
  hadamard_block(v, lane);
  const int n = column * 128 + 4 * lane;
  float scale[4];
  load_half4(job.weight.svh + n, scale);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] *= kMul1Slope * scale[i];
    if (n + i >= job.out) continue;
    const int64_t at = row * job.y_stride + n + i;
    if (job.type == ValueType::kF32)
      static_cast<float*>(job.y)[at] = v[i];
    else
      static_cast<uint16_t*>(job.y)[at] = static_cast<uint16_t>(bf16_bits(v[i]));
  }
}

// The rows of this thread block's inputs: rotated, quantised, into shared memory.
__device__ __forceinline__ void rotate_rows(const Exl3DenseJob& job, const Exl3DenseShared& layout,
                                            int first_row, int rows, int first_block, int count,
                                            int cta_blocks, uint8_t* smem, float2* scale) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  for (int i = warp; i < rows * count; i += warps) {
    const int row = i / count, block = i % count;
    float v[4];
    rotated_block(job.x + (first_row + row) * job.x_stride, job.in, job.weight.suh,
                  first_block + block, lane, v);
#ifdef TF_PLANTED_FAULT  // more than eight rows are quantised more coarsely
    QuantBlock b = quantise_block(v);
    if (gridDim.y > 1) b.low &= 0xFCFCFCFCu;
#else
    const QuantBlock b = quantise_block(v);
#endif
    auto* q = reinterpret_cast<uint32_t*>(smem + 2 * row * layout.stride + block * 128) + lane;
    q[0] = b.high;
    q[layout.stride / 4] = b.low;
    if (lane == 0) scale[row * cta_blocks + block] = make_float2(b.scale, b.shift);
  }
}

__device__ __forceinline__ void sum_chunks(const float* at, int chunks, int stride, float (&v)[4]) {
  v[0] = v[1] = v[2] = v[3] = 0;
  for (int c = 0; c < chunks; ++c) {
    const float4 s = *reinterpret_cast<const float4*>(at + c * stride);
    v[0] += s.x;
    v[1] += s.y;
    v[2] += s.z;
    v[3] += s.w;
  }
}

template <int K, int RG>
__global__ void __launch_bounds__(kThreadsMax<K, RG>, 1)
    exl3_dense_kernel(const __grid_constant__ LaunchArgs args) {
  extern __shared__ __align__(16) uint8_t smem[];
  constexpr int kRows = 4 * RG;
  int index = 0;
  const cg::cluster_group cluster = cg::this_cluster();
  const int size = static_cast<int>(cluster.num_blocks());
  const int rank = static_cast<int>(cluster.block_rank());
  const int column_of_all = static_cast<int>(blockIdx.x) / size;
  while (column_of_all >= args.first_column[index + 1]) ++index;
  const Exl3DenseJob& job = args.job[index];
  const Exl3DensePlan& plan = args.plan[index];
  const int column = column_of_all - args.first_column[index];
  const int first_row = blockIdx.y * kRows;
  const int rows = min(kRows, args.rows - first_row);
  const int first_block = rank * plan.cta_blocks;
  const int count = min(plan.cta_blocks, plan.blocks - first_block);
  const int chunks = (count + plan.chunk_blocks - 1) / plan.chunk_blocks;
  const Exl3DenseShared layout = exl3_dense_shared(plan, kRows);
  auto* scale = reinterpret_cast<float2*>(smem + layout.scale);
  auto* sums = reinterpret_cast<float*>(smem + layout.sums);
  auto* parts = reinterpret_cast<float*>(smem + layout.parts);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const Part part{static_cast<const uint4*>(job.weight.trellis) + lane, column, first_block, count,
                  job.weight.padded_in / 64};
  Chunk<K, RG> work;
  if (warp < 2 * chunks) work.start(chunk_words<K>(part, plan, warp));
  allow_next();
  wait_for_previous();
  rotate_rows(job, layout, first_row, rows, first_block, count, plan.cta_blocks, smem, scale);
  __syncthreads();
  for (int unit = warp; unit < 2 * chunks; unit += warps) {
    const uint4* words = chunk_words<K>(part, plan, unit);
    if (unit != warp) work.start(words);
    const int begin = (unit >> 1) * plan.chunk_blocks;
    LaneRows<RG> in;
#pragma unroll
    for (int rg = 0; rg < RG; ++rg) {
      in.q[rg] = smem + (8 * rg + (lane >> 2)) * layout.stride + begin * 128 + 16 * (lane & 3);
      in.scale[rg] = scale + (4 * rg + (lane & 3)) * plan.cta_blocks + begin;
    }
    run_unit(work, words, min(plan.chunk_blocks, count - begin), in, unit, lane, sums);
  }
  __syncthreads();
  for (int row = warp; row < rows; row += warps) {
    float v[4];
    sum_chunks(sums + row * kExl3SumStride + 4 * lane, chunks, kRows * kExl3SumStride, v);
    if (size == 1)
      finish(job, column, first_row + row, lane, v);
    else
      *reinterpret_cast<float4*>(parts + row * 128 + 4 * lane) =
          make_float4(v[0], v[1], v[2], v[3]);
  }
  if (size == 1) return;
  cluster.sync();
  for (int row = rank + size * warp; row < rows; row += size * warps) {
    float v[4] = {0, 0, 0, 0};
    for (int r = 0; r < size; ++r) {
      const float4 s = *reinterpret_cast<const float4*>(cluster.map_shared_rank(parts, r) +
                                                        row * 128 + 4 * lane);
      v[0] += s.x;
      v[1] += s.y;
      v[2] += s.z;
      v[3] += s.w;
    }
    finish(job, column, first_row + row, lane, v);
  }
  cluster.sync();
}

template <int K, int RG>
cudaError_t launch(LaunchArgs& args, int cluster, cudaStream_t stream) {
  int threads = 64, bytes = 0;
  for (int i = 0; i < args.jobs; ++i) {
    threads = max(threads, 64 * args.plan[i].chunks);
    bytes = max(bytes, exl3_dense_shared(args.plan[i], 4 * RG).bytes);
  }
  if (threads > kThreadsMax<K, RG>) threads = kThreadsMax<K, RG>;
  // Many output blocks: two thread blocks a multiprocessor, one multiplies while the other begins.
  if (args.first_column[args.jobs] * cluster > kManyBlocks && threads > kManyThreads)
    threads = kManyThreads;
  auto* kernel = &exl3_dense_kernel<K, RG>;
  cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (e != cudaSuccess) return e;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(args.first_column[args.jobs] * cluster),
                        static_cast<unsigned>((args.rows + 4 * RG - 1) / (4 * RG)));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = cluster == 1 ? 1 : 2;
  return cudaLaunchKernelEx(&config, kernel, args);
}

// The weights of one width and cluster size in one launch.
template <int K>
cudaError_t launch_group(const Exl3DenseParams& p, int cluster, int shared_bytes_max,
                         cudaStream_t stream) {
  LaunchArgs args = {};
  args.rows = p.rows;
  for (int i = 0; i < p.jobs; ++i) {
    const Exl3DenseJob& job = p.job[i];
    if (!exl3_is_tuned(job.weight) || job.weight.half_bits != 2 * K) continue;
    const Exl3DensePlan plan =
        exl3_dense_plan(job.weight.padded_in, job.weight.padded_out, shared_bytes_max);
    if (plan.cluster != cluster) continue;
    args.plan[args.jobs] = plan;
    args.job[args.jobs] = job;
    args.first_column[args.jobs + 1] = args.first_column[args.jobs] + job.weight.padded_out / 128;
    ++args.jobs;
  }
  if (args.jobs == 0) return cudaSuccess;
  return p.rows <= 4 ? launch<K, 1>(args, cluster, stream) : launch<K, 2>(args, cluster, stream);
}

}  // namespace

cudaError_t exl3_dense(const Exl3DenseParams& p, cudaStream_t stream, const char** where) {
  if (where != nullptr) *where = "exl3_dense";
  if (p.rows < 0 || p.rows > kExl3RowsMax || p.jobs < 0 || p.jobs > kExl3JobsMax)
    return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  int device = 0, shared = 0;
  cudaError_t e = cudaGetDevice(&device);
  if (e == cudaSuccess)
    e = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (e != cudaSuccess) return e;
  for (int cluster = 1; cluster <= kExl3ClusterMax; ++cluster) {
    for (const auto group : {&launch_group<2>, &launch_group<3>, &launch_group<4>, &launch_group<5>,
                             &launch_group<6>}) {
      e = group(p, cluster, shared, stream);
      if (e != cudaSuccess) return e;
    }
  }
  for (int i = 0; i < p.jobs; ++i) {
    if (exl3_is_tuned(p.job[i].weight)) continue;
    e = exl3_any(p.job[i], p.rows, stream);
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // namespace tensorfold::cuda
