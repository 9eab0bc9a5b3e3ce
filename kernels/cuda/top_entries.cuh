// The k largest of many values by one block: exact, ties to the lower index, indices ascending.
//
// Values are taken as ordered integers. The k-th largest of the threads' own maxima is at most the
// k-th largest of all, and of values in no order few are above it: they are collected in a second
// pass, and the rest happens in shared memory: the k-th largest digit by digit, ties, the sort of
// the indices. Where they are not few (many equal values, values that fall) or k is large, digits
// take a pass each and a last one writes in order. Bytes: two passes over the values, else six.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/cuda/rows.cuh"

namespace tensorfold::cuda {

inline constexpr int kTopThreads = 1024;
inline constexpr int kTopBins = 2048;    // of 11 bits
inline constexpr int kTopSorted = 1024;  // indices that are sorted in shared memory
inline constexpr int kTopNear = 3072;    // values that are kept there
inline constexpr int kTopDirect = 4096;  // so few values are quicker looked at digit by digit

static_assert(kTopBins == 2 * kTopThreads && kTopSorted <= kTopThreads);
static_assert(kTopSorted <= kTopDirect);  // more values than that are more than are chosen

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
  // A thread has two digits, the first the highest.
  const int high = kTopBins - 1 - 2 * static_cast<int>(threadIdx.x);
  const int first = s.counts[high], second = s.counts[high - 1];
  const int lane = lane_of();
  int before = first + second;  // inclusive sums, of the warp and then of the block
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) s.above[warp_of()] = before;
  __syncthreads();
  int warps = s.above[lane];
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, warps, step);
    if (lane >= step) warps += other;
  }
  const int earlier = __shfl_sync(~0u, warps, max(warp_of() - 1, 0));
  before += (warp_of() > 0 ? earlier : 0) - first - second;
  if (before < k && k <= before + first + second) {
    const bool in_first = k <= before + first;
    s.digit = in_first ? high : high - 1;
    s.left = k - before - (in_first ? 0 : first);
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

// The k-th largest of the values that scan(f) gives; s.left: how many of those that equal it.
template <typename Scan>
__device__ __forceinline__ uint32_t top_value(const Scan& scan, int k, TopShared& s) {
  uint32_t value = top_digit(scan, 0, 0, 21, k, s) << 21;
  int left = s.left;
  __syncthreads();
  value |= top_digit(scan, value, ~0u << 21, 10, left, s) << 10;
  left = s.left;
  __syncthreads();
  value |= top_digit(scan, value, ~0u << 10, 0, left, s) & 1023u;
  return value;
}

// top_entries by way of the values of at least `floor`, of which there are k or more. Returns -1 if
// they do not fit.
__device__ inline int top_near(const float* values, int n, int k, uint32_t floor, int32_t* out,
                               TopShared& s) {
  __syncthreads();
  if (threadIdx.x == 0) s.near = s.taken = 0;
  __syncthreads();
  top_scan(values, n, [&](int i, uint32_t bits) {
    if (bits < floor) return;
    const int at = atomicAdd(&s.near, 1);
    if (at >= kTopNear) return;
    s.near_bits[at] = bits;
    s.near_index[at] = i;
  });
  __syncthreads();
  const int near = s.near;
  if (near > kTopNear) return -1;
  const auto scan = [&](auto f) {
    for (int i = threadIdx.x; i < near; i += kTopThreads) f(i, s.near_bits[i]);
  };
  const bool all = near <= k;
  const uint32_t threshold = all ? 0 : top_value(scan, k, s);
  const int ties = s.left;
  scan([&](int i, uint32_t bits) {
    bool taken = all || bits > threshold;
    if (!all && bits == threshold) {
      int rank = 0;
#pragma unroll 4
      for (int j = 0; j < near; ++j)
        rank += s.near_bits[j] == bits && s.near_index[j] < s.near_index[i] ? 1 : 0;
      taken = rank < ties;
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

// A value that k values or more reach: the k-th largest of the threads' maxima, k <= kTopThreads.
__device__ inline uint32_t top_floor(const float* values, int n, int k, TopShared& s) {
  uint32_t most = 0;
  top_scan(values, n, [&](int, uint32_t bits) { most = max(most, bits); });
  const auto scan = [&](auto f) { f(0, most); };
  const uint32_t first = top_digit(scan, 0, 0, 21, k, s) << 21;
  const int left = s.left;
  __syncthreads();
  return first | top_digit(scan, first, ~0u << 21, 10, left, s) << 10;
}

// Writes the indices of the min(k, n) largest of values[0, n) to out, ascending; returns how many.
// finite_only: -infinity is never taken, so there may be fewer. Values: see top_scan.
__device__ inline int top_entries(const float* values, int64_t count, int k, bool finite_only,
                                  int32_t* out, TopShared& s) {
  const int n = static_cast<int>(count);
  uint32_t threshold = 0;  // values above it are taken, and `ties` of those equal to it
  int ties = 0;
  const uint32_t floor = ordered_bits(-INFINITY);
  if (n > kTopDirect && k <= kTopSorted) {
    const uint32_t reached = top_floor(values, n, k, s);
    const int taken =
        top_near(values, n, k, finite_only ? max(reached, floor + 1) : reached, out, s);
    if (taken >= 0) return taken;
  }
  if (n > k) {
    const auto scan = [&](auto f) { top_scan(values, n, f); };
    __syncthreads();
    threshold = top_value(scan, k, s);
    ties = s.left;
    __syncthreads();
  }
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
    static_assert(kTopThreads == 32 * 32, "a lane a warp");
    int above_sums = s.above[lane], equal_sums = s.equal[lane];  // up to each warp
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int a = __shfl_up_sync(~0u, above_sums, step),
                e = __shfl_up_sync(~0u, equal_sums, step);
      if (lane >= step) {
        above_sums += a;
        equal_sums += e;
      }
    }
    const int above_all = __shfl_sync(~0u, above_sums, 31);
    const int equal_all = __shfl_sync(~0u, equal_sums, 31);
    int above_before = __shfl_sync(~0u, above_sums, max(warp - 1, 0));
    int equal_before = __shfl_sync(~0u, equal_sums, max(warp - 1, 0));
    if (warp == 0) above_before = equal_before = 0;
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
