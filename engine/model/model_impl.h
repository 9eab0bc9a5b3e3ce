// ForwardModel: the Model over a table of operations. Its parts by file: model_impl.cc (loading,
// buffers, small methods), forward.cc (the layer loop), forward_attention.cc, forward_moe.cc,
// forward_engram.cc, forward_exchange.cc, forward_head.cc, forward_graph.cc, drafter.cc,
// forward_probe.cc.
//
// Owned by the engine thread. All memory is taken when loading; a step allocates only its row
// lists. Ranks run the same calls in the same order, so that Collective calls meet.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/cache/sequence_cache.h"
#include "engine/cluster/device_exchange.h"
#include "engine/model/engram_rows.h"
#include "engine/model/graph_table.h"
#include "engine/model/model.h"
#include "engine/model/model_weights.h"
#include "engine/model/step_rows.h"
#include "engine/model/step_tables.h"
#include "kernels/device.h"

namespace tensorfold {

inline constexpr int kStepRowsMax = kPrefillRowsMax + kGeneratedRowsMax;
inline constexpr int kLogitsRowsAtOnce = 64;   // rows of logits that leave a device together
inline constexpr int kExchangeRowsLeast = 64;  // of a sublayer's output that one exchange takes

// What a layer needs besides its weights: where it stands and which cache parts it uses.
struct LayerPlan {
  int layer = 0;  // number for the probe: layer, or drafter stage
  int ring = 0;   // index of its window ring
  bool drafter = false;
  const LayerRole* role = nullptr;  // nullptr: drafter stage (window only)
};

// Rotary tables of one row set.
struct RopeRows {
  const float* plain = nullptr;  // [rows, rope_dim / 2, 2]
  const float* yarn = nullptr;
  const float* pair = nullptr;  // yarn, at the first position of the pair that a row completes
};

// Activations of a step; capacity in rows: rows_max (drafts are far fewer).
struct StepBuffers {
  uint16_t* streams = nullptr;    // [R, n, H]
  float* pre[2] = {};             // [R, n] incoming and outgoing
  float* post = nullptr;          // [R, n]
  float* comb = nullptr;          // [R, n, n]
  float* mixes = nullptr;         // [R, (2 + n) n]
  uint16_t* x = nullptr;          // [R, H] normed sublayer input
  uint16_t* qr = nullptr;         // [R, q_lora]
  uint16_t* q = nullptr;          // [R, heads of this rank, D]
  uint16_t* kv = nullptr;         // [R, D]
  uint16_t* attention = nullptr;  // [R, heads of this rank, D]
  uint16_t* groups = nullptr;     // [R, groups of this rank * o_lora]
  float* y = nullptr;             // [R, H] sublayer output
  float* y_shared = nullptr;      // [R, H] shared expert when it is added after the sum
  float* a = nullptr;             // [R, D] fp32 (ratio 2) or bf16
  float* g = nullptr;             // [R, D]
  uint16_t* iq = nullptr;         // [R, index heads, d]
  uint16_t* iw = nullptr;         // [R, index heads]
  int32_t* selected = nullptr;    // [R, topk]
  int32_t* selected_count = nullptr;
  int32_t* candidates = nullptr;  // [R, candidate blocks]
  int32_t* candidate_count = nullptr;
  uint16_t* staged = nullptr;       // [R + slots * (window - 1), D]
  float* route_scores = nullptr;    // [R, experts]
  int32_t* route_ids = nullptr;     // [R, k]
  float* route_weights = nullptr;   // [R, k]
  uint16_t* taps = nullptr;         // [R, taps, H]
  uint16_t* engram = nullptr;       // [R, columns * width]
  uint16_t* engram_kv = nullptr;    // [R, (n + 1) H]
  uint16_t* engram_part = nullptr;  // this rank's outputs of it
  float* rope = nullptr;            // 3 tables [R, rope_dim / 2, 2]
  uint16_t* main_hidden = nullptr;  // [R, H] drafter's main projection
  uint16_t* narrow = nullptr;       // [R, H] partial results where they are exchanged as bf16
};

// What stays in device memory where that is not the host's; V: this rank's part of the vocabulary.
struct DeviceLogits {
  float* logits = nullptr;            // [kLogitsRowsAtOnce, V]
  float* whole = nullptr;             // the same of all ranks, [kLogitsRowsAtOnce, ranks * V]
  float* draft_base = nullptr;        // [slots * draft block, V]
  int32_t* draft_prev = nullptr;      // [draft block + 1, slots]: given, then chosen
  float* draft_confidence = nullptr;  // [draft block, slots]
  SampleRow* sample_rows = nullptr;   // [R], where the device chooses tokens
  int32_t* sample_out = nullptr;      // [2, R] tokens, states
};

class ForwardModel final : public Model {
 public:
  static Result<std::unique_ptr<Model>> load(const ModelOptions& options, Collective& collective);

  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return weights_->bytes; }
  int64_t cache_bytes() const override { return cache_->bytes(); }
  std::string fingerprint() const override { return fingerprint_; }
  std::string device() const override { return device_->name(); }
  int64_t waited_ns() const override { return device_->waited_ns(*stream_); }
  void forget_recorded() override {
    if (graphs_ != nullptr) graphs_->forget();
    recorded_.clear();
  }
  StepGraphStats graphs() const override {
    return graphs_ == nullptr ? StepGraphStats{} : graphs_->stats();
  }
  Status apply(const StepPlan& plan) override;
  std::span<const int32_t> ids(SlotId slot) const override;
  Status forward(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                 StepLogits& logits, ForwardProbe* probe) override;
  Status accept(SlotId slot, int64_t length) override;
  int64_t length(SlotId slot) const override;
  Status draft(std::span<const DraftRequest> requests, std::vector<DraftResult>& results,
               ForwardProbe* probe) override;
  Status read_entry(SlotId slot, int layer, int64_t entry, std::vector<float>& main,
                    std::vector<float>& index_key) const override;

