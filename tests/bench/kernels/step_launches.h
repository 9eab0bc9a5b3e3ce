// The launches of one step of one of two ranks of DeepSeek-V4.1-Flash, by class of operation, in
// the order of engine/model's forward pass, with what they must move and compute (step_bench.cc).
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cuda/ops.h"
#include "kernels/rope.h"
#include "tests/bench/kernels/bench_weights.h"
#include "tests/bench/kernels/step_experts.h"
#include "tests/bench/kernels/step_rank.h"

namespace tensorfold::bench {

inline constexpr float kEps = 1e-20f, kHcEps = 1e-6f;
inline constexpr int kSinkhorn = 20;

enum Class { kEmbed, kHcSteps, kProject, kAppend, kIndex, kCore, kRoute, kMoe, kEngram, kHead };
inline constexpr const char* kClassNames[] = {
    "embed and rope", "hyper-connections", "projections", "cache append", "index", "attention",
    "router",         "experts",           "Engram",      "head"};
inline constexpr int kClasses = 10;
inline constexpr unsigned kAll = (1u << kClasses) - 1;

struct Case {
  const char* name;
  int slices, rows;  // rows of each slice
  bool prompt;
  bool uniform;  // experts drawn uniformly; else as few as 6 R^0.73
};
template <typename T>
T* zeros(int64_t count) {
  T* p = device_memory<T>(count);
  TF_BENCH_CUDA(cudaMemset(p, 0, static_cast<size_t>(count) * sizeof(T)));
  return p;
}

// Entries are chosen for every KV source in a place of its own: a class of operations run by itself
// must not find those of a source with more entries.
inline constexpr int kSources = 4;
inline int64_t selection_of(const LayerShape& shape) {
  return shape.source < kDecoderStart ? shape.source / 6 : kSources - 1;
}

// Activations of a step of at most kMaxLayerRows rows.
struct Buffers {
  uint16_t *streams, *x, *qr, *q, *kv, *attention, *groups, *iq, *iw, *staged, *engram, *engram_kv;
  float *pre[2], *post, *comb, *mixes, *y, *a, *g, *scores, *weights, *rope, *logits, *freqs;
  int32_t *selected, *selected_count, *candidates, *candidate_count, *routed, *ids;
  Workspace workspace;

  explicit Buffers(int64_t r, Device& device, const WorkspaceShape& shape, Stream& stream) {
    const int64_t h = kHidden, n = kHc, heads = int64_t{kHeads} * kHeadDim;
    streams = zeros<uint16_t>(r * n * h);
    x = zeros<uint16_t>(r * h);
    qr = zeros<uint16_t>(r * kQLora);
    q = zeros<uint16_t>(r * heads);
    attention = zeros<uint16_t>(r * heads);
    kv = zeros<uint16_t>(r * kHeadDim);
    groups = zeros<uint16_t>(r * kGroups * kOLora);
    iq = zeros<uint16_t>(r * kIndexHeads * kIndexDim);
    iw = zeros<uint16_t>(r * kIndexHeads);
    staged = zeros<uint16_t>((r + 8 * kWindow) * kHeadDim);
    engram = zeros<uint16_t>(r * kEngramIn);
    engram_kv = zeros<uint16_t>(r * (n + 1) * h);
    for (float*& p : pre) p = zeros<float>(r * n);
    post = zeros<float>(r * n);
    comb = zeros<float>(r * n * n);
    mixes = zeros<float>(r * kMixes);
    y = zeros<float>(r * h);
    a = zeros<float>(r * kHeadDim);
    g = zeros<float>(r * kHeadDim);
    scores = zeros<float>(r * kExperts);
    weights = zeros<float>(r * kExpertsPerToken);
    rope = zeros<float>(3 * r * kRopeDim);
    logits = zeros<float>(int64_t{64} * kVocab);
    freqs = to_device(rope_frequencies(160000, kRopeDim, nullptr));
    selected = zeros<int32_t>(kSources * r * kTopEntries);
    selected_count = zeros<int32_t>(kSources * r);
    candidates = zeros<int32_t>(r * kCandidateBlocks);
    candidate_count = zeros<int32_t>(r);
    routed = zeros<int32_t>(r * kExpertsPerToken);
    ids = zeros<int32_t>(r);
    TF_BENCH_CUDA(fill_normal(engram, r * kEngramIn, 77, nullptr));
    workspace.bytes = device.workspace_bytes(shape, stream);
    workspace.data = zeros<std::byte>(workspace.bytes);
  }
};

// One case: its tables on the device, and the launches of its classes.
class Step {
 public:
  Step(const Case& c, StepRank& rank, Buffers& b, Stream& stream, int64_t context)
      : rank_(rank), b_(b), stream_(stream), case_(c), rows_(c.slices * c.rows) {
    std::vector<AttentionSlice> slices;
    std::vector<int32_t> row_slice;
    std::vector<int64_t> positions, pair_positions;
    for (int i = 0; i < c.slices; ++i) {
      AttentionSlice s;
      s.first_row = i * c.rows;
      s.rows = c.rows;
      s.first_position = context + 8 * i;  // each writes places of its own
      s.history = static_cast<int32_t>(std::min<int64_t>(kWindow - 1, s.first_position));
      s.staged_first = i * (kWindow + c.rows);
      s.rings = rank.rings;
      s.pair_rings = rank.pairs;
      s.block_table = rank.block_table;
      slices.push_back(s);
      for (int r = 0; r < c.rows; ++r) {
        row_slice.push_back(i);
        positions.push_back(s.first_position + r);
        pair_positions.push_back(std::max<int64_t>(0, s.first_position + r - 1));
      }
    }
    positions_end_ = positions.back() + 1;
    slice_ = to_device(slices);
    row_slice_ = to_device(row_slice);
    positions_ = to_device(positions);
    pair_positions_ = to_device(pair_positions);
    std::mt19937 random(7);
    const int few = static_cast<int>(std::lround(6 * std::pow(rows_, 0.73)));
    int64_t total = 0;
    for (int l = 0; l < layers(); ++l) {
      const std::vector<int32_t> ids =
          c.uniform ? uniform_experts(rows_, random) : draw_experts(rows_, few, random);
      distinct_.push_back(distinct_of(ids));
      total += distinct_.back();
      expert_ids_.push_back(to_device(ids));
    }
    mean_distinct = static_cast<double>(total) / layers();
    const std::vector<float> weights(static_cast<size_t>(rows_ * kExpertsPerToken), 0.25f);
    expert_weights_ = to_device(weights);
  }

