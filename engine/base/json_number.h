// Decimal text to double, shared by the JSON value and its parser.
#pragma once

#include <string_view>

namespace tensorfold {

// The nearest double of a decimal number in JSON's grammar. Too large gives an infinity, too small
// a zero, with the number's sign (as Python reads 1e400 and 1e-400).
double decimal_to_double(std::string_view text);

}  // namespace tensorfold