 private:
  ForwardModel(const ModelOptions& options, Collective& collective)
      : options_(options), collective_(collective) {}

  // model_impl.cc
  Status prepare(const WeightSource& source);
  void tell_weights() const;
  void tell_memory() const;
  Status check_dimensions() const;
  Status allocate_buffers();
  WorkspaceShape workspace_shape() const;
  Status allocate_logits();
  Result<const float*> keep(const std::vector<float>& values);
  template <typename T>
  Status take(T*& pointer, int64_t count);

  int64_t tap_width() const {
    return static_cast<int64_t>(config_.dspark.target_layers.size()) * config_.hidden;
  }

  // forward.cc
  Status step(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
              StepLogits& logits);
  void begin_rows();
  Status run_layers(int first, int last);
  Status block_input(const LayerPlan& plan, const BlockWeights& weights, RowSet& rows,
                     const float* y);
  Status block_sublayers(const LayerPlan& plan, const BlockWeights& weights, RowSet& rows,
                         bool mixes);
  bool mixes_at_once(int layer, int last) const;
  HcStepParams hc_params(const RowSet& rows) const;
  void hc_step(const HcWeights& hc, const float* norm, const RowSet& rows, uint16_t* tap,
               const float* y, const float* pre_in, float* pre_out);
  void mix(const RowSet& rows);
  void make_rope_tables(const RowSet& rows, RopeRows& tables, float* memory);
  void enter_decoder();
  void gather_rows(void* data, int64_t row_bytes);

  // forward_attention.cc
  Status attention(const LayerPlan& plan, const BlockWeights& weights, RowSet& rows);
  AttentionAppendParams append_params(const RowSet& rows) const;
  void append_window(const LayerPlan& plan, const BlockWeights& weights, RowSet& rows,
                     bool stage_only);
  void append_source(const LayerPlan& plan, const BlockWeights& weights, RowSet& rows);
  void select_entries(const LayerPlan& plan, RowSet& rows);
  void attend(const LayerPlan& plan, const AttentionWeights& w, RowSet& rows);
  Status project_output(const AttentionWeights& w, RowSet& rows);
  EntryPool entry_pool(int source_layer);
  const float* rope_of(const LayerPlan& plan) const;

  // forward_moe.cc
  Status moe(const LayerPlan& plan, const MoeWeights& w, RowSet& rows);

  // forward_engram.cc
  Status add_engram(const LayerPlan& plan, const EngramWeights& w, RowSet& rows);
  Status fetch_engram(const LayerPlan& plan, const EngramWeights& w, const RowSet& rows);

  // forward_exchange.cc: where ranks meet.
  Status allocate_exchange();
  Status with_exchange(const std::function<Status()>& work);
  Status gather_on_device(const void* own, int rows, int64_t row_bytes,
                          const std::function<void(int first, int rows)>& use);
  Status reduce(float* data, int rows);
  Status reduce_on_device(float* data, int rows);
  Status reduce_on_host(std::span<float> data);
  Status gather_columns(const uint16_t* own, int rows, int64_t width, uint16_t* whole);
  Status gather_vocab(int rows, float* whole);
  Status gather_logits(int rows);

  // forward_graph.cc
  void choose_graph();
  int segment_end(int first) const;
  Status run_segments();
  Status run_part(const std::function<Status()>& queue);
  void keep_graph();

