// Verdicts, sums and rendering. See eval_report.h.
#include "ctl/eval_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <ostream>

#include "engine/base/json.h"

namespace tensorfold::ctl {
namespace {

std::string number_text(double value) {
  char text[32];
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (value == std::floor(value) && std::fabs(value) < 1e9) {
    std::snprintf(text, sizeof(text), "%.0f", value);
  } else {
    std::snprintf(text, sizeof(text), "%.3g", value);
  }
  return text;
}

// How near a figure is to its bound: 1 is on it, more is past it.
double load_of(const Figure& f) {
  if (f.verdict == Verdict::kPast || f.verdict == Verdict::kMissing) return 1e300;
  if (!f.bound) return std::isfinite(f.value) ? f.value * 1e-9 : 1e200;
  if (f.at_least) return *f.bound - f.value + 1;
  return *f.bound > 0 ? f.value / *f.bound : f.value;
}

using Cells = std::array<std::string, 7>;

Cells cells_of(const Figure& f) {
  Cells cells;
  cells[0] = f.prompt.empty() ? "-" : f.prompt;
  cells[1] = f.quantity;
  cells[2] = f.layer < 0 ? "" : std::to_string(f.layer);
  cells[3] = f.measure;
  const bool has_value = f.verdict == Verdict::kWithin || f.verdict == Verdict::kPast ||
                         f.verdict == Verdict::kNoBound;
  cells[4] = has_value ? number_text(f.value) : "";
  cells[5] = f.bound ? (f.at_least ? ">=" : "") + number_text(*f.bound) : "";
  cells[6] = verdict_name(f.verdict);
  if (f.exempt > 0) cells[6] += ", " + std::to_string(f.exempt) + " rows exempt";
  if (!f.note.empty()) cells[6] += " (" + f.note + ")";
  return cells;
}

// Neighbours of one quantity, prompt and measure become one line: the worst layer's.
std::vector<Figure> worst_layers(const std::vector<Figure>& figures) {
  std::vector<Figure> out;
  for (const Figure& f : figures) {
    const bool joins = !out.empty() && f.layer >= 0 && out.back().layer >= 0 &&
                       out.back().prompt == f.prompt && out.back().quantity == f.quantity &&
                       out.back().measure == f.measure;
    if (!joins) {
      out.push_back(f);
    } else if (load_of(f) > load_of(out.back())) {
      out.back() = f;
    }
  }
  return out;
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWithin:
      return "within";
    case Verdict::kPast:
      return "PAST";
    case Verdict::kNoBound:
      return "no bound";
    case Verdict::kMissing:
      return "MISSING";
    case Verdict::kInput:
      return "input";
    case Verdict::kUnknown:
      return "no rule";
  }
  return "";
}

void Distance::add(double ours, double theirs) {
  const double d = ours - theirs;
  if (!std::isfinite(d)) finite_ = false;
  difference2_ += d * d;
  reference2_ += theirs * theirs;
  max_abs_ = std::max(max_abs_, std::fabs(d));
  ++count_;
}

void Distance::add(std::span<const float> ours, std::span<const float> theirs) {
  const size_t n = std::min(ours.size(), theirs.size());
  for (size_t i = 0; i < n; ++i) {
    add(static_cast<double>(ours[i]), static_cast<double>(theirs[i]));
  }
}

double Distance::rel() const {
  if (!finite_) return std::numeric_limits<double>::infinity();
  if (difference2_ == 0) return 0;
  if (reference2_ == 0) return std::numeric_limits<double>::infinity();
  return std::sqrt(difference2_ / reference2_);
}

void EvalReport::add(Figure figure) {
  if (!figure.bound) {
    figure.verdict = Verdict::kNoBound;
  } else {
    // Written so that NaN is past every bound.
    const bool within =
        figure.at_least ? figure.value >= *figure.bound : figure.value <= *figure.bound;
    figure.verdict = within ? Verdict::kWithin : Verdict::kPast;
  }
  figures_.push_back(std::move(figure));
}

void EvalReport::missing(std::string prompt, std::string quantity, int layer, std::string note) {
  Figure f;
  f.prompt = std::move(prompt);
  f.quantity = std::move(quantity);
  f.layer = layer;
  f.verdict = Verdict::kMissing;
  f.note = std::move(note);
  figures_.push_back(std::move(f));
}

int64_t EvalReport::count(Verdict verdict) const {
  return std::count_if(figures_.begin(), figures_.end(),
                       [&](const Figure& f) { return f.verdict == verdict; });
}

void EvalReport::print_text(std::ostream& out, bool all_layers) const {
  for (const auto& [key, value] : facts_) out << key << ": " << value << "\n";
  std::vector<Cells> rows = {
      {"prompt", "quantity", "layer", "measure", "value", "bound", "verdict"}};
  for (const Figure& f : all_layers ? figures_ : worst_layers(figures_)) {
    rows.push_back(cells_of(f));
  }
  std::array<size_t, 7> widths{};
  for (const Cells& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  for (const Cells& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string pad(widths[c] - row[c].size(), ' ');
      const bool right = c == 2 || c == 4 || c == 5;
      if (c + 1 == row.size()) {
        out << row[c];
      } else {
        out << (right ? pad + row[c] : row[c] + pad) << "  ";
      }
    }
    out << "\n";
  }
  for (const std::string& text : notes_) out << "note: " << text << "\n";
  out << (passed() ? "passed" : "FAILED") << ": " << count(Verdict::kWithin) << " within, "
      << count(Verdict::kPast) << " past, " << count(Verdict::kMissing) << " missing, "
      << count(Verdict::kNoBound) << " without a bound, " << count(Verdict::kUnknown)
      << " without a rule\n";
}

void EvalReport::print_json(std::ostream& out) const {
  const auto real = [](double v) { return std::isfinite(v) ? Json::real(v) : Json::null(); };
  Json root = Json::object({});
  root.set("schema_version", Json::integer(kEvalSchemaVersion));
  for (const auto& [key, value] : facts_) root.set(key, Json::string(value));
  Json::Array results;
  for (const Figure& f : figures_) {
    Json row = Json::object({});
    row.set("prompt", Json::string(f.prompt));
    row.set("quantity", Json::string(f.quantity));
    row.set("layer", f.layer < 0 ? Json::null() : Json::integer(f.layer));
    row.set("measure", Json::string(f.measure));
    row.set("value", real(f.value));
    row.set("bound", f.bound ? real(*f.bound) : Json::null());
    row.set("bound_is_least", Json::boolean(f.at_least));
    row.set("verdict", Json::string(std::string(verdict_name(f.verdict))));
    row.set("compared", Json::integer(f.compared));
    row.set("exempt", Json::integer(f.exempt));
    row.set("note", Json::string(f.note));
    results.push_back(std::move(row));
  }
  root.set("results", Json::array(std::move(results)));
  Json::Array notes;
  for (const std::string& text : notes_) notes.push_back(Json::string(text));
  root.set("notes", Json::array(std::move(notes)));
  root.set("within", Json::integer(count(Verdict::kWithin)));
  root.set("past", Json::integer(count(Verdict::kPast)));
  root.set("missing", Json::integer(count(Verdict::kMissing)));
  root.set("no_bound", Json::integer(count(Verdict::kNoBound)));
  root.set("no_rule", Json::integer(count(Verdict::kUnknown)));
  root.set("passed", Json::boolean(passed()));
  out << dump_json_compact(root) << "\n";
}

}  // namespace tensorfold::ctl
