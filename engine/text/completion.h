// Strict parsing of a finished reply, exactly as the reference parser does it.
//
// For checking recorded replies (tfctl prompt check) and for tests; serving uses the lenient
// OutputParser. Works on text: control tokens are recognized by their spelling. Values declared as
// JSON are pasted into the arguments unvalidated, as the reference does.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/text/prompt_message.h"

namespace tensorfold {

struct Completion {
  struct Call {
    std::string name;
    std::string arguments;  // "{...}"
  };
  std::string content;
  std::string reasoning;
  std::vector<Call> calls;
};

// `thinking`: the prompt ended with <think>. Errors are kInvalidArgument with the reason
//   bad_completion  the envelope is wrong    (the reference: AssertionError)
//   bad_tool_call   a tool call is malformed (ValueError)
Result<Completion> parse_completion(std::string_view text, bool thinking,
                                    PromptFormat format = PromptFormat::kV41);

}  // namespace tensorfold
