// An ordered JSON value that loses nothing: member order, integers of any size, the difference
// between 1 and 1.0. Used where JSON itself is content: tool schemas and tool-call arguments that
// go into a prompt byte for byte (docs: the encoder writes what Python's json.dumps would).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold {

inline constexpr int kJsonDepthMax = 256;  // nested arrays and objects

class Json {
 public:
  enum class Kind : unsigned char { kNull, kBool, kInt, kFloat, kString, kArray, kObject };
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  // input order; a repeated key keeps its first place and
                                       // its last value, as Python's dict does

  Json() = default;
  static Json null() { return {}; }
  static Json boolean(bool v);
  static Json integer(int64_t v);
  static Json integer_text(std::string decimal);  // any size; canonical decimal, "-0" becomes "0"
  static Json real(double v);                     // may be infinite or NaN (Python's literals)
  static Json string(std::string v);
  static Json array(Array v);
  static Json object(Object v);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_int() const { return kind_ == Kind::kInt; }
  bool is_number() const { return kind_ == Kind::kInt || kind_ == Kind::kFloat; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }

  bool as_bool() const;                     // kBool only (checked)
  std::optional<int64_t> as_int64() const;  // kInt that fits
  double as_double() const;                 // kInt or kFloat
  const std::string& as_string() const;     // kString only; for kInt the decimal text
  const Array& as_array() const;
  const Object& as_object() const;
  Array& as_array();
  Object& as_object();

  const Json* find(std::string_view key) const;  // object member or nullptr; nullptr if no object
  void set(std::string key, Json value);         // replaces in place or appends

  bool operator==(const Json& other) const;  // exact: order matters, 1 differs from 1.0

 private:
  Kind kind_ = Kind::kNull;
  bool bool_ = false;
  double real_ = 0;
  std::string text_;  // kString: value; kInt: decimal text
  Array array_;
  Object object_;
};

enum class JsonDialect : unsigned char {
  kStrict,  // RFC 8259
  kPython,  // what Python's json.loads takes: also NaN, Infinity, -Infinity
};

// Parses one value with nothing but white space around it. The error names the byte offset.
Result<Json> parse_json(std::string_view text, JsonDialect dialect = JsonDialect::kStrict);

// Python's json.dumps(value, ensure_ascii=False): ", " and ": ", floats as repr.
std::string dump_json_python(const Json& value);

// The same without spaces: for HTTP replies.
std::string dump_json_compact(const Json& value);

// Appends `text` (valid UTF-8) as a JSON string with quotes, escaping only what must be.
void append_json_string(std::string& out, std::string_view text);

}  // namespace tensorfold
