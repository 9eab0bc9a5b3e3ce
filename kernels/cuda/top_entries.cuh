// The k largest of many values by one block: exact, ties to the lower index, indices ascending.
//
// Values are taken as ordered integers. A histogram over the first 11 bits finds the digit of the
// k-th largest; one more pass collects what is above it and the values of that digit, which are
// few, and the rest happens in shared memory: the other digits, ties, the sort of the indices.
// Where they are not few (many equal values) or k is large, the other digits take a pass each and a
// last one writes in order. Bytes: two passes over the values, else four.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/cuda/rows.cuh"

namespace tensorfold::cuda {

inline constexpr int kTopThreads = 1024;
inline constexpr int kTopBins = 2048;    // of 11 bits
inline constexpr int kTopSorted = 1024;  // indices that are sorted in shared memory
inline constexpr int kTopNear = 3072;    // values of the first digit that are kept there

struct TopShared {
  int counts[kTopBins];
  uint32_t near_bits[kTopNear];
  int near_index[kTopNear];
  int chosen[kTopSorted];
  int digit, left;
  int near, taken;
  int above[kTopThreads / 32], equal[kTopThreads / 32];
};

// Grows with v; -0 equals +0; NaN has a place of its own at the ends.
__device__ inline uint32_t ordered_bits(float v) {
  const uint32_t u = __float_as_uint(v + 0.0f);
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

// f(i, ordered bits) of all values, 16 a thread at a time. Values are 16-byte aligned and may be
// read up to a multiple of four.
template <typename F>
__device__ __forceinline__ void top_scan(const float* values, int n, F f) {
  constexpr int kLoads = 4, kApart = 4 * kTopThreads;
#pragma unroll 1
  for (int base = 4 * static_cast<int>(threadIdx.x); base < n; base += kLoads * kApart) {
    float4 v[kLoads];
#pragma unroll
    for (int l = 0; l < kLoads; ++l)
      if (base + l * kApart < n)
        v[l] = *reinterpret_cast<const float4*>(values + base + l * kApart);
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const float part[4] = {v[l].x, v[l].y, v[l].z, v[l].w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = base + l * kApart + k;
        if (i < n) f(i, ordered_bits(part[k]));
      }
    }
  }
}

// The digit (11 bits from `shift` on) in which the k-th largest of the values lies that scan(f)
// gives and that have the prefix; s.left: how many of that digit are still wanted, s.counts: how
// many there are.
template <typename Scan>
__device__ __forceinline__ uint32_t top_digit(const Scan& scan, uint32_t prefix, uint32_t mask,
                                              int shift, int k, TopShared& s) {
  for (int i = threadIdx.x; i < kTopBins; i += kTopThreads) s.counts[i] = 0;
  __syncthreads();
  scan([&](int, uint32_t bits) {
    if ((bits & mask) == prefix) atomicAdd(&s.counts[(bits >> shift) & (kTopBins - 1)], 1);
  });
  __syncthreads();
  if (threadIdx.x < 32) {  // lane l has 64 digits, the highest first
    constexpr int kEach = kTopBins / 32;
    const int first = kTopBins - 1 - kEach * static_cast<int>(threadIdx.x);
    int sum = 0;
#pragma unroll 8
    for (int d = 0; d < kEach; ++d) sum += s.counts[first - d];
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

// s.chosen[0, kTopSorted) ascending.
__device__ inline void sort_chosen(TopShared& s) {
  for (int size = 2; size <= kTopSorted; size *= 2)
    for (int step = size / 2; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < kTopSorted; i += kTopThreads) {
        const int other = i ^ step;
        if (other > i) {
          const int a = s.chosen[i], b = s.chosen[other];
          if ((a > b) == ((i & size) == 0)) {
            s.chosen[i] = b;
            s.chosen[other] = a;
          }
        }
      }
      __syncthreads();
    }
}

// top_entries where the values of the first digit, `left` of which are wanted, fit shared memory.
__device__ inline int top_near(const float* values, int n, uint32_t digit, int left,
                               bool finite_only, int32_t* out, TopShared& s) {
  constexpr int kFirstShift = 21;
  const uint32_t lowest = finite_only ? ordered_bits(-INFINITY) + 1 : 0;
  __syncthreads();
  if (threadIdx.x == 0) s.near = s.taken = 0;
  __syncthreads();
  top_scan(values, n, [&](int i, uint32_t bits) {
    if (bits >> kFirstShift < digit || bits < lowest) return;
    if (bits >> kFirstShift > digit) {
      s.chosen[atomicAdd(&s.taken, 1)] = i;
    } else {
      const int at = atomicAdd(&s.near, 1);
      s.near_bits[at] = bits;
      s.near_index[at] = i;
    }
  });
  __syncthreads();
  const int near = s.near;
  const auto scan = [&](auto f) {
    for (int i = threadIdx.x; i < near; i += kTopThreads) f(i, s.near_bits[i]);
  };
  uint32_t threshold = digit << kFirstShift;
  const bool all = near <= left;
  if (!all) {
    threshold |= top_digit(scan, 0, 0, 10, left, s) << 10;
    const int rest = s.left;
    __syncthreads();
    threshold |= top_digit(scan, threshold, ~0u << 10, 0, rest, s) & 1023u;
    left = s.left;
  }
  scan([&](int i, uint32_t bits) {
    bool taken = all || bits > threshold;
    if (!all && bits == threshold) {
      int rank = 0;
#pragma unroll 4
      for (int k = 0; k < near; ++k)
        rank += s.near_bits[k] == bits && s.near_index[k] < s.near_index[i] ? 1 : 0;
      taken = rank < left;
    }
    if (taken) s.chosen[atomicAdd(&s.taken, 1)] = s.near_index[i];
  });
  __syncthreads();
  const int count = s.taken;
  for (int i = count + threadIdx.x; i < kTopSorted; i += kTopThreads) s.chosen[i] = INT_MAX;
  __syncthreads();
  sort_chosen(s);
  for (int i = threadIdx.x; i < count; i += kTopThreads) out[i] = s.chosen[i];
  __syncthreads();
  return count;
}

// Writes the indices of the min(k, n) largest of values[0, n) to out, ascending; returns how many.
// finite_only: -infinity is never taken, so there may be fewer. Values: see top_scan.
__device__ inline int top_entries(const float* values, int64_t count, int k, bool finite_only,
                                  int32_t* out, TopShared& s) {
  const int n = static_cast<int>(count);
  uint32_t threshold = 0;  // values above it are taken, and `ties` of those equal to it
  int ties = 0;
  if (n > k) {
    const auto scan = [&](auto f) { top_scan(values, n, f); };
    const uint32_t digit = top_digit(scan, 0, 0, 21, k, s);
    int left = s.left;
    if (k <= kTopSorted && s.counts[digit] <= kTopNear)
      return top_near(values, n, digit, left, finite_only, out, s);
    __syncthreads();
    threshold = digit << 21;
    threshold |= top_digit(scan, threshold, ~0u << 21, 10, left, s) << 10;
    left = s.left;
    __syncthreads();
    threshold |= top_digit(scan, threshold, ~0u << 10, 0, left, s) & 1023u;
    ties = s.left;
    __syncthreads();
  }
  const uint32_t floor = ordered_bits(-INFINITY);
  int written = 0, ties_seen = 0;
  const int warp = warp_of(), lane = lane_of();
  for (int base = 0; base < n; base += kTopThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
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
#pragma unroll 4
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
    if (taken) out[written + above_before + ties_in_front] = i;
    const int ties_after = min(ties, ties_seen + equal_all);
    written += above_all + ties_after - min(ties, ties_seen);
    ties_seen += equal_all;
    __syncthreads();
  }
  return written;
}

}  // namespace tensorfold::cuda
