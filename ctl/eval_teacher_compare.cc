// The comparison of the teacher-forced record, tensor by tensor. See eval_teacher.h.
//
// Rules of the bounds file: attention outputs on rows with equal lists, MoE outputs on rows with
// equal routes; in the first layer, whose inputs are given, a row whose attention output has the
// recorded bits must take the recorded routes.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "ctl/eval_compare.h"
#include "ctl/eval_teacher.h"

namespace tensorfold::ctl {
namespace {

class TeacherCompare {
 public:
  TeacherCompare(const TensorFile& file, const TeacherSpec& spec, const SequenceRun& run,
                 const ModelConfig& config, EvalBounds& bounds, EvalReport& report)
      : file_(file),
        spec_(spec),
        run_(run),
        config_(config),
        bounds_(bounds),
        report_(report),
        rows_(file.find("rows")->integers()) {}

  void compare(const StoredTensor& tensor);

 private:
  void generator_ids(const StoredTensor& t);
  void generator_x(const StoredTensor& t);
  void generator_pre(const StoredTensor& t);
  void layers_f32(const StoredTensor& t, Quantity q, std::string_view bound_key);
  void route_ids(const StoredTensor& t);
  void first_routes(const StoredTensor& t);
  void tap(const StoredTensor& t);
  void topk(const StoredTensor& t, int layer);
  void score(const StoredTensor& t, int layer);
  void generator_figure(const StoredTensor& t, double worst);
  bool shaped(const StoredTensor& t, size_t dims, bool is_float);
  bool has_rows(const StoredTensor& t, size_t axis);
  Grid grid(const StoredTensor& t) const;
  Grid layer_grid(const StoredTensor& t) const;
  bool same_list(int layer, int64_t row) const;
  bool same_routes(int layer, int64_t row) const;
  std::optional<double> lists_bound(int64_t lists);
  int64_t position(int64_t row) const { return rows_[static_cast<size_t>(row)]; }

