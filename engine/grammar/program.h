// A compiled grammar: tables that the runtime (frames.h) walks over. Immutable once compiled.
//
// Two layers: expressions (sequence, choice, rule, symbol, terminal) for EBNF and tool calls, and
// JSON values (nodes that are unions of shapes) for schemas. Everything refers by index.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/grammar/constraint_spec.h"
#include "engine/grammar/dfa.h"

namespace tensorfold::grammar {

inline constexpr int32_t kNoNode = -1;
inline constexpr uint32_t kNoMax = UINT32_MAX;

// Text whose characters a Dfa reads: a JSON string's (unescaped) content, or raw text that ends
// where what follows it begins. min and max count code points.
struct TextSpec {
  DfaPtr dfa;
  uint32_t min = 0;
  uint32_t max = kNoMax;
  bool raw = false;
  bool key = false;  // of an object: \uXXXX only where it must be
};

// A JSON value: any of these. Terminals are numbers, true, false, null.
struct ValueNode {
  std::vector<uint32_t> texts, terminals, objects, arrays;
  bool none() const {
    return texts.empty() && terminals.empty() && objects.empty() && arrays.empty();
  }
};

// The prefix tree of an object's declared names.
struct KeyTrieNode {
  int32_t base = kDfaDead;     // state of ObjectShape::base after the same text, while names that
                               // are not declared can follow
  int32_t property = -1;       // the name that ends here
  uint32_t low = 0, high = 0;  // the names below: positions in ObjectShape::by_name
  std::vector<std::pair<uint8_t, int32_t>> next;  // ascending
};

struct ObjectShape {
  struct Property {
    std::string name;
    int32_t value = kNoNode;  // kNoNode: this name may not appear
    bool required = false;
  };
  std::vector<Property> properties;  // schema order
  std::vector<uint32_t> by_name;
  std::vector<KeyTrieNode> trie;
  DfaPtr base;                                  // other names, by label; null: there are none
  std::unordered_map<uint32_t, int32_t> other;  // label -> value node
  uint32_t min = 0, max = kNoMax;
  uint32_t required = 0;                // how many are
  bool ordered = false;                 // declared names in schema order, others after them
  bool distinct_others = false;         // repeated other names would be miscounted
  std::vector<uint32_t> next_required;  // [i]: first required property at or after i
};

struct ArrayShape {
  std::vector<int32_t> prefix;
  int32_t rest = kNoNode;
  uint32_t min = 0, max = kNoMax;
  // "contains": an item may be read as `hit` (counted) or as `miss` (not). Both by position.
  bool contains = false;
  std::vector<int32_t> hit_prefix, miss_prefix;
  int32_t hit = kNoNode, miss = kNoNode;
  uint32_t min_hits = 0, max_hits = kNoMax;
  bool unique = false;  // items are terminals and texts without escapes' ambiguity
};

struct Expr {
  enum class Kind : unsigned char {
    kEmpty,
    kTerminal,  // a: dfa
    kText,      // a: text spec (raw)
    kValue,     // a: JSON value node
    kSymbol,    // a: token id
    kSequence,  // parts
    kChoice,    // parts
    kRule,      // a: expression (rules may be recursive)
    kTool,      // a: tool shape: parameters of a call
  };
  Kind kind = Kind::kEmpty;
  uint32_t a = 0;
  std::vector<uint32_t> parts;
};

// Parameters of a tool call, in any order. The name is fixed text: `open[i]` is an expression that
// reads a whole parameter; `close` reads the end of the call.
struct ToolShape {
  std::vector<uint32_t> open;
  std::vector<bool> required;
  uint32_t other = UINT32_MAX;  // expression of an undeclared parameter
  uint32_t close = 0;
  uint32_t close_empty = 0;  // end of a call without parameters
  uint32_t min = 0, max = kNoMax;
};

struct Program {
  std::vector<DfaPtr> dfas;
  std::vector<TextSpec> texts;
  std::vector<ValueNode> nodes;
  std::vector<ObjectShape> objects;
  std::vector<ArrayShape> arrays;
  std::vector<Expr> exprs;
  std::vector<ToolShape> tools;
  uint32_t root = 0;  // expression
  Whitespace whitespace = Whitespace::kPretty;
  uint32_t depth_max = 256;  // frames on a stack; nothing opens beyond it

  uint32_t add_expr(Expr e) {
    exprs.push_back(std::move(e));
    return static_cast<uint32_t>(exprs.size()) - 1;
  }
  uint32_t add_dfa(DfaPtr d) {
    dfas.push_back(std::move(d));
    return static_cast<uint32_t>(dfas.size()) - 1;
  }
  size_t bytes() const;
  uint32_t literal(std::string_view text);
  uint32_t symbol(int32_t token) {
    return add_expr({Expr::Kind::kSymbol, static_cast<uint32_t>(token), {}});
  }
  uint32_t sequence(std::vector<uint32_t> parts) {
    return add_expr({Expr::Kind::kSequence, 0, std::move(parts)});
  }
  uint32_t choice(std::vector<uint32_t> parts) {
    return add_expr({Expr::Kind::kChoice, 0, std::move(parts)});
  }
};

// Fills by_name, trie, next_required and required from properties and base; drops a base of which
// every name is declared.
void index_object(ObjectShape& shape);

}  // namespace tensorfold::grammar
