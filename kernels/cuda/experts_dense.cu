// Experts with bf16 weights (kernels/moe_experts.h).
//
// Rows are taken kRowsAtOnce at a time. A block sorts their (row, expert) pairs by expert and cuts
// each expert's pairs into tiles of 16; the products run over tiles, so an expert's weights are
// read once per tile; the shared expert is one more expert that every row picks. The sum over a
// row's experts is made last, ascending by id. Which rows share a tile changes no bit.
#include <algorithm>

#include "engine/base/check.h"
#include "kernels/cuda/dense_tile.cuh"
#include "kernels/cuda/exl3_rows.h"
#include "kernels/cuda/ops.h"
#include "kernels/moe_experts.h"

namespace tensorfold::cuda {
namespace {

constexpr int kRowsAtOnce = 512;
constexpr int kSortThreads = 256;
constexpr int kThreads = 256;

int64_t pairs_max(int rows, int topk) { return int64_t{std::min(rows, kRowsAtOnce)} * (topk + 1); }
int64_t tiles_max(int64_t pairs, int experts) {
  return std::min<int64_t>(pairs, pairs / kTileRows + experts + 1);
}

struct Tile {
  int32_t expert, first, count;  // pairs [first, first + count)
};

struct Work {
  int first_row, rows;  // of the group
  bool shared;          // the shared expert counts
  int32_t* pair_row;    // [pairs] row within the group
  int32_t* place;       // [rows][topk + 1] pair of the row's i-th pick; the shared one last; -1
  Tile* tiles;
  int32_t* tile_count;
  uint16_t* xq;  // [rows, H] quantised rows, or nullptr
  uint16_t* g;   // [pairs, I]; then z
  uint16_t* u;   // [pairs, I]
  float* y;      // [pairs, H]
};

__device__ bool held(const MoeExpertsParams& p, bool shared, int e) {
  if (e == p.experts && !shared) return false;
  return p.expert_on_device[e].w1.layout != WeightLayout::kNone;
}

__global__ void __launch_bounds__(kSortThreads) sort_pairs_kernel(MoeExpertsParams p, Work w) {
  extern __shared__ int32_t begin[];  // [experts + 2] first pair of each expert, then a cursor
  const int picks = p.topk + 1, n = w.rows * picks, t = static_cast<int>(threadIdx.x);
  for (int e = t; e < p.experts + 2; e += kSortThreads) begin[e] = 0;
  __syncthreads();
  const auto pick = [&](int i) {
    const int r = i / picks, k = i % picks;
    return k == p.topk ? p.experts : p.ids[int64_t{w.first_row + r} * p.topk + k];
  };
  for (int i = t; i < n; i += kSortThreads) {
    const int e = pick(i);
    if (held(p, w.shared, e)) atomicAdd(&begin[e + 1], 1);
  }
  __syncthreads();
  if (t == 0) {
    int tiles = 0;
    for (int e = 0; e <= p.experts; ++e) {
      const int count = begin[e + 1], first = begin[e];
      for (int done = 0; done < count; done += kTileRows)
        w.tiles[tiles++] = {e, first + done, min(kTileRows, count - done)};
      begin[e + 1] = first + count;
    }
    *w.tile_count = tiles;
  }
  __syncthreads();
  for (int i = t; i < n; i += kSortThreads) {
    const int e = pick(i);
    int at = -1;
    if (held(p, w.shared, e)) {
      at = atomicAdd(&begin[e], 1);
      w.pair_row[at] = i / picks;
    }
    w.place[i] = at;
  }
}

__global__ void __launch_bounds__(kThreads) quantise_rows_kernel(MoeExpertsParams p, Work w) {
  const int64_t at = int64_t{blockIdx.x} * p.hidden;
  const uint16_t* x = p.x + (w.first_row + int64_t{blockIdx.x}) * p.hidden;
  for (int i = threadIdx.x; i < p.hidden; i += kThreads)
    w.xq[at + i] = to_bf16(fake_fp8_lanes(bf16_value(x[i])));
}

// blockIdx.z: 0 gate, 1 up.
__global__ void __launch_bounds__(kThreads) gate_up_kernel(MoeExpertsParams p, Work w) {
  extern __shared__ float sum[];
  if (static_cast<int>(blockIdx.y) >= *w.tile_count) return;
  const Tile tile = w.tiles[blockIdx.y];
  const ExpertWeights& e = p.expert_on_device[tile.expert];
  const WeightView& m = blockIdx.z == 0 ? e.w1 : e.w3;
  const uint16_t* x = m.quantise_input ? w.xq : p.x + int64_t{w.first_row} * p.hidden;
  const int first_out = blockIdx.x * kTileOuts;
  tile_product(
      static_cast<const uint16_t*>(m.data), m.in, m.out, first_out,
      [&](int i) -> const uint16_t* {
        return i < tile.count ? x + int64_t{w.pair_row[tile.first + i]} * p.hidden : nullptr;
      },
      sum);
  uint16_t* y = blockIdx.z == 0 ? w.g : w.u;
  for (int i = threadIdx.x; i < kTileRows * kTileOuts; i += blockDim.x) {
    const int r = i / kTileOuts, o = first_out + i % kTileOuts;
    if (r < tile.count && o < m.out)
      y[int64_t{tile.first + r} * p.intermediate + o] =
          to_bf16(tile_value(sum, dense_segments(m.in), i));
  }
}

// z = bf16((silu(g) * u) * w), g and u clamped, in g's place; quantised where w2 asks for it.
__global__ void __launch_bounds__(kThreads) swiglu_kernel(MoeExpertsParams p, Work w) {
  const int64_t row = blockIdx.x;
  for (int k = 0; k <= p.topk; ++k) {
    const int pair = w.place[row * (p.topk + 1) + k];
    if (pair < 0) continue;
    const int64_t pick = (w.first_row + row) * p.topk + k;
    const int e = k == p.topk ? p.experts : p.ids[pick];
    const float weight = k == p.topk ? 1.0f : p.weights[pick];
    const bool quantise = p.expert_on_device[e].w2.quantise_input;
    uint16_t* g = w.g + int64_t{pair} * p.intermediate;
    const uint16_t* u = w.u + int64_t{pair} * p.intermediate;
    for (int i = threadIdx.x; i < p.intermediate; i += kThreads) {
      float gv = bf16_value(g[i]), uv = bf16_value(u[i]);
      gv = gv > p.swiglu_limit ? p.swiglu_limit : gv;
      uv = uv > p.swiglu_limit ? p.swiglu_limit : uv;
      uv = uv < -p.swiglu_limit ? -p.swiglu_limit : uv;
      const float silu = gv / (1.0f + exp_near(-gv));
      const float z = round_bf16((silu * uv) * weight);
      g[i] = to_bf16(quantise ? fake_fp8_lanes(z) : z);
    }
  }
}

__global__ void __launch_bounds__(kThreads) down_kernel(MoeExpertsParams p, Work w) {
  extern __shared__ float sum[];
  if (static_cast<int>(blockIdx.y) >= *w.tile_count) return;
  const Tile tile = w.tiles[blockIdx.y];
  const WeightView& m = p.expert_on_device[tile.expert].w2;
  const int first_out = blockIdx.x * kTileOuts;
  tile_product(
      static_cast<const uint16_t*>(m.data), m.in, m.out, first_out,
      [&](int i) -> const uint16_t* {
        return i < tile.count ? w.g + int64_t{tile.first + i} * p.intermediate : nullptr;
      },
      sum);
  for (int i = threadIdx.x; i < kTileRows * kTileOuts; i += blockDim.x) {
    const int r = i / kTileOuts, o = first_out + i % kTileOuts;
    if (r < tile.count && o < m.out)
      w.y[int64_t{tile.first + r} * p.hidden + o] = tile_value(sum, dense_segments(m.in), i);
  }
}

__global__ void __launch_bounds__(kThreads) sum_experts_kernel(MoeExpertsParams p, Work w) {
  __shared__ int32_t order[kExpertsPerTokenMax + 1];  // pairs ascending by expert id
  __shared__ int count;
  const int64_t row = blockIdx.x;
  if (threadIdx.x == 0) {
    count = 0;
    int ids[kExpertsPerTokenMax + 1];
    for (int k = 0; k <= p.topk; ++k) {
      const int pair = w.place[row * (p.topk + 1) + k];
      if (pair < 0) continue;
      const int e = k == p.topk ? p.experts : p.ids[(w.first_row + row) * p.topk + k];
      int at = count++;
      for (; at > 0 && ids[at - 1] > e; --at) {
        ids[at] = ids[at - 1];
        order[at] = order[at - 1];
      }
      ids[at] = e;
      order[at] = pair;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.hidden; i += kThreads) {
    float sum = 0;
    for (int k = 0; k < count; ++k) {
      const float v = w.y[int64_t{order[k]} * p.hidden + i];
      sum += p.round_outputs ? round_bf16(v) : v;
    }
    p.y[(w.first_row + row) * p.hidden + i] = sum;
  }
}

bool any_quantises(const MoeExpertsParams& p) {
  for (int e = 0; e < p.experts; ++e)
    if (p.expert[e].w1.present() && p.expert[e].w1.quantise_input) return true;
  return p.shared != nullptr && p.shared->w1.present() && p.shared->w1.quantise_input;
}

void run_group(const MoeExpertsParams& p, const Work& w, CudaStream& s) {
  const int64_t pairs = pairs_max(w.rows, p.topk);
  const int tiles = static_cast<int>(tiles_max(pairs, p.experts));
  sort_pairs_kernel<<<1, kSortThreads, (p.experts + 2) * 4, s.handle()>>>(p, w);
  s.launched("sort_pairs", w.rows, p.experts, p.topk);
  if (w.xq != nullptr) {
    quantise_rows_kernel<<<w.rows, kThreads, 0, s.handle()>>>(p, w);
    s.launched("quantise_rows", w.rows, p.hidden);
  }
  gate_up_kernel<<<dim3(blocks_of(p.intermediate, kTileOuts), tiles, 2),
                   dense_segments(p.hidden) * 32, tile_shared_bytes(p.hidden), s.handle()>>>(p, w);
  s.launched("gate_up", w.rows, p.hidden, p.intermediate);
  swiglu_kernel<<<w.rows, kThreads, 0, s.handle()>>>(p, w);
  s.launched("swiglu", w.rows, p.intermediate);
  down_kernel<<<dim3(blocks_of(p.hidden, kTileOuts), tiles), dense_segments(p.intermediate) * 32,
                tile_shared_bytes(p.intermediate), s.handle()>>>(p, w);
  s.launched("down", w.rows, p.intermediate, p.hidden);
  sum_experts_kernel<<<w.rows, kThreads, 0, s.handle()>>>(p, w);
  s.launched("sum_experts", w.rows, p.hidden, p.topk);
}

}  // namespace

int64_t moe_experts_bytes(const WorkspaceShape& s) {
  const int64_t n = pairs_max(s.rows, s.topk);
  const int64_t widened =
      2 * Pieces::padded(n * 4) +
      Pieces::padded(tiles_max(n, s.experts) * static_cast<int64_t>(sizeof(Tile))) +
      Pieces::padded(4) + Pieces::padded(int64_t{std::min(s.rows, kRowsAtOnce)} * s.hidden * 2) +
      2 * Pieces::padded(n * s.intermediate * 2) + Pieces::padded(n * s.hidden * 4);
  return std::max(widened, exl3_experts_bytes(s));
}

void moe_experts(const MoeExpertsParams& p, Stream& stream) {
  TF_CHECK_LE(p.topk, kExpertsPerTokenMax);
  TF_CHECK_LE(p.experts, kExpertsMax);
  CudaStream& s = cuda_stream(stream);
  if (p.exl3_on_device != nullptr) return exl3_experts(p, s);
  TF_CHECK(p.expert_on_device != nullptr);
  const bool quantise = any_quantises(p);
  for (int first = 0; first < p.rows; first += kRowsAtOnce) {
    Pieces pieces(p.workspace);
    Work w{};
    w.first_row = first;
    w.rows = std::min(kRowsAtOnce, p.rows - first);
    w.shared = p.shared != nullptr && p.shared->w1.present();
    const int64_t n = pairs_max(w.rows, p.topk);
    w.pair_row = pieces.take<int32_t>(n);
    w.place = pieces.take<int32_t>(n);
    w.tiles = pieces.take<Tile>(tiles_max(n, p.experts));
    w.tile_count = pieces.take<int32_t>(1);
    w.xq = quantise ? pieces.take<uint16_t>(int64_t{w.rows} * p.hidden) : nullptr;
    w.g = pieces.take<uint16_t>(n * p.intermediate);
    w.u = pieces.take<uint16_t>(n * p.intermediate);
    w.y = pieces.take<float>(n * p.hidden);
    run_group(p, w, s);
  }
}

}  // namespace tensorfold::cuda
