// Dense products of prompt rows (exl3_prefill.h): rotation of the rows, then 128 x 128 tiles.
#include "kernels/cuda/exl3_prefill.h"

#include "kernels/cuda/exl3_prefill.cuh"
#include "kernels/cuda/gpu_attribute.h"
#include "kernels/cuda/prefill_rotate.h"
#include "kernels/cuda/shared_limit.h"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = 256;

template <int kTN, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    exl3_prefill_kernel(Exl3DenseJob job, int rows, const uint16_t* x) {
  if constexpr (!prefill_fits(kStages * PrefillStage<kTN>::kBytes)) return;
  extern __shared__ __align__(1024) uint8_t smem[];
  using Stage = PrefillStage<kTN>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int column = blockIdx.x, first = blockIdx.y * kTN, steps = job.weight.padded_in / 64;
  const uint32_t base = shared_address(smem);
  PrefillLoader<kTN> loader(job.weight, column, threadIdx.x, [&](int r) {
    return x + int64_t{min(first + r, rows - 1)} * job.weight.padded_in;
  });
  auto load = [&](int step, uint32_t to) {
    if (step < steps) loader.next(to);
  };
  float d[kTN / 2];
  prefill_product<kTN, kStages>(job.weight.half_bits / 2, base, Stage::kBytes, steps, warp, lane,
                                load, d);
  __syncthreads();
  auto* sums = reinterpret_cast<float*>(smem);
  prefill_store<kTN>(d, warp, lane, sums);
  __syncthreads();
  const int at = column * 128 + 4 * lane;
  float scale[4];
  load_half4(job.weight.svh + at, scale);
  for (int r = warp; r < kTN && first + r < rows; r += kThreads / 32) {
    const float4 s = *reinterpret_cast<const float4*>(sums + r * kPrefillSumStride + 4 * lane);
    float v[4] = {s.x, s.y, s.z, s.w};
    hadamard_block(v, lane);
    const int64_t to = (first + r) * job.y_stride + at;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (at + i >= job.out) continue;
      if (job.type == ValueType::kF32)
        static_cast<float*>(job.y)[to + i] = v[i] * scale[i];
      else
        static_cast<uint16_t*>(job.y)[to + i] = static_cast<uint16_t>(to_bf16(v[i] * scale[i]));
    }
  }
}

template <int kTN, int kStages>
cudaError_t product(const Exl3DenseJob& job, int rows, const uint16_t* x, cudaStream_t stream) {
  const int bytes = kStages * PrefillStage<kTN>::kBytes;
  static_assert(kStages * PrefillStage<kTN>::kBytes >= kTN * kPrefillSumStride * 4);
  const cudaError_t error =
      allow_shared_bytes(reinterpret_cast<const void*>(&exl3_prefill_kernel<kTN, kStages>), bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(job.weight.padded_out / 128),
                  static_cast<unsigned>((rows + kTN - 1) / kTN));
  exl3_prefill_kernel<kTN, kStages>
      <<<grid, kThreads, static_cast<size_t>(bytes), stream>>>(job, rows, x);
  return cudaGetLastError();
}

}  // namespace

int64_t exl3_prefill_workspace_bytes(int rows, int padded_in) {
  return (int64_t{rows} * padded_in * 2 + 255) / 256 * 256;
}

cudaError_t exl3_prefill(const Exl3DenseJob& job, int rows, void* workspace,
                         int64_t workspace_bytes, cudaStream_t stream, const char** where) {
  if (where != nullptr) *where = "exl3_prefill";
  if (rows < 0 || rows > kExl3RowsMax) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  if (!exl3_is_tuned(job.weight)) return exl3_any(job, rows, stream);
  if (workspace_bytes < exl3_prefill_workspace_bytes(rows, job.weight.padded_in))
    return cudaErrorInvalidValue;
  auto* x = static_cast<uint16_t*>(workspace);
  cudaError_t error = launch_prefill_rotate(job, rows, x, stream);
  if (error != cudaSuccess) return error;
  int device = 0, shared = 0;
  error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = gpu_attribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  return shared >= 220 * 1024 ? product<256, 5>(job, rows, x, stream)
                              : product<64, 6>(job, rows, x, stream);
}

}  // namespace tensorfold::cuda
