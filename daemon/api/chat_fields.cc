// The table of top-level fields of a chat request, and the readers that only chat has.
#include "daemon/api/chat_request.h"
#include "daemon/api/field_rows.h"
#include "daemon/api/field_schemas.h"
#include "daemon/api/fields.h"
#include "daemon/api/json_read.h"

namespace tensorfold::api {
namespace {

using Defaults = ChatDefaults;

Status read_max_completion_tokens(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.max_completion_tokens,
                      read_int(value, "max_completion_tokens", 1, kReplyTokensMax));
  return ok_status();
}

Status read_logprobs(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.logprobs, read_bool(value, "logprobs"));
  return ok_status();
}

Status read_top_logprobs(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(const int64_t n, read_int(value, "top_logprobs", 0, kApiTopLogprobsMax));
  call.top_logprobs = static_cast<int>(n);
  return ok_status();
}

Status read_store(const Json& value, const Defaults&, ChatCall&) {
  TF_ASSIGN_OR_RETURN(const bool store, read_bool(value, "store"));
  if (!store) return ok_status();
  return invalid_argument("store: replies are not stored here", "store");
}

Status read_modalities(const Json& value, const Defaults&, ChatCall&) {
  if (value.is_array() && value.as_array().size() == 1 && value.as_array()[0].is_string() &&
      value.as_array()[0].as_string() == "text") {
    return ok_status();
  }
  return invalid_argument("modalities: only [\"text\"] is supported", "modalities");
}

Status read_continue(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.prompt.continue_final,
                      read_bool(value, "continue_final_message"));
  return ok_status();
}

Status read_generation_prompt(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(const bool added, read_bool(value, "add_generation_prompt"));
  call.no_header_asked = !added;
  return ok_status();
}

// Fields of other servers of which one value is what happens here anyway.
Status read_skip_special(const Json& value, const Defaults&, ChatCall&) {
  return must_be(value, Json::boolean(true), "skip_special_tokens");
}
Status read_spaces_between(const Json& value, const Defaults&, ChatCall&) {
  return must_be(value, Json::boolean(true), "spaces_between_special_tokens");
}
Status read_stop_in_output(const Json& value, const Defaults&, ChatCall&) {
  return must_be(value, Json::boolean(false), "include_stop_str_in_output");
}
Status read_beam_search(const Json& value, const Defaults&, ChatCall&) {
  return must_be(value, Json::boolean(false), "use_beam_search");
}
Status read_echo(const Json& value, const Defaults&, ChatCall&) {
  return must_be(value, Json::boolean(false), "echo");
}
Status read_verbosity(const Json& value, const Defaults&, ChatCall&) {
  return must_be(value, Json::string("medium"), "verbosity");
}
Status read_stop_ids(const Json& value, const Defaults&, ChatCall&) {
  return must_be(value, Json::array({}), "stop_token_ids");
}

constexpr auto kUsed = FieldUse::kUsed;
constexpr auto kIgnored = FieldUse::kIgnored;
constexpr auto kRefused = FieldUse::kRefused;