  double mean_distinct = 0;
  int layers() const { return std::min(rank_.layers, case_.prompt ? kDecoderStart : kLayers); }
  const OpCost& cost(int c) const { return costs_[c]; }
  double weights_decoded(int c) const { return decoded_[c]; }

  // Queues the launches of the classes in `mask`. The first call also adds up costs.
  void enqueue(unsigned mask) {
    mask_ = mask;
    embed();
    for (int l = 0; l < layers(); ++l) {
      block_input(l, l > 0 && !layer_shape(l).engram ? b_.y : nullptr);
      attention(l);
      hc(rank_.layer[static_cast<size_t>(l)].moe.hc, rank_.layer[static_cast<size_t>(l)].moe.norm,
         b_.y, b_.pre[1], b_.pre[0]);
      moe(l);
      if (l + 1 == layers() || layer_shape(l + 1).engram) mix();
    }
    // The decoder's source: its entries are made of every prompt row.
    if (case_.prompt && rank_.layers > kDecoderStart) block_input(kDecoderStart, nullptr);
    if (!case_.prompt) head();
    counted_ = true;
  }

 private:
  bool on(int c, const OpCost& cost, double decoded = 0) {
    if (!counted_) {
      costs_[c].bytes += cost.bytes;
      costs_[c].operations += cost.operations;
      decoded_[c] += decoded;
    }
    return (mask_ & (1u << c)) != 0;
  }
  void project(int c, const uint16_t* x, int64_t x_stride, int in, const float* norm,
               std::initializer_list<ProjectOutput> outputs) {
    ProjectParams p;
    p.rows = rows_;
    p.prompt_rows = case_.prompt ? rows_ : 0;
    p.in = in;
    p.x = x;
    p.x_stride = x_stride;
    p.norm_weight = norm;
    p.norm_eps = kEps;
    double decoded = 0;
    for (const ProjectOutput& o : outputs) {
      p.output[p.outputs++] = o;
      if (o.weight->layout == WeightLayout::kExl3) decoded += matrix_weights(o.weight->exl3);
    }
    p.workspace = b_.workspace;
    if (on(c, project_cost(p), decoded)) cuda::project(p, stream_);
  }
  static ProjectOutput out(const WeightView& w, void* y, ValueType type = ValueType::kBf16,
                           int64_t stride = 0) {
    return {&w, y, stride > 0 ? stride : w.out, type};
  }

