// Exact decimal numbers and the automata of number ranges. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/grammar/dfa.h"

namespace tensorfold::grammar {

inline constexpr int kDecimalDigitsMax = 400;  // places before and after the point

// Value = +- whole.fraction; no leading zeros in whole, no trailing ones in fraction.
struct Decimal {
  bool negative = false;
  std::string whole, fraction;
  bool zero() const { return whole.empty() && fraction.empty(); }
  bool integral() const { return fraction.empty(); }
};

// From a JSON number's text (any exponent); nothing when beyond kDecimalDigitsMax.
std::optional<Decimal> parse_decimal(std::string_view text);
std::optional<Decimal> decimal_of(const Json& number);
int compare(const Decimal& a, const Decimal& b);
// Whether value is a whole multiple of step; nothing when too long to say.
std::optional<bool> is_multiple(const Decimal& value, const Decimal& step);

struct NumberSet {
  std::optional<Decimal> low, high;
  bool low_open = false, high_open = false;  // the bound itself is out
  std::vector<Decimal> multiples;            // a multiple of each
  std::vector<Decimal> excluded;
  bool whole = true;     // numbers without a fractional part belong to it
  bool fraction = true;  // others belong to it
};

// The texts of the set's numbers, one spelling family: no exponent where a bound, a step or an
// excluded value must be kept (a smaller language than JSON's, never a larger one).
Result<DfaPtr> number_dfa(const NumberSet& set);

}  // namespace tensorfold::grammar
