// Class P products whose rows and codes come through a ring of stages filled by bulk copies
// (compute capability 9.0): what the warps that decode and multiply do. A stage holds the rows of a
// step as they lie in memory (prefill_rows.cuh), then its codes.
//
// A product whose left operand lies in registers holds its warp until the matrix units take it, and
// equal warps that share both the issue slots and the matrix units fall into step: all decode, then
// all multiply. So the warps of a block are two groups that take turns: a group decodes while the
// other multiplies.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/exl3_dense.h"
#include "kernels/cuda/exl3_prefill.cuh"

namespace tensorfold::cuda {

// The turns of two groups of kThreads threads in all, by two named barriers: 1 and 2, of the group
// that waits for its turn.
template <int kThreads>
struct Turns {
  int group;
  // Once in a kernel: the first group's first turn.
  __device__ __forceinline__ void begin() const {
    if (group == 1) asm volatile("bar.arrive 1, %0;" ::"n"(kThreads) : "memory");
  }
  __device__ __forceinline__ void take() const {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kThreads) : "memory");
  }
  __device__ __forceinline__ void give() const {
    asm volatile("bar.arrive %0, %1;" ::"r"(2 - group), "n"(kThreads) : "memory");
  }
};

// All steps of a tile for one warp's 16 outputs. Each warp arrives at a stage's empty barrier when
// its products of that stage are done. load() is called once a step and starts the copies of a
// later one, kStages - 2 ahead: into the stage of the step before the last, free by then or soon.
template <int K, int TN, typename AnyRing, typename AnyTurns, typename Load>
__device__ __forceinline__ void ring_run(AnyRing& ring, const AnyTurns& turns, int steps, int tile,
                                         int lane, const Load& load, float (&d)[TN / 2]) {
  const RunPlaces<K> places(PrefillStage<TN>::kRowBytes, tile, lane);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    load();
    barrier_wait(ring.full(), ring.parity);
    uint32_t a[4][4];
    turns.take();
    prefill_decode<K>(ring.at(), places, lane, a);
    turns.give();
    prefill_multiply<TN>(ring.at(), lane, a, d);
    prefill_wait<0>(a);
    if (lane == 0) barrier_arrive(ring.empty());
    ring.step();
  }
}

// The width of the weight picks the instance.
template <int TN, typename AnyRing, typename AnyTurns, typename Load>
__device__ __forceinline__ void ring_product(int bits, AnyRing& ring, const AnyTurns& turns,
                                             int steps, int tile, int lane, const Load& load,
                                             float (&d)[TN / 2]) {
#pragma unroll
  for (int i = 0; i < TN / 2; ++i) d[i] = 0;
  switch (bits) {
#define TF_CASE(K)                                            \
  case K:                                                     \
    ring_run<K, TN>(ring, turns, steps, tile, lane, load, d); \
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
}

// Codes of one step of a strip of 64 outputs.
__device__ __forceinline__ const std::byte* step_codes(const Exl3Parts& w, int strip, int step) {
  const int64_t unit = int64_t{strip} * (w.padded_in / 64) + step;
  return static_cast<const std::byte*>(w.trellis) + unit * (w.half_bits * 256);
}

// Sums of rows [first, first + kRows) of a tile into shared memory, a row every `stride` floats:
// this warp's 16 outputs; kStep8: the Hadamard's step of 8 done.
template <int TN, int kRows, bool kStep8>
__device__ __forceinline__ void store_sums(const float (&d)[TN / 2], int first, int stride,
                                           int lane, float* sums) {
  float* to = sums + 2 * (lane & 3) * stride + (lane >> 2);
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    const int i = 4 * (first / 8 + j);
    if (i >= TN / 2) break;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float low = d[i + row], high = d[i + row + 2];
      to[(8 * j + row) * stride] = kStep8 ? low + high : low;
      to[(8 * j + row) * stride + 8] = kStep8 ? low - high : high;
    }
  }
}

__device__ __forceinline__ void butterfly(float& a, float& b) {
  const float sum = a + b;
  b = a - b;
  a = sum;
}

// The rest of the Hadamard of a row's 128 sums, by four lanes: lane q has sums 8 q + 32 b + (0..7).
__device__ __forceinline__ void transform_sums(float (&v)[4][8], int q) {
#pragma unroll
  for (int b = 0; b < 4; ++b)
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if ((i & step) == 0) butterfly(v[b][i], v[b][i + step]);
  const float sign = (q & 2) != 0 ? -1.0f : 1.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    butterfly(v[0][i], v[1][i]);
    butterfly(v[2][i], v[3][i]);
    butterfly(v[0][i], v[2][i]);
    butterfly(v[1][i], v[3][i]);
#pragma unroll
    for (int b = 0; b < 4; ++b)
      v[b][i] = fmaf(v[b][i], sign, __shfl_xor_sync(0xffffffffu, v[b][i], 2));
  }
}

// Sums `from` + 8 q + 32 b + (0..7) of a row.
__device__ __forceinline__ void load_sums(const float* from, float (&v)[4][8]) {
#pragma unroll
  for (int b = 0; b < 4; ++b)
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float4 s = *reinterpret_cast<const float4*>(from + 32 * b + i);
      v[b][i] = s.x;
      v[b][i + 1] = s.y;
      v[b][i + 2] = s.z;
      v[b][i + 3] = s.w;
    }
}

// Eight neighbouring outputs of a row from v, scaled.
__device__ __forceinline__ void store_outputs(const Exl3DenseJob& job, int64_t row, int at,
                                              const float (&v)[8]) {
  float scale[2][4], y[8];
  load_half4(job.weight.svh + at, scale[0]);
  load_half4(job.weight.svh + at + 4, scale[1]);
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = v[i] * kHadamard128Scale * scale[i / 4][i % 4];
  const int64_t to = row * job.y_stride + at;
  if (job.type == ValueType::kF32) {
    float* out = static_cast<float*>(job.y) + to;
    if (at + 8 <= job.out && (reinterpret_cast<uintptr_t>(out) & 15) == 0) {
      reinterpret_cast<float4*>(out)[0] = make_float4(y[0], y[1], y[2], y[3]);
      reinterpret_cast<float4*>(out)[1] = make_float4(y[4], y[5], y[6], y[7]);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (at + i < job.out) out[i] = y[i];
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(job.y) + to;
  uint32_t two[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) two[i] = bf16_bits(y[2 * i]) | bf16_bits(y[2 * i + 1]) << 16;
  if (at + 8 <= job.out && (reinterpret_cast<uintptr_t>(out) & 15) == 0) {
    *reinterpret_cast<uint4*>(out) = make_uint4(two[0], two[1], two[2], two[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (at + i < job.out) out[i] = static_cast<uint16_t>(two[i / 2] >> (16 * (i % 2)));
}

}  // namespace tensorfold::cuda
