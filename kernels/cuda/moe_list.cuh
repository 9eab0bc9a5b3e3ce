// The work list of a MoE: which experts the rows go to, their pairs side by side, entries of at
// most entry_rows pairs. Built by one thread block.
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
  // The order of an expert's pairs is left to the atomics: no row sees the others.
  for (int i = threadIdx.x; i < pairs; i += kMoeListThreads) {
    const int e = a.expert_of(i);
    if (a.p.expert[e].w1.trellis != nullptr) slots[atomicAdd(&list.slot[e], 1)] = i;
  }
}

}  // namespace tensorfold::cuda
