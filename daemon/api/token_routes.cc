// See the header. /tokenize takes a text or what a chat body holds of a conversation.
#include "daemon/api/token_routes.h"

#include "daemon/api/bodies.h"
#include "daemon/api/errors.h"
#include "daemon/api/field_rows.h"
#include "daemon/api/field_schemas.h"
#include "daemon/api/fields.h"
#include "daemon/api/json_read.h"
#include "engine/base/utf8.h"

namespace tensorfold::api {
namespace {

using Defaults = ChatDefaults;

Status read_text(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(std::string text, read_string(value, "prompt"));
  Prompt prompt;
  prompt.raw.emplace();
  prompt.raw->text = std::move(text);
  call.prompts.push_back(std::move(prompt));
  return ok_status();
}

Status read_add_special(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.add_bos, read_bool(value, "add_special_tokens"));
  return ok_status();
}

// Here `token_ids` says that the tokens' texts are wanted.
Status read_strs(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.token_ids, read_bool(value, "return_token_strs"));
  return ok_status();
}

Status read_header(const Json& value, const Defaults&, ChatCall&) {
  return must_be(value, Json::boolean(true), "add_generation_prompt");
}

Status read_continue(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.prompt.continue_final,
                      read_bool(value, "continue_final_message"));
  return ok_status();
}

Status read_ids(const Json& value, const Defaults&, ChatCall& call) {
  Prompt prompt;
  TF_ASSIGN_OR_RETURN(prompt.ids, read_token_ids(value, "tokens", kDetokenizeIdsMax));
  call.prompts.push_back(std::move(prompt));
  return ok_status();
}

constexpr auto kUsed = FieldUse::kUsed;

// clang-format off
constexpr ChatField kTokenizeFields[] = {
    {"prompt", kUsed, read_text,
     "a text; control tokens written out in it count as such",
     "this or messages is needed", kString},
    {"messages", kUsed, read_messages,
     "or a conversation, as in a chat request", "this or prompt is needed", kChatMessages},
    kModelRow,
    {"add_special_tokens", kUsed, read_add_special,
     "the begin token before a text; true", "true", kBoolean},
    {"return_token_strs", kUsed, read_strs, "also the text of each token", "false", kBoolean},
    {"tools", kUsed, read_tools,
     "functions", "none", R"({"type":"array","items":{"type":"object"}})"},
    {"tool_choice", kUsed, read_tool_choice,
     "none takes the tools out", "auto", R"({"type":["string","object"]})"},
    kReasoningEffortRow,
    {"thinking", kUsed, read_thinking,
     "{type: enabled or disabled}", "see Thinking", R"({"type":["object","boolean"]})"},
    kEnableThinkingRow,
    kChatTemplateKwargsRow,
    kResponseFormatRow,
    kSchemaInPromptRow,
    {"add_generation_prompt", kUsed, read_header,
     "no other value is taken", "true", R"({"const":true})"},
    {"continue_final_message", kUsed, read_continue,
     "true: the last message, an assistant's, is open", "false", kBoolean},
};
constexpr ChatField kDetokenizeFields[] = {
    {"tokens", kUsed, read_ids, "token ids", kNeeded, kIds},
    kModelRow,
};
// clang-format on

Status check_model(const std::string& model, const ReplySettings& settings) {
  if (model.empty() || model == settings.served_name) return ok_status();
  return Status(StatusCode::kNotFound, "The model `" + model.substr(0, 128) + "` does not exist",
                "model", "model_not_found");
}

Result<ChatCall> read_call(std::string_view body, std::span<const ChatField> table,
                           const ReplySettings& settings) {
  TF_ASSIGN_OR_RETURN(const Json parsed, parse_body(body));
  ChatCall call = call_with(settings.defaults);
  call.add_bos = true;
  TF_RETURN_IF_ERROR(read_fields(parsed, table, settings.defaults, call));
  TF_RETURN_IF_ERROR(check_model(call.model, settings));
  return call;
}

