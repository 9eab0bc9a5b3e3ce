// The table of top-level fields of a chat request, and the reader of each.
#include <charconv>

#include "daemon/api/chat_request.h"
#include "daemon/api/json_read.h"

namespace tensorfold::api {
namespace {

using Defaults = ChatDefaults;
constexpr int64_t kTokensMax = 1'048'576;

Status read_model(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.model, read_string(value, "model"));
  return ok_status();
}

Status read_stream(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.stream, read_bool(value, "stream"));
  return ok_status();
}

Status read_stream_options(const Json& value, const Defaults&, ChatCall& call) {
  if (!value.is_object()) return wrong_kind("stream_options", "an object", value);
  call.stream_options_given = true;
  for (const auto& [name, member] : value.as_object()) {
    const std::string path = "stream_options." + name;
    if (name == "include_usage" && !member.is_null()) {
      TF_ASSIGN_OR_RETURN(call.include_usage, read_bool(member, path));
    } else if (name != "include_usage" && name != "include_obfuscation") {
      return invalid_argument("unknown field " + path, path);
    }
  }
  return ok_status();
}

Status read_max_tokens(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.max_tokens, read_int(value, "max_tokens", 1, kTokensMax));
  return ok_status();
}

Status read_max_completion_tokens(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.max_completion_tokens,
                      read_int(value, "max_completion_tokens", 1, kTokensMax));
  return ok_status();
}

Status read_temperature(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.sampling.temperature, read_number(value, "temperature", 0, 2));
  return ok_status();
}

Status read_top_p(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.sampling.top_p, read_number(value, "top_p", 0, 1));
  if (call.request.sampling.top_p == 0) return invalid_argument("top_p must be above 0", "top_p");
  return ok_status();
}

Status read_top_k(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(const int64_t top_k, read_int(value, "top_k", -1, kTokensMax));
  call.request.sampling.top_k = top_k < 0 ? 0 : static_cast<int>(top_k);
  return ok_status();
}

Status read_min_p(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.sampling.min_p, read_number(value, "min_p", 0, 1));
  return ok_status();
}

Status read_presence(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.sampling.presence_penalty,
                      read_number(value, "presence_penalty", -2, 2));
  return ok_status();
}

Status read_frequency(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.sampling.frequency_penalty,
                      read_number(value, "frequency_penalty", -2, 2));
  return ok_status();
}

Status read_repetition(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.sampling.repetition_penalty,
                      read_number(value, "repetition_penalty", 0.01, 10));
  return ok_status();
}

Status read_seed(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(const int64_t seed, read_int(value, "seed", INT64_MIN, INT64_MAX));
  call.request.sampling.seed = static_cast<uint64_t>(seed);
  call.seed_given = true;
  return ok_status();
}

Status add_stop(const Json& value, const std::string& path, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(std::string text, read_string(value, path));
  if (text.empty() || text.size() > kStopBytesMax) {
    return invalid_argument(path + " must be 1.." + std::to_string(kStopBytesMax) + " bytes", path);
  }
  call.request.stop.push_back(std::move(text));
  return ok_status();
}

Status read_stop(const Json& value, const Defaults&, ChatCall& call) {
  if (value.is_string()) return add_stop(value, "stop", call);
  if (!value.is_array()) return wrong_kind("stop", "a string or a list of strings", value);
  const Json::Array& list = value.as_array();
  if (list.size() > kApiStopStringsMax) {
    return invalid_argument("stop has more than " + std::to_string(kApiStopStringsMax) + " strings",
                            "stop");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    TF_RETURN_IF_ERROR(add_stop(list[i], item_path("stop", i), call));
  }
  return ok_status();
}

Status read_logit_bias(const Json& value, const Defaults&, ChatCall& call) {
  if (!value.is_object()) return wrong_kind("logit_bias", "an object", value);
  if (value.as_object().size() > kApiLogitBiasMax) {
    return invalid_argument(
        "logit_bias has more than " + std::to_string(kApiLogitBiasMax) + " entries", "logit_bias");
  }
  for (const auto& [name, bias] : value.as_object()) {
    const std::string path = "logit_bias." + name.substr(0, 32);
    TokenId id = -1;
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end || id < 0) {
      return invalid_argument(path + " is not a token id", path);
    }
    TF_ASSIGN_OR_RETURN(const double number, read_number(bias, path, -100, 100));
    call.request.sampling.logit_bias.emplace_back(id, static_cast<float>(number));
  }
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

