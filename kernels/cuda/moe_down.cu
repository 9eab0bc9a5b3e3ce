// Down and the sum over experts of the MoE of generated rows.
//
// Warps take units (entry, 64 outputs, one chunk of the inputs or all of them). The last unit of an
// entry's 128 outputs adds the chunks and rotates; the last of a row's experts to finish an output
// block adds all of them in ascending id. Who is last never changes the order of a sum.
#include <climits>

#include "kernels/cuda/moe_decode_device.cuh"

namespace tensorfold::cuda {
namespace {

// Adds the row's experts at four outputs, ascending by id, the shared one last.
__device__ void combine(const MoeDecodeArgs& a, int row, int key, int at, int lane) {
  const int h = a.padded_hidden();
  float v[4] = {0, 0, 0, 0};
  constexpr int kBatch = 8;  // loads in flight
  for (bool more = true; more;) {
    float4 part[kBatch];
    int count = 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int lowest = __reduce_min_sync(0xffffffffu, key);
      if (lowest == INT_MAX) break;
      const int i = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, key == lowest))) - 1;
      if (lane == i) key = INT_MAX;
      const auto* y = a.at<float>(a.l.ye) + (int64_t{row} * (a.p.topk + 1) + i) * h + at;
      part[b] = __ldcg(reinterpret_cast<const float4*>(y));
      count = b + 1;
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (b < count) add4(v, part[b]);
    more = count == kBatch;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (at + i < a.p.hidden) a.p.y[int64_t{row} * a.p.hidden + at + i] = v[i];
}

// One pair's 128 outputs from the chunks' sums.
__device__ void finish(const MoeDecodeArgs& a, const Exl3Parts& w, int pair, int column, int lane) {
  const int at = column * 128 + 4 * lane, h = a.padded_hidden(), row = pair / (a.p.topk + 1);
  const auto* from = a.at<float>(a.l.parts) + int64_t{pair} * a.down.chunks * h + at;
  float v[4] = {0, 0, 0, 0}, scale[4];
  float4 part[kMoeDownChunksMax];
#pragma unroll
  for (int c = 0; c < kMoeDownChunksMax; ++c)
    if (c < a.down.chunks) part[c] = __ldcg(reinterpret_cast<const float4*>(from + int64_t{c} * h));
#pragma unroll
  for (int c = 0; c < kMoeDownChunksMax; ++c)
    if (c < a.down.chunks) add4(v, part[c]);
  load_half4(w.svh + at, scale);
  hadamard_block(v, lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] *= kMul1Slope * scale[i];
    if (a.p.round_outputs) v[i] = round_bf16(v[i]);
  }
  __stcg(reinterpret_cast<float4*>(a.at<float>(a.l.ye) + int64_t{pair} * h + at),
         make_float4(v[0], v[1], v[2], v[3]));
  int key = INT_MAX;
  if (lane <= a.p.topk) {
    const int id = a.expert_of(row * (a.p.topk + 1) + lane);
    if (a.p.expert[id].w1.trellis != nullptr) key = id;
  }
  const int present = __popc(__ballot_sync(0xffffffffu, key != INT_MAX));
  if (moe_last(a.at<int32_t>(a.l.row_done) + row * a.gate.blocks + column, present, lane))
    combine(a, row, key, at, lane);
}

// The codes of this warp's first unit into L2, while gate and up are still at work.
__device__ void prefetch_first(const MoeDecodeArgs& a, int lane) {
  const int of = 2 * a.down_parts;
  const auto index = static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x);
  const int number = index / of / a.gate.blocks;
  if (number >= *a.at<int32_t>(a.l.entry_count)) return;
  const Exl3Parts& w = a.p.expert[a.at<MoeEntry>(a.l.entries)[number].expert].w2;
  const int unit = index % of, column = index / of % a.gate.blocks;
  const int begin = (unit >> 1) * a.down.chunk_blocks;
  const int blocks =
      a.down_parts == 1 ? a.down.blocks : min(a.down.chunk_blocks, a.down.blocks - begin);
  const int64_t block_bytes = w.half_bits * 512;  // two units of 64 inputs
  const auto* from = static_cast<const char*>(w.trellis) +
                     (int64_t{2 * column + (unit & 1)} * a.down.blocks + begin) * block_bytes;
  for (int64_t at = lane * 128; at < blocks * block_bytes; at += 32 * 128)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
}

