// Rules for the tensors of the prompt's rows. See eval_golden_compare.h.
#include <algorithm>

#include "ctl/eval_golden_compare.h"

namespace tensorfold::ctl {

void GoldenCompare::layers_f32(const StoredTensor& t, Quantity q, int sublayer) {
  if (!shaped(t, 3, true)) return;
  Grid g = grid3(t, [](int64_t layer) { return static_cast<int>(layer); });
  const std::string leaf = g.quantity.substr(g.quantity.find('.') + 1);
  g.bound = [&](int64_t layer) {
    const int l = static_cast<int>(layer);
    return q == Quantity::kAttnOut ? attn_bound(l) : bound(leaf, l);
  };
  if (sublayer != 0) {
    g.exempt = [&](int64_t layer, int64_t row) {
      return differs_before(row_position(g.rows, row), 2 * static_cast<int>(layer) + sublayer - 1);
    };
  }
  compare_f32(
      g,
      [&](int64_t layer, int64_t row) {
        return run_.rows->f32(q, static_cast<int>(layer), row_position(g.rows, row));
      },
      report_);
}

void GoldenCompare::route_weights(const StoredTensor& t, int) {
  layers_f32(t, Quantity::kRouteWeights, 2);
}

void GoldenCompare::route_ids(const StoredTensor& t, int) {
  if (!shaped(t, 3, false)) return;
  Grid g = grid3(t, [](int64_t layer) { return static_cast<int>(layer); });
  g.bound = [&](int64_t layer) { return bound("route_ids", static_cast<int>(layer)); };
  compare_i32(
      g,
      [&](int64_t layer, int64_t row) {
        return run_.rows->i32(Quantity::kRouteIds, static_cast<int>(layer),
                              row_position(g.rows, row));
      },
      report_);
}

void GoldenCompare::engram_rows(const StoredTensor& t, int) {
  if (!shaped(t, 3, false)) return;
  Grid g = grid3(t, engram_layer());
  g.bound = [&](int64_t table) { return bound("engram_rows", static_cast<int>(table)); };
  compare_i32(
      g,
      [&](int64_t table, int64_t row) {
        return run_.rows->i32(Quantity::kEngramRows, g.layer(table), row_position(g.rows, row));
      },
      report_);
}

void GoldenCompare::engram_gate(const StoredTensor& t, int) {
  if (!shaped(t, 3, true)) return;
  Grid g = grid3(t, engram_layer());
  g.bound = [&](int64_t table) { return bound("engram_gate", static_cast<int>(table)); };
  compare_f32(
      g,
      [&](int64_t table, int64_t row) {
        return run_.rows->f32(Quantity::kEngramGate, g.layer(table), row_position(g.rows, row));
      },
      report_);
}

void GoldenCompare::topk(const StoredTensor& t, int layer) {
  if (!shaped(t, 2, false)) return;
  Grid g = grid2(t, layer);
  compare_lists(
      g,
      [&](int64_t, int64_t row) {
        return run_.rows->i32(Quantity::kTopk, layer, row_position(g.rows, row));
      },
      report_);
}

void GoldenCompare::score(const StoredTensor& t, int layer) {
  if (!shaped(t, 1, true)) return;
  Grid g = grid(t);
  g.width = t.count();
  g.offset = [](int64_t, int64_t) { return int64_t{0}; };
  g.layer = [layer](int64_t) { return layer; };
  g.bound = [&](int64_t) { return bound("score", layer); };
  compare_f32(
      g, [&](int64_t, int64_t) { return run_.rows->f32(Quantity::kIndexScores, layer, n_ - 1); },
      report_);
}

// One row per entry, so that the figure counts entries.
void GoldenCompare::candidates(const StoredTensor& t, int) {
  if (!shaped(t, 1, false)) return;
  int source = -1;
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (config_.roles[static_cast<size_t>(layer)].builds_candidates) source = layer;
  }
  Grid g = grid(t);
  g.rows = t.count();
  g.offset = [](int64_t, int64_t row) { return row; };
  g.layer = [source](int64_t) { return source; };
  g.bound = [&](int64_t) { return bound("cand", source); };
  const std::vector<int32_t>* all = run_.rows->i32(Quantity::kCandidates, source, n_ - 1);
  std::vector<int32_t> one;
  compare_i32(
      g,
      [&](int64_t, int64_t row) -> const std::vector<int32_t>* {
        if (all == nullptr || static_cast<int64_t>(all->size()) != g.rows) return nullptr;
        one.assign(1, (*all)[static_cast<size_t>(row)]);
        return &one;
      },
      report_);
}

void GoldenCompare::taps(const StoredTensor& t, int) {
  if (!shaped(t, 2, true)) return;
  const std::vector<int>& layers = config_.dspark.target_layers;
  Grid g = grid(t);
  g.groups = std::max<int64_t>(1, static_cast<int64_t>(layers.size()));
  g.rows = t.dim(0);
  g.width = t.dim(1) / g.groups;
  g.offset = [&g](int64_t tap, int64_t row) { return (row * g.groups + tap) * g.width; };
  g.layer = [&](int64_t tap) { return layers.empty() ? -1 : layers[static_cast<size_t>(tap)]; };
  g.bound = [&](int64_t tap) { return bound("taps", static_cast<int>(tap)); };
  compare_f32(
      g,
      [&](int64_t tap, int64_t row) {
        return run_.rows->f32(Quantity::kTap, g.layer(tap), row_position(g.rows, row));
      },
      report_);
}

void GoldenCompare::prefill_logits(const StoredTensor& t, int) { logits(t, run_.prompt_logits); }

void GoldenCompare::entries(const StoredTensor& t, int layer, bool main) {
  if (!shaped(t, 2, true)) return;
  const StoredTensor* rows =
      file_.find(prompt_.name + ".prefill.cache_rows." + std::to_string(layer));
  if (rows == nullptr || rows->count() != t.dim(0)) {
    report_.missing(prompt_.name, quantity(t), layer, "no cache_rows to go with it");
    return;
  }
  Grid g = grid2(t, layer);
  g.bound = [&](int64_t) { return bound(main ? "ckv" : "ikey", layer); };
  compare_f32(
      g,
      [&](int64_t, int64_t row) -> const std::vector<float>* {
        const auto it = run_.entries.find({layer, rows->i64(row)});
        if (it == run_.entries.end()) return nullptr;
        return main ? &it->second.main : &it->second.index_key;
      },
      report_);
}

void GoldenCompare::window_latent(const StoredTensor& t, int layer) {
  if (!shaped(t, 2, true)) return;
  Grid g = grid2(t, layer);
  g.bound = [&](int64_t) { return bound("win", layer); };
  compare_f32(
      g,
      [&](int64_t, int64_t row) {
        return run_.rows->f32(Quantity::kWindowLatent, layer, row_position(g.rows, row));
      },
      report_);
}

}  // namespace tensorfold::ctl
