// The table of rules and what they share. See eval_golden_compare.h.
#include "ctl/eval_golden_compare.h"

#include <algorithm>
#include <charconv>

namespace tensorfold::ctl {

GoldenCompare::GoldenCompare(const TensorFile& file, const GoldenPrompt& prompt,
                             const SequenceRun& run, const ModelConfig& config, EvalBounds& bounds,
                             EvalReport& report)
    : file_(file),
      prompt_(prompt),
      run_(run),
      config_(config),
      bounds_(bounds),
      report_(report),
      n_(static_cast<int64_t>(prompt.spec.prompt.size())) {
  find_first_differences();
}

const GoldenCompare::Rule GoldenCompare::kRules[] = {
    {"prompt", &GoldenCompare::input},
    {"token_types", &GoldenCompare::input},
    {"tokens", &GoldenCompare::tokens},
    {"prefill.X", &GoldenCompare::streams},
    {"prefill.pre", &GoldenCompare::pre},
    {"prefill.attn_y", &GoldenCompare::attn_out},
    {"prefill.ffn_y", &GoldenCompare::ffn_out},
    {"prefill.route_ids", &GoldenCompare::route_ids},
    {"prefill.route_w", &GoldenCompare::route_weights},
    {"prefill.engram_rows", &GoldenCompare::engram_rows},
    {"prefill.engram_gate", &GoldenCompare::engram_gate},
    {"prefill.topk.", &GoldenCompare::topk},
    {"prefill.score.", &GoldenCompare::score},
    {"prefill.cand", &GoldenCompare::candidates},
    {"prefill.taps", &GoldenCompare::taps},
    {"prefill.logits", &GoldenCompare::prefill_logits},
    {"prefill.cache_rows.", &GoldenCompare::input},
    {"prefill.ckv.", &GoldenCompare::entries_main},
    {"prefill.ikey.", &GoldenCompare::entries_key},
    {"prefill.win.", &GoldenCompare::window_latent},
    {"decode.logits", &GoldenCompare::decode_logits},
    {"decode.margin", &GoldenCompare::decode_margin},
    {"decode.topk.", &GoldenCompare::decode_topk},
    {"decode.X", &GoldenCompare::decode_streams},
    {"decode.engram_rows", &GoldenCompare::decode_engram_rows},
    {"draft.pos", &GoldenCompare::input},
    {"draft.in_id", &GoldenCompare::input},
    {"draft.ids", &GoldenCompare::draft_ids},
    {"draft.conf", &GoldenCompare::draft_conf},
    {"draft.logits", &GoldenCompare::draft_logits},
    {"draft.base_logits", &GoldenCompare::draft_base_logits},
    {"draft.x", &GoldenCompare::draft_hidden},
    {"draft.X", &GoldenCompare::draft_streams},
    {"draft.route_ids", &GoldenCompare::draft_routes},
};

void GoldenCompare::compare(const StoredTensor& tensor) {
  const std::string name = quantity(tensor);
  for (const Rule& rule : kRules) {
    int layer = -1;
    if (rule.name.ends_with('.')) {
      if (!name.starts_with(rule.name)) continue;
      const char* begin = name.data() + rule.name.size();
      const char* end = name.data() + name.size();
      const auto parsed = std::from_chars(begin, end, layer);
      if (parsed.ec != std::errc() || parsed.ptr != end) continue;
    } else if (name != rule.name) {
      continue;
    }
    (this->*rule.method)(tensor, layer);
    return;
  }
  Figure f;
  f.prompt = prompt_.name;
  f.quantity = name;
  f.verdict = Verdict::kUnknown;
  f.note = tensor.shape_text();
  report_.add_as_is(std::move(f));
}

Grid GoldenCompare::grid(const StoredTensor& t) const {
  Grid g;
  g.tensor = &t;
  g.prompt = prompt_.name;
  g.quantity = quantity(t);
  return g;
}

// Rank and type of a tensor; a wrong one cannot be compared and says so.
bool GoldenCompare::shaped(const StoredTensor& t, size_t dims, bool is_float) {
  if (t.shape.size() >= dims && (is_float ? t.is_float() : t.is_integer())) return true;
  report_.missing(prompt_.name, quantity(t), -1, "cannot be compared as " + t.shape_text());
  return false;
}

// Bounds are named after the quantity: "X_by_layer", "logits_rel", "engram_rows": "exact".
std::optional<double> GoldenCompare::bound(std::string_view leaf, int layer) {
  const std::string name(leaf);
  if (const auto v = bounds_.by_layer(name + "_by_layer", layer)) return v;
  if (const auto v = bounds_.number(name + "_rel")) return v;
  if (bounds_.is_exact(name)) return 0;
  return bounds_.number(name);
}

// "p7_p31_attn_y_by_layer": for the prompts that it names, and for every other one so short that
// its lists hold everything (nothing can be left out of them, which is why those were named).
std::optional<double> GoldenCompare::attn_bound(int layer) {
  if (const auto v = bound("attn_y", layer)) return v;
  const std::string suffix = "_attn_y_by_layer";
  const std::string key = bounds_.key_ending(suffix);
  if (key.empty()) return std::nullopt;
  const std::string names = "_" + key.substr(0, key.size() - suffix.size()) + "_";
  const bool named = names.find("_" + prompt_.name + "_") != std::string::npos;
  if (!named && n_ > config_.index_topk) return std::nullopt;
  return bounds_.by_layer(key, layer);
}

Grid GoldenCompare::grid2(const StoredTensor& t, int layer) const {
  Grid g = grid(t);
  g.rows = t.dim(0);
  g.width = t.dim(1);
  g.offset = [width = g.width](int64_t, int64_t row) { return row * width; };
  g.layer = [layer](int64_t) { return layer; };
  return g;
}

Grid GoldenCompare::grid3(const StoredTensor& t, std::function<int(int64_t group)> layer) const {
  Grid g = grid(t);
  g.groups = t.dim(0);
  g.rows = t.dim(1);
  g.width = t.count() / std::max<int64_t>(1, g.groups * g.rows);
  g.offset = [rows = g.rows, width = g.width](int64_t group, int64_t row) {
    return (group * rows + row) * width;
  };
  g.layer = std::move(layer);
  return g;
}

// The layer of an Engram table, -1 when the model has no such table.
std::function<int(int64_t)> GoldenCompare::engram_layer() const {
  return [&](int64_t table) {
    const size_t i = static_cast<size_t>(table);
    return i < config_.engram.layers.size() ? config_.engram.layers[i] : -1;
  };
}

// Where each kept prompt row first leaves the recorded lists or routes.
void GoldenCompare::find_first_differences() {
  for (int layer = 0; layer < config_.layers; ++layer) {
    const StoredTensor* lists = file_.find(prompt_.name + ".prefill.topk." + std::to_string(layer));
    for (int64_t row = 0; lists != nullptr && lists->is_integer() && row < lists->dim(0); ++row) {
      const int64_t position = row_position(lists->dim(0), row);
      const auto* ours = run_.rows->i32(Quantity::kTopk, layer, position);
      const bool same =
          ours != nullptr &&
          list_entries(*ours) == list_entries(*lists, row * lists->dim(1), lists->dim(1));
      if (!same) note_difference(position, 2 * layer);
    }
    const StoredTensor* routes = file_.find(prompt_.name + ".prefill.route_ids");
    if (routes == nullptr || !routes->is_integer() || layer >= routes->dim(0)) continue;
    for (int64_t row = 0; row < routes->dim(1); ++row) {
      const int64_t position = row_position(routes->dim(1), row);
      const auto* ours = run_.rows->i32(Quantity::kRouteIds, layer, position);
      const int64_t at = (layer * routes->dim(1) + row) * routes->dim(2);
      const bool same =
          ours != nullptr && list_entries(*ours) == list_entries(*routes, at, routes->dim(2));
      if (!same) note_difference(position, 2 * layer + 1);
    }
  }
}

void GoldenCompare::note_difference(int64_t position, int stage) {
  const auto [it, added] = first_difference_.emplace(position, stage);
  if (!added) it->second = std::min(it->second, stage);
}

bool GoldenCompare::differs_before(int64_t position, int stage) const {
  const auto it = first_difference_.find(position);
  return it != first_difference_.end() && it->second <= stage;
}

void compare_golden(const TensorFile& file, const GoldenPrompt& prompt, const SequenceRun& run,
                    const ModelConfig& config, EvalBounds& bounds, EvalReport& report) {
  GoldenCompare comparison(file, prompt, run, config, bounds, report);
  const std::string prefix = prompt.name + ".";
  for (const StoredTensor& tensor : file.tensors()) {
    if (tensor.name.starts_with(prefix)) comparison.compare(tensor);
  }
}

}  // namespace tensorfold::ctl
