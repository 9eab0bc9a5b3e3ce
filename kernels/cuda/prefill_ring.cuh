// Class P products whose rows and codes come through a ring of stages filled by bulk copies
// (compute capability 9.0): what the warps that decode and multiply do. A stage is a PrefillStage:
// the rows of a step as they lie in memory (prefill_rows.cuh), then its codes.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/exl3_prefill.cuh"

namespace tensorfold::cuda {

// All steps of a tile (an even number). `offset`: of this matrix's part in a stage. Each warp
// arrives at a stage's empty barrier when its products of that stage are done; kCluster: at those
// of both thread blocks, which write to each other's stages. load() is called once a step: it
// starts the copies kRingAhead steps ahead of the one that begins, into the stage of the step
// before the last one, which is free by then or soon.
template <int kStages>
inline constexpr int kRingAhead = kStages - 2;

template <int K, int TN, bool kCluster, typename AnyRing, typename Load>
__device__ __forceinline__ void ring_run(AnyRing& ring, uint32_t offset, int steps, int tile,
                                         int lane, Load& load, float (&d)[TN / 2]) {
  uint32_t code[K];
#pragma unroll
  for (int j = 0; j < K; ++j) {
    const int mine = (tile & 3) * K + j;
    code[j] = static_cast<uint32_t>(PrefillStage<TN>::kRowBytes + (tile >> 2) * (K * 512) +
                                    (mine >> 2) * 512 + lane * 16 + (mine & 3) * 4);
    keep(code[j]);
  }
  uint32_t even[4][4] = {}, odd[4][4] = {};
  uint32_t last = 0;  // empty barrier of the step before
  const auto release = [&]() {
    if constexpr (kCluster) {
      if (lane < 2) barrier_arrive_at(last, static_cast<uint32_t>(lane));
    } else {
      if (lane == 0) barrier_arrive(last);
    }
  };
  const auto multiply = [&](uint32_t(&a)[4][4], uint32_t(&before)[4][4], bool first) {
    load();
    barrier_wait(ring.full(), ring.parity);
    prefill_step<K, TN>(ring.at() + offset, code, lane, a, d);
    prefill_wait<4>(before);
    if (!first) release();
    last = ring.empty();
    ring.step();
  };
#pragma unroll 1
  for (int step = 0; step < steps; step += 2) {
    multiply(even, odd, step == 0);
    multiply(odd, even, false);
  }
  prefill_wait<0>(odd);
  release();
}

// The width of the weight picks the instance.
template <int TN, bool kCluster, typename AnyRing, typename Load>
__device__ __forceinline__ void ring_product(int bits, AnyRing& ring, uint32_t offset, int steps,
                                             int tile, int lane, Load& load, float (&d)[TN / 2]) {
#pragma unroll
  for (int i = 0; i < TN / 2; ++i) d[i] = 0;
  switch (bits) {
#define TF_CASE(K)                                                       \
  case K:                                                                \
    ring_run<K, TN, kCluster>(ring, offset, steps, tile, lane, load, d); \
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

}  // namespace tensorfold::cuda
