// What an EBNF text says, before it becomes an automaton: rules of items. See ebnf.cc.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/grammar/char_set.h"

namespace tensorfold::grammar::ebnf {

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

// "line 3, column 7" of a byte of the text.
std::string place(std::string_view text, size_t at);

// Errors name line and column.
Status parse(std::string_view text, Rules& rules);

}  // namespace tensorfold::grammar::ebnf
