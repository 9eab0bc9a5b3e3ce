// GoldenCompare: the comparison of one prompt's tensors with one run: a table from names to rules.
// Internal to eval_golden; one object per prompt.
//
// Rules of the bounds file's readme: rel = ||ours - golden|| / ||golden|| per quantity and prompt
// (and layer); a row after its first differing list or route is exempt from bounds of the sublayer
// outputs but not from those of streams and logits; tokens must be equal where the golden margin
// exceeds token_margin.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/eval_compare.h"
#include "ctl/eval_golden.h"

namespace tensorfold::ctl {

class GoldenCompare {
 public:
  GoldenCompare(const TensorFile& file, const GoldenPrompt& prompt, const SequenceRun& run,
                const ModelConfig& config, EvalBounds& bounds, EvalReport& report);

  void compare(const StoredTensor& tensor);

 private:
  using Method = void (GoldenCompare::*)(const StoredTensor&, int layer);
  struct Rule {
    std::string_view name;  // ends with '.': a layer number follows
    Method method;
  };
  static const Rule kRules[];

  // prefill
  void streams(const StoredTensor& t, int) { layers_f32(t, Quantity::kStreams, 0); }
  void pre(const StoredTensor& t, int) { layers_f32(t, Quantity::kPre, 0); }
  void attn_out(const StoredTensor& t, int) { layers_f32(t, Quantity::kAttnOut, 1); }
  void ffn_out(const StoredTensor& t, int) { layers_f32(t, Quantity::kFfnOut, 2); }
  void route_weights(const StoredTensor& t, int);
  void route_ids(const StoredTensor& t, int);
  void engram_rows(const StoredTensor& t, int);
  void engram_gate(const StoredTensor& t, int);
  void topk(const StoredTensor& t, int layer);
  void score(const StoredTensor& t, int layer);
  void candidates(const StoredTensor& t, int);
  void taps(const StoredTensor& t, int);
  void prefill_logits(const StoredTensor& t, int);
  void entries_main(const StoredTensor& t, int layer) { entries(t, layer, true); }
  void entries_key(const StoredTensor& t, int layer) { entries(t, layer, false); }
  void window_latent(const StoredTensor& t, int layer);
  void tokens(const StoredTensor& t, int);
  // decode
  void decode_logits(const StoredTensor& t, int);
  void decode_margin(const StoredTensor& t, int);
  void decode_topk(const StoredTensor& t, int layer);
  void decode_streams(const StoredTensor& t, int);
  void decode_engram_rows(const StoredTensor& t, int);
  // draft
  void draft_ids(const StoredTensor& t, int);
  void draft_conf(const StoredTensor& t, int) { drafts_f32(t, Quantity::kDraftConfidence, true); }
  void draft_logits(const StoredTensor& t, int) { drafts_f32(t, Quantity::kDraftLogits, false); }
  void draft_base_logits(const StoredTensor& t, int) {
    drafts_f32(t, Quantity::kDraftBaseLogits, true);
  }
  void draft_hidden(const StoredTensor& t, int) { drafts_f32(t, Quantity::kDraftHidden, true); }
  void draft_streams(const StoredTensor& t, int);
  void draft_routes(const StoredTensor& t, int);
  void input(const StoredTensor& t, int);

  // Helpers.
  std::string quantity(const StoredTensor& t) const {
    return t.name.substr(prompt_.name.size() + 1);
  }
  Grid grid(const StoredTensor& t) const;
  // [rows, width]; and [groups, rows, width...] with the layer of each group.
  Grid grid2(const StoredTensor& t, int layer) const;
  Grid grid3(const StoredTensor& t, std::function<int(int64_t group)> layer) const;
  std::function<int(int64_t)> engram_layer() const;
  bool shaped(const StoredTensor& t, size_t dims, bool is_float);
  std::optional<double> bound(std::string_view leaf, int layer);
  std::optional<double> attn_bound(int layer);
  // sublayer: 0 no exemption, 1 attention output, 2 MoE output.
  void layers_f32(const StoredTensor& t, Quantity q, int sublayer);
  void entries(const StoredTensor& t, int layer, bool main);
  void logits(const StoredTensor& t, std::span<const std::vector<float>> ours);
  void drafts_f32(const StoredTensor& t, Quantity q, bool bounded);
  Grid draft_grid(const StoredTensor& t) const;
  Grid stage_grid(const StoredTensor& t) const;
  double golden_margin(int64_t s) const;
  const EvalRecorder* draft_rows(int64_t draft) const {
    return draft < static_cast<int64_t>(run_.draft_rows.size())
               ? run_.draft_rows[static_cast<size_t>(draft)].get()
               : nullptr;
  }
  int64_t draft_position(int64_t draft) const {
    return prompt_.spec.drafts[static_cast<size_t>(draft)].position;
  }
  int64_t row_position(int64_t rows, int64_t row) const { return n_ - rows + row; }
  void find_first_differences();
  void note_difference(int64_t position, int stage);
  bool differs_before(int64_t position, int stage) const;

  const TensorFile& file_;
  const GoldenPrompt& prompt_;
  const SequenceRun& run_;
  const ModelConfig& config_;
  EvalBounds& bounds_;
  EvalReport& report_;
  int64_t n_;
  // Position -> first stage whose list (2 * layer) or route (2 * layer + 1) differs.
  std::map<int64_t, int> first_difference_;
};

}  // namespace tensorfold::ctl
