// The work list of the MoE of generated rows: which experts the rows go to, their pairs side by
// side, entries of at most eight rows.
#pragma once

#include "kernels/cuda/moe_decode_device.cuh"

namespace tensorfold::cuda {

inline constexpr int kMoeStagedPairs = 2048;

// The list for generated rows, built by every thread block for itself, an expert's pairs in
// ascending order: all blocks get the same. Entries of more than four rows come first (they cost
// more), then the others, both by expert.
struct MoeRowList {
  int32_t count[kMoeExpertsMax + 1], slot[kMoeExpertsMax + 1];
  int32_t entry[kMoeExpertsMax + 1];  // an expert's first large one
  int32_t small[kMoeExpertsMax + 1];  // its small one, behind all large ones
  int32_t entries, large, slots;
  int32_t staged[kMoeStagedPairs];  // the expert of a pair; -1: none on this rank
};

__device__ __forceinline__ int moe_large_entries(int rows) {
  return rows / kMoeRowsPerEntry + (rows % kMoeRowsPerEntry > kMoeRowsPerEntry / 2 ? 1 : 0);
}
__device__ __forceinline__ int moe_entries(int rows) {
  return (rows + kMoeRowsPerEntry - 1) / kMoeRowsPerEntry;
}

// Exclusive sums over the experts, by one warp: of pairs, of large and of small entries.
__device__ inline void moe_scan_rows(MoeRowList& list, int experts, int lane) {
  const int each = (experts + 31) / 32, from = lane * each, to = min(experts, from + each);
  int own[3] = {0, 0, 0};
  for (int e = from; e < to; ++e) {
    const int rows = list.count[e], large = moe_large_entries(rows);
    own[0] += rows;
    own[1] += large;
    own[2] += moe_entries(rows) - large;
  }
  int before[3] = {own[0], own[1], own[2]};
  for (int step = 1; step < 32; step *= 2)
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int other = __shfl_up_sync(0xffffffffu, before[i], step);
      if (lane >= step) before[i] += other;
    }
  const int large = __shfl_sync(0xffffffffu, before[1], 31);
  if (lane == 31) {
    list.slots = before[0];
    list.large = large;
    list.entries = large + before[2];
  }
#pragma unroll
  for (int i = 0; i < 3; ++i) before[i] -= own[i];
  for (int e = from; e < to; ++e) {
    const int rows = list.count[e], larges = moe_large_entries(rows);
    list.slot[e] = before[0];
    list.entry[e] = before[1];
    list.small[e] = large + before[2];
    before[0] += rows;
    before[1] += larges;
    before[2] += moe_entries(rows) - larges;
  }
}

// One warp: counts the staged pairs in ascending order, or places them.
__device__ inline void moe_count_pairs(const MoeDecodeArgs& a, MoeRowList& list, ShortList& here,
                                       int first, int n, bool place, int lane) {
  int* count = place ? list.slot : list.count;
  for (int at = 0; at < n; at += 32) {
    const int e = at + lane < n ? list.staged[at + lane] : -1;
    const uint32_t same = __match_any_sync(0xffffffffu, e);
    const int rank = __popc(same & ((1u << lane) - 1));
    const int base = e >= 0 ? count[e] : 0;
    __syncwarp();
    if (e >= 0 && rank == 0) count[e] = base + __popc(same);
    __syncwarp();
    if (place && e >= 0) {
      const int slot = base + rank;
      a.at<int32_t>(a.l.slots)[slot] = first + at + lane;
      if (slot < kShortList) here.slots[slot] = first + at + lane;
    }
  }
}

// The entries of an expert.
__device__ inline void moe_make_entries(const MoeDecodeArgs& a, const MoeRowList& list,
                                        ShortList& here, int e) {
  const int rows = list.count[e], large = moe_large_entries(rows);
  for (int i = 0, at = 0; at < rows; ++i, at += kMoeRowsPerEntry) {
    const MoeEntry entry{e, list.slot[e] + at, min(kMoeRowsPerEntry, rows - at), 0};
    const int number = i < large ? list.entry[e] + i : list.small[e];
    a.at<MoeEntry>(a.l.entries)[number] = entry;
    if (number < kShortList) here.entries[number] = entry;
    for (int r = 0; r < entry.count; ++r)
      a.at<int2>(a.l.slot_entry)[entry.first + r] = make_int2(number, e);
  }
}

// All threads of the block, list.count zero. The list lies in global memory after the next barrier,
// its begin in `here` and its sizes in list.entries, list.large and list.slots too.
__device__ inline void build_row_list(const MoeDecodeArgs& a, MoeRowList& list, ShortList& here,
                                      int threads) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  const int experts = a.p.experts + 1, pairs = a.p.rows * (a.p.topk + 1);
  for (const bool place : {false, true}) {
    for (int first = 0; first < pairs; first += kMoeStagedPairs) {
      const int n = min(kMoeStagedPairs, pairs - first);
      if (!place || pairs > kMoeStagedPairs) {
        __syncthreads();
        for (int i = thread; i < n; i += threads) {
          const int e = a.expert_of(first + i);
          list.staged[i] = a.p.expert[e].w1.trellis != nullptr ? e : -1;
        }
        __syncthreads();
      }
      if (thread < 32) moe_count_pairs(a, list, here, first, n, place, lane);
    }
    if (place) break;
    if (thread < 32) moe_scan_rows(list, experts, lane);
    __syncthreads();
    for (int e = thread; e < experts; e += threads) moe_make_entries(a, list, here, e);
    __syncthreads();
  }
}

}  // namespace tensorfold::cuda
