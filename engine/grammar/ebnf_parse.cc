// Reads EBNF in the GBNF spelling: name ::= alternatives; strings, classes, '.', groups,
// * + ? {m,n}.
#include "engine/grammar/ebnf_parse.h"

#include <algorithm>
#include <optional>

#include "engine/base/utf8.h"
#include "engine/grammar/regex.h"

namespace tensorfold::grammar::ebnf {
namespace {

constexpr size_t kEbnfMaxBytes = 1 << 20;
constexpr size_t kEbnfNodesMax = 200'000;
constexpr size_t kEbnfRulesMax = 2'000;
constexpr int kEbnfDepthMax = 200;
constexpr int kEbnfRepeatMax = 5'000;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Status parse(Rules& rules) {
    space(true);
    while (at_ < text_.size() && error_.empty()) {
      const size_t at = at_;
      const std::string name = identifier();
      space(false);
      if (name.empty() || text_.substr(at_, 3) != "::=") {
        fail("a rule (name ::= ...) expected");
        break;
      }
      at_ += 3;
      space(true);
      Item body = choice(0, false);
      if (rules.count(name) > 0) {
        at_ = at;
        fail("the rule \"" + name + "\" is there twice");
      }
      rules[name] = {std::move(body), at};
      if (rules.size() > kEbnfRulesMax)
        fail("more than " + std::to_string(kEbnfRulesMax) + " rules");
      space(true);
    }
    if (error_.empty()) return ok_status();
    return invalid_argument("grammar, " + place(text_, error_at_) + ": " + error_, "",
                            "invalid_grammar");
  }

