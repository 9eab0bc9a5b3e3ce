// Device helpers of the kernel benches: random contents, and the two ceilings of the machine that
// every row is held against.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tensorfold::bench {

// Random 32-bit words.
cudaError_t fill_words(void* to, int64_t words, uint32_t seed, cudaStream_t stream);
// fp16 of random sign and size 0.5 .. 1.5 times `scale`.
cudaError_t fill_scales(uint16_t* to, int64_t count, float scale, uint32_t seed,
                        cudaStream_t stream);
// bf16, normal with deviation `scale`.
cudaError_t fill_normal(uint16_t* to, int64_t count, uint32_t seed, cudaStream_t stream,
                        float scale = 1);
// fp32, center plus or minus up to `spread`.
cudaError_t fill_f32(float* to, int64_t count, float center, float spread, uint32_t seed,
                     cudaStream_t stream);
// Packed cache rows that hold no NaN whatever byte is a code or a scale: bytes 0x40 .. 0x77.
cudaError_t fill_cache(void* to, int64_t words, uint32_t seed, cudaStream_t stream);

// Reads `bytes` once (16-byte loads, nothing written).
cudaError_t read_all(const void* from, int64_t bytes, uint32_t* sink, cudaStream_t stream);
// One 32-bit product and one dp4a a "weight", independent chains on every multiprocessor: the
// instruction limit of an exact mul1 decode. Returns the weights of the launch in *weights.
cudaError_t decode_ceiling(uint32_t* sink, int64_t* weights, cudaStream_t stream);
// A kernel that does nothing, for the gap between two of a graph.
cudaError_t empty_kernel(cudaStream_t stream);

}  // namespace tensorfold::bench
