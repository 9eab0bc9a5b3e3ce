// The ordered JSON value and its writers. The parser is json_parse.cc.
#include "engine/base/json.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string>

#include "engine/base/check.h"
#include "engine/base/json_number.h"

namespace tensorfold {
namespace {

constexpr int kExponentFixedMin = -4;  // repr writes 0.0001 but 1e-05
constexpr int kExponentFixedMax = 16;  // and 1000000000000000.0 but 1e+16

bool is_decimal(std::string_view text) {
  if (!text.empty() && text.front() == '-') text.remove_prefix(1);
  if (text.empty()) return false;
  return text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string canonical_decimal(std::string_view text) {
  const bool negative = text.front() == '-';
  if (negative) text.remove_prefix(1);
  const size_t first = text.find_first_not_of('0');
  if (first == std::string_view::npos) return "0";
  return (negative ? "-" : "") + std::string(text.substr(first));
}

// What Python's float.__repr__ writes: the shortest digits that read back, fixed notation for
// decimal exponents in [-4, 16), a two-digit exponent otherwise.
void append_python_float(std::string& out, double v) {
  if (std::isnan(v)) {
    out += "NaN";
    return;
  }
  if (std::signbit(v)) out += '-';
  if (std::isinf(v)) {
    out += "Infinity";
    return;
  }
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::fabs(v),
                                 std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<size_t>(end.ptr - buffer.data()));
  const size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 1) digits += text.substr(2, e - 2);
  int exponent = 0;
  const size_t sign = text[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(text.data() + sign, text.data() + text.size(), exponent);
  if (exponent < kExponentFixedMin || exponent >= kExponentFixedMax) {
    out += digits[0];
    if (digits.size() > 1) out.append(".").append(digits, 1);
    out += exponent < 0 ? "e-" : "e+";
    const std::string magnitude = std::to_string(std::abs(exponent));
    if (magnitude.size() < 2) out += '0';
    out += magnitude;
  } else if (exponent < 0) {
    out.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
  } else {
    const auto whole = static_cast<size_t>(exponent) + 1;
    if (digits.size() < whole) digits.append(whole - digits.size(), '0');
    out.append(digits, 0, whole).append(".");
    out.append(digits.size() > whole ? digits.substr(whole) : "0");
  }
}

struct Style {
  std::string_view comma, colon;
  bool python;  // false: NaN and infinities, which JSON cannot hold, become null
};

void dump(std::string& out, const Json& value, const Style& style) {
  switch (value.kind()) {
    case Json::Kind::kNull:
      out += "null";
      return;
    case Json::Kind::kBool:
      out += value.as_bool() ? "true" : "false";
      return;
    case Json::Kind::kInt:
      out += value.as_string();
      return;
    case Json::Kind::kFloat:
      if (style.python || std::isfinite(value.as_double())) {
        append_python_float(out, value.as_double());
      } else {
        out += "null";
      }
      return;
    case Json::Kind::kString:
      append_json_string(out, value.as_string());
      return;
    case Json::Kind::kArray: {
      out += '[';
      bool first = true;
      for (const Json& item : value.as_array()) {
        if (!first) out += style.comma;
        first = false;
        dump(out, item, style);
      }
      out += ']';
      return;
    }
    case Json::Kind::kObject: {
      out += '{';
      bool first = true;
      for (const Json::Member& member : value.as_object()) {
        if (!first) out += style.comma;
        first = false;
        append_json_string(out, member.first);
        out += style.colon;
        dump(out, member.second, style);
      }
      out += '}';
      return;
    }
  }
}

}  // namespace

Json Json::boolean(bool v) {
  Json j;
  j.kind_ = Kind::kBool;
  j.bool_ = v;
  return j;
}

Json Json::integer(int64_t v) {
  Json j;
  j.kind_ = Kind::kInt;
  j.text_ = std::to_string(v);
  return j;
}

Json Json::integer_text(std::string decimal) {
  TF_CHECK(is_decimal(decimal));
  Json j;
  j.kind_ = Kind::kInt;
  j.text_ = canonical_decimal(decimal);
  return j;
}

Json Json::real(double v) {
  Json j;
  j.kind_ = Kind::kFloat;
  j.real_ = v;
  return j;
}

Json Json::string(std::string v) {
  Json j;
  j.kind_ = Kind::kString;
  j.text_ = std::move(v);
  return j;
}

Json Json::array(Array v) {
  Json j;
  j.kind_ = Kind::kArray;
  j.array_ = std::move(v);
  return j;
}

Json Json::object(Object v) {
  Json j;
  j.kind_ = Kind::kObject;
  j.object_ = std::move(v);
  return j;
}

bool Json::as_bool() const {
  TF_CHECK(kind_ == Kind::kBool);
  return bool_;
}

std::optional<int64_t> Json::as_int64() const {
  if (kind_ != Kind::kInt) return std::nullopt;
  int64_t v = 0;
  const char* end = text_.data() + text_.size();
  const auto r = std::from_chars(text_.data(), end, v);
  if (r.ec != std::errc() || r.ptr != end) return std::nullopt;
  return v;
}

double Json::as_double() const {
  TF_CHECK(is_number());
  return kind_ == Kind::kFloat ? real_ : decimal_to_double(text_);
}

const std::string& Json::as_string() const {
  TF_CHECK(kind_ == Kind::kString || kind_ == Kind::kInt);
  return text_;
}

const Json::Array& Json::as_array() const {
  TF_CHECK(kind_ == Kind::kArray);
  return array_;
}

const Json::Object& Json::as_object() const {
  TF_CHECK(kind_ == Kind::kObject);
  return object_;
}

Json::Array& Json::as_array() {
  TF_CHECK(kind_ == Kind::kArray);
  return array_;
}

Json::Object& Json::as_object() {
  TF_CHECK(kind_ == Kind::kObject);
  return object_;
}

const Json* Json::find(std::string_view key) const {
  if (kind_ != Kind::kObject) return nullptr;
  for (const Member& member : object_) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

void Json::set(std::string key, Json value) {
  TF_CHECK(kind_ == Kind::kObject);
  for (Member& member : object_) {
    if (member.first == key) {
      member.second = std::move(value);
      return;
    }
  }
  object_.emplace_back(std::move(key), std::move(value));
}

bool Json::operator==(const Json& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kNull:
      return true;
    case Kind::kBool:
      return bool_ == other.bool_;
    case Kind::kInt:
    case Kind::kString:
      return text_ == other.text_;
    case Kind::kFloat:
      if (std::isnan(real_) || std::isnan(other.real_)) {
        return std::isnan(real_) && std::isnan(other.real_);
      }
      return real_ == other.real_ && std::signbit(real_) == std::signbit(other.real_);
    case Kind::kArray:
      return array_ == other.array_;
    case Kind::kObject:
      return object_ == other.object_;
  }
  return false;
}

std::string dump_json_python(const Json& value) {
  std::string out;
  dump(out, value, {", ", ": ", true});
  return out;
}

std::string dump_json_compact(const Json& value) {
  std::string out;
  dump(out, value, {",", ":", false});
  return out;
}

void append_json_string(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  size_t plain = 0;  // from here to `i` nothing needs an escape
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(text, plain, i - plain);
    plain = i + 1;
    out += '\\';
    switch (byte) {
      case '\b':
        out += 'b';
        break;
      case '\f':
        out += 'f';
        break;
      case '\n':
        out += 'n';
        break;
      case '\r':
        out += 'r';
        break;
      case '\t':
        out += 't';
        break;
      case '"':
      case '\\':
        out += static_cast<char>(byte);
        break;
      default:
        out += "u00";
        out += kHex[byte >> 4];
        out += kHex[byte & 15];
    }
  }
  out.append(text, plain, text.size() - plain);
  out += '"';
}

}  // namespace tensorfold
