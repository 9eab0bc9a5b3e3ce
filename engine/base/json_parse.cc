// Recursive-descent parser of the ordered JSON value.
//
// Why our own: the value must carry integers of any size as text, keep member order with Python's
// rule for repeated keys, and speak Python's dialect (NaN, Infinity); simdjson's value model has
// none of these. simdjson validates the UTF-8. Rule for surrogate escapes, in both dialects: a pair
// becomes its code point; a lone one, which has no UTF-8 form, becomes U+FFFD, so that a client
// that cut a string inside an emoji still gets an answer.
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "engine/base/json.h"
#include "engine/base/json_number.h"
#include "engine/base/utf8.h"

namespace tensorfold {
namespace {

constexpr size_t kLinearKeysMax = 16;  // members; beyond it repeated keys are found by hash

class Parser {
 public:
  Parser(std::string_view text, JsonDialect dialect) : text_(text), dialect_(dialect) {}

  Result<Json> run() {
    const size_t invalid = utf8_first_invalid(text_);
    if (invalid != std::string_view::npos) {
      at_ = invalid;
      fail("invalid UTF-8");
      return error_;
    }
    Json value;
    skip_space();
    if (!parse_value(value, 0)) return error_;
    skip_space();
    if (at_ != text_.size()) {
      fail("unexpected text after the value");
      return error_;
    }
    return value;
  }

 private:
  bool fail(std::string_view what) {
    error_ = invalid_argument("JSON: " + std::string(what) + " at byte " + std::to_string(at_));
    return false;
  }

  bool more() const { return at_ < text_.size(); }
  bool next_is(char c) const { return more() && text_[at_] == c; }

  void skip_space() {
    while (more()) {
      const char c = text_[at_];
      if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return;
      ++at_;
    }
  }

  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool parse_value(Json& out, int depth) {
    if (!more()) return fail("a value is missing");
    switch (text_[at_]) {
      case '{':
        return parse_object(out, depth + 1);
      case '[':
        return parse_array(out, depth + 1);
      case '"': {
        std::string s;
        if (!parse_string(s)) return false;
        out = Json::string(std::move(s));
        return true;
      }
      case 't':
        return take_word("true") ? (out = Json::boolean(true), true) : bad_word();
      case 'f':
        return take_word("false") ? (out = Json::boolean(false), true) : bad_word();
      case 'n':
        return take_word("null") ? (out = Json::null(), true) : bad_word();
      default:
        return parse_number(out);
    }
  }

  bool bad_word() { return fail("unknown word"); }

  bool parse_array(Json& out, int depth) {
    if (depth > kJsonDepthMax) return fail("nested deeper than " + std::to_string(kJsonDepthMax));
    ++at_;
    Json::Array items;
    skip_space();
    if (next_is(']')) {
      ++at_;
      out = Json::array(std::move(items));
      return true;
    }
    while (true) {
      Json item;
      skip_space();
      if (!parse_value(item, depth)) return false;
      items.push_back(std::move(item));
      skip_space();
      if (next_is(',')) {
        ++at_;
        continue;
      }
      if (!next_is(']')) return fail("',' or ']' expected");
      ++at_;
      out = Json::array(std::move(items));
      return true;
    }
  }

  bool parse_object(Json& out, int depth) {
    if (depth > kJsonDepthMax) return fail("nested deeper than " + std::to_string(kJsonDepthMax));
    ++at_;
    Json::Object members;
    std::unordered_map<std::string, size_t> index;
    skip_space();
    if (next_is('}')) {
      ++at_;
      out = Json::object(std::move(members));
      return true;
    }
    while (true) {
      skip_space();
      if (!next_is('"')) return fail("a member name in quotes expected");
      std::string key;
      if (!parse_string(key)) return false;
      skip_space();
      if (!next_is(':')) return fail("':' expected");
      ++at_;
      skip_space();
      Json value;
      if (!parse_value(value, depth)) return false;
      put_member(members, index, std::move(key), std::move(value));
      skip_space();
      if (next_is(',')) {
        ++at_;
        continue;
      }
      if (!next_is('}')) return fail("',' or '}' expected");
      ++at_;
      out = Json::object(std::move(members));
      return true;
    }
  }

  static void put_member(Json::Object& members, std::unordered_map<std::string, size_t>& index,
                         std::string key, Json value) {
    if (members.size() < kLinearKeysMax) {
      for (Json::Member& member : members) {
        if (member.first != key) continue;
        member.second = std::move(value);
        return;
      }
    } else {
      if (index.empty()) {
        for (size_t i = 0; i < members.size(); ++i) index.emplace(members[i].first, i);
      }
      const auto [it, added] = index.emplace(key, members.size());
      if (!added) {
        members[it->second].second = std::move(value);
        return;
      }
    }
    members.emplace_back(std::move(key), std::move(value));
  }

