// Runs a file of prompt cases against the encoder, the parsers and the tokenizer.
//
// The file's form: {"cases": [...], "completion_parsing_cases": [...], "image_grid_cases": [...]};
// docs/prompt-format.md describes the fields. Pure: JSON in, a report out.
#pragma once

#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/text/tokenizer.h"

namespace tensorfold::ctl {

struct CheckFailure {
  std::string group;  // "cases", ...
  std::string name;
  std::string reason;  // what was expected and what was found
};

struct CheckGroup {
  std::string name;
  int right = 0, wrong = 0;
};

struct CheckReport {
  std::vector<CheckGroup> groups;
  std::vector<CheckFailure> failures;
  std::vector<std::string> ignored;  // top-level fields that hold no cases
  int token_ids_compared = 0;        // cases whose ids were compared
  int token_ids_skipped = 0;         // cases with ids, but no tokenizer was given
  int cuts_compared = 0;             // ways of cutting a reply that gave the same result

  int right() const;
  int wrong() const;
};

// `tokenizer` may be null: then token ids are not compared. An error means that the file does not
// have the form above.
Result<CheckReport> check_cases(const Json& file, const Tokenizer* tokenizer);

}  // namespace tensorfold::ctl
