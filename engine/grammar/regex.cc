// The parser of regular expressions: text to a tree, the tree to a CharNfa.
#include "engine/grammar/regex.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "engine/base/utf8.h"
#include "engine/grammar/char_set.h"

namespace tensorfold::grammar {
namespace {

struct Tree {
  enum class Kind : unsigned char { kEmpty, kSet, kConcat, kAlternate, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kEmpty;
  CharSet set;
  std::vector<Tree> parts;
  int min = 0, max = -1;  // kRepeat; max -1: no bound
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Tree> parse() {
    Tree tree = alternation(0);
    if (error_.empty() && at_ < text_.size()) fail("')' without '('");
    if (!error_.empty()) {
      return invalid_argument("pattern at offset " + std::to_string(error_at_) + ": " + error_, "",
                              "unsupported_pattern");
    }
    return tree;
  }

 private:
  void fail(std::string why) {
    if (!error_.empty()) return;
    error_ = std::move(why);
    error_at_ = at_;
    at_ = text_.size();
  }
  bool more() const { return at_ < text_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0; }
  bool take(char c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  uint32_t code_point() {
    const Utf8Step step = utf8_step(text_, at_);
    if (!step.valid) fail("not UTF-8");
    at_ += step.bytes;
    return step.code_point;
  }

  Tree alternation(int depth) {
    if (depth > kRegexDepthMax) {
      fail("groups nested deeper than " + std::to_string(kRegexDepthMax));
      return {};
    }
    Tree out;
    out.kind = Tree::Kind::kAlternate;
    do {
      out.parts.push_back(sequence(depth));
    } while (take('|'));
    if (out.parts.size() == 1) return std::move(out.parts[0]);
    return out;
  }

  Tree sequence(int depth) {
    Tree out;
    out.kind = Tree::Kind::kConcat;
    while (more() && peek() != '|' && peek() != ')') {
      Tree part = atom(depth);
      if (!error_.empty()) return out;
      out.parts.push_back(quantified(std::move(part)));
    }
    return out;
  }

  Tree quantified(Tree part) {
    int min = 0, max = -1;
    if (take('+')) {
      min = 1;
    } else if (take('?')) {
      max = 1;
    } else if (!take('*') && !(peek() == '{' && braces(min, max))) {
      return part;
    }
    (void)take('?');  // lazy: the same language
    if (part.kind == Tree::Kind::kBegin || part.kind == Tree::Kind::kEnd) {
      fail("a quantifier after an anchor");
    }
    if (peek() == '*' || peek() == '+' || peek() == '?') fail("two quantifiers in a row");
    if (max >= 0 && min > max) fail("numbers out of order in {} quantifier");
    if (min > kRegexRepeatMax || max > kRegexRepeatMax)
      fail("repetition above " + std::to_string(kRegexRepeatMax));
    Tree out;
    out.kind = Tree::Kind::kRepeat;
    out.min = min;
    out.max = max;
    out.parts.push_back(std::move(part));
    return out;
  }

  // {n}, {n,}, {n,m}; anything else is a literal brace, and nothing is consumed.
  bool braces(int& min, int& max) {
    size_t i = at_ + 1;
    auto number = [&](int& out) {
      const size_t first = i;
      int64_t v = 0;
      while (i < text_.size() && text_[i] >= '0' && text_[i] <= '9') {
        v = std::min<int64_t>(v * 10 + (text_[i] - '0'), int64_t{kRegexRepeatMax} + 1);
        ++i;
      }
      out = static_cast<int>(v);
      return i > first;
    };
    if (!number(min)) return false;
    max = min;
    if (i < text_.size() && text_[i] == ',') {
      ++i;
      if (!number(max)) max = -1;
    }
    if (i >= text_.size() || text_[i] != '}') return false;
    at_ = i + 1;
    return true;
  }

  Tree set_of(CharSet set) {
    Tree out;
    out.kind = Tree::Kind::kSet;
    char_set_normalize(set);
    out.set = std::move(set);
    return out;
  }

  Tree atom(int depth) {
    const char c = peek();
    Tree out;
    switch (c) {
      case '(':
        return group(depth);
      case '[':
        return set_of(char_class());
      case '.':
        ++at_;
        return set_of(char_set_no_line());
      case '^':
        ++at_;
        out.kind = Tree::Kind::kBegin;
        return out;
      case '$':
        ++at_;
        out.kind = Tree::Kind::kEnd;
        return out;
      case '*':
      case '+':
      case '?':
        fail("nothing to repeat");
        return out;
      case '\\':
        return set_of(escape(false));
      default: {
        const uint32_t p = code_point();
        return set_of({{p, p}});
      }
    }
  }

  Tree group(int depth) {
    ++at_;
    if (take('?')) {
      if (take(':')) {
      } else if (peek() == '=' || peek() == '!' ||
                 (peek() == '<' && (peek(1) == '=' || peek(1) == '!'))) {
        fail("look-around cannot be enforced");
      } else if (take('<') || (peek() == 'P' && peek(1) == '<' && (at_ += 2))) {
        while (more() && peek() != '>') ++at_;
        if (!take('>')) fail("group name without '>'");
      } else {
        fail("inline flags cannot be enforced");
      }
    }
    Tree inner = alternation(depth + 1);
    if (error_.empty() && !take(')')) fail("'(' without ')'");
    return inner;
  }

  std::optional<uint32_t> hex(size_t digits) {
    if (at_ + digits > text_.size()) return std::nullopt;
    uint32_t v = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = text_[at_ + i];
      const int d = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
      if (d < 0) return std::nullopt;
      v = v * 16 + static_cast<uint32_t>(d);
    }
    at_ += digits;
    return v;
  }