Status read_n(const Json& value, const Defaults&, ChatCall&) {
  TF_ASSIGN_OR_RETURN(const int64_t n, read_int(value, "n", 1, 1));
  (void)n;
  return ok_status();
}

Status set_effort(const Json& value, const std::string& path, const Defaults& defaults,
                  ThinkingWishes& wish) {
  if (value.is_int()) {
    TF_ASSIGN_OR_RETURN(wish.effort, read_int(value, path, 1, 100));
    wish.from_effort = true;
    return ok_status();
  }
  TF_ASSIGN_OR_RETURN(const std::string name, read_string(value, path));
  if (name == "none") {
    wish.from_effort = false;
    wish.effort.reset();
    return ok_status();
  }
  const auto number = defaults.efforts.find(name);
  if (!number) {
    return invalid_argument(path + " must be none, " + EffortTable::names() + " or 1..100, not '" +
                                name.substr(0, 64) + "'",
                            path);
  }
  wish.effort = number;
  wish.from_effort = true;
  return ok_status();
}

Status read_effort(const Json& value, const Defaults& defaults, ChatCall& call) {
  ThinkingWishes wish = call.thinking;
  TF_RETURN_IF_ERROR(set_effort(value, "reasoning_effort", defaults, wish));
  if (!call.thinking.effort_from_kwargs) call.thinking = wish;
  return ok_status();
}

Status read_thinking(const Json& value, const Defaults&, ChatCall& call) {
  if (value.is_bool()) {
    call.thinking.type = value.as_bool();
    return ok_status();
  }
  if (!value.is_object()) return wrong_kind("thinking", "an object with a type", value);
  for (const auto& [name, member] : value.as_object()) {
    const std::string path = "thinking." + name;
    if (name == "type") {
      TF_ASSIGN_OR_RETURN(const std::string type, read_string(member, path));
      if (type != "enabled" && type != "disabled") {
        return invalid_argument(path + " must be enabled or disabled", path);
      }
      call.thinking.type = type == "enabled";
    } else if (name == "budget_tokens") {
      TF_ASSIGN_OR_RETURN(call.request.prompt.thinking.budget,
                          read_int(member, path, 1, kTokensMax));
    } else {
      return invalid_argument("unknown field " + path, path);
    }
  }
  return ok_status();
}

Status read_enable_thinking(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.thinking.switched, read_bool(value, "enable_thinking"));
  return ok_status();
}

Status read_thinking_budget(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.prompt.thinking.budget,
                      read_int(value, "thinking_budget", 1, kTokensMax));
  return ok_status();
}

Status read_template_kwargs(const Json& value, const Defaults& defaults, ChatCall& call) {
  if (!value.is_object()) return wrong_kind("chat_template_kwargs", "an object", value);
  for (const auto& [name, member] : value.as_object()) {
    const std::string path = "chat_template_kwargs." + name;
    if (name != "thinking" && name != "enable_thinking" && name != "reasoning_effort") {
      return invalid_argument("unknown field " + path, path);
    }
    if (member.is_null()) continue;
    if (name == "reasoning_effort") {
      TF_RETURN_IF_ERROR(set_effort(member, path, defaults, call.thinking));
      call.thinking.effort_from_kwargs = true;
    } else {
      TF_ASSIGN_OR_RETURN(call.thinking.switched, read_bool(member, path));
    }
  }
  return ok_status();
}

Status read_draft(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.draft, read_bool(value, "draft"));
  return ok_status();
}

Status read_priority(const Json& value, const Defaults&, ChatCall& call) {
  if (value.is_int() && value.as_int64() == 0) return ok_status();
  if (value.is_string() && value.as_string() == "normal") return ok_status();
  if (value.is_string() && value.as_string() == "background") {
    call.request.background = true;
    return ok_status();
  }
  return invalid_argument("priority must be normal or background", "priority");
}

Status read_ignore_eos(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.ignore_eos, read_bool(value, "ignore_eos"));
  return ok_status();
}

Status read_parallel_calls(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.parallel_tool_calls, read_bool(value, "parallel_tool_calls"));
  return ok_status();
}

Status read_cache_salt(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.cache_salt, read_string(value, "cache_salt"));
  if (call.request.cache_salt.size() <= 256) return ok_status();
  return invalid_argument("cache_salt is longer than 256 bytes", "cache_salt");
}

Status read_format(const Json& value, const Defaults&, ChatCall& call) {
  return read_response_format(value, call.form);
}

Status read_structured(const Json& value, const Defaults&, ChatCall& call) {
  return read_structured_outputs(value, call.form);
}

