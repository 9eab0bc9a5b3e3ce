// What a verb of `tfctl bench` gives back, and how lists of figures become JSON and text.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/base/json.h"

namespace tensorfold::ctl::bench {

struct Report {
  Json json;                          // every repetition, with the medians
  std::string text;                   // a table
  std::vector<std::string> failures;  // what makes the exit status 1, for a person
};

Json number(double value);  // rounded to 1e-6; not finite: null
Json numbers(std::span<const double> values);
Json median_and_all(const std::vector<double>& values);  // {"median", "all"}

// {"p50", "p99", "max", "count"}
Json spread(const std::vector<double>& values);

std::string fixed(double value, int digits);  // "12.34"; not finite: "-"

// Columns as wide as their widest cell; the first to the left, the others to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tensorfold::ctl::bench
