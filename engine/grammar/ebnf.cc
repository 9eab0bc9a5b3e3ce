// EBNF in the GBNF spelling: name ::= alternatives; strings, classes, '.', groups, * + ? {m,n}.
//
// A rule that does not refer back to itself becomes one automaton; recursive rules become
// expressions. Left recursion (also through parts that may be empty) and rules that can never end
// are refused with line and column.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "engine/grammar/constraint.h"
#include "engine/grammar/ebnf_parse.h"
#include "engine/grammar/regex.h"

namespace tensorfold::grammar {
namespace {

using ebnf::Item;
using ebnf::place;
using ebnf::Rule;
using ebnf::Rules;

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
  Rules rules;
  TF_RETURN_IF_ERROR(ebnf::parse(text, rules));
  return Compiler(text, rules, program).compile();
}

}  // namespace tensorfold::grammar
