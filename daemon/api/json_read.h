// Typed reads of JSON members. Each failure is a 400 whose message and param name the field by its
// path, e.g. "messages[2].content[0].text".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace tensorfold::api {

std::string_view kind_word(const Json& value);  // "a string", "null", ...
Status wrong_kind(const std::string& path, std::string_view wanted, const Json& value);

Result<std::string> read_string(const Json& value, const std::string& path);
Result<bool> read_bool(const Json& value, const std::string& path);
// Inclusive bounds.
Result<int64_t> read_int(const Json& value, const std::string& path, int64_t least, int64_t most);
Result<double> read_number(const Json& value, const std::string& path, double least, double most);

std::string item_path(const std::string& path, size_t index);  // "path[3]"

}  // namespace tensorfold::api