  uint32_t unicode_escape() {
    if (take('{')) {
      uint32_t v = 0;
      int digits = 0;
      while (more() && peek() != '}') {
        const auto d = hex(1);
        if (!d || ++digits > 6) break;
        v = v * 16 + *d;
      }
      if (digits == 0 || digits > 6 || !take('}') || v > kCodePointMax) fail("bad \\u{...}");
      return v;
    }
    const auto high = hex(4);
    if (!high) {
      fail("\\u needs four hexadecimal digits");
      return 0;
    }
    if (*high < 0xD800 || *high > 0xDBFF || peek() != '\\' || peek(1) != 'u') return *high;
    const size_t back = at_;
    at_ += 2;
    const auto low = hex(4);
    if (low && *low >= 0xDC00 && *low <= 0xDFFF)
      return 0x10000 + ((*high - 0xD800) << 10) + (*low - 0xDC00);
    at_ = back;
    return *high;
  }

  CharSet property(bool negated) {
    if (!take('{')) {
      fail("\\p needs {name}");
      return {};
    }
    const size_t first = at_;
    while (more() && peek() != '}') ++at_;
    const std::string name(text_.substr(first, at_ - first));
    if (!take('}')) fail("\\p{ without '}'");
    const auto set = char_set_category(name);
    if (!set) {
      at_ = first;
      fail("\\p{" + name + "} is not a supported Unicode property");
      return {};
    }
    return negated ? char_set_negate(*set) : *set;
  }

  CharSet one(uint32_t c) { return {{c, c}}; }

  CharSet escape(bool in_class) {
    ++at_;
    if (!more()) {
      fail("'\\' at the end");
      return {};
    }
    const uint32_t c = code_point();
    switch (c) {
      case 'd':
        return char_set_digits();
      case 'D':
        return char_set_negate(char_set_digits());
      case 'w':
        return char_set_word();
      case 'W':
        return char_set_negate(char_set_word());
      case 's':
        return char_set_space();
      case 'S':
        return char_set_negate(char_set_space());
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'v':
        return one('\v');
      case 'f':
        return one('\f');
      case 'r':
        return one('\r');
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'u':
        return one(unicode_escape());
      case 'x': {
        const auto v = hex(2);
        if (!v) fail("\\x needs two hexadecimal digits");
        return one(v.value_or(0));
      }
      case 'c': {
        const char l = peek();
        if ((l >= 'a' && l <= 'z') || (l >= 'A' && l <= 'Z')) {
          ++at_;
          return one(static_cast<uint32_t>(l) & 31U);
        }
        fail("\\c needs a letter");
        return {};
      }
      case '0':
        if (peek() < '0' || peek() > '9') return one(0);
        fail("octal escapes are not part of ECMA-262");
        return {};
      case 'b':
        if (in_class) return one('\b');
        fail("\\b (word border) cannot be enforced");
        return {};
      default:
        break;
    }
    if (c >= '1' && c <= '9') {
      fail("back-references cannot be enforced");
      return {};
    }
    if (c == 'k' || c == 'B') {
      fail(c == 'B' ? "\\B (no word border) cannot be enforced"
                    : "back-references cannot be enforced");
      return {};
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      fail(std::string("\\") + static_cast<char>(c) + " is not an escape of ECMA-262");
      return {};
    }
    return one(c);
  }

  CharSet class_member() {
    if (peek() == '\\') return escape(true);
    return one(code_point());
  }

