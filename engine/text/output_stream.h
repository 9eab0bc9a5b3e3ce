// Token ids of a reply to reasoning, content and tool calls, as they arrive.
//
// Implements OutputStream of engine.h over a tokenizer; the grammar of a reply and its state
// machine are in output_parser.h. One stream belongs to one reply and one thread at a time. It is
// lenient: what does not parse is returned as text and nothing is shown twice. Strict parsing of a
// finished text is parse_completion (completion.h).
#pragma once

#include <memory>

#include "engine/engine.h"
#include "engine/text/prompt_message.h"
#include "engine/text/tokenizer.h"

namespace tensorfold {

// Control tokens count as such only by their ids; the same text made from other tokens is text.
// Beyond stop strings, a turn marker (user, system, assistant, reminder) ends the reply.
std::unique_ptr<OutputStream> make_output_stream(std::shared_ptr<const Tokenizer> tokenizer,
                                                 const OutputOptions& options,
                                                 PromptFormat format = PromptFormat::kV41);

}  // namespace tensorfold
