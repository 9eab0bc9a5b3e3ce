#include "daemon/api/effort.h"

#include <charconv>
#include <sstream>

namespace tensorfold::api {

Result<EffortTable> EffortTable::parse(const std::string& text) {
  EffortTable table;
  if (text.empty() || text == "deepseek") return table;
  if (text == "tiers") {
    table.values_ = {25, 25, 50, 50, 75, 100, 100};
    return table;
  }
  std::istringstream words(text);
  std::string word;
  while (words >> word) {
    const size_t eq = word.find('=');
    const std::string_view name = std::string_view(word).substr(0, eq);
    size_t index = 0;
    while (index < kNames.size() && kNames[index] != name) ++index;
    int value = 0;
    const char* end = word.data() + word.size();
    const bool number =
        eq != std::string::npos && std::from_chars(word.data() + eq + 1, end, value).ptr == end;
    if (index == kNames.size() || !number || value < 1 || value > 100) {
      return invalid_argument("text.effort_table: '" + word +
                              "' is not NAME=1..100 with a name of " + names());
    }
    table.values_[index] = value;
  }
  return table;
}

std::optional<int> EffortTable::find(std::string_view name) const {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return values_[i];
  return std::nullopt;
}

std::string EffortTable::names() {
  std::string out;
  for (const std::string_view name : kNames) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

}  // namespace tensorfold::api
