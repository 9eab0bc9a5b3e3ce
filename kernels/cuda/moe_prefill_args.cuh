// What the launches of the MoE of prompt rows share (exl3_prefill.h): their argument, the work list
// and what one row goes through after a product.
#pragma once

#include "kernels/cuda/moe_decode.h"
#include "kernels/cuda/prefill_rows.cuh"

namespace tensorfold::cuda {

// Rows of one expert that share a decode: positions [first, first + count) of the rotated rows.
struct MoePrefillEntry {
  int32_t expert = 0, first = 0, count = 0;
  uint8_t bits1 = 0, bits3 = 0, bits2 = 0, unused = 0;     // widths of w1, w3, w2
  const void *w1 = nullptr, *w3 = nullptr, *w2 = nullptr;  // their codes
};

// Byte offsets in the workspace. A pair is row * (topk + 1) + i; i = topk is the shared expert. A
// position is a pair's place by expert; every expert's first is a multiple of 8.
struct MoePrefillLayout {
  int64_t counts = 0;   // int32: entries, positions
  int64_t entries = 0;  // MoePrefillEntry [pairs]
  int64_t slots = 0;    // int32 [positions] the pair, or -1
  int64_t xq = 0;       // fp16 [gate, up][H / 64][positions][64] (prefill_rows.cuh)
  int64_t ye = 0;       // fp32 [pairs][H], in the same place: xq is read by gate and up only
  int64_t zq = 0;       // fp16 [I / 64][positions][64]
  int64_t bytes = 0;
  int64_t positions = 0;  // at most
};

struct MoePrefillArgs {
  MoeDecodeParams p;
  MoePrefillLayout l;
  int entry_rows;     // rows of an entry at most
  int hidden_blocks;  // of 128
  int inner_blocks;   // likewise, of the intermediate size

  __host__ __device__ int padded_hidden() const { return hidden_blocks * 128; }
  template <typename T>
  __device__ T* at(int64_t offset) const {
    return reinterpret_cast<T*>(p.workspace + offset);
  }
  __device__ int expert_of(int pair) const {
    const int i = pair % (p.topk + 1);
    return i == p.topk ? p.experts : p.ids[pair / (p.topk + 1) * p.topk + i];
  }
  // Rotated rows of gate (0) or up (1).
  __device__ uint16_t* rotated(int matrix) const {
    return at<uint16_t>(l.xq) + matrix * (padded_hidden() * l.positions);
  }
};

// One row's sums of gate and up for 128 intermediate values -> z, rotated for w2.
__device__ __forceinline__ void moe_swiglu(const MoePrefillArgs& a, const MoeExpertExl3& e,
                                           int position, int column, int lane, float (&g)[4],
                                           float (&u)[4]) {
  const int n = column * 128 + 4 * lane, pair = a.at<int32_t>(a.l.slots)[position];
  const int slot = pair % (a.p.topk + 1), row = pair / (a.p.topk + 1);
  const float weight = slot == a.p.topk ? 1.0f : a.p.weights[row * a.p.topk + slot];
  const float limit = a.p.swiglu_limit;
  float gs[4], us[4], ds[4], z[4];
  load_half4(e.w1.svh + n, gs);
  load_half4(e.w3.svh + n, us);
  load_half4(e.w2.suh + n, ds);
  hadamard_block(g, lane);
  hadamard_block(u, lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float gv = bf16_round(g[i] * gs[i]);
    float uv = bf16_round(u[i] * us[i]);
    gv = gv > limit ? limit : gv;
    uv = uv > limit ? limit : uv;
    uv = uv < -limit ? -limit : uv;
    const float silu = gv / (1.0f + expf(-gv));
    z[i] = n + i < a.p.intermediate ? bf16_round(silu * uv * weight) * ds[i] : 0.0f;
  }
  hadamard_block(z, lane);
  store_row_block(z, a.at<uint16_t>(a.l.zq), position, a.l.positions, column, lane);
}

// One row's sums of down for 128 outputs -> its pair's output.
__device__ __forceinline__ void moe_store_down(const MoePrefillArgs& a, const float (&scale)[4],
                                               int position, int column, int lane, float (&v)[4]) {
  const int pair = a.at<int32_t>(a.l.slots)[position];
  hadamard_block(v, lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] *= scale[i];
    if (a.p.round_outputs) v[i] = bf16_round(v[i]);
  }
  *reinterpret_cast<float4*>(a.at<float>(a.l.ye) + int64_t{pair} * a.padded_hidden() +
                             column * 128 + 4 * lane) = make_float4(v[0], v[1], v[2], v[3]);
}

__device__ __forceinline__ void load_float4(const float* from, float (&v)[4]) {
  const float4 s = *reinterpret_cast<const float4*>(from);
  v[0] = s.x;
  v[1] = s.y;
  v[2] = s.z;
  v[3] = s.w;
}

// The list, then each position's rotated rows (prefill_rotate.cu).
cudaError_t launch_moe_prefill_prepare(const MoePrefillArgs& args, int multiprocessors,
                                       cudaStream_t stream);

}  // namespace tensorfold::cuda