Status read_guided_json(const Json& value, const Defaults&, ChatCall& call) {
  return read_guided("guided_json", value, call.form);
}

Status read_guided_regex(const Json& value, const Defaults&, ChatCall& call) {
  return read_guided("guided_regex", value, call.form);
}

Status read_guided_choice(const Json& value, const Defaults&, ChatCall& call) {
  return read_guided("guided_choice", value, call.form);
}

Status read_guided_grammar(const Json& value, const Defaults&, ChatCall& call) {
  return read_guided("guided_grammar", value, call.form);
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

constexpr auto kUsed = FieldUse::kUsed;
constexpr auto kIgnored = FieldUse::kIgnored;
constexpr auto kRefused = FieldUse::kRefused;

// clang-format off
constexpr ChatField kFields[] = {
    {"messages", kUsed, read_messages, "the conversation; developer is system"},
    {"model", kUsed, read_model, "the served name; absent is the same"},
    {"stream", kUsed, read_stream, "server-sent events"},
    {"stream_options", kUsed, read_stream_options, "include_usage"},
    {"max_tokens", kUsed, read_max_tokens, "reply tokens, reasoning included"},
    {"max_completion_tokens", kUsed, read_max_completion_tokens, "the same"},
    {"temperature", kUsed, read_temperature, "0..2; 0 is greedy"},
    {"top_p", kUsed, read_top_p, "above 0, up to 1"},
    {"top_k", kUsed, read_top_k, "0 or -1 is off"},
    {"min_p", kUsed, read_min_p, "0..1"},
    {"seed", kUsed, read_seed, "absent: random, and reported"},
    {"stop", kUsed, read_stop, "a string or up to 16; the stop text is not returned"},
    {"presence_penalty", kUsed, read_presence, "-2..2"},
    {"frequency_penalty", kUsed, read_frequency, "-2..2"},
    {"repetition_penalty", kUsed, read_repetition, "0.01..10; 1 is off"},
    {"logit_bias", kUsed, read_logit_bias, "token id -> -100..100"},
    {"logprobs", kUsed, read_logprobs, "of every reply token"},
    {"top_logprobs", kUsed, read_top_logprobs, "0..20, needs logprobs"},
    {"n", kUsed, read_n, "1"},
    {"reasoning_effort", kUsed, read_effort, "none, a name, or 1..100; turns thinking on"},
    {"thinking", kUsed, read_thinking, "{type: enabled or disabled}, budget_tokens"},
    {"enable_thinking", kUsed, read_enable_thinking, "true or false"},
    {"thinking_budget", kUsed, read_thinking_budget, "reasoning tokens, then it is closed"},
    {"chat_template_kwargs", kUsed, read_template_kwargs,
     "thinking, enable_thinking, reasoning_effort; they win over the top level's"},
    {"tools", kUsed, read_tools, "functions; the form of calls is enforced"},
    {"tool_choice", kUsed, read_tool_choice, "auto, required, a function, allowed_tools, or none (takes the tools out)"},
    {"parallel_tool_calls", kUsed, read_parallel_calls, "false: at most one call"},
    {"draft", kUsed, read_draft, "false: no speculation; the text is the same"},
    {"priority", kUsed, read_priority, "normal or background"},
    {"ignore_eos", kUsed, read_ignore_eos, "go on until max_tokens"},
    {"cache_salt", kUsed, read_cache_salt, "keeps the prefix cache apart"},
    {"response_format", kUsed, read_format, "text, json_object, json_schema, regex or grammar"},
    {"structured_outputs", kUsed, read_structured, "json, json_object, regex, choice or grammar"},
    {"guided_json", kUsed, read_guided_json, "a JSON schema"},
    {"guided_regex", kUsed, read_guided_regex, "the whole reply matches it"},
    {"guided_choice", kUsed, read_guided_choice, "the reply is one of these strings"},
    {"guided_grammar", kUsed, read_guided_grammar, "rules in GBNF; root is the reply"},
    {"store", kUsed, read_store, "false"},
    {"modalities", kUsed, read_modalities, "[text]"},

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
    {"min_tokens", kRefused, nullptr, "not there yet"},
    {"continue_final_message", kRefused, nullptr, "not there yet"},
    {"add_generation_prompt", kRefused, nullptr, "the reply's header is always added"},
};
// clang-format on

}  // namespace

std::span<const ChatField> chat_fields() { return kFields; }

}  // namespace tensorfold::api