Result<std::string> tokenize(const Engine& engine, const ReplySettings& settings,
                             std::string_view body) {
  TF_ASSIGN_OR_RETURN(ChatCall call, read_call(body, kTokenizeFields, settings));
  Prompt prompt = std::move(call.request.prompt);
  if (call.prompts.empty() == prompt.messages.empty()) {
    return invalid_argument("one of prompt and messages is needed", "prompt");
  }
  if (!call.prompts.empty()) {
    prompt = std::move(call.prompts[0]);
    prompt.raw->add_bos = call.add_bos;
  } else {
    TF_RETURN_IF_ERROR(check_last_message(prompt.messages, prompt.continue_final));
    TF_ASSIGN_OR_RETURN(
        prompt.response_format,
        form_for_prompt(call.form, call.schema_in_prompt, settings.defaults.schema_in_prompt));
    call.request.prompt = std::move(prompt);
    settle_thinking(settings.defaults, call);
    prompt = std::move(call.request.prompt);
    if (call.tool_choice == ToolChoice::kNone) prompt.tools.clear();
  }
  TF_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, engine.encode(prompt));
  std::string out;
  JsonOut json(out);
  json.open_object().key("count").number(ids.size());
  json.key("max_model_len").number(engine.stats().context);
  json.key("tokens").open_list();
  for (const TokenId id : ids) json.number(id);
  json.close_list();
  if (call.token_ids) {
    json.key("token_strs").open_list();
    for (const TokenId id : ids) json.string(utf8_lossy(engine.token_text(id)));
    json.close_list();
  }
  json.close_object();
  return out;
}

Result<std::string> detokenize(const Engine& engine, const ReplySettings& settings,
                               std::string_view body) {
  TF_ASSIGN_OR_RETURN(const ChatCall call, read_call(body, kDetokenizeFields, settings));
  if (call.prompts.empty()) return invalid_argument("tokens is missing", "tokens");
  const int vocabulary = engine.model().vocab_size;
  std::string bytes;
  const std::vector<TokenId>& ids = *call.prompts[0].ids;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocabulary) {
      return invalid_argument("tokens[" + std::to_string(i) + "] is not a token of this model",
                              item_path("tokens", i));
    }
    bytes += engine.token_text(ids[i]);
  }
  std::string out;
  JsonOut(out).open_object().key("prompt").string(utf8_lossy(bytes)).close_object();
  return out;
}

Result<std::string> count_tokens(const Engine& engine, const ReplySettings& settings,
                                 std::string_view body) {
  std::string model;
  TF_ASSIGN_OR_RETURN(const Prompt prompt, read_count_body(body, settings.defaults, &model));
  TF_RETURN_IF_ERROR(check_model(model, settings));
  TF_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, engine.encode(prompt));
  std::string out;
  JsonOut(out).open_object().key("input_tokens").number(ids.size()).close_object();
  return out;
}

http::Response answer(Dialect dialect, Result<std::string> body) {
  if (!body.ok()) return error_response(dialect, body.status());
  http::Response response;
  response.body = std::move(body).value();
  return response;
}

}  // namespace

std::span<const ChatField> tokenize_fields() { return kTokenizeFields; }
std::span<const ChatField> detokenize_fields() { return kDetokenizeFields; }

http::Response answer_tokenize(const Engine& engine, const ReplySettings& settings,
                               std::string_view body) {
  return answer(Dialect::kChat, tokenize(engine, settings, body));
}
http::Response answer_detokenize(const Engine& engine, const ReplySettings& settings,
                                 std::string_view body) {
  return answer(Dialect::kChat, detokenize(engine, settings, body));
}
http::Response answer_count_tokens(const Engine& engine, const ReplySettings& settings,
                                   std::string_view body) {
  return answer(Dialect::kMessages, count_tokens(engine, settings, body));
}

}  // namespace tensorfold::api