// clang-format off
constexpr ChatField kFields[] = {
    {"messages", kUsed, read_messages,
     "the conversation; developer is system", kNeeded, kChatMessages},
    kModelRow,
    kStreamRow,
    kStreamOptionsRow,
    kReturnProgressRow,
    {"max_tokens", kUsed, read_max_tokens,
     "reply tokens, reasoning included; 0 computes the prompt alone",
     "up to the context", kReplyTokens},
    {"max_completion_tokens", kUsed, read_max_completion_tokens,
     "the same", "max_tokens", kSomeTokens},
    kTemperatureRow,
    kTopPRow,
    kTopKRow,
    kMinPRow,
    kSeedRow,
    kStopRow,
    kPresencePenaltyRow,
    kFrequencyPenaltyRow,
    kRepetitionPenaltyRow,
    kLogitBiasRow,
    {"logprobs", kUsed, read_logprobs,
     "true: of every reply token, reasoning included", "false", kBoolean},
    {"top_logprobs", kUsed, read_top_logprobs,
     "0..20 alternatives, needs logprobs", "0", R"({"type":"integer","minimum":0,"maximum":20})"},
    kPromptLogprobsRow,
    {"n", kUsed, read_n,
     "choices, up to 16", "1", R"({"type":"integer","minimum":1,"maximum":16})"},
    kReasoningEffortRow,
    {"thinking", kUsed, read_thinking,
     "{type: enabled or disabled}, budget_tokens; or true, false",
     "see Thinking", R"({"type":["object","boolean"]})"},
    kEnableThinkingRow,
    {"thinking_budget", kUsed, read_thinking_budget,
     "reasoning tokens after which thinking is closed", "none", kSomeTokens},
    kChatTemplateKwargsRow,
    {"tools", kUsed, read_tools,
     "functions; the form of calls is enforced",
     "none", R"({"type":"array","items":{"type":"object"}})"},
    {"tool_choice", kUsed, read_tool_choice,
     "auto, required, a function, allowed_tools, or none (takes the tools out)",
     "auto", R"({"type":["string","object"]})"},
    kParallelToolCallsRow,
    kLoopGuardRow,
    kDraftRow,
    kPriorityRow,
    kIgnoreEosRow,
    kMinTokensRow,
    kAllowedTokenIdsRow,
    kReturnTokenIdsRow,
    {"continue_final_message", kUsed, read_continue,
     "true: the reply goes on with the last message, an assistant's", "false", kBoolean},
    {"add_generation_prompt", kUsed, read_generation_prompt,
     "true, or false with continue_final_message", "true", kBoolean},
    kCacheSaltRow,
    kResponseFormatRow,
    kStructuredOutputsRow,
    kGuidedJsonRow,
    kGuidedRegexRow,
    kGuidedChoiceRow,
    kGuidedGrammarRow,
    kSchemaInPromptRow,
    {"store", kUsed, read_store, "no other value is taken", "false", R"({"const":false})"},
    {"modalities", kUsed, read_modalities,
     "no other value is taken", "[text]", R"({"const":["text"]})"},
    {"skip_special_tokens", kUsed, read_skip_special,
     "no other value is taken", "true", R"({"const":true})"},
    {"spaces_between_special_tokens", kUsed, read_spaces_between,
     "no other value is taken", "true", R"({"const":true})"},
    {"include_stop_str_in_output", kUsed, read_stop_in_output,
     "no other value is taken", "false", R"({"const":false})"},
    {"use_beam_search", kUsed, read_beam_search,
     "no other value is taken", "false", R"({"const":false})"},
    {"echo", kUsed, read_echo, "no other value is taken", "false", R"({"const":false})"},
    {"verbosity", kUsed, read_verbosity,
     "no other value is taken", "medium", R"({"const":"medium"})"},
    {"stop_token_ids", kUsed, read_stop_ids, "no other value is taken", "[]", R"({"const":[]})"},

    kUserRow,
    kMetadataRow,
    kSafetyIdentifierRow,
    kPromptCacheKeyRow,
    kPromptCacheRetentionRow,
    kServiceTierRow,
    kGuidedDecodingBackendRow,
    {"prediction", kIgnored, nullptr, "only a hint for speed"},

    {"functions", kRefused, nullptr, "use tools"},
    {"function_call", kRefused, nullptr, "use tool_choice"},
    {"audio", kRefused, nullptr, "text only"},
    {"web_search_options", kRefused, nullptr, "there is no search"},
    {"chat_template", kRefused, nullptr, "the model's own encoder writes the prompt"},
    {"documents", kRefused, nullptr, "put them in a message"},
};
// clang-format on

}  // namespace

std::span<const ChatField> chat_fields() { return kFields; }

}  // namespace tensorfold::api
