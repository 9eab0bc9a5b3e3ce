// Class D products with EXL3 weights (exl3_dense.h): which kernel takes a call, and its launches.
// Few rows: exl3_few_group.cu where its parts fit, else exl3_few.cuh. More: exl3_many.cu where the
// caller gives a workspace, else groups of few.
#include "kernels/cuda/exl3_dense.h"

#include <algorithm>

#include "kernels/cuda/exl3_few.cuh"
#include "kernels/cuda/exl3_few_group.h"
#include "kernels/cuda/exl3_many.h"
#include "kernels/cuda/gpu_attribute.h"

namespace tensorfold::cuda {
namespace {

template <int K>
cudaError_t launch_rows(const FewArgs& args, const Exl3Gpu& gpu, cudaStream_t stream) {
  const int columns = few_grid_columns(args, gpu);
  return args.rows <= 4 ? few_launch(&exl3_dense_kernel<K, 1>, args, columns, 4, stream)
                        : few_launch(&exl3_dense_kernel<K, 2>, args, columns, 8, stream);
}

// Which kernels take few rows, and their cut; depth 0: none fits.
Exl3DensePlan choose(const Exl3DenseShape& shape, const Exl3Gpu& gpu, const Exl3DenseParams& p,
                     Exl3DenseKernels* kernels) {
  const auto asked = p.kernels;
  Exl3DensePlan plan;
  const bool many_columns = shape.columns > kExl3GroupColumnsMax * gpu.multiprocessors;
  if (asked == Exl3DenseKernels::kGroups || (asked == Exl3DenseKernels::kChosen && !many_columns)) {
    *kernels = Exl3DenseKernels::kGroups;
    plan = exl3_group_plan(shape, gpu, p.cluster, p.warps);
    if (plan.depth > 0) return plan;
  }
  *kernels = Exl3DenseKernels::kWarps;
  return exl3_dense_plan(shape, gpu, p.cluster);
}

// Jobs of one width and input size in one launch; more output blocks than the GPU takes at once
// and several jobs: one after the other.
cudaError_t launch_few(FewArgs& args, int bits, const Exl3DenseParams& p, const Exl3Gpu& gpu,
                       cudaStream_t stream) {
  const int rows = args.rows <= 4 ? args.rows : args.rows < kExl3FewRows ? args.rows : kExl3FewRows;
  args.columns = args.first_column[args.jobs];
  const Exl3DenseShape shape{args.job[0].weight.padded_in / 128, args.columns, bits, rows};
  Exl3DenseKernels kernels;
  args.plan = choose(shape, gpu, p, &kernels);
  if (args.plan.depth == 0) return cudaErrorInvalidValue;
  if (args.jobs > 1 && args.plan.columns > 1) {
    for (int i = 0; i < args.jobs; ++i) {
      FewArgs one;
      one.rows = args.rows;
      one.jobs = 1;
      one.job[0] = args.job[i];
      one.first_column[1] = args.job[i].weight.padded_out / 128;
      const cudaError_t e = launch_few(one, bits, p, gpu, stream);
      if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
  }
  args.shift = exl3_sum_shift(shape.blocks);
  if (kernels != Exl3DenseKernels::kWarps) {
    args.layout = exl3_group_shared(args.plan, bits, rows);
    return exl3_few_group(args, bits, gpu, stream);
  }
  args.layout = exl3_dense_shared(args.plan, bits, rows);
  switch (bits) {
#define TF_CASE(K) \
  case K:          \
    return launch_rows<K>(args, gpu, stream);
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

cudaError_t gpu_of(Exl3Gpu* gpu) {
  int device = 0;
  cudaError_t e = cudaGetDevice(&device);
  const auto read = [&](int* to, cudaDeviceAttr what) {
    if (e == cudaSuccess) e = gpu_attribute(to, what, device);
  };
  read(&gpu->multiprocessors, cudaDevAttrMultiProcessorCount);
  read(&gpu->block_bytes_max, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  read(&gpu->sm_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  read(&gpu->major, cudaDevAttrComputeCapabilityMajor);
  return e;
}

// Jobs of one input size, rows [first, first + rows).
template <typename Args>
void add_jobs(const Exl3DenseParams& p, int first, int rows, int begin, int bits, bool* done,
              Args& args) {
  args.rows = rows;
  for (int i = begin; i < p.jobs; ++i) {
    const Exl3Parts& w = p.job[i].weight;
    if (!exl3_is_tuned(w) || w.padded_in != p.job[begin].weight.padded_in) continue;
    if (bits > 0 && w.half_bits != 2 * bits) continue;
    done[i] = true;
    Exl3DenseJob& job = args.job[args.jobs];
    job = p.job[i];
    job.x += first * job.x_stride;
    const int64_t at = first * job.y_stride;
    job.y = job.type == ValueType::kF32 ? static_cast<void*>(static_cast<float*>(job.y) + at)
                                        : static_cast<void*>(static_cast<uint16_t*>(job.y) + at);
    args.first_column[args.jobs + 1] = args.first_column[args.jobs] + w.padded_out / 128;
    ++args.jobs;
  }
}

// Rows that go through the kernels of many rows at once; 0: none.
int rows_at_once(const Exl3DenseParams& p, int padded_in, int jobs) {
  if (padded_in / 128 > kExl3ManyBlocksMax) return 0;
  int rows = std::min(p.rows, kExl3WorkspaceRows);
  while (rows > kExl3FewRows && jobs * exl3_many_bytes(rows, padded_in) > p.workspace_bytes)
    rows = (rows - 1) / kExl3ManyTile * kExl3ManyTile;
  if (p.workspace == nullptr || jobs * exl3_many_bytes(rows, padded_in) > p.workspace_bytes)
    return 0;
  return rows;
}

// The jobs with job `begin`'s input size, in groups of rows. *taken: whether they were launched.
cudaError_t run_many(const Exl3DenseParams& p, int begin, const Exl3Gpu& gpu, cudaStream_t stream,
                     bool* done, bool* taken) {
  *taken = false;
  const int padded_in = p.job[begin].weight.padded_in;
  int jobs = 0, bits = 0;
  for (int i = begin; i < p.jobs; ++i) {
    if (!exl3_is_tuned(p.job[i].weight) || p.job[i].weight.padded_in != padded_in) continue;
    bits = std::max(bits, p.job[i].weight.half_bits / 2);
    ++jobs;
  }
  const int group = rows_at_once(p, padded_in, jobs);
  if (group == 0) return cudaSuccess;
  for (int first = 0; first < p.rows; first += group) {
    Exl3ManyArgs args;
    args.streams = stream_hint();
    add_jobs(p, first, std::min(group, p.rows - first), begin, 0, done, args);
    args.parts = exl3_many_workspace(args.rows, padded_in);
    args.workspace = static_cast<uint8_t*>(p.workspace);
    const cudaError_t e = exl3_many(args, bits, gpu, p.cluster, stream);
    if (e != cudaSuccess) return e;
  }
  *taken = true;
  return cudaSuccess;
}

}  // namespace

int64_t exl3_dense_workspace_bytes(int rows, int padded_in, int jobs) {
  return rows <= kExl3FewRows
             ? 0
             : jobs * exl3_many_bytes(std::min(rows, kExl3WorkspaceRows), padded_in);
}

cudaError_t exl3_dense(const Exl3DenseParams& p, cudaStream_t stream, const char** where) {
  if (where != nullptr) *where = "exl3_dense";
  if (p.rows < 0 || p.rows > kExl3RowsMax || p.jobs < 0 || p.jobs > kExl3JobsMax)
    return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  Exl3Gpu gpu;
  cudaError_t e = gpu_of(&gpu);
  if (e != cudaSuccess) return e;
  bool done[kExl3JobsMax] = {};
  for (int i = 0; i < p.jobs; ++i) {
    if (done[i]) continue;
    if (!exl3_is_tuned(p.job[i].weight)) {
      e = exl3_any(p.job[i], p.rows, stream);
      if (e != cudaSuccess) return e;
      continue;
    }
    if (p.rows > kExl3FewRows || p.kernels == Exl3DenseKernels::kMany) {
      bool taken = false;
      e = run_many(p, i, gpu, stream, done, &taken);
      if (e != cudaSuccess) return e;
      if (taken) continue;
    }
    const int bits = p.job[i].weight.half_bits / 2;
    FewArgs args;
    args.streams = stream_hint();
    add_jobs(p, 0, p.rows, i, bits, done, args);
    e = launch_few(args, bits, p, gpu, stream);
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // namespace tensorfold::cuda
