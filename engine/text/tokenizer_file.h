// Reads tokenizer.json into plain tables, refusing what the tokenizer does not implement.
//
// Pure: bytes in, tables or an error out. Every error names the field and says what was expected;
// nothing in the file is skipped silently except fields that cannot change a token id.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/text/bpe.h"
#include "engine/text/tokenizer.h"

namespace tensorfold {

struct TokenizerTables {
  std::vector<std::string> bytes;  // by id: the bytes a token stands for; empty where no token is
  std::array<TokenId, 256> byte_tokens{};
  std::vector<BpeMerge> merges;   // by rank
  std::vector<AddedToken> added;  // ascending ids
};

// The three expressions that pretokenizer.h implements, as tokenizer.json spells them.
extern const std::array<std::string_view, 3> kSplitPatterns;

Result<TokenizerTables> parse_tokenizer_file(std::string_view json, std::string_view where);

}  // namespace tensorfold
