// Rules for the tensors of single-row steps, tokens and drafts. See eval_golden_compare.h.
#include <algorithm>
#include <cmath>

#include "ctl/eval_golden_compare.h"

namespace tensorfold::ctl {
namespace {

size_t best_of(std::span<const float> logits) {  // ties to the lower id
  return static_cast<size_t>(
      std::distance(logits.begin(), std::max_element(logits.begin(), logits.end())));
}

// Largest less second largest; infinite for fewer than two values.
double margin_of(std::span<const float> logits) {
  double first = -INFINITY, second = -INFINITY;
  for (const float v : logits) {
    const double value = static_cast<double>(v);
    if (value > first) {
      second = first;
      first = value;
    } else {
      second = std::max(second, value);
    }
  }
  return first - second;
}

std::vector<float> row_of(const StoredTensor& t, int64_t row) {
  std::vector<float> out(static_cast<size_t>(t.dim(1)));
  for (size_t i = 0; i < out.size(); ++i) out[i] = t.f32(row * t.dim(1) + static_cast<int64_t>(i));
  return out;
}

}  // namespace

void GoldenCompare::logits(const StoredTensor& t, std::span<const std::vector<float>> ours) {
  if (!shaped(t, 2, true)) return;
  Grid g = grid2(t, -1);
  g.bound = [&](int64_t) { return bound("logits", -1); };
  compare_f32(
      g,
      [&](int64_t, int64_t row) {
        const size_t i = static_cast<size_t>(row);
        return i < ours.size() ? &ours[i] : nullptr;
      },
      report_, bounds_.number("logits_max_abs"));
}

void GoldenCompare::decode_logits(const StoredTensor& t, int) { logits(t, run_.step_logits); }

// The margin that the file gives for token s, or that its logits give; none: -1.
double GoldenCompare::golden_margin(int64_t s) const {
  const StoredTensor* margin = file_.find(prompt_.name + ".decode.margin");
  if (s > 0 && margin != nullptr && margin->is_float() && s - 1 < margin->count()) {
    return static_cast<double>(margin->f32(s - 1));
  }
  const StoredTensor* logits =
      file_.find(prompt_.name + (s == 0 ? ".prefill.logits" : ".decode.logits"));
  if (logits == nullptr || !logits->is_float() || logits->shape.size() != 2) return -1;
  const int64_t row = s == 0 ? logits->dim(0) - 1 : s - 1;
  return row >= 0 && row < logits->dim(0) ? margin_of(row_of(*logits, row)) : -1;
}

// tokens[0] comes from the prompt's last row, tokens[s + 1] from step s.
void GoldenCompare::tokens(const StoredTensor& t, int) {
  if (!shaped(t, 1, false)) return;
  const std::optional<double> least = bounds_.number("token_margin");
  int64_t differing = 0, over_margin = 0;
  double widest = 0;
  for (int64_t s = 0; s < t.count(); ++s) {
    const size_t step = static_cast<size_t>(s);
    const bool there = s == 0 ? !run_.prompt_logits.empty() : step - 1 < run_.step_logits.size();
    if (!there) {
      report_.missing(prompt_.name, "tokens", -1, "no logits for token " + std::to_string(s));
      return;
    }
    const std::vector<float>& ours =
        s == 0 ? run_.prompt_logits.back() : run_.step_logits[step - 1];
    if (static_cast<int64_t>(best_of(ours)) == t.i64(s)) continue;
    const double margin = golden_margin(s);
    ++differing;
    widest = std::max(widest, margin);
    if (least && (margin < 0 || margin > *least)) ++over_margin;
  }
  Figure f;
  f.prompt = prompt_.name;
  f.quantity = "tokens";
  f.measure = "differing";
  f.value = static_cast<double>(differing);
  f.compared = t.count();
  f.note = "of " + std::to_string(t.count());
  if (differing > 0) f.note += ", widest margin " + std::to_string(widest);
  report_.add(f);
  if (!least) return;
  f.measure = "differing_over_margin";
  f.value = static_cast<double>(over_margin);
  f.bound = 0;
  f.note.clear();
  report_.add(std::move(f));
}

void GoldenCompare::decode_margin(const StoredTensor& t, int) {
  if (!shaped(t, 1, true)) return;
  Grid g = grid(t);
  g.rows = t.count();
  g.offset = [](int64_t, int64_t row) { return row; };
  std::vector<float> one;
  compare_f32(
      g,
      [&](int64_t, int64_t row) -> const std::vector<float>* {
        const size_t i = static_cast<size_t>(row);
        if (i >= run_.step_logits.size()) return nullptr;
        one.assign(1, static_cast<float>(margin_of(run_.step_logits[i])));
        return &one;
      },
      report_);
}

void GoldenCompare::decode_topk(const StoredTensor& t, int layer) {
  if (!shaped(t, 2, false)) return;
  Grid g = grid2(t, layer);
  compare_lists(
      g, [&](int64_t, int64_t row) { return run_.rows->i32(Quantity::kTopk, layer, n_ + row); },
      report_);
}

// [steps, layers, ...]
void GoldenCompare::decode_streams(const StoredTensor& t, int) {
  if (!shaped(t, 3, true)) return;
  Grid g = grid(t);
  g.rows = t.dim(0);
  g.groups = t.dim(1);
  g.width = t.count() / std::max<int64_t>(1, g.groups * g.rows);
  g.offset = [&g](int64_t layer, int64_t row) { return (row * g.groups + layer) * g.width; };
  g.layer = [](int64_t layer) { return static_cast<int>(layer); };
  g.bound = [&](int64_t layer) { return bound("X", static_cast<int>(layer)); };
  compare_f32(
      g,
      [&](int64_t layer, int64_t row) {
        return run_.rows->f32(Quantity::kStreams, static_cast<int>(layer), n_ + row);
      },
      report_);
}

// [steps, tables, columns]
void GoldenCompare::decode_engram_rows(const StoredTensor& t, int) {
  if (!shaped(t, 3, false)) return;
  Grid g = grid(t);
  g.rows = t.dim(0);
  g.groups = t.dim(1);
  g.width = t.dim(2);
  g.offset = [&g](int64_t table, int64_t row) { return (row * g.groups + table) * g.width; };
  g.layer = engram_layer();
  g.bound = [&](int64_t table) { return bound("engram_rows", static_cast<int>(table)); };
  compare_i32(
      g,
      [&](int64_t table, int64_t row) {
        return run_.rows->i32(Quantity::kEngramRows, g.layer(table), n_ + row);
      },
      report_);
}

// [drafts, block, width...]: row d * block + i is drafted row i of draft d.
Grid GoldenCompare::draft_grid(const StoredTensor& t) const {
  Grid g = grid(t);
  g.rows = t.dim(0) * t.dim(1);
  g.width = t.count() / std::max<int64_t>(1, g.rows);
  g.offset = [width = g.width](int64_t, int64_t row) { return row * width; };
  return g;
}

void GoldenCompare::drafts_f32(const StoredTensor& t, Quantity q, bool bounded) {
  if (!shaped(t, 2, true)) return;
  Grid g = draft_grid(t);
  const std::string leaf = g.quantity.substr(g.quantity.find('.') + 1);
  if (bounded) g.bound = [&](int64_t) { return bound(leaf, -1); };
  const int64_t block = t.dim(1);
  compare_f32(
      g,
      [&](int64_t, int64_t row) -> const std::vector<float>* {
        const EvalRecorder* rows = draft_rows(row / block);
        if (rows == nullptr) return nullptr;
        return rows->f32_any(q, draft_position(row / block) + 1 + row % block);
      },
      report_);
}

void GoldenCompare::draft_ids(const StoredTensor& t, int) {
  if (!shaped(t, 2, false)) return;
  Grid g = draft_grid(t);
  g.bound = [&](int64_t) { return bound("draft_ids", -1); };
  const int64_t block = t.dim(1);
  std::vector<int32_t> one;
  compare_i32(
      g,
      [&](int64_t, int64_t row) -> const std::vector<int32_t>* {
        const size_t draft = static_cast<size_t>(row / block), i = static_cast<size_t>(row % block);
        if (draft >= run_.drafts.size() || i >= run_.drafts[draft].tokens.size()) return nullptr;
        one.assign(1, run_.drafts[draft].tokens[i]);
        return &one;
      },
      report_);
}

// [drafts, stages, block, width...]
Grid GoldenCompare::stage_grid(const StoredTensor& t) const {
  Grid g = grid(t);
  const int64_t stages = t.dim(1), block = t.dim(2);
  g.groups = stages;
  g.rows = t.dim(0) * block;
  g.width = t.count() / std::max<int64_t>(1, g.rows * stages);
  g.offset = [stages, block, width = g.width](int64_t stage, int64_t row) {
    return ((row / block * stages + stage) * block + row % block) * width;
  };
  g.layer = [](int64_t stage) { return static_cast<int>(stage); };
  return g;
}

void GoldenCompare::draft_streams(const StoredTensor& t, int) {
  if (!shaped(t, 4, true)) return;
  const Grid g = stage_grid(t);
  const int64_t block = t.dim(2);
  compare_f32(
      g,
      [&](int64_t stage, int64_t row) -> const std::vector<float>* {
        const EvalRecorder* rows = draft_rows(row / block);
        if (rows == nullptr) return nullptr;
        return rows->f32(Quantity::kDraftStreams, static_cast<int>(stage),
                         draft_position(row / block) + 1 + row % block);
      },
      report_);
}

void GoldenCompare::draft_routes(const StoredTensor& t, int) {
  if (!shaped(t, 4, false)) return;
  const Grid g = stage_grid(t);
  const int64_t block = t.dim(2);
  compare_i32(
      g,
      [&](int64_t stage, int64_t row) -> const std::vector<int32_t>* {
        const EvalRecorder* rows = draft_rows(row / block);
        if (rows == nullptr) return nullptr;
        return rows->i32(Quantity::kDraftRouteIds, static_cast<int>(stage),
                         draft_position(row / block) + 1 + row % block);
      },
      report_);
}

void GoldenCompare::input(const StoredTensor& t, int layer) {
  Figure f;
  f.prompt = prompt_.name;
  f.quantity = quantity(t);
  f.layer = layer;
  f.verdict = Verdict::kInput;
  f.note = t.shape_text();
  report_.add_as_is(std::move(f));
}

}  // namespace tensorfold::ctl