  const TensorFile& file_;
  const TeacherSpec& spec_;
  const SequenceRun& run_;
  const ModelConfig& config_;
  EvalBounds& bounds_;
  EvalReport& report_;
  std::vector<int64_t> rows_;
};

// The layer number after "prefix.NAME."; -1 when the rest is no number.
int layer_of(std::string_view rest, std::string_view name) {
  if (!rest.starts_with(name)) return -1;
  int layer = -1;
  const char* begin = rest.data() + name.size();
  const char* end = rest.data() + rest.size();
  const auto parsed = std::from_chars(begin, end, layer);
  return parsed.ec == std::errc() && parsed.ptr == end && layer >= 0 ? layer : -1;
}

void TeacherCompare::compare(const StoredTensor& t) {
  if (t.name == "ids") return generator_ids(t);
  if (t.name == "X_in_check") return generator_x(t);
  if (t.name == "pre_in_check") return generator_pre(t);
  Figure f;
  f.quantity = t.name;
  f.note = t.shape_text();
  if (t.name == "rows") {
    f.verdict = Verdict::kInput;
    return report_.add_as_is(std::move(f));
  }
  f.verdict = Verdict::kUnknown;
  if (!t.name.starts_with(spec_.prefix)) {
    if (t.name.find('.') != std::string::npos) f.note += ", of other weights";
    return report_.add_as_is(std::move(f));
  }
  const std::string_view rest = std::string_view(t.name).substr(spec_.prefix.size());
  if (rest == "X_out") return layers_f32(t, Quantity::kStreams, "X_out");
  if (rest == "pre_out") return layers_f32(t, Quantity::kPre, "pre_out");
  if (rest == "attn_y") return layers_f32(t, Quantity::kAttnOut, "attn_y_rows_equal_lists");
  if (rest == "ffn_y") return layers_f32(t, Quantity::kFfnOut, "ffn_y_rows_equal_routes");
  if (rest == "route_ids") return route_ids(t);
  if (rest == "tap") return tap(t);
  if (const int layer = layer_of(rest, "topk."); layer >= 0) return topk(t, layer);
  if (const int layer = layer_of(rest, "score_prefill_last."); layer >= 0) return score(t, layer);
  report_.add_as_is(std::move(f));
}

bool TeacherCompare::shaped(const StoredTensor& t, size_t dims, bool is_float) {
  const bool fits = t.shape.size() == dims && (is_float ? t.is_float() : t.is_integer());
  if (!fits) report_.missing("", t.name, -1, "cannot be compared as " + t.shape_text());
  return fits;
}

bool TeacherCompare::has_rows(const StoredTensor& t, size_t axis) {
  if (t.dim(axis) == static_cast<int64_t>(rows_.size())) return true;
  report_.missing("", t.name, -1,
                  t.shape_text() + " does not have the " + std::to_string(rows_.size()) + " rows");
  return false;
}

// The generator must give the file's own check rows exactly.
void TeacherCompare::generator_figure(const StoredTensor& t, double worst) {
  Figure f;
  f.quantity = t.name;
  f.measure = "generator_max_abs";
  f.value = worst;
  f.bound = 0;
  f.compared = t.count();
  report_.add(std::move(f));
}

void TeacherCompare::generator_ids(const StoredTensor& t) {
  double worst = 0;
  for (int64_t i = 0; i < t.count(); ++i) {
    worst = std::max(worst, std::fabs(static_cast<double>(t.i64(i) - spec_.inputs.id(i))));
  }
  generator_figure(t, worst);
}

void TeacherCompare::generator_x(const StoredTensor& t) {
  if (!shaped(t, 4, true)) return;
  double worst = 0;
  int64_t at = 0;
  for (int layer = 0; layer < t.dim(0); ++layer) {
    for (int64_t row = 0; row < t.dim(1); ++row) {
      for (int c = 0; c < t.dim(2); ++c) {
        for (int i = 0; i < t.dim(3); ++i, ++at) {
          const float d = t.f32(at) - spec_.inputs.x(layer, row, c, i);
          worst = std::max(worst, std::fabs(static_cast<double>(d)));
        }
      }
    }
  }
  generator_figure(t, worst);
}

void TeacherCompare::generator_pre(const StoredTensor& t) {
  if (!shaped(t, 3, true)) return;
  double worst = 0;
  int64_t at = 0;
  for (int layer = 0; layer < t.dim(0); ++layer) {
    for (int64_t row = 0; row < t.dim(1); ++row) {
      for (int c = 0; c < t.dim(2); ++c, ++at) {
        const float d = t.f32(at) - spec_.inputs.pre(layer, row, c);
        worst = std::max(worst, std::fabs(static_cast<double>(d)));
      }
    }
  }
  generator_figure(t, worst);
}

Grid TeacherCompare::grid(const StoredTensor& t) const {
  Grid g;
  g.tensor = &t;
  g.quantity = t.name;
  return g;
}

// [layers, rows, width...]
Grid TeacherCompare::layer_grid(const StoredTensor& t) const {
  Grid g = grid(t);
  g.groups = t.dim(0);
  g.rows = t.dim(1);
  g.width = t.count() / std::max<int64_t>(1, g.groups * g.rows);
  g.offset = [rows = g.rows, width = g.width](int64_t layer, int64_t row) {
    return (layer * rows + row) * width;
  };
  g.layer = [](int64_t layer) { return static_cast<int>(layer); };
  return g;
}

bool TeacherCompare::same_list(int layer, int64_t row) const {
  const int source =
      layer < config_.layers ? config_.roles[static_cast<size_t>(layer)].index_source : -1;
  if (source < 0) return true;
  const StoredTensor* t = file_.find(spec_.prefix + "topk." + std::to_string(source));
  if (t == nullptr || !t->is_integer() || t->shape.size() != 2 || row >= t->dim(0)) return true;
  const auto* ours = run_.rows->i32(Quantity::kTopk, source, position(row));
  return ours != nullptr && list_entries(*ours) == list_entries(*t, row * t->dim(1), t->dim(1));
}

bool TeacherCompare::same_routes(int layer, int64_t row) const {
  const StoredTensor* t = file_.find(spec_.prefix + "route_ids");
  if (t == nullptr || !t->is_integer() || t->shape.size() != 3) return true;
  const auto* ours = run_.rows->i32(Quantity::kRouteIds, layer, position(row));
  const int64_t at = (layer * t->dim(1) + row) * t->dim(2);
  return ours != nullptr && list_entries(*ours) == list_entries(*t, at, t->dim(2));
}

void TeacherCompare::layers_f32(const StoredTensor& t, Quantity q, std::string_view bound_key) {
  if (!shaped(t, t.shape.size() == 4 ? 4 : 3, true) || !has_rows(t, 1)) return;
  Grid g = layer_grid(t);
  g.bound = [&](int64_t layer) { return bounds_.by_layer(bound_key, static_cast<int>(layer)); };
  if (q == Quantity::kAttnOut) {
    g.exempt = [&](int64_t layer, int64_t row) { return !same_list(static_cast<int>(layer), row); };
  } else if (q == Quantity::kFfnOut) {
    g.exempt = [&](int64_t layer, int64_t row) {
      return !same_routes(static_cast<int>(layer), row);
    };
  }
  compare_f32(
      g,
      [&](int64_t layer, int64_t row) {
        return run_.rows->f32(q, static_cast<int>(layer), position(row));
      },
      report_);
}

void TeacherCompare::route_ids(const StoredTensor& t) {
  if (!shaped(t, 3, false) || !has_rows(t, 1)) return;
  compare_i32(
      layer_grid(t),
      [&](int64_t layer, int64_t row) {
        return run_.rows->i32(Quantity::kRouteIds, static_cast<int>(layer), position(row));
      },
      report_);
  first_routes(t);
}

void TeacherCompare::first_routes(const StoredTensor& t) {
  const StoredTensor* attn = file_.find(spec_.prefix + "attn_y");
  if (attn == nullptr || !attn->is_float() || attn->shape.size() != 3) return;
  Figure f;
  f.quantity = t.name;
  f.layer = 0;
  f.measure = "differing_of_exact";
  f.bound = 0;
  for (int64_t row = 0; row < t.dim(1); ++row) {
    const auto* ours = run_.rows->f32(Quantity::kAttnOut, 0, position(row));
    bool exact = ours != nullptr && static_cast<int64_t>(ours->size()) == attn->dim(2);
    for (int64_t i = 0; exact && i < attn->dim(2); ++i) {
      exact = (*ours)[static_cast<size_t>(i)] == attn->f32(row * attn->dim(2) + i);
    }
    if (!exact) {
      ++f.exempt;
      continue;
    }
    ++f.compared;
    if (!same_routes(0, row)) f.value += 1;
  }
  report_.add(std::move(f));
}

void TeacherCompare::tap(const StoredTensor& t) {
  const std::vector<int>& layers = config_.dspark.target_layers;
  if (!shaped(t, 3, true) || !has_rows(t, 1)) return;
  Grid g = layer_grid(t);
  g.layer = [&](int64_t i) {
    return i < static_cast<int64_t>(layers.size()) ? layers[static_cast<size_t>(i)] : -1;
  };
  g.bound = [&](int64_t i) { return bounds_.by_layer("tap", static_cast<int>(i)); };
  compare_f32(
      g,
      [&](int64_t i, int64_t row) {
        return run_.rows->f32(Quantity::kTap, g.layer(i), position(row));
      },
      report_);
}

// "topk_lists_differing_max_of_20": 3 lists of 20, in that proportion for other counts.
std::optional<double> TeacherCompare::lists_bound(int64_t lists) {
  const std::string_view prefix = "topk_lists_differing_max_of_";
  const std::string key = bounds_.key_starting(prefix);
  if (key.empty()) return std::nullopt;
  int64_t of = 0;
  const char* end = key.data() + key.size();
  const auto parsed = std::from_chars(key.data() + prefix.size(), end, of);
  const std::optional<double> most = bounds_.number(key);
  if (parsed.ec != std::errc() || parsed.ptr != end || of <= 0 || !most) return std::nullopt;
  return std::floor(*most * static_cast<double>(lists) / static_cast<double>(of));
}

void TeacherCompare::topk(const StoredTensor& t, int layer) {
  if (!shaped(t, 2, false) || !has_rows(t, 0)) return;
  Grid g = grid(t);
  g.rows = t.dim(0);
  g.width = t.dim(1);
  g.offset = [width = g.width](int64_t, int64_t row) { return row * width; };
  g.layer = [layer](int64_t) { return layer; };
  g.bound = [&](int64_t) { return lists_bound(g.rows); };
  compare_lists(
      g,
      [&](int64_t, int64_t row) { return run_.rows->i32(Quantity::kTopk, layer, position(row)); },
      report_, bounds_.number("topk_overlap_min"));
}

void TeacherCompare::score(const StoredTensor& t, int layer) {
  if (!shaped(t, 1, true)) return;
  const int64_t last = static_cast<int64_t>(spec_.sequence.prompt.size()) - 1;
  Grid g = grid(t);
  g.width = t.count();
  g.offset = [](int64_t, int64_t) { return int64_t{0}; };
  g.layer = [layer](int64_t) { return layer; };
  compare_f32(
      g, [&](int64_t, int64_t) { return run_.rows->f32(Quantity::kIndexScores, layer, last); },
      report_);
}

}  // namespace

void compare_teacher(const TensorFile& file, const TeacherSpec& spec, const SequenceRun& run,
                     const ModelConfig& config, EvalBounds& bounds, EvalReport& report) {
  TeacherCompare comparison(file, spec, run, config, bounds, report);
  for (const StoredTensor& tensor : file.tensors()) comparison.compare(tensor);
}

}  // namespace tensorfold::ctl
