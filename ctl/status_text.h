// The document of GET /status as text: lines for a person, or one line.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/json.h"

namespace tensorfold::ctl {

using StatusLines = std::vector<std::pair<std::string, std::string>>;

StatusLines status_lines(const Json& document);
// "slots:    1 of 4 busy"
std::string status_line(const std::string& name, const std::string& value);
// "ready, 1 running, 0 waiting, 41.2 tok/s, cache 3%"
std::string status_summary(const Json& document);

// A string of the document, "" when it is not there; `outer` "" is the top level.
std::string status_text_at(const Json& document, std::string_view outer, std::string_view inner);
// The same of a number, 0 when it is not there.
double status_number_at(const Json& document, std::string_view outer, std::string_view inner);
// "loading (3 of 9)": a state and, where it says more, its detail.
std::string state_with_detail(const std::string& state, const std::string& detail,
                              const char* before, const char* after);

}  // namespace tensorfold::ctl
