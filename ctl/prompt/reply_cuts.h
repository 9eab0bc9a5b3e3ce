// Feeds a recorded reply to the incremental parser in every way of cutting it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/text/output_parser.h"

namespace tensorfold::ctl {

// Everything that a stream of deltas said.
struct ReplyParts {
  struct Call {
    std::string id, name, arguments;
    bool operator==(const Call&) const = default;
  };
  std::string reasoning, content;
  std::vector<Call> calls;
  bool operator==(const ReplyParts&) const = default;
};

void add_delta(const OutputDelta& delta, ReplyParts& parts);

// A reply as the parser takes it: text, and control tokens recognized by their spelling.
struct ReplyItem {
  ReplyControl kind = ReplyControl::kNone;
  std::string text;
};
std::vector<ReplyItem> reply_items(std::string_view text);

struct CutReport {
  ReplyParts whole;     // the reply in one piece
  int cuts = 0;         // ways tried
  std::string problem;  // the first way that differed, or empty
};

// Tries every cut in two, chunks of 1, 2, 3, 5, 7, 11 and 23 bytes, and random cuts.
CutReport try_cuts(std::string_view text, const OutputOptions& options, PromptFormat format);

}  // namespace tensorfold::ctl