  bool parse_string(std::string& out) {
    ++at_;
    while (true) {
      const size_t from = at_;
      while (more() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20) {
        ++at_;
      }
      out.append(text_.substr(from, at_ - from));
      if (!more()) return fail("unterminated string");
      if (text_[at_] == '"') {
        ++at_;
        return true;
      }
      if (text_[at_] != '\\') return fail("control character in a string");
      if (!parse_escape(out)) return false;
    }
  }

  bool parse_escape(std::string& out) {
    if (at_ + 1 >= text_.size()) return fail("unterminated string");
    const char c = text_[at_ + 1];
    switch (c) {
      case '"':
      case '\\':
      case '/':
        out += c;
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case 't':
        out += '\t';
        break;
      case 'u':
        return parse_unicode_escape(out);
      default:
        return fail("unknown escape");
    }
    at_ += 2;
    return true;
  }

  // Four hexadecimal digits at `from`, or a value above 0xFFFF.
  char32_t hex4(size_t from) const {
    if (from + 4 > text_.size()) return 0x10000;
    char32_t v = 0;
    for (size_t i = from; i < from + 4; ++i) {
      const char c = text_[i];
      char32_t digit;
      if (c >= '0' && c <= '9')
        digit = static_cast<char32_t>(c - '0');
      else if (c >= 'a' && c <= 'f')
        digit = static_cast<char32_t>(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        digit = static_cast<char32_t>(c - 'A' + 10);
      else
        return 0x10000;
      v = v * 16 + digit;
    }
    return v;
  }

  bool parse_unicode_escape(std::string& out) {
    const char32_t first = hex4(at_ + 2);
    if (first > 0xFFFF) return fail("bad \\u escape");
    if (first < 0xD800 || first > 0xDFFF) {
      utf8_append(out, first);
      at_ += 6;
      return true;
    }
    const char32_t second = text_.substr(at_ + 6, 2) == "\\u" ? hex4(at_ + 8) : 0;
    if (first >= 0xDC00 || second < 0xDC00 || second > 0xDFFF) {
      utf8_append(out, kReplacementCharacter);
      at_ += 6;
      return true;
    }
    utf8_append(out, 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00));
    at_ += 12;
    return true;
  }

  bool take_digits() {
    const size_t from = at_;
    while (more() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ > from;
  }

  bool parse_number(Json& out) {
    if (dialect_ == JsonDialect::kPython && parse_non_finite(out)) return true;
    const size_t from = at_;
    if (next_is('-')) ++at_;
    if (next_is('0')) {
      ++at_;
    } else if (!take_digits()) {
      at_ = from;
      return fail("a value expected");
    }
    bool is_float = false;
    if (next_is('.')) {
      ++at_;
      is_float = true;
      if (!take_digits()) return fail("a digit expected");
    }
    if (next_is('e') || next_is('E')) {
      ++at_;
      is_float = true;
      if (next_is('+') || next_is('-')) ++at_;
      if (!take_digits()) return fail("a digit expected");
    }
    const std::string_view lexeme = text_.substr(from, at_ - from);
    out =
        is_float ? Json::real(decimal_to_double(lexeme)) : Json::integer_text(std::string(lexeme));
    return true;
  }

  bool parse_non_finite(Json& out) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (take_word("NaN")) {
      out = Json::real(std::numeric_limits<double>::quiet_NaN());
    } else if (take_word("Infinity")) {
      out = Json::real(kInfinity);
    } else if (take_word("-Infinity")) {
      out = Json::real(-kInfinity);
    } else {
      return false;
    }
    return true;
  }

  std::string_view text_;
  JsonDialect dialect_;
  size_t at_ = 0;
  Status error_;
};

// The power of ten of the number's first digit that is not zero; only its sign is used.
int64_t decimal_magnitude(std::string_view text) {
  const size_t e = text.find_first_of("eE");
  std::string_view mantissa = text.substr(0, e);
  if (mantissa.front() == '-') mantissa.remove_prefix(1);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  const size_t digit = mantissa.find_first_of("123456789");
  if (digit == std::string_view::npos) return std::numeric_limits<int64_t>::min() / 4;
  const int64_t lead = static_cast<int64_t>(point) - static_cast<int64_t>(digit);
  if (e == std::string_view::npos) return lead;
  std::string_view exponent = text.substr(e + 1);
  if (exponent.front() == '+') exponent.remove_prefix(1);
  int64_t value = 0;
  const auto r = std::from_chars(exponent.data(), exponent.data() + exponent.size(), value);
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;
  if (r.ec != std::errc() || value > kFar || value < -kFar) {
    value = exponent.front() == '-' ? -kFar : kFar;
  }
  return value + lead;
}

}  // namespace

double decimal_to_double(std::string_view text) {
  double v = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), v);
  if (r.ec != std::errc::result_out_of_range) return v;
  const bool negative = text.front() == '-';
  v = decimal_magnitude(text) > 0 ? std::numeric_limits<double>::infinity() : 0.0;
  return negative ? -v : v;
}

Result<Json> parse_json(std::string_view text, JsonDialect dialect) {
  return Parser(text, dialect).run();
}

}  // namespace tensorfold