  void embed() {
    EmbedRowsParams p;
    p.rows = rows_;
    p.hidden = kHidden;
    p.hc = kHc;
    p.ids = b_.ids;
    p.table = &rank_.embed;
    p.streams = b_.streams;
    p.pre = b_.pre[0];
    if (on(kEmbed, embed_rows_cost(p))) cuda::embed_rows(p, stream_);
    for (int i = 0; i < 3; ++i) {
      RopeTableParams t;
      t.rows = rows_;
      t.pairs = kRopeDim / 2;
      t.positions = i < 2 ? positions_ : pair_positions_;
      t.freqs = b_.freqs;
      t.table = rope(i);
      if (on(kEmbed, rope_table_cost(t))) cuda::rope_table(t, stream_);
    }
  }
  float* rope(int table) const { return b_.rope + int64_t{table} * kMaxLayerRows * kRopeDim; }

  HcStepParams hc_params() const {
    HcStepParams p;
    p.rows = rows_;
    p.prompt_rows = case_.prompt ? rows_ : 0;
    p.hidden = kHidden;
    p.hc = kHc;
    p.sinkhorn_iters = kSinkhorn;
    p.norm_eps = kEps;
    p.hc_eps = kHcEps;
    p.streams = b_.streams;
    p.post_in = b_.post;
    p.comb_in = b_.comb;
    p.workspace = b_.workspace;
    return p;
  }
  void hc(const HcWeights& w, const float* norm, const float* y, const float* pre_in,
          float* pre_out) {
    HcStepParams p = hc_params();
    p.y = y;
    p.fn = &w.fn;
    p.scale = w.scale;
    p.base = w.base;
    p.mixes = b_.mixes;
    p.pre_out = pre_out;
    p.post_out = b_.post;
    p.comb_out = b_.comb;
    p.pre_in = pre_in;
    p.norm_weight = norm;
    p.normed = b_.x;
    if (on(kHcSteps, hc_step_cost(p))) cuda::hc_step(p, stream_);
  }
  void mix() {
    HcStepParams p = hc_params();
    p.y = b_.y;
    if (on(kHcSteps, hc_step_cost(p))) cuda::hc_step(p, stream_);
  }

  AttentionAppendParams append_params() const {
    AttentionAppendParams p;
    p.rows = rows_;
    p.slices = case_.slices;
    p.slice = slice_;
    p.row_slice = row_slice_;
    p.head_dim = kHeadDim;
    p.rope_dim = kRopeDim;
    p.norm_eps = kEps;
    p.ring_rows = rank_.ring_rows;
    p.workspace = b_.workspace;
    return p;
  }

  void block_input(int l, const float* y) {
    const BlockWeights& w = rank_.layer[static_cast<size_t>(l)];
    const LayerShape shape = layer_shape(l);
    if (shape.engram) {
      // This rank's half of the outputs; the other half would come from the other rank.
      project(kEngram, b_.engram, kEngramIn, kEngramIn, nullptr, {out(w.engram.wkv, b_.engram_kv)});
      EngramGateParams g;
      g.rows = rows_;
      g.hidden = kHidden;
      g.hc = kHc;
      g.eps = kEps;
      g.kv = b_.engram_kv;
      g.q_weight = w.engram.q_weight;
      g.k_weight = w.engram.k_weight;
      g.streams = b_.streams;
      if (on(kEngram, engram_gate_cost(g))) cuda::engram_gate(g, stream_);
    }
    hc(w.attention.hc, w.attention.norm, y, b_.pre[0], b_.pre[1]);
    if (!shape.owns_kv) return;
    const bool pairs = shape.ratio == 2;
    if (pairs)
      project(
          kProject, b_.x, kHidden, kHidden, nullptr,
          {out(w.source.wkv, b_.a, ValueType::kF32), out(w.source.wgate, b_.g, ValueType::kF32)});
    else
      project(kProject, b_.x, kHidden, kHidden, nullptr, {out(w.source.wkv, b_.a)});
    AttentionAppendParams p = append_params();
    p.pair_offset = int64_t{l / 6} * kPairRingRows * 2 * kHeadDim;
    p.a = b_.a;
    p.g = b_.g;
    p.latent_norm = w.source.norm;
    p.index_wk = &w.source.index_wk;
    p.index_norm = w.source.index_norm;
    p.index_dim = kIndexDim;
    p.entry_rope = pairs ? rope(2) : rope(1);
    p.pool = rank_.source[static_cast<size_t>(l)].pool;
    if (on(kAppend, attention_append_cost(p))) cuda::attention_append(p, stream_);
  }

