// The body of POST /v1/completions: texts or token ids in, one request for each.
#include <algorithm>
#include <utility>

#include "daemon/api/bodies.h"
#include "daemon/api/completion_writer.h"
#include "daemon/api/field_rows.h"
#include "daemon/api/field_schemas.h"
#include "daemon/api/fields.h"
#include "daemon/api/json_read.h"

namespace tensorfold::api {
namespace {

using Defaults = ChatDefaults;

Prompt text_prompt(std::string text) {
  Prompt prompt;
  prompt.raw.emplace();
  prompt.raw->text = std::move(text);
  return prompt;
}

Status add_ids(const Json& value, const std::string& path, ChatCall& call) {
  Prompt prompt;
  TF_ASSIGN_OR_RETURN(prompt.ids, read_token_ids(value, path, kPromptIdsMax));
  if (prompt.ids->empty()) return invalid_argument(path + " must not be empty", path);
  call.prompts.push_back(std::move(prompt));
  return ok_status();
}

// A text, a list of ids, a list of texts, or a list of lists of ids.
Status read_prompt(const Json& value, const Defaults&, ChatCall& call) {
  if (value.is_string()) {
    call.prompts.push_back(text_prompt(value.as_string()));
    return ok_status();
  }
  if (!value.is_array() || value.as_array().empty()) {
    return invalid_argument("prompt must be a text, a list of token ids, or a list of these",
                            "prompt");
  }
  const Json::Array& list = value.as_array();
  if (list[0].is_number()) return add_ids(value, "prompt", call);
  if (list.size() > static_cast<size_t>(kReplyChoicesMax)) {
    return invalid_argument("prompt has more than " + std::to_string(kReplyChoicesMax) + " prompts",
                            "prompt");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = item_path("prompt", i);
    if (list[i].is_string()) {
      call.prompts.push_back(text_prompt(list[i].as_string()));
    } else {
      TF_RETURN_IF_ERROR(add_ids(list[i], path, call));
    }
  }
  return ok_status();
}

Status read_suffix(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.suffix, read_string(value, "suffix"));
  return ok_status();
}

Status read_echo(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.echo, read_bool(value, "echo"));
  return ok_status();
}

Status read_logprobs(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(const int64_t n, read_int(value, "logprobs", 0, kApiTopLogprobsMax));
  call.top_logprobs = static_cast<int>(n);
  return ok_status();
}

Status read_add_special(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.add_bos, read_bool(value, "add_special_tokens"));
  return ok_status();
}

Status read_best_of(const Json& value, const Defaults&, ChatCall&) {
  return must_be(value, Json::integer(1), "best_of");
}

constexpr auto kUsed = FieldUse::kUsed;
constexpr auto kRefused = FieldUse::kRefused;

// clang-format off
constexpr ChatField kFields[] = {
    {"prompt", kUsed, read_prompt,
     "a text, a list of token ids, or a list of these; no template",
     kNeeded, R"({"type":["string","array"]})"},
    kModelRow,
    {"suffix", kUsed, read_suffix,
     "the reply is what belongs between prompt and suffix", "none", kString},
    {"echo", kUsed, read_echo, "true: the prompt stands before the text", "false", kBoolean},
    {"add_special_tokens", kUsed, read_add_special,
     "true: the begin token in front", "false", kBoolean},
    {"n", kUsed, read_n,
     "choices of each prompt, up to 16", "1", R"({"type":"integer","minimum":1,"maximum":16})"},
    {"best_of", kUsed, read_best_of, "no other value is taken", "1", R"({"const":1})"},
    kStreamRow,
    kStreamOptionsRow,
    kReturnProgressRow,
    {"max_tokens", kUsed, read_max_tokens,
     "reply tokens; 0 computes the prompt alone", "up to the context", kReplyTokens},
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
     "of every reply token, with echo of the prompt's, too, with 0..20 alternatives",
     "none", R"({"type":"integer","minimum":0,"maximum":20})"},
    kPromptLogprobsRow,
    kLoopGuardRow,
    kDraftRow,
    kPriorityRow,
    kIgnoreEosRow,
    kMinTokensRow,
    kAllowedTokenIdsRow,
    kReturnTokenIdsRow,
    kCacheSaltRow,
    kResponseFormatRow,
    kStructuredOutputsRow,
    kGuidedJsonRow,
    kGuidedRegexRow,
    kGuidedChoiceRow,
    kGuidedGrammarRow,

    kUserRow,
    kMetadataRow,
    kGuidedDecodingBackendRow,

    {"stop_token_ids", kRefused, nullptr, "use stop"},
    {"use_beam_search", kRefused, nullptr, "there is none"},
};
// clang-format on

