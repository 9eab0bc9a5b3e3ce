// Named reasoning efforts -> the number 1..100 that the prompt states.
//
// "deepseek": the official encoder's low 50, high 75, max 100, with the service's mapping of the
// other names (minimal -> low, medium and xhigh -> high, ultra -> max).
// "tiers": low 25, medium and high 50, xhigh 75, max 100, as some engines serve it.
// A list "low=30 medium=60 max=100" changes single names of the first table.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace tensorfold::api {

inline constexpr int kEffortDefault = 75;

class EffortTable {
 public:
  static Result<EffortTable> parse(const std::string& text);
  // Nothing for a name that is not an effort ("none" included: that is not an effort).
  std::optional<int> find(std::string_view name) const;
  static std::string names();  // "minimal, low, ..."

 private:
  static constexpr std::array<std::string_view, 7> kNames = {"minimal", "low", "medium", "high",
                                                             "xhigh",   "max", "ultra"};
  std::array<int, 7> values_ = {50, 50, 75, 75, 75, 100, 100};
};

}  // namespace tensorfold::api