  // forward_head.cc
  Status head(StepLogits& logits);
  bool chooses_tokens() const;
  void sample_on_device(int rows, const SampleRow* ask, int32_t* tokens, int32_t* states);
  Status choose_tokens(HeadLogitsParams p, StepLogits& logits);
  Status vocab_logits(HeadLogitsParams p, float* whole, float* kept);
  Status fetch_vocab(int rows, const float* part, float* whole);
  int64_t vocab_part() const;

  // drafter.cc
  void build_context_rows();
  Status write_draft_context();
  Status check_draft(std::span<const DraftRequest> requests) const;
  Status run_draft(std::span<const DraftRequest> requests, std::vector<DraftResult>& results);
  void build_draft_rows(std::span<const DraftRequest> requests);
  MarkovStepParams link_params(int step, int requests) const;
  void queue_link(int step, int requests, const int32_t* prev, float* confidence);
  Status chain_on_device(std::span<const DraftRequest> requests, std::vector<DraftResult>& results);
  Status markov_link(int step, const std::vector<int32_t>& prev, float* logits, float* confidence);
  Status markov_chain(std::span<const DraftRequest> requests, std::vector<DraftResult>& results);

  // forward_probe.cc: hand rows of a quantity to the probe, if there is one.
  void probe_input(const LayerPlan& plan, const RowSet& rows);
  template <typename T>
  const T* on_host(const T* values, int64_t count, std::vector<T>& copy);
  void probe_rows(Quantity q, int layer, const RowSet& rows, const float* values, int64_t width);
  void probe_f32(Quantity q, int layer, const RowSet& rows, const float* values, int64_t width);
  void probe_bf16(Quantity q, int layer, const RowSet& rows, const uint16_t* values, int64_t width,
                  int64_t stride);
  void probe_rounded(Quantity q, int layer, const RowSet& rows, const float* values, int64_t width);
  void probe_i32(Quantity q, int layer, const RowSet& rows, const int32_t* values, int64_t width,
                 int64_t stride, const int32_t* counts);
  void probe_scores(int layer, const RowSet& rows, int ratio);
  void probe_candidates(int layer, const RowSet& rows, int ratio);
  void probe_window(int layer, const RowSet& rows);
  ProbeRow probe_row(const RowSet& rows, int row) const;

  Workspace workspace() const { return {workspace_, workspace_bytes_}; }

  ModelOptions options_;
  Collective& collective_;
  std::shared_ptr<Device> device_;  // outlives all that is in its memory
  const Backend* backend_ = nullptr;
  std::unique_ptr<Stream> stream_;
  ModelConfig config_;
  Partition part_;
  std::string fingerprint_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<SequenceCache> cache_;
  std::unique_ptr<EngramRows> engram_;  // nullptr: the model has none
  std::vector<int32_t> token_map_;
  float index_weight_scale_ = 0;  // (d * index heads)^-0.5

  std::vector<DeviceArray<std::byte>> memory_;
  int64_t taken_bytes_ = 0;  // in memory_
  StepBuffers b_;
  DeviceLogits d_;
  const float* freqs_plain_ = nullptr;  // [rope_dim / 2]
  const float* freqs_yarn_ = nullptr;
  std::byte* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
  DeviceExchange* exchange_ = nullptr;  // while a step runs: where ranks meet on the device
  std::byte* exchange_memory_ = nullptr;
  int64_t exchange_bytes_ = 0;
  std::vector<float> reduce_scratch_, reduce_host_;
  std::vector<float> gather_own_, gather_all_, draft_base_;
  std::vector<uint16_t> gather_bf16_, engram_host_, narrow_host_;

  // The step being run.
  bool commands_done_ = false;
  StepRows rows_;
  RowSet draft_rows_;  // a step's context rows, or drafted rows
  StepTables tables_;
  const int32_t* ids_on_device_ = nullptr;
  const int32_t* logits_rows_on_device_ = nullptr;
  RopeRows rope_;
  ForwardProbe* probe_ = nullptr;
  std::unique_ptr<GraphTable> graphs_;  // nullptr: steps are queued launch by launch
  std::optional<GraphKey> step_key_;    // of the step, when it may be run from recorded launches
  GraphUse step_use_ = GraphUse::kQueue;
  size_t step_part_ = 0;
  GraphParts recorded_;              // of the step being recorded
  bool engram_fetched_ = false;      // the rows that add_engram needs lie on the device
  DeviceArray<float> probe_scores_;  // [rows, probe_stride_]
  int64_t probe_stride_ = 0;
};

}  // namespace tensorfold
