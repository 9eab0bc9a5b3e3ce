// Readers of fields that several APIs have: sampling, limits, the form of the reply.
#include <charconv>

#include "daemon/api/fields.h"
#include "daemon/api/json_read.h"

namespace tensorfold::api {

using Defaults = ChatDefaults;

namespace {

Status add_stop(const Json& value, const std::string& path, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(std::string text, read_string(value, path));
  if (text.empty() || text.size() > kStopBytesMax) {
    return invalid_argument(path + " must be 1.." + std::to_string(kStopBytesMax) + " bytes", path);
  }
  call.request.stop.push_back(std::move(text));
  return ok_status();
}

}  // namespace

Status read_stop_list(const Json& value, const std::string& path, ChatCall& call) {
  if (value.is_string()) return add_stop(value, path, call);
  if (!value.is_array()) return wrong_kind(path, "a string or a list of strings", value);
  const Json::Array& list = value.as_array();
  if (list.size() > kApiStopStringsMax) {
    return invalid_argument(
        path + " has more than " + std::to_string(kApiStopStringsMax) + " strings", path);
  }
  for (size_t i = 0; i < list.size(); ++i) {
    TF_RETURN_IF_ERROR(add_stop(list[i], item_path(path, i), call));
  }
  return ok_status();
}

Status read_stop(const Json& value, const Defaults&, ChatCall& call) {
  return read_stop_list(value, "stop", call);
}

Status read_max_tokens(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.max_tokens, read_int(value, "max_tokens", 0, kReplyTokensMax));
  return ok_status();
}

Status read_min_tokens(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(const int64_t least, read_int(value, "min_tokens", 0, kReplyTokensMax - 1));
  call.request.min_tokens = static_cast<int>(least);
  return ok_status();
}

Status read_top_p(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.sampling.top_p, read_number(value, "top_p", 0, 1));
  if (call.request.sampling.top_p == 0) return invalid_argument("top_p must be above 0", "top_p");
  return ok_status();
}

Status read_n(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(const int64_t n, read_int(value, "n", 1, kChoicesMax));
  call.n = static_cast<int>(n);
  return ok_status();
}

Status read_priority(const Json& value, const Defaults&, ChatCall& call) {
  const std::string name = value.is_string() ? value.as_string() : std::string();
  const int64_t number = value.is_int() ? value.as_int64().value_or(-1) : -1;
  if (number == 0 || name == "normal") return ok_status();
  if (number > 0 || name == "background") {
    call.request.background = true;
    return ok_status();
  }
  return invalid_argument("priority must be normal or background (or 0, or above it)", "priority");
}

Status read_allowed_tokens(const Json& value, const Defaults&, ChatCall& call) {
  const std::string path = "allowed_token_ids";
  TF_ASSIGN_OR_RETURN(call.request.allowed_tokens, read_token_ids(value, path, kPromptIdsMax));
  if (!call.request.allowed_tokens.empty()) return ok_status();
  return invalid_argument(path + " must not be empty", path);
}

Status read_return_ids(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.token_ids, read_bool(value, "return_token_ids"));
  return ok_status();
}

Status read_return_progress(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.progress, read_bool(value, "return_progress"));
  return ok_status();
}

Status must_be(const Json& value, const Json& only, const std::string& path) {
  if (value == only) return ok_status();
  return invalid_argument(path + ": only " + dump_json_compact(only) + " is supported", path);
}

Result<std::vector<TokenId>> read_token_ids(const Json& value, const std::string& path,
                                            size_t most) {
  if (!value.is_array()) return wrong_kind(path, "a list of token ids", value);
  const Json::Array& list = value.as_array();
  if (list.size() > most) {
    return invalid_argument(path + " has more than " + std::to_string(most) + " ids", path);
  }
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const auto id = list[i].is_int() ? list[i].as_int64() : std::nullopt;
    if (!id || *id < 0 || *id > INT32_MAX) {
      return invalid_argument(item_path(path, i) + " is not a token id", item_path(path, i));
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

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

Status read_prompt_logprobs(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(const int64_t n, read_int(value, "prompt_logprobs", 0, kApiTopLogprobsMax));
  call.prompt_logprobs = static_cast<int>(n);
  return ok_status();
}

Status settle_prompt_logprobs(ChatCall& call) {
  if (call.prompt_logprobs >= 0 && call.stream) {
    return invalid_argument("prompt_logprobs are not streamed", "prompt_logprobs");
  }
  call.request.prompt_logprobs = call.prompt_logprobs;
  return ok_status();
}

Status read_temperature(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.sampling.temperature, read_number(value, "temperature", 0, 2));
  return ok_status();
}

Status read_top_k(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(const int64_t top_k, read_int(value, "top_k", -1, kReplyTokensMax));
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
    // "07" would be a second name of 7.
    if (parsed.ec != std::errc() || parsed.ptr != end || std::to_string(id) != name || id < 0) {
      return invalid_argument(path + " is not a token id", path);
    }
    TF_ASSIGN_OR_RETURN(const double number, read_number(bias, path, -100, 100));
    call.request.sampling.logit_bias.emplace_back(id, static_cast<float>(number));
  }
  return ok_status();
}

Status read_draft(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.draft, read_bool(value, "draft"));
  return ok_status();
}

Status read_loop_guard(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.loop_guard, read_bool(value, "loop_guard"));
  return ok_status();
}

Status read_schema_in_prompt(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.schema_in_prompt, read_bool(value, "schema_in_prompt"));
  return ok_status();
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

}  // namespace tensorfold::api
