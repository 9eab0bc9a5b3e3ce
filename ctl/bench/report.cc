#include "ctl/bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "ctl/bench/figures.h"

namespace tensorfold::ctl::bench {

Json number(double value) {
  return std::isfinite(value) ? Json::real(std::round(value * 1e6) / 1e6) : Json::null();
}

Json numbers(std::span<const double> values) {
  Json::Array list;
  for (const double value : values) list.push_back(number(value));
  return Json::array(std::move(list));
}

Json median_and_all(const std::vector<double>& values) {
  return Json::object({{"median", number(median(values))}, {"all", numbers(values)}});
}

Json spread(const std::vector<double>& values) {
  return Json::object({{"p50", number(percentile(values, 0.5))},
                       {"p99", number(percentile(values, 0.99))},
                       {"max", number(percentile(values, 1.0))},
                       {"count", Json::integer(static_cast<int64_t>(values.size()))}});
}

std::string fixed(double value, int digits) {
  if (!std::isfinite(value)) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string Table::text() const {
  std::vector<size_t> width;
  for (const auto& row : rows_) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(width[i] - row[i].size(), ' ');
      line += (i == 0 ? "" : "  ") + (i == 0 ? row[i] + pad : pad + row[i]);
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
  }
  return out;
}

}  // namespace tensorfold::ctl::bench
