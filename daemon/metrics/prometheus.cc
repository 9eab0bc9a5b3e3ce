// See the header.
#include "daemon/metrics/prometheus.h"

#include <charconv>
#include <cmath>

namespace tensorfold::metrics {

void Text::family(std::string_view name, Type type, std::string_view help) {
  name_ = name;
  out_.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ").append(name);
  out_ += type == Type::kCounter ? " counter\n"
          : type == Type::kGauge ? " gauge\n"
                                 : " histogram\n";
}

void Text::put(std::string_view value, std::string_view labels, std::string_view suffix) {
  out_.append(name_).append(suffix);
  if (!labels.empty()) out_.append("{").append(labels).append("}");
  out_.append(" ").append(value).append("\n");
}

void Text::sample(double value, std::string_view labels, std::string_view suffix) {
  if (!std::isfinite(value)) return put(std::isnan(value) ? "NaN" : "+Inf", labels, suffix);
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  put(std::string_view(text, static_cast<size_t>(end - text)), labels, suffix);
}

void Text::sample(uint64_t value, std::string_view labels, std::string_view suffix) {
  put(std::to_string(value), labels, suffix);
}

std::string Text::label(std::string_view name, std::string_view value) {
  std::string out(name);
  out += "=\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out += '"';
}

}  // namespace tensorfold::metrics
