// EvalReport: the figures of one `tfctl model eval`, in the order in which they were made, and
// their two renderings. Knows nothing of models: a figure is a name, a number and a bound.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tensorfold::ctl {

inline constexpr int kEvalSchemaVersion = 1;

enum class Verdict : unsigned char {
  kWithin,   // compared, within its bound
  kPast,     // compared, past its bound
  kNoBound,  // compared, the bounds file names none
  kMissing,  // stored in the file, but the model gave nothing to compare: a failure
  kInput,    // drives the run (a prompt); nothing to compare
  kUnknown,  // stored in the file under a name that no rule covers
};
std::string_view verdict_name(Verdict verdict);  // "within", "past", ...

struct Figure {
  std::string prompt;    // or empty
  std::string quantity;  // name in the file, less the prompt
  int layer = -1;        // -1: not by layer
  std::string measure;   // "rel", "max_abs", "differing", "overlap_min"
  double value = 0;
  std::optional<double> bound;
  bool at_least = false;  // the bound is the least allowed value
  Verdict verdict = Verdict::kNoBound;
  int64_t compared = 0;  // rows or values behind the figure
  int64_t exempt = 0;    // rows left out by a rule of the bounds file
  std::string note;
};

// Sums for ||ours - theirs|| / ||theirs||, in double.
class Distance {
 public:
  void add(double ours, double theirs);
  void add(std::span<const float> ours, std::span<const float> theirs);
  double rel() const;  // 0/0 is 0; NaN or infinity anywhere gives infinity
  double max_abs() const { return max_abs_; }
  int64_t count() const { return count_; }

 private:
  double difference2_ = 0, reference2_ = 0, max_abs_ = 0;
  int64_t count_ = 0;
  bool finite_ = true;
};

class EvalReport {
 public:
  // Settles the verdict of a compared figure from value and bound, and keeps it.
  void add(Figure figure);
  // Keeps it as it is (missing, input, unknown).
  void add_as_is(Figure figure) { figures_.push_back(std::move(figure)); }
  void missing(std::string prompt, std::string quantity, int layer, std::string note);
  void note(std::string text) { notes_.push_back(std::move(text)); }
  void fact(std::string key, std::string value) {  // of the run: model, file, section, ...
    facts_.emplace_back(std::move(key), std::move(value));
  }

  const std::vector<Figure>& figures() const { return figures_; }
  int64_t count(Verdict verdict) const;
  bool passed() const { return count(Verdict::kPast) == 0 && count(Verdict::kMissing) == 0; }

  // One line per quantity and prompt, the worst layer; every layer with `all_layers`.
  void print_text(std::ostream& out, bool all_layers) const;
  void print_json(std::ostream& out) const;

 private:
  std::vector<Figure> figures_;
  std::vector<std::string> notes_;
  std::vector<std::pair<std::string, std::string>> facts_;
};

}  // namespace tensorfold::ctl
