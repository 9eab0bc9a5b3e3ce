// Gate, up and SwiGLU of the MoE of generated rows.
//
// Warps take units (entry, matrix, 64 intermediate outputs, chunk of the inputs) on their own, with
// no barrier between them. The last unit of an entry's 128 outputs adds all chunks in ascending
// order, then rotation, SwiGLU, the rotation for w2 and its quantisation.
#include "kernels/cuda/moe_decode_device.cuh"

namespace tensorfold::cuda {
namespace {

// Sums of g and u of four outputs -> z of the row, rotated for w2 and quantised.
__device__ void swiglu(const MoeDecodeArgs& a, const MoeExpertExl3& e, int pair, int column,
                       int lane, float (&g)[4], float (&u)[4]) {
  const int n = column * 128 + 4 * lane;
  const int slot = pair % (a.p.topk + 1), row = pair / (a.p.topk + 1);
  const float weight = slot == a.p.topk ? 1.0f : a.p.weights[row * a.p.topk + slot];
  float gs[4], us[4], ds[4], z[4];
  load_half4(e.w1.svh + n, gs);
  load_half4(e.w3.svh + n, us);
  load_half4(e.w2.suh + n, ds);
  hadamard_block(g, lane);
  hadamard_block(u, lane);
  const float limit = a.p.swiglu_limit;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float gv = round_bf16(g[i] * (kMul1Slope * gs[i]));
    float uv = round_bf16(u[i] * (kMul1Slope * us[i]));
    gv = gv > limit ? limit : gv;
    uv = uv > limit ? limit : uv;
    uv = uv < -limit ? -limit : uv;
    const float silu = gv / (1.0f + expf(-gv));
    z[i] = n + i < a.p.intermediate ? round_bf16(silu * uv * weight) * ds[i] : 0.0f;
  }
  hadamard_block(z, lane);
  const QuantBlock q = quantise_block(z);
  const int inter = a.padded_inter();
  auto* to = a.at<uint8_t>(a.l.zq) + int64_t{pair} * 2 * inter + column * 128;
  reinterpret_cast<uint32_t*>(to)[lane] = q.high;
  reinterpret_cast<uint32_t*>(to + inter)[lane] = q.low;
  if (lane == 0)
    a.at<float2>(a.l.zs)[int64_t{pair} * a.down.blocks + column] = make_float2(q.scale, q.shift);
}

// Sum of the chunks of one matrix at four outputs of a pair.
__device__ __forceinline__ void sum_chunks(const MoeDecodeArgs& a, int64_t pair, int matrix, int at,
                                           float (&v)[4]) {
  const int inter = a.padded_inter();
  const auto* from = a.at<float>(a.l.parts) + (pair * 2 + matrix) * a.gate.chunks * inter + at;
  float4 part[kMoeGateChunksMax];  // all loads first, then the sum in order
#pragma unroll
  for (int c = 0; c < kMoeGateChunksMax; ++c)
    if (c < a.gate.chunks)
      part[c] = __ldcg(reinterpret_cast<const float4*>(from + int64_t{c} * inter));
  v[0] = v[1] = v[2] = v[3] = 0;
#pragma unroll
  for (int c = 0; c < kMoeGateChunksMax; ++c)
    if (c < a.gate.chunks) add4(v, part[c]);
}

template <bool kEight>
__global__ void __launch_bounds__(kMoeThreads, TF_MOE_BLOCKS)
    moe_gate_up_kernel(const __grid_constant__ MoeDecodeArgs a) {
  const int lane = threadIdx.x & 31;
  const int h = a.padded_hidden(), inter = a.padded_inter();
  wait_for_previous();
  allow_next();                      // the next kernel may read the work list from here on
  const int of = 4 * a.gate.chunks;  // units of 128 outputs
  const int units = *a.at<int32_t>(a.l.entry_count) * a.down.blocks * of;
  MoeTickets tickets(a.at<int32_t>(a.l.tickets));
  for (;;) {
    const int index = tickets.take();
    if (index >= units) break;
    tickets.ask(lane);
    const int unit = index % of, column = index / of % a.down.blocks;
    const int number = index / of / a.down.blocks;
    const MoeEntry entry = a.at<MoeEntry>(a.l.entries)[number];
    const MoeExpertExl3& e = a.p.expert[entry.expert];
    const int half = unit & 1, matrix = (unit >> 1) & 1, chunk = unit >> 2;
    MoeUnit u;
    u.weight = matrix == 0 ? &e.w1 : &e.w3;
    u.streams = a.streams;
    u.strip = 2 * column + half;
    u.begin = chunk * a.gate.chunk_blocks;
    u.count = min(a.gate.chunk_blocks, a.gate.blocks - u.begin);
    u.slots = a.at<int32_t>(a.l.slots) + entry.first;
    u.rows = entry.count;
    u.q = a.at<uint8_t>(a.l.xq) + matrix * 2 * h;
    u.q_pair = 4 * h;
    u.q_part = h;
    u.scale = a.at<float2>(a.l.xs) + matrix * a.gate.blocks;
    u.scale_pair = 2 * a.gate.blocks;
    u.sums =
        a.at<float>(a.l.parts) + (int64_t{matrix} * a.gate.chunks + chunk) * inter + 64 * u.strip;
    u.sums_pair = int64_t{2} * a.gate.chunks * inter;
    moe_run<kEight, false>(u, lane);
    if (!moe_last(a.at<int32_t>(a.l.gate_done) + number * a.down.blocks + column, of, lane))
      continue;
    for (int r = 0; r < entry.count; ++r) {
      const int pair = u.slots[r];
      float gate[4], up[4];
      sum_chunks(a, pair, 0, column * 128 + 4 * lane, gate);
      sum_chunks(a, pair, 1, column * 128 + 4 * lane, up);
      swiglu(a, e, pair, column, lane, gate, up);
    }
  }
}

}  // namespace

cudaError_t launch_moe_gate_up(const MoeDecodeArgs& a, cudaStream_t stream) {
  unsigned blocks = 0;
  const cudaError_t error = moe_grid(&blocks);
  if (error != cudaSuccess) return error;
  return a.entry_rows <= 4 ? launch_next(&moe_gate_up_kernel<false>, blocks, kMoeThreads, a, stream)
                           : launch_next(&moe_gate_up_kernel<true>, blocks, kMoeThreads, a, stream);
}

}  // namespace tensorfold::cuda
