// The k largest of many values by one block: exact, ties to the lower index, indices ascending.
//
// The k-th largest value is found a byte at a time by histograms over the values as ordered
// integers; one more pass writes what is above it and the first of what equals it.
#pragma once

#include <cstdint>

#include "kernels/cuda/rows.cuh"

namespace tensorfold::cuda {

inline constexpr int kTopThreads = 512;

struct TopShared {
  int counts[256];
  int digit, left;
  int above[kTopThreads / 32], equal[kTopThreads / 32];
};

// Grows with v; -0 equals +0; NaN has a place of its own at the ends.
__device__ inline uint32_t ordered_bits(float v) {
  const uint32_t u = __float_as_uint(v + 0.0f);
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

// The digit of `shift` in which the k-th largest of the values with the given prefix lies; left:
// how many of that digit are still wanted.
__device__ inline uint32_t top_digit(const float* values, int64_t n, uint32_t prefix,
                                     uint32_t prefix_mask, int shift, int k, TopShared& s) {
  for (int i = threadIdx.x; i < 256; i += kTopThreads) s.counts[i] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < n; i += kTopThreads) {
    const uint32_t bits = ordered_bits(values[i]);
    if ((bits & prefix_mask) == prefix) atomicAdd(&s.counts[(bits >> shift) & 255u], 1);
  }
  __syncthreads();
  if (threadIdx.x < 32) {  // lane l has digits 255 - 8 l and down
    const int first = 255 - 8 * static_cast<int>(threadIdx.x);
    int sum = 0;
    for (int d = 0; d < 8; ++d) sum += s.counts[first - d];
    int before = sum;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, before, step);
      if (static_cast<int>(threadIdx.x) >= step) before += other;
    }
    before -= sum;
    if (before < k && k <= before + sum) {
      int d = first;
      while (before + s.counts[d] < k) before += s.counts[d--];
      s.digit = d;
      s.left = k - before;
    }
  }
  __syncthreads();
  return static_cast<uint32_t>(s.digit);
}

// Writes the indices of the min(k, n) largest of values[0, n) to out, ascending; returns how many.
// finite_only: -infinity is never taken, so there may be fewer.
__device__ inline int top_entries(const float* values, int64_t n, int k, bool finite_only,
                                  int32_t* out, TopShared& s) {
  uint32_t threshold = 0;  // values above it are taken, and `ties` of those equal to it
  int ties = 0;
  if (n > k) {
    int left = k;
    uint32_t mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      threshold |= top_digit(values, n, threshold, mask, shift, left, s) << shift;
      left = s.left;
      mask |= 255u << shift;
      __syncthreads();
    }
    ties = left;
  }
  const uint32_t floor = ordered_bits(-INFINITY);
  int written = 0, ties_seen = 0;
  const int warp = warp_of(), lane = lane_of();
  for (int64_t base = 0; base < n; base += kTopThreads) {
    const int64_t i = base + threadIdx.x;
    const uint32_t bits = i < n ? ordered_bits(values[i]) : 0;
    const bool allowed = i < n && !(finite_only && bits <= floor);
    const bool above = allowed && (n <= k || bits > threshold);
    const bool equal = allowed && n > k && bits == threshold;
    const unsigned above_lanes = __ballot_sync(~0u, above), equal_lanes = __ballot_sync(~0u, equal);
    if (lane == 0) {
      s.above[warp] = __popc(above_lanes);
      s.equal[warp] = __popc(equal_lanes);
    }
    __syncthreads();
    int above_before = 0, equal_before = 0, above_all = 0, equal_all = 0;
    for (int w = 0; w < kTopThreads / 32; ++w) {
      if (w < warp) {
        above_before += s.above[w];
        equal_before += s.equal[w];
      }
      above_all += s.above[w];
      equal_all += s.equal[w];
    }
    const unsigned below = (1u << lane) - 1u;
    above_before += __popc(above_lanes & below);
    equal_before += __popc(equal_lanes & below);
    const int ties_before = min(ties, ties_seen + equal_before);  // taken ties below this index
    const bool taken = above || (equal && ties_seen + equal_before < ties);
    const int ties_in_front = ties_before - min(ties, ties_seen);
    if (taken) out[written + above_before + ties_in_front] = static_cast<int32_t>(i);
    const int ties_after = min(ties, ties_seen + equal_all);
    written += above_all + ties_after - min(ties, ties_seen);
    ties_seen += equal_all;
    __syncthreads();
  }
  return written;
}

}  // namespace tensorfold::cuda
