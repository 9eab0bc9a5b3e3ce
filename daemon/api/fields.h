// The readers of fields, shared by the tables of the APIs, and the walk of a body over a table.
//
// Pure, like parse_chat. Each reader is given the value of one top-level field and fills the call.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/api/chat_request.h"

namespace tensorfold::api {

inline constexpr int64_t kReplyTokensMax = 1'048'576;     // max_tokens and its kin
inline constexpr size_t kPromptIdsMax = size_t{1} << 20;  // token ids of one list
inline constexpr int kChoicesMax = 16;                    // "n"

using FieldReader = Status(const Json& value, const ChatDefaults& defaults, ChatCall& call);

FieldReader read_allowed_tokens, read_cache_salt, read_draft, read_format, read_frequency,
    read_guided_choice, read_guided_grammar, read_guided_json, read_guided_regex, read_ignore_eos,
    read_logit_bias, read_loop_guard, read_max_tokens, read_min_p, read_min_tokens, read_model,
    read_n, read_parallel_calls, read_presence, read_priority, read_prompt_logprobs,
    read_repetition, read_return_ids, read_return_progress, read_schema_in_prompt, read_seed,
    read_stop, read_stream, read_stream_options, read_structured, read_temperature, read_top_k,
    read_top_p;

// thinking_fields.cc
FieldReader read_effort, read_thinking, read_enable_thinking, read_thinking_budget,
    read_template_kwargs;
Status set_effort(const Json& value, const std::string& path, const ChatDefaults& defaults,
                  ThinkingWishes& wish);
void settle_thinking(const ChatDefaults& defaults, ChatCall& call);

Status read_stop_list(const Json& value, const std::string& path, ChatCall& call);
Result<std::vector<TokenId>> read_token_ids(const Json& value, const std::string& path,
                                            size_t most);
// A field of which one value is known to change nothing.
Status must_be(const Json& value, const Json& only, const std::string& path);

// The body as an object, each member read by the table's entry of its name. A member that is not in
// the table is an error that names it; null is the same as absent.
Result<Json> parse_body(std::string_view body);
Status read_fields(const Json& body, std::span<const ChatField> table, const ChatDefaults& defaults,
                   ChatCall& call);
ChatCall call_with(const ChatDefaults& defaults);
// What depends on several fields and is the same in every API.
Status settle_limits(ChatCall& call);
// What every chat-like API does last: tools that may be called, limits, what the prompt says of the
// reply's form, the constraint, thinking.
Status settle_reply(const ChatDefaults& defaults, ChatCall& call);
Status settle_prompt_logprobs(ChatCall& call);
// How a conversation must end: with a turn that is replied to or, if `gone_on_with`, with an
// assistant's that is continued.
Status check_last_message(const std::vector<ChatMessage>& messages, bool gone_on_with);

}  // namespace tensorfold::api