  CharSet char_class() {
    ++at_;
    const bool negated = take('^');
    CharSet out;
    while (more() && peek() != ']') {
      CharSet low = class_member();
      if (!error_.empty()) return {};
      const bool single = low.size() == 1 && low[0].first == low[0].second;
      if (peek() == '-' && at_ + 1 < text_.size() && peek(1) != ']') {
        const size_t dash = at_;
        ++at_;
        const CharSet high = class_member();
        if (!error_.empty()) return {};
        const bool both = single && high.size() == 1 && high[0].first == high[0].second;
        if (both) {
          if (low[0].first > high[0].first) {
            at_ = dash;
            fail("range out of order in a class");
            return {};
          }
          out.emplace_back(low[0].first, high[0].first);
          continue;
        }
        char_set_add(low, high);  // "\w-x": the dash is a member
        low.emplace_back('-', '-');
      }
      char_set_add(out, low);
    }
    if (!take(']')) fail("'[' without ']'");
    char_set_normalize(out);
    return negated ? char_set_negate(std::move(out)) : out;
  }

  std::string_view text_;
  size_t at_ = 0, error_at_ = 0;
  std::string error_;
};

// Builds the automaton of a tree between two states. False when too large.
class Builder {
 public:
  explicit Builder(CharNfa& nfa) : nfa_(nfa) {}

  bool build(const Tree& t, int32_t from, int32_t to) {
    if (nfa_.size() > kRegexExpandMax) return false;
    switch (t.kind) {
      case Tree::Kind::kEmpty:
        nfa_.free_edge(from, to);
        return true;
      case Tree::Kind::kBegin:
        nfa_.free_edge(from, to, Nfa::Free::kAtStart);
        return true;
      case Tree::Kind::kEnd:
        nfa_.free_edge(from, to, Nfa::Free::kAtEnd);
        return true;
      case Tree::Kind::kSet:
        nfa_.edge(from, t.set, to);
        return true;
      case Tree::Kind::kConcat:
        return concat(t, from, to);
      case Tree::Kind::kAlternate:
        for (const Tree& part : t.parts) {
          const int32_t a = nfa_.add();
          nfa_.free_edge(from, a);
          if (!build(part, a, to)) return false;
        }
        return true;
      case Tree::Kind::kRepeat:
        return repeat(t, from, to);
    }
    return true;
  }

 private:
  bool concat(const Tree& t, int32_t from, int32_t to) {
    if (t.parts.empty()) nfa_.free_edge(from, to);
    for (size_t i = 0; i < t.parts.size(); ++i) {
      const int32_t next = i + 1 == t.parts.size() ? to : nfa_.add();
      if (!build(t.parts[i], from, next)) return false;
      from = next;
    }
    return true;
  }

  bool repeat(const Tree& t, int32_t from, int32_t to) {
    const Tree& part = t.parts[0];
    for (int i = 0; i < t.min; ++i) {
      const int32_t next = nfa_.add();
      if (!build(part, from, next)) return false;
      from = next;
    }
    if (t.max < 0) {
      const int32_t loop = nfa_.add(), body = nfa_.add();
      nfa_.free_edge(from, loop);
      nfa_.free_edge(loop, body);
      nfa_.free_edge(loop, to);
      return build(part, body, loop);
    }
    for (int i = t.min; i < t.max; ++i) {
      nfa_.free_edge(from, to);
      const int32_t next = nfa_.add();
      if (!build(part, from, next)) return false;
      from = next;
    }
    nfa_.free_edge(from, to);
    return true;
  }

  CharNfa& nfa_;
};

}  // namespace

Result<CharDfaPtr> regex_to_chars(std::string_view pattern, RegexMatch match) {
  if (pattern.size() > kRegexMaxBytes) {
    return invalid_argument("pattern longer than " + std::to_string(kRegexMaxBytes) + " bytes", "",
                            "schema_too_complex");
  }
  TF_ASSIGN_OR_RETURN(const Tree tree, Parser(pattern).parse());
  CharNfa nfa;
  const CharSet any = {{0, kCodePointMax}};
  const int32_t start = nfa.add(), from = nfa.add(), to = nfa.add(), end = nfa.add();
  nfa.free_edge(start, from);
  if (match == RegexMatch::kSearch) {
    const int32_t before = nfa.add(), after = nfa.add();
    nfa.free_edge(start, before);
    nfa.edge(before, any, before);
    nfa.free_edge(before, from);
    nfa.free_edge(to, end);
    nfa.free_edge(to, after);
    nfa.edge(after, any, after);
    nfa.free_edge(after, end);
  } else {
    nfa.free_edge(to, end);
  }
  if (!Builder(nfa).build(tree, from, to)) {
    return invalid_argument(
        "pattern expands to more than " + std::to_string(kRegexExpandMax) + " states", "",
        "schema_too_complex");
  }
  return nfa.determinize(start, end);
}

Result<DfaPtr> regex_to_dfa(std::string_view pattern, RegexMatch match) {
  TF_ASSIGN_OR_RETURN(const CharDfaPtr dfa, regex_to_chars(pattern, match));
  return chars_to_bytes(*dfa);
}

}  // namespace tensorfold::grammar