template <bool kEight>
__global__ void __launch_bounds__(kMoeThreads, TF_MOE_BLOCKS)
    moe_down_kernel(const __grid_constant__ MoeDecodeArgs a) {
  const int lane = threadIdx.x & 31;
  const int h = a.padded_hidden(), inter = a.padded_inter();
  // The work list is complete: gate and up let this kernel begin after they had it.
  prefetch_first(a, lane);
  wait_for_previous();
  allow_next();
  const int of = 2 * a.down_parts;  // units of 128 outputs
  const int units = *a.at<int32_t>(a.l.entry_count) * a.gate.blocks * of;
  MoeTickets tickets(a.at<int32_t>(a.l.tickets) + 1);
  for (;;) {
    const int index = tickets.take();
    if (index >= units) break;
    tickets.ask(lane);
    const int unit = index % of, column = index / of % a.gate.blocks;
    const int number = index / of / a.gate.blocks;
    const MoeEntry entry = a.at<MoeEntry>(a.l.entries)[number];
    const Exl3Parts& w = a.p.expert[entry.expert].w2;
    const int chunk = unit >> 1;
    MoeUnit u;
    u.weight = &w;
    u.streams = a.streams;
    u.strip = 2 * column + (unit & 1);
    u.begin = chunk * a.down.chunk_blocks;
    u.count = a.down_parts == 1 ? a.down.blocks : min(a.down.chunk_blocks, a.down.blocks - u.begin);
    u.each = a.down.chunk_blocks;
    u.slots = a.at<int32_t>(a.l.slots) + entry.first;
    u.rows = entry.count;
    u.q = a.at<uint8_t>(a.l.zq);
    u.q_pair = 2 * inter;
    u.q_part = inter;
    u.scale = a.at<float2>(a.l.zs);
    u.scale_pair = a.down.blocks;
    u.sums = a.at<float>(a.l.parts) + int64_t{chunk} * h + 64 * u.strip;
    u.sums_pair = int64_t{a.down.chunks} * h;
    u.sums_chunk = h;
    moe_run<kEight, true>(u, lane);
    if (!moe_last(a.at<int32_t>(a.l.down_done) + number * a.gate.blocks + column, of, lane))
      continue;
    for (int r = 0; r < entry.count; ++r) finish(a, w, u.slots[r], column, lane);
  }
}

}  // namespace

cudaError_t launch_moe_down(const MoeDecodeArgs& a, cudaStream_t stream) {
  unsigned blocks = 0;
  const cudaError_t error = moe_grid(&blocks);
  if (error != cudaSuccess) return error;
  return a.entry_rows <= 4 ? launch_next(&moe_down_kernel<false>, blocks, kMoeThreads, a, stream)
                           : launch_next(&moe_down_kernel<true>, blocks, kMoeThreads, a, stream);
}

int64_t moe_decode_workspace_bytes(int rows, int hidden, int intermediate, int topk) {
  return moe_decode_layout(rows, hidden, intermediate, topk).bytes;
}

cudaError_t moe_decode(const MoeDecodeParams& p, cudaStream_t stream, const char** where) {
  const auto at = [where](const char* kernel) {
    if (where != nullptr) *where = kernel;
  };
  at("moe_decode: parameters");
  if (p.rows < 0 || p.rows > kExl3RowsMax || p.experts > kMoeExpertsMax || p.topk > kMoeTopkMax)
    return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  MoeDecodeArgs a = {};
  a.p = p;
  a.l = moe_decode_layout(p.rows, p.hidden, p.intermediate, p.topk);
  if (a.l.bytes > p.workspace_bytes) return cudaErrorInvalidValue;
  a.gate = moe_gate_cut(p.hidden);
  a.down = moe_down_cut(p.intermediate);
  a.streams = stream_hint();
  a.down_parts = moe_down_parts(a.down, p.rows);
  a.entry_rows = p.rows <= 4 ? 4 : kMoeRowsPerEntry;
  at("moe_prepare");
  cudaError_t error = launch_moe_prepare(a, stream);
  if (error != cudaSuccess) return error;
  at("moe_gate_up");
  error = launch_moe_gate_up(a, stream);
  if (error != cudaSuccess) return error;
  at("moe_down");
  return launch_moe_down(a, stream);
}

}  // namespace tensorfold::cuda
