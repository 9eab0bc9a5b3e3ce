// Class D products with EXL3 weights (exl3_dense.h): which kernel takes a call, and its launches.
// Few rows: exl3_few.cuh. More: exl3_many.cu where the caller gives a workspace, else groups of
// few.
#include "kernels/cuda/exl3_dense.h"

#include <algorithm>

#include "kernels/cuda/exl3_few.cuh"
#include "kernels/cuda/exl3_many.h"

namespace tensorfold::cuda {
namespace {

template <int K, int RG>
cudaError_t launch(const FewArgs& args, const Exl3Gpu& gpu, cudaStream_t stream) {
  auto* kernel = &exl3_dense_kernel<K, RG>;
  const Exl3DensePlan& plan = args.plan;
  const cudaError_t e =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, args.layout.bytes);
  if (e != cudaSuccess) return e;
  int columns = args.columns;
  if (args.jobs == 1 && plan.columns > 1) {
    const int slots = gpu.multiprocessors * (plan.warps == kExl3SmallWarps ? 2 : 1);
    if (columns > slots) columns = slots;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(columns * plan.cluster),
                        static_cast<unsigned>((args.rows + 4 * RG - 1) / (4 * RG)));
  config.blockDim = dim3(static_cast<unsigned>(plan.warps * 32));
  config.dynamicSmemBytes = static_cast<size_t>(args.layout.bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(plan.cluster);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = plan.cluster == 1 ? 1 : 2;
  return cudaLaunchKernelEx(&config, kernel, args);
}

template <int K>
cudaError_t launch_rows(const FewArgs& args, const Exl3Gpu& gpu, cudaStream_t stream) {
  return args.rows <= 4 ? launch<K, 1>(args, gpu, stream) : launch<K, 2>(args, gpu, stream);
}

// Jobs of one width and input size in one launch; more output blocks than the GPU takes at once
// and several jobs: one after the other.
cudaError_t launch_few(FewArgs& args, int bits, const Exl3Gpu& gpu, int cluster,
                       cudaStream_t stream) {
  const int rows = args.rows <= 4 ? args.rows : args.rows < kExl3FewRows ? args.rows : kExl3FewRows;
  args.columns = args.first_column[args.jobs];
  const Exl3DenseShape shape{args.job[0].weight.padded_in / 128, args.columns, bits, rows};
  args.plan = exl3_dense_plan(shape, gpu, cluster);
  if (args.plan.depth == 0) return cudaErrorInvalidValue;
  if (args.jobs > 1 && args.plan.columns > 1) {
    for (int i = 0; i < args.jobs; ++i) {
      FewArgs one;
      one.rows = args.rows;
      one.jobs = 1;
      one.job[0] = args.job[i];
      one.first_column[1] = args.job[i].weight.padded_out / 128;
      const cudaError_t e = launch_few(one, bits, gpu, cluster, stream);
      if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
  }
  args.layout = exl3_dense_shared(args.plan, bits, rows);
  args.shift = exl3_sum_shift(shape.blocks);
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
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(to, what, device);
  };
  read(&gpu->multiprocessors, cudaDevAttrMultiProcessorCount);
  read(&gpu->block_bytes_max, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  read(&gpu->sm_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
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
  int rows = std::min(p.rows, kExl3WorkspaceRows);
  while (rows > kExl3FewRows && jobs * exl3_many_bytes(rows, padded_in) > p.workspace_bytes)
    rows = (rows - 1) / kExl3ManyTile * kExl3ManyTile;
  return p.workspace == nullptr || rows <= kExl3FewRows ? 0 : rows;
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
    add_jobs(p, first, std::min(group, p.rows - first), begin, 0, done, args);
    args.job_bytes = exl3_many_bytes(args.rows, padded_in);
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
    if (p.rows > kExl3FewRows) {
      bool taken = false;
      e = run_many(p, i, gpu, stream, done, &taken);
      if (e != cudaSuccess) return e;
      if (taken) continue;
    }
    const int bits = p.job[i].weight.half_bits / 2;
    FewArgs args;
    add_jobs(p, 0, p.rows, i, bits, done, args);
    e = launch_few(args, bits, gpu, p.cluster, stream);
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // namespace tensorfold::cuda
