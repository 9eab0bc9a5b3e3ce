// The work list of a MoE: which experts the rows go to, their pairs side by
// side, entries of at most entry_rows pairs. Built by one thread block.
#pragma once

#include "kernels/cuda/moe_decode_device.cuh"

namespace tensorfold::cuda {

inline constexpr int kMoeListThreads = 512;

struct MoeList {
  int count[kMoeExpertsMax + 1], slot[kMoeExpertsMax + 1], entry[kMoeExpertsMax + 1];
};

// Exclusive sums over the experts, by one warp: of counts and of entries.
__device__ inline void moe_scan(MoeList& list, int experts, int entry_rows, int lane,
                                int* entries) {
  const int each = (experts + 31) / 32;
  int slots = 0, cuts = 0;
  for (int e = lane * each; e < min(experts, lane * each + each); ++e) {
    slots += list.count[e];
    cuts += (list.count[e] + entry_rows - 1) / entry_rows;
  }
  int slots_at = slots, cuts_at = cuts;
  for (int step = 1; step < 32; step *= 2) {
    const int s = __shfl_up_sync(0xffffffffu, slots_at, step);
    const int c = __shfl_up_sync(0xffffffffu, cuts_at, step);
    if (lane >= step) {
      slots_at += s;
      cuts_at += c;
    }
  }
  if (lane == 31) *entries = cuts_at;
  slots_at -= slots;
  cuts_at -= cuts;
  for (int e = lane * each; e < min(experts, lane * each + each); ++e) {
    list.slot[e] = slots_at;
    list.entry[e] = cuts_at;
    slots_at += list.count[e];
    cuts_at += (list.count[e] + entry_rows - 1) / entry_rows;
  }
}

__device__ inline void build_moe_list(const MoeDecodeArgs& a) {
  __shared__ MoeList list;
  const int experts = a.p.experts + 1, pairs = a.p.rows * (a.p.topk + 1);
  auto* entries = a.at<MoeEntry>(a.l.entries);
  auto* slots = a.at<int32_t>(a.l.slots);
  for (int e = threadIdx.x; e < experts; e += kMoeListThreads) list.count[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += kMoeListThreads) {
    const int e = a.expert_of(i);
    if (a.p.expert[e].w1.trellis != nullptr) atomicAdd(&list.count[e], 1);
  }
  __syncthreads();
  if (threadIdx.x < 32)
    moe_scan(list, experts, a.entry_rows, static_cast<int>(threadIdx.x),
             a.at<int32_t>(a.l.entry_count));
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kMoeListThreads) {
    for (int at = 0, i = list.entry[e]; at < list.count[e]; at += a.entry_rows, ++i)
      entries[i] = MoeEntry{e, list.slot[e] + at, min(a.entry_rows, list.count[e] - at), 0};
  }
  __syncthreads();
  // The order of an expert's pairs is left to the atomics: no row sees the
  // others.
  for (int i = threadIdx.x; i < pairs; i += kMoeListThreads) {
    const int e = a.expert_of(i);
    if (a.p.expert[e].w1.trellis != nullptr) slots[atomicAdd(&list.slot[e], 1)] = i;
  }
}

inline constexpr int kMoeStagedPairs = 2048;

// The same list for generated rows, built by every thread block for itself, an
// expert's pairs in ascending order: all blocks get the same.
struct MoeRowList : MoeList {
  int32_t entries, slots;
  int32_t staged[kMoeStagedPairs];  // the expert of a pair; -1: none on this rank
};

// One warp: counts the staged pairs in ascending order, or places them.
__device__ inline void moe_count_pairs(const MoeDecodeArgs& a, MoeRowList& list, int first, int n,
                                       bool place, int lane) {
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
      const int slot = base + rank;  // list.count is an expert's first slot by now
      a.at<int32_t>(a.l.slots)[slot] = first + at + lane;
      a.at<int32_t>(a.l.slot_entry)[slot] = list.entry[e] + (slot - list.count[e]) / a.entry_rows;
    }
  }
}

// All threads of the block; the list lies in global memory after the next
// barrier, its number of entries in list.entries too.
__device__ inline void build_row_list(const MoeDecodeArgs& a, MoeRowList& list, int threads) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  const int experts = a.p.experts + 1, pairs = a.p.rows * (a.p.topk + 1);
  for (int e = thread; e < experts; e += threads) list.count[e] = 0;
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
      if (thread < 32) moe_count_pairs(a, list, first, n, place, lane);
    }
    if (place) break;
    if (thread < 32) moe_scan(list, experts, a.entry_rows, lane, &list.entries);
    __syncthreads();
    if (thread == 0) list.slots = list.slot[experts - 1] + list.count[experts - 1];
    auto* entries = a.at<MoeEntry>(a.l.entries);
    for (int e = thread; e < experts; e += threads)
      for (int at = 0, i = list.entry[e]; at < list.count[e]; at += a.entry_rows, ++i)
        entries[i] = MoeEntry{e, list.slot[e] + at, min(a.entry_rows, list.count[e] - at), 0};
    __syncthreads();
    for (int e = thread; e < experts; e += threads) list.count[e] = list.slot[e];
    if (thread == 0) *a.at<int2>(a.l.entry_count) = make_int2(list.entries, list.slots);
    __syncthreads();
  }
}

}  // namespace tensorfold::cuda
