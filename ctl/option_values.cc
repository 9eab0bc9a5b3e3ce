#include "ctl/option_values.h"

#include <ostream>
#include <string>

#include "ctl/model/progress.h"

namespace tensorfold::ctl {

bool whole_option(const Invocation& call, std::string_view name, int low, int high, int& value) {
  if (!call.has(name)) return true;
  constexpr size_t kDigitsMax = 6;
  const std::string text = call.get(name);
  const bool digits = !text.empty() && text.size() <= kDigitsMax &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  value = digits ? std::stoi(text) : low - 1;
  if (value >= low && value <= high) return true;
  *call.err << "tfctl: " << name << " must be a whole number in " << low << ".." << high << "\n";
  return false;
}

bool size_option(const Invocation& call, std::string_view name, int64_t& value) {
  if (!call.has(name) || models::parse_size(call.get(name), value)) return true;
  *call.err << "tfctl: " << name << " needs a size such as 20M or 1.5G, not '" << call.get(name)
            << "'\n";
  return false;
}

}  // namespace tensorfold::ctl
