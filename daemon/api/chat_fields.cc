// The table of top-level fields of a chat request, and the readers that only chat has.
#include "daemon/api/chat_request.h"
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
Status read_stop_ids(const Json& value, const Defaults&, ChatCall&) {
  return must_be(value, Json::array({}), "stop_token_ids");
}

constexpr auto kUsed = FieldUse::kUsed;
constexpr auto kIgnored = FieldUse::kIgnored;
constexpr auto kRefused = FieldUse::kRefused;

// clang-format off
constexpr ChatField kFields[] = {
    {"messages", kUsed, read_messages, "the conversation; developer is system"},
    {"model", kUsed, read_model, "the served name; absent is the same"},
    {"stream", kUsed, read_stream, "server-sent events; default false"},
    {"stream_options", kUsed, read_stream_options,
     "include_usage: one more chunk with usage; default false"},
    {"return_progress", kUsed, read_return_progress,
     "of a stream, true: chunks with prompt_progress; default false"},
    {"max_tokens", kUsed, read_max_tokens,
     "reply tokens, reasoning included; default up to the context; 0 computes the prompt alone"},
    {"max_completion_tokens", kUsed, read_max_completion_tokens, "the same"},
    {"temperature", kUsed, read_temperature, "0..2, 0 is greedy; default sampling.temperature"},
    {"top_p", kUsed, read_top_p, "above 0, up to 1; default sampling.top_p"},
    {"top_k", kUsed, read_top_k, "0 or -1 is off; default sampling.top_k"},
    {"min_p", kUsed, read_min_p, "0..1; default sampling.min_p"},
    {"seed", kUsed, read_seed, "a signed 64-bit number; default random, and reported"},
    {"stop", kUsed, read_stop,
     "a string or up to 16 of up to 256 bytes; they end the content and are not returned"},
    {"presence_penalty", kUsed, read_presence, "-2..2; default 0"},
    {"frequency_penalty", kUsed, read_frequency, "-2..2; default 0"},
    {"repetition_penalty", kUsed, read_repetition, "0.01..10; default 1, which is off"},
    {"logit_bias", kUsed, read_logit_bias, "up to 1,024 of token id -> -100..100; default none"},
    {"logprobs", kUsed, read_logprobs,
     "true: of every reply token, reasoning included; default false"},
    {"top_logprobs", kUsed, read_top_logprobs, "0..20 alternatives, needs logprobs; default 0"},
    {"n", kUsed, read_n, "choices, up to 16; default 1"},
    {"reasoning_effort", kUsed, read_effort,
     "none (off), a name or 1..100 (on); default: see Thinking"},
    {"thinking", kUsed, read_thinking, "{type: enabled or disabled}, budget_tokens"},
    {"enable_thinking", kUsed, read_enable_thinking, "true or false; default: see Thinking"},
    {"thinking_budget", kUsed, read_thinking_budget,
     "reasoning tokens after which thinking is closed; default none"},
    {"chat_template_kwargs", kUsed, read_template_kwargs,
     "thinking, enable_thinking, reasoning_effort; they win over the top level's"},
    {"tools", kUsed, read_tools, "functions; the form of calls is enforced"},
    {"tool_choice", kUsed, read_tool_choice,
     "auto, required, a function, allowed_tools, or none (takes the tools out)"},
    {"parallel_tool_calls", kUsed, read_parallel_calls, "false: at most one call; default true"},
    {"draft", kUsed, read_draft, "false: no speculation, the text is the same; default true"},
    {"priority", kUsed, read_priority,
     "normal (0) or background (above 0: yields to others); default normal"},
    {"ignore_eos", kUsed, read_ignore_eos, "true: on until max_tokens; default false"},
    {"min_tokens", kUsed, read_min_tokens, "reply tokens before it may end; default 0"},
    {"allowed_token_ids", kUsed, read_allowed_tokens, "no other token is sampled; default all"},
    {"return_token_ids", kUsed, read_return_ids,
     "true: the reply's ids, in the stats block; default false"},
    {"continue_final_message", kUsed, read_continue,
     "true: the reply goes on with the last message, an assistant's"},
    {"add_generation_prompt", kUsed, read_generation_prompt,
     "true, or false with continue_final_message"},
    {"cache_salt", kUsed, read_cache_salt,
     "keeps this request's prefixes apart, up to 256 bytes; default none"},
    {"response_format", kUsed, read_format, "text, json_object, json_schema, regex or grammar"},
    {"structured_outputs", kUsed, read_structured, "json, json_object, regex, choice or grammar"},
    {"guided_json", kUsed, read_guided_json, "a JSON schema"},
    {"guided_regex", kUsed, read_guided_regex, "the whole reply matches it"},
    {"guided_choice", kUsed, read_guided_choice, "the reply is one of these strings"},
    {"guided_grammar", kUsed, read_guided_grammar, "rules in GBNF; root is the reply"},
    {"store", kUsed, read_store, "false"},
    {"modalities", kUsed, read_modalities, "[text]"},
    {"skip_special_tokens", kUsed, read_skip_special, "true"},
    {"spaces_between_special_tokens", kUsed, read_spaces_between, "true"},
    {"include_stop_str_in_output", kUsed, read_stop_in_output, "false"},
    {"use_beam_search", kUsed, read_beam_search, "false"},
    {"echo", kUsed, read_echo, "false"},
    {"stop_token_ids", kUsed, read_stop_ids, "[]"},

    {"user", kIgnored, nullptr, "a label of the client's"},
    {"metadata", kIgnored, nullptr, "labels of the client's"},
    {"safety_identifier", kIgnored, nullptr, "a label of the client's"},
    {"prompt_cache_key", kIgnored, nullptr, "the prefix cache needs no hint"},
    {"prompt_cache_retention", kIgnored, nullptr, "the prefix cache needs no hint"},
    {"service_tier", kIgnored, nullptr, "there is one"},
    {"guided_decoding_backend", kIgnored, nullptr, "there is one"},
    {"prediction", kIgnored, nullptr, "only a hint for speed"},

    {"functions", kRefused, nullptr, "use tools"},
    {"function_call", kRefused, nullptr, "use tool_choice"},
    {"audio", kRefused, nullptr, "text only"},
    {"web_search_options", kRefused, nullptr, "there is no search"},
    {"verbosity", kRefused, nullptr, "ask in the prompt"},
    {"chat_template", kRefused, nullptr, "the model's own encoder writes the prompt"},
    {"documents", kRefused, nullptr, "put them in a message"},
};
// clang-format on

}  // namespace

std::span<const ChatField> chat_fields() { return kFields; }

}  // namespace tensorfold::api
