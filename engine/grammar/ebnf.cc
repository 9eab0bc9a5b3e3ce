// EBNF in the GBNF spelling: name ::= alternatives; strings, classes, '.', groups, * + ? {m,n}.
//
// A rule that does not refer back to itself becomes one automaton; recursive rules become
// expressions. Left recursion (also through parts that may be empty) and rules that can never end
// are refused with line and column.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "engine/base/utf8.h"
#include "engine/grammar/char_set.h"
#include "engine/grammar/constraint.h"
#include "engine/grammar/regex.h"

namespace tensorfold::grammar {
namespace {

constexpr size_t kEbnfMaxBytes = 1 << 20;
constexpr size_t kEbnfNodesMax = 200'000;
constexpr size_t kEbnfRulesMax = 2'000;
constexpr int kEbnfDepthMax = 200;
constexpr int kEbnfRepeatMax = 5'000;

struct Item {
  enum class Kind : unsigned char { kText, kSet, kRule, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  std::string text;  // kText: bytes; kRule: name
  CharSet set;
  std::vector<Item> parts;
  int min = 0, max = -1;
  size_t at = 0;
};

struct Rule {
  Item body;
  size_t at = 0;
};
using Rules = std::map<std::string, Rule>;

std::string place(std::string_view text, size_t at) {
  const std::string_view before = text.substr(0, at);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t start = before.rfind('\n');
  const size_t column = at - (start == std::string_view::npos ? 0 : start + 1) + 1;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

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

class Compiler {
 public:
  Compiler(std::string_view text, const Rules& rules, Program& program)
      : text_(text), rules_(rules), program_(program) {}

  Status compile() {
    if (rules_.count("root") == 0)
      return invalid_argument("grammar: no rule \"root\"", "", "invalid_grammar");
    for (const auto& [name, rule] : rules_) {
      TF_RETURN_IF_ERROR(references(rule.body));
      (void)name;
    }
    fixed_points();
    for (const auto& [name, rule] : rules_) {
      if (!productive_[name]) return error(rule.at, "\"" + name + "\" can never end");
      if (reaches(name, name, true)) return error(rule.at, "\"" + name + "\" is left-recursive");
    }
    program_.root = rule_expr("root");
    return failed_.ok() ? ok_status() : failed_;
  }

 private:
  Status error(size_t at, const std::string& why) const {
    return invalid_argument("grammar, " + place(text_, at) + ": " + why, "", "invalid_grammar");
  }

  Status references(const Item& item) const {
    if (item.kind == Item::Kind::kRule && rules_.count(item.text) == 0)
      return error(item.at, "no rule \"" + item.text + "\"");
    for (const Item& part : item.parts) TF_RETURN_IF_ERROR(references(part));
    return ok_status();
  }

  bool holds(const Item& i, std::map<std::string, bool>& of, bool empty) {
    auto part = [&](const Item& p) { return holds(p, of, empty); };
    switch (i.kind) {
      case Item::Kind::kText:
        return !empty || i.text.empty();
      case Item::Kind::kSet:
        return !empty && !i.set.empty();
      case Item::Kind::kRule:
        return of[i.text];
      case Item::Kind::kSequence:
        return std::all_of(i.parts.begin(), i.parts.end(), part);
      case Item::Kind::kChoice:
        return std::any_of(i.parts.begin(), i.parts.end(), part);
      case Item::Kind::kRepeat:
        return i.min == 0 || part(i.parts[0]);
    }
    return false;
  }

  void fixed_points() {
    for (auto* of : {&nullable_, &productive_}) {
      for (bool changed = true; changed;) {
        changed = false;
        for (const auto& [name, rule] : rules_) {
          if ((*of)[name] || !holds(rule.body, *of, of == &nullable_)) continue;
          (*of)[name] = changed = true;
        }
      }
    }
    for (const auto& [name, rule] : rules_) {
      calls(rule.body, false, calls_[name]);
      (void)calls(rule.body, true, left_[name]);
    }
  }

  // The rules named in an item; with `left`, only those a text can begin with. True: may be empty.
  bool calls(const Item& i, bool left, std::vector<std::string>& out) {
    switch (i.kind) {
      case Item::Kind::kRule:
        out.push_back(i.text);
        return nullable_[i.text];
      case Item::Kind::kSequence:
        for (const Item& p : i.parts) {
          if (!calls(p, left, out) && left) return false;
        }
        return true;
      case Item::Kind::kChoice: {
        bool empty = false;
        for (const Item& p : i.parts) empty = calls(p, left, out) || empty;
        return empty;
      }
      case Item::Kind::kRepeat:
        return calls(i.parts[0], left, out) || i.min == 0;
      default:
        return i.kind == Item::Kind::kText && i.text.empty();
    }
  }

  bool reaches(const std::string& from, const std::string& to, bool left) {
    std::map<std::string, bool> seen;
    std::vector<std::string> todo = left ? left_[from] : calls_[from];
    while (!todo.empty()) {
      const std::string name = todo.back();
      todo.pop_back();
      if (name == to) return true;
      if (seen[name]) continue;
      seen[name] = true;
      const auto& more = left ? left_[name] : calls_[name];
      todo.insert(todo.end(), more.begin(), more.end());
    }
    return false;
  }

  bool recursive(const Item& i) {
    if (i.kind == Item::Kind::kRule) {
      auto [it, fresh] = recursive_.emplace(i.text, false);
      if (!fresh) return it->second;
      bool r = reaches(i.text, i.text, false);
      for (size_t k = 0; !r && k < calls_[i.text].size(); ++k) {
        Item callee;
        callee.kind = Item::Kind::kRule;
        callee.text = calls_[i.text][k];
        r = recursive(callee);
      }
      recursive_[i.text] = r;
      return r;
    }
    return std::any_of(i.parts.begin(), i.parts.end(), [&](const Item& p) { return recursive(p); });
  }

  bool to_nfa(const Item& i, Nfa& nfa, int32_t from, int32_t to) {
    if (nfa.states().size() > kRegexExpandMax) return false;
    switch (i.kind) {
      case Item::Kind::kText:
        nfa.text(from, i.text, to);
        return true;
      case Item::Kind::kSet:
        for (const CharRange& r : i.set) nfa.code_points(from, r.first, r.second, to);
        return true;
      case Item::Kind::kRule:
        return to_nfa(rules_.at(i.text).body, nfa, from, to);
      case Item::Kind::kSequence:
        for (const Item& p : i.parts) {
          const int32_t next = nfa.add();
          if (!to_nfa(p, nfa, from, next)) return false;
          from = next;
        }
        nfa.free_edge(from, to);
        return true;
      case Item::Kind::kChoice:
        for (const Item& p : i.parts) {
          const int32_t first = nfa.add();
          nfa.free_edge(from, first);
          if (!to_nfa(p, nfa, first, to)) return false;
        }
        return true;
      case Item::Kind::kRepeat:
        break;
    }
    for (int k = 0; k < i.min; ++k) {
      const int32_t next = nfa.add();
      if (!to_nfa(i.parts[0], nfa, from, next)) return false;
      from = next;
    }
    for (int k = i.min; k < i.max; ++k) {
      nfa.free_edge(from, to);
      const int32_t next = nfa.add();
      if (!to_nfa(i.parts[0], nfa, from, next)) return false;
      from = next;
    }
    if (i.max < 0) {
      const int32_t loop = nfa.add(), body = nfa.add();
      nfa.free_edge(from, loop);
      nfa.free_edge(loop, body);
      from = loop;
      if (!to_nfa(i.parts[0], nfa, body, loop)) return false;
    }
    nfa.free_edge(from, to);
    return true;
  }

  uint32_t terminal(const Item& i) {
    Nfa nfa;
    const int32_t start = nfa.add(), end = nfa.add();
    Result<DfaPtr> dfa = too_large("the grammar");
    if (to_nfa(i, nfa, start, end)) dfa = nfa_to_dfa(nfa, start, end);
    if (!dfa.ok()) {
      failed_ = error(i.at, dfa.status().message());
      return program_.add_expr({});
    }
    return program_.add_expr({Expr::Kind::kTerminal, program_.add_dfa(*dfa), {}});
  }

  uint32_t rule_expr(const std::string& name) {
    const auto it = exprs_.find(name);
    if (it != exprs_.end()) return it->second;
    const uint32_t expr = program_.add_expr({Expr::Kind::kRule, 0, {}});
    exprs_.emplace(name, expr);
    const uint32_t body = to_expr(rules_.at(name).body);
    program_.exprs[expr].a = body;
    return expr;
  }

  uint32_t to_expr(const Item& i) {
    if (!failed_.ok()) return 0;
    if (!recursive(i)) return terminal(i);
    std::vector<uint32_t> parts;
    switch (i.kind) {
      case Item::Kind::kRule:
        return rule_expr(i.text);
      case Item::Kind::kSequence:
      case Item::Kind::kChoice:
        for (const Item& p : i.parts) parts.push_back(to_expr(p));
        return i.kind == Item::Kind::kChoice ? program_.choice(std::move(parts))
                                             : program_.sequence(std::move(parts));
      default:
        break;
    }
    // A repetition of something recursive.
    const Item& what = i.parts[0];
    if (i.max < 0 && holds(what, nullable_, true)) {
      failed_ = error(i.at, "repeats without end something that may be empty");
      return 0;
    }
    const uint32_t one = to_expr(what);
    const uint32_t none = program_.add_expr({});
    uint32_t rest = none;
    if (i.max < 0) {
      rest = program_.add_expr({Expr::Kind::kRule, 0, {}});
      const uint32_t again = program_.sequence({one, rest});
      const uint32_t body = program_.choice({none, again});
      program_.exprs[rest].a = body;
    }
    for (int k = i.min; k < i.max; ++k) {
      const uint32_t again = program_.sequence({one, rest});
      rest = program_.choice({none, again});
    }
    parts.assign(static_cast<size_t>(i.min), one);
    parts.push_back(rest);
    return program_.sequence(std::move(parts));
  }

  std::string_view text_;
  const Rules& rules_;
  Program& program_;
  std::map<std::string, bool> nullable_, productive_, recursive_;
  std::map<std::string, std::vector<std::string>> calls_, left_;
  std::map<std::string, uint32_t> exprs_;
  Status failed_;
};

}  // namespace

Status compile_ebnf(std::string_view text, Program& program) {
  if (text.size() > kEbnfMaxBytes)
    return invalid_argument("grammar larger than " + std::to_string(kEbnfMaxBytes) + " bytes", "",
                            "schema_too_complex");
  Rules rules;
  TF_RETURN_IF_ERROR(Parser(text).parse(rules));
  return Compiler(text, rules, program).compile();
}

}  // namespace tensorfold::grammar