Status settle(ChatCall& call) {
  if (call.prompts.empty()) return invalid_argument("prompt is missing", "prompt");
  if (call.prompts.size() * static_cast<size_t>(call.n) > static_cast<size_t>(kReplyChoicesMax)) {
    return invalid_argument("n times the prompts is above " + std::to_string(kReplyChoicesMax),
                            "n");
  }
  TF_RETURN_IF_ERROR(settle_prompt_logprobs(call));
  if (call.echo && call.top_logprobs >= 0) {
    if (call.stream && call.n > 1)
      return invalid_argument("echo with logprobs is streamed for n = 1 only", "n");
    if (call.suffix) return invalid_argument("echo with logprobs goes with no suffix", "suffix");
    call.request.prompt_logprobs = std::max(call.prompt_logprobs, call.top_logprobs);
  }
  call.request.top_logprobs = call.top_logprobs;
  for (Prompt& prompt : call.prompts) {
    if (call.suffix && !prompt.raw) {
      return invalid_argument("suffix needs a prompt of text", "suffix");
    }
    if (!prompt.raw) continue;
    prompt.raw->suffix = call.suffix;
    prompt.raw->add_bos = call.add_bos;
    if (prompt.raw->text.empty() && !call.suffix && !call.add_bos) {
      return invalid_argument("prompt must not be empty", "prompt");
    }
  }
  TF_RETURN_IF_ERROR(settle_limits(call));
  TF_ASSIGN_OR_RETURN(call.request.constraint,
                      settle_constraint(std::move(call.form), true, call.request.ignore_eos));
  return ok_status();
}

CompletionLook look_of(const ChatCall& call) {
  CompletionLook look;
  look.choices = static_cast<int>(call.prompts.size()) * call.n;
  look.include_usage = call.include_usage;
  look.logprobs = call.top_logprobs;
  look.prompt_logprobs = call.prompt_logprobs;
  look.n = call.n;
  look.add_bos = call.add_bos;
  look.token_ids = call.token_ids;
  if (!call.echo) return look;
  for (const Prompt& prompt : call.prompts) {
    for (int i = 0; i < call.n; ++i) {
      if (prompt.ids) {
        look.echo.emplace_back(*prompt.ids);
      } else {
        look.echo.emplace_back(prompt.raw->text);
      }
    }
  }
  return look;
}

}  // namespace

std::span<const ChatField> completion_fields() { return kFields; }

Result<ReplyOrder> read_completion_order(std::string_view body, const ChatDefaults& defaults) {
  TF_ASSIGN_OR_RETURN(const Json parsed, parse_body(body));
  ChatCall call = call_with(defaults);
  TF_RETURN_IF_ERROR(read_fields(parsed, kFields, defaults, call));
  TF_RETURN_IF_ERROR(settle(call));
  CompletionLook look = look_of(call);
  std::vector<Prompt> prompts = std::move(call.prompts);
  const Request base = call.request;
  ReplyOrder order = order_of(std::move(call), Dialect::kCompletions);
  order.prompts.clear();
  for (Prompt& prompt : prompts) {
    order.prompts.push_back(base);
    order.prompts.back().prompt = std::move(prompt);
  }
  order.writer = make_completion_writer(order.stream, std::move(look));
  return order;
}

}  // namespace tensorfold::api
