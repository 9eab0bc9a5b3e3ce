// Prometheus' text format (version 0.0.4): one family after another, each with HELP and TYPE.
//
// A plain text builder; what is measured and under which names is the caller's table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tensorfold::metrics {

enum class Type : unsigned char { kCounter, kGauge, kHistogram };

class Text {
 public:
  // Starts a family; samples follow.
  void family(std::string_view name, Type type, std::string_view help);
  // A sample of it. `suffix` ("_bucket"), `labels` ("le=\"1\"", already escaped) may be empty.
  void sample(double value, std::string_view labels = {}, std::string_view suffix = {});
  void sample(uint64_t value, std::string_view labels = {}, std::string_view suffix = {});
  std::string take() && { return std::move(out_); }

  // name="value" with what must be escaped.
  static std::string label(std::string_view name, std::string_view value);

 private:
  void put(std::string_view value, std::string_view labels, std::string_view suffix);

  std::string out_, name_;
};

}  // namespace tensorfold::metrics
