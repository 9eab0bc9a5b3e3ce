// Values of options, read with a complaint that names the option.
#pragma once

#include <cstdint>
#include <string_view>

#include "ctl/verb.h"

namespace tensorfold::ctl {

// A whole number in low..high. Leaves `value` alone when the option is not there; false after the
// complaint was written.
bool whole_option(const Invocation& call, std::string_view name, int low, int high, int& value);

// Bytes, as "20M" or "1.5G" (powers of 1000).
bool size_option(const Invocation& call, std::string_view name, int64_t& value);

}  // namespace tensorfold::ctl