  int64_t entries_seen(int ratio) const {  // of all rows
    int64_t total = 0;
    for (int i = 0; i < rows_; ++i)
      total += visible_entries(positions_end_ - 1 - i % case_.rows, ratio);
    return total;
  }

  void attention(int l) {
    const AttentionWeights& w = rank_.layer[static_cast<size_t>(l)].attention;
    const IndexerWeights& indexer = rank_.layer[static_cast<size_t>(l)].indexer;
    const LayerShape shape = layer_shape(l);
    if (shape.owns_index)
      project(kProject, b_.x, kHidden, kHidden, nullptr,
              {out(w.wq_a, b_.qr), out(w.wkv, b_.kv), out(indexer.weights_proj, b_.iw)});
    else
      project(kProject, b_.x, kHidden, kHidden, nullptr, {out(w.wq_a, b_.qr), out(w.wkv, b_.kv)});
    AttentionAppendParams p = append_params();
    p.ring_offset = l * rank_.ring_bytes;
    p.kv = b_.kv;
    p.kv_norm = w.kv_norm;
    p.rope = rope(0);
    p.staged = b_.staged;
    p.qr = b_.qr;
    p.q_norm = w.q_norm;
    p.q_width = kQLora;
    const MoeWeights& m = rank_.layer[static_cast<size_t>(l)].moe;
    const auto warm = [&p](const void* data, int64_t bytes) { p.warm[p.warms++] = {data, bytes}; };
    warm(m.hc.fn.data, m.hc.fn.bytes());
    warm(m.gate.data, m.gate.bytes());
    const auto codes = [](const WeightView& v) {
      return int64_t{v.exl3.padded_in} * v.exl3.padded_out * v.exl3.half_bits / 16;
    };
    for (const WeightView& g : w.wo_a) warm(g.exl3.trellis, codes(g));
    warm(w.wo_b.exl3.trellis, codes(w.wo_b));
    if (on(kAppend, attention_append_cost(p))) cuda::attention_append(p, stream_);
    if (shape.owns_index)
      project(kProject, b_.qr, kQLora, kQLora, nullptr,
              {out(w.wq_b, b_.q), out(indexer.wq_b, b_.iq)});
    else
      project(kProject, b_.qr, kQLora, kQLora, nullptr, {out(w.wq_b, b_.q)});
    if (shape.owns_index) select(shape);
    core(w, shape);
    const auto group = [&](int g) {
      ProjectOutput o = out(w.wo_a[static_cast<size_t>(g)], b_.groups + g * kOLora,
                            ValueType::kBf16, kGroups * kOLora);
      o.x_offset = int64_t{g} * kHeads / kGroups * kHeadDim;
      return o;
    };
    static_assert(kGroups == 4);
    project(kProject, b_.attention, kHeads * kHeadDim, kHeads / kGroups * kHeadDim, nullptr,
            {group(0), group(1), group(2), group(3)});
    project(kProject, b_.groups, kGroups * kOLora, kGroups * kOLora, nullptr,
            {out(w.wo_b, b_.y, ValueType::kF32)});
  }

  void select(const LayerShape& shape) {
    IndexSelectParams p;
    p.rows = rows_;
    p.slice = slice_;
    p.row_slice = row_slice_;
    p.heads = kIndexHeads;
    p.dim = kIndexDim;
    p.rope_dim = kRopeDim;
    p.iq = b_.iq;
    p.iw = b_.iw;
    p.weight_scale = 1.0f / 64;
    p.rope = rope(1);
    p.pool = rank_.source[static_cast<size_t>(shape.source)].pool;
    p.topk = kTopEntries;
    p.builds_candidates = shape.builds_candidates;
    p.uses_candidates = shape.uses_candidates;
    p.candidate_blocks = kCandidateBlocks;
    p.candidate_block_size = kCandidateSize;
    p.candidates = b_.candidates;
    p.candidate_count = b_.candidate_count;
    p.selected = b_.selected + selection_of(shape) * kMaxLayerRows * kTopEntries;
    p.selected_count = b_.selected_count + selection_of(shape) * kMaxLayerRows;
    p.entries_max = visible_entries(positions_end_ - 1, shape.ratio);
    p.workspace = b_.workspace;
    if (on(kIndex, index_select_cost(p, entries_seen(shape.ratio)))) cuda::index_select(p, stream_);
  }