 private:
  void fail(std::string why) {
    if (!error_.empty()) return;
    error_ = std::move(why);
    error_at_ = at_;
    at_ = text_.size();
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  // Blanks and comments; line ends only where a rule may go on over them.
  void space(bool lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string identifier() {
    const size_t first = at_;
    while (at_ < text_.size() && (isalnum(static_cast<unsigned char>(text_[at_])) ||
                                  text_[at_] == '-' || text_[at_] == '_'))
      ++at_;
    return std::string(text_.substr(first, at_ - first));
  }

  // Whether a new rule begins here: "name ::=".
  bool rule_begins() {
    const size_t back = at_;
    const bool named = !identifier().empty();
    space(false);
    const bool yes = named && text_.substr(at_, 3) == "::=";
    at_ = back;
    return yes;
  }

  Item choice(int depth, bool grouped) {
    Item out;
    out.kind = Item::Kind::kChoice;
    out.at = at_;
    if (depth > kEbnfDepthMax) {
      fail("groups nested deeper than " + std::to_string(kEbnfDepthMax));
      return out;
    }
    while (true) {
      out.parts.push_back(sequence(depth, grouped));
      if (peek() != '|') return out;
      ++at_;
      space(true);
    }
  }

  Item sequence(int depth, bool grouped) {
    Item out;
    out.at = at_;
    while (error_.empty() && at_ < text_.size()) {
      if (peek() == '|' || peek() == ')') break;
      if (peek() == '\n') {
        const size_t back = at_;
        space(true);
        if (!grouped && peek() != '|') {
          at_ = back;
          break;
        }
        continue;
      }
      if (!grouped && rule_begins()) break;
      Item one = atom(depth);
      if (!error_.empty()) break;
      out.parts.push_back(repeated(std::move(one)));
      if (++nodes_ > kEbnfNodesMax) fail("too large");
      space(false);
    }
    return out;
  }

  Item repeated(Item one) {
    while (error_.empty()) {
      int min = 0, max = -1;
      const char c = peek();
      if (c == '*' || c == '+' || c == '?') {
        ++at_;
        min = c == '+' ? 1 : 0;
        max = c == '?' ? 1 : -1;
      } else if (c == '{') {
        braces(min, max);
      } else {
        break;
      }
      Item out;
      out.kind = Item::Kind::kRepeat;
      out.at = one.at;
      out.min = min;
      out.max = max;
      out.parts.push_back(std::move(one));
      one = std::move(out);
    }
    return one;
  }

  void braces(int& min, int& max) {
    ++at_;
    auto number = [&](int otherwise) {
      const size_t first = at_;
      int v = 0;
      while (isdigit(static_cast<unsigned char>(peek())))
        v = std::min(v * 10 + (text_[at_++] - '0'), kEbnfRepeatMax + 1);
      return at_ == first ? otherwise : v;
    };
    min = number(-1);
    max = min;
    if (peek() == ',') {
      ++at_;
      max = number(-1);
      min = std::max(min, 0);
    }
    if (min < 0 || peek() != '}') {
      fail("{n}, {n,} or {n,m} expected");
    } else if (min > kEbnfRepeatMax || max > kEbnfRepeatMax || (max >= 0 && max < min)) {
      fail("repetition out of range");
    } else {
      ++at_;
    }
  }

  Item atom(int depth) {
    Item out;
    out.at = at_;
    const char c = peek();
    if (c == '"') {
      ++at_;
      out.kind = Item::Kind::kText;
      while (error_.empty() && peek() != '"') {
        if (at_ >= text_.size() || peek() == '\n') {
          fail("a string without its end");
          return out;
        }
        utf8_append(out.text, character());
      }
      ++at_;
    } else if (c == '[') {
      out.kind = Item::Kind::kSet;
      out.set = char_class();
    } else if (c == '.') {
      ++at_;
      out.kind = Item::Kind::kSet;
      out.set = {{0, kCodePointMax}};
    } else if (c == '(') {
      ++at_;
      space(true);
      out = choice(depth + 1, true);
      if (error_.empty() && peek() != ')') fail("'(' without ')'");
      ++at_;
    } else if (c == '<') {
      fail("tokens (<...>) cannot be named here");
    } else {
      out.kind = Item::Kind::kRule;
      out.text = identifier();
      if (out.text.empty()) fail("a string, class, rule name or group expected");
    }
    return out;
  }

  char32_t character() {
    if (peek() != '\\') {
      const Utf8Step s = utf8_step(text_, at_);
      if (!s.valid) fail("not UTF-8");
      at_ += s.bytes;
      return s.code_point;
    }
    ++at_;
    const char c = peek();
    ++at_;
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      uint32_t v = 0;
      for (int i = 0; i < digits; ++i, ++at_) {
        if (!isxdigit(static_cast<unsigned char>(peek()))) {
          fail("a hexadecimal digit expected");
          return 0;
        }
        const char d = static_cast<char>(tolower(static_cast<unsigned char>(peek())));
        v = v * 16 + static_cast<uint32_t>(d <= '9' ? d - '0' : d - 'a' + 10);
      }
      if (v > kCodePointMax || (v >= 0xD800 && v <= 0xDFFF)) fail("not a character");
      return v;
    }
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case '"':
      case '\\':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<char32_t>(c);
      default:
        fail("unknown escape");
        return 0;
    }
  }

  CharSet char_class() {
    ++at_;
    const bool negated = peek() == '^';
    if (negated) ++at_;
    CharSet out;
    while (error_.empty() && peek() != ']') {
      if (at_ >= text_.size()) {
        fail("'[' without ']'");
        return out;
      }
      const char32_t low = character();
      char32_t high = low;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        high = character();
      }
      if (low > high) fail("range out of order in a class");
      out.emplace_back(low, high);
    }
    ++at_;
    char_set_normalize(out);
    return negated ? char_set_negate(std::move(out)) : out;
  }

  std::string_view text_;
  size_t at_ = 0, error_at_ = 0, nodes_ = 0;
  std::string error_;
};

}  // namespace

std::string place(std::string_view text, size_t at) {
  const std::string_view before = text.substr(0, at);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t start = before.rfind('\n');
  const size_t column = at - (start == std::string_view::npos ? 0 : start + 1) + 1;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

Status parse(std::string_view text, Rules& rules) {
  if (text.size() > kEbnfMaxBytes)
    return invalid_argument("grammar larger than " + std::to_string(kEbnfMaxBytes) + " bytes", "",
                            "schema_too_complex");
  return Parser(text).parse(rules);
}

}  // namespace tensorfold::grammar::ebnf
