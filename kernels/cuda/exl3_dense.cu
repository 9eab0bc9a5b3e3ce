// Class D products with EXL3 weights (exl3_dense.h): which kernel takes a call, and its launches.
// Few rows: exl3_few.cuh. More: exl3_many.cu where the caller gives a workspace, else groups of
// few.
#include "kernels/cuda/exl3_dense.h"

#include "kernels/cuda/exl3_few.cuh"

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

}  // namespace

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
    FewArgs args;
    args.rows = p.rows;
    const Exl3Parts& first = p.job[i].weight;
    for (int j = i; j < p.jobs; ++j) {
      const Exl3Parts& w = p.job[j].weight;
      if (!exl3_is_tuned(w) || w.half_bits != first.half_bits || w.padded_in != first.padded_in)
        continue;
      done[j] = true;
      args.job[args.jobs] = p.job[j];
      args.first_column[args.jobs + 1] = args.first_column[args.jobs] + w.padded_out / 128;
      ++args.jobs;
    }
    e = launch_few(args, first.half_bits / 2, gpu, p.cluster, stream);
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // namespace tensorfold::cuda
