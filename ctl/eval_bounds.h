// EvalBounds: the bounds file of `tfctl model eval`. One section per kind of weights
// ("mini_bf16", "mini_native"), with the parts "golden" and "teacher_forced", and one "units".
//
// A bound is asked for by name; names that nothing asked for are listed, so that a bounds file
// with a new name is never passed over in silence.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace tensorfold::ctl {

inline constexpr int64_t kEvalBoundsBytesMax = int64_t{1} << 20;

class EvalBounds {
 public:
  EvalBounds() = default;  // no bounds: everything is reported without a verdict
  static Result<EvalBounds> read(const std::string& path);

  // Section names, less "units" and "readme".
  std::vector<std::string> sections() const;
  // Later questions are about this part of this section. An error when the section is not there.
  Status choose(std::string_view section, std::string_view part);
  void choose_units();

  std::optional<double> number(std::string_view key);
  std::optional<double> by_layer(std::string_view key, int layer);  // element `layer` of a list
  bool has_text(std::string_view key, std::string_view text);
  bool is_exact(std::string_view key) { return has_text(key, "exact"); }
  // The first key that ends (starts) so, or empty; it still has to be asked for.
  std::string key_ending(std::string_view suffix) const;
  std::string key_starting(std::string_view prefix) const;
  // Keys of the chosen part that nothing asked for.
  std::vector<std::string> unused() const;

 private:
  const Json* get(std::string_view key);

  Json root_;
  Json part_;
  std::string path_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace tensorfold::ctl