  void core(const AttentionWeights& w, const LayerShape& shape) {
    AttentionCoreParams p;
    p.rows = rows_;
    p.slice = slice_;
    p.row_slice = row_slice_;
    p.heads = kHeads;
    p.head_dim = kHeadDim;
    p.rope_dim = kRopeDim;
    p.window = kWindow;
    p.q = b_.q;
    p.rope = rope(shape.ratio == 0 ? 0 : 1);
    p.sink = w.sink;
    p.staged = b_.staged;
    int64_t keys = int64_t{rows_} * kWindow, entries = 0;
    const int64_t staged = int64_t{case_.slices} * (case_.rows + kWindow - 1);
    if (shape.source >= 0) {
      p.selected = b_.selected + selection_of(shape) * kMaxLayerRows * kTopEntries;
      p.selected_count = b_.selected_count + selection_of(shape) * kMaxLayerRows;
      p.topk = kTopEntries;
      p.pool = rank_.source[static_cast<size_t>(shape.source)].pool;
      entries = std::min(int64_t{rows_} * kTopEntries,
                         case_.slices * visible_entries(positions_end_ - 1, shape.ratio));
      keys += int64_t{rows_} * kTopEntries;
    }
    p.out = b_.attention;
    p.workspace = b_.workspace;
    if (on(kCore, attention_core_cost(p, staged, entries, keys))) cuda::attention_core(p, stream_);
  }

  void moe(int l) {
    const MoeWeights& w = rank_.layer[static_cast<size_t>(l)].moe;
    MoeRouteParams r;
    r.rows = rows_;
    r.prompt_rows = case_.prompt ? rows_ : 0;
    r.hidden = kHidden;
    r.experts = kExperts;
    r.topk = kExpertsPerToken;
    r.scale = 1.5f;
    r.x = b_.x;
    r.gate = &w.gate;
    r.bias = w.bias;
    r.scores = b_.scores;
    r.ids = b_.routed;  // timed, not used: the choice is this bench's
    r.weights = b_.weights;
    r.workspace = b_.workspace;
    if (on(kRoute, moe_route_cost(r))) cuda::moe_route(r, stream_);
    MoeExpertsParams p;
    p.rows = rows_;
    p.prompt_rows = case_.prompt ? rows_ : 0;
    p.hidden = kHidden;
    p.intermediate = kInter;
    p.experts = kExperts;
    p.topk = kExpertsPerToken;
    p.swiglu_limit = 10;
    p.x = b_.x;
    p.ids = expert_ids_[static_cast<size_t>(l)];
    p.weights = expert_weights_;
    p.expert = w.experts.data();
    p.shared = &w.shared;
    p.exl3_on_device = w.exl3_on_device;
    p.y = b_.y;
    p.workspace = b_.workspace;
    const int distinct = distinct_[static_cast<size_t>(l)];
    const double each = 3.0 * kHidden * kInter;
    OpCost cost = moe_experts_cost(p, 0);
    const auto bytes_of = [](const ExpertWeights& e) {
      return e.w1.bytes() + e.w3.bytes() + e.w2.bytes();
    };
    cost.bytes += distinct * bytes_of(w.experts[0]) + bytes_of(w.shared);
    if (on(kMoe, cost, (distinct + 1) * each)) cuda::moe_experts(p, stream_);
  }

  void head() {
    HeadLogitsParams p;
    p.rows = rows_;
    p.hidden = kHidden;
    p.hc = kHc;
    p.norm_eps = kEps;
    p.streams = b_.streams;
    p.pre = b_.pre[0];
    p.norm_weight = rank_.norm;
    p.head = &rank_.head;
    p.logits = b_.logits;
    p.logits_stride = kVocab;
    p.workspace = b_.workspace;
    if (on(kHead, head_logits_cost(p), matrix_weights(rank_.head.exl3)))
      cuda::head_logits(p, stream_);
  }

  StepRank& rank_;
  Buffers& b_;
  Stream& stream_;
  Case case_;
  int rows_;
  int64_t positions_end_ = 0;
  unsigned mask_ = 0;
  bool counted_ = false;
  OpCost costs_[kClasses] = {};
  double decoded_[kClasses] = {};
  const AttentionSlice* slice_ = nullptr;
  const int32_t* row_slice_ = nullptr;
  const int64_t *positions_ = nullptr, *pair_positions_ = nullptr;
  std::vector<int> distinct_;  // experts of each layer
  std::vector<int32_t*> expert_ids_;
  const float* expert_weights_ = nullptr;
};

}  // namespace tensorfold::bench
