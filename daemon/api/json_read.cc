#include "daemon/api/json_read.h"

#include <cmath>
#include <cstdio>

namespace tensorfold::api {
namespace {

std::string number_text(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

}  // namespace

std::string_view kind_word(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::kNull:
      return "null";
    case Json::Kind::kBool:
      return "a boolean";
    case Json::Kind::kInt:
      return "an integer";
    case Json::Kind::kFloat:
      return "a number";
    case Json::Kind::kString:
      return "a string";
    case Json::Kind::kArray:
      return "a list";
    case Json::Kind::kObject:
      return "an object";
  }
  return "something else";
}

Status wrong_kind(const std::string& path, std::string_view wanted, const Json& value) {
  return invalid_argument(
      path + " must be " + std::string(wanted) + ", not " + std::string(kind_word(value)), path);
}

Result<std::string> read_string(const Json& value, const std::string& path) {
  if (!value.is_string()) return wrong_kind(path, "a string", value);
  return value.as_string();
}

Result<bool> read_bool(const Json& value, const std::string& path) {
  if (!value.is_bool()) return wrong_kind(path, "true or false", value);
  return value.as_bool();
}

Result<int64_t> read_int(const Json& value, const std::string& path, int64_t least, int64_t most) {
  if (!value.is_int()) return wrong_kind(path, "an integer", value);
  const auto number = value.as_int64();
  if (!number || *number < least || *number > most) {
    const std::string& text = value.as_string();
    return invalid_argument(path + " must be " + std::to_string(least) + ".." +
                                std::to_string(most) + ", not " + text.substr(0, 32),
                            path);
  }
  return *number;
}

Result<double> read_number(const Json& value, const std::string& path, double least, double most) {
  if (!value.is_number()) return wrong_kind(path, "a number", value);
  const double number = value.as_double();
  if (!(number >= least && number <= most)) {
    return invalid_argument(path + " must be " + number_text(least) + ".." + number_text(most) +
                                ", not " + number_text(number),
                            path);
  }
  return number;
}

std::string item_path(const std::string& path, size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

}  // namespace tensorfold::api
