// The table of routes. /openapi.json, docs/api.md's test and dispatch derive from it.
#include "daemon/api/api.h"
#include "daemon/api/bodies.h"

namespace tensorfold::api {
namespace {

using http::Method;
constexpr auto kGet = Method::kGet;
constexpr auto kPost = Method::kPost;
constexpr auto kDelete = Method::kDelete;
constexpr auto kChat = Dialect::kChat;
constexpr auto kMessages = Dialect::kMessages;

// What a 200 of a route holds at least, as JSON Schema.
constexpr std::string_view kAnyObject = R"({"type":"object"})";
constexpr std::string_view kPlainText = {};
constexpr std::string_view kHealth = R"({"type":"object","required":["status","state"]})";
constexpr std::string_view kLive =
    R"({"type":"object","required":["status"],"properties":{"status":{"const":"ok"}}})";
constexpr std::string_view kModel =
    R"({"type":"object","required":["id","object","created","owned_by"],)"
    R"("properties":{"object":{"const":"model"}}})";
constexpr std::string_view kModels =
    R"({"type":"object","required":["object","data"],"properties":{"object":{"const":"list"},)"
    R"("data":{"type":"array","minItems":1}}})";
constexpr std::string_view kChatAnswer =
    R"({"type":"object","required":["id","object","created","model","choices","usage"],)"
    R"("properties":{"object":{"const":"chat.completion"},"choices":{"type":"array","minItems":1,)"
    R"("items":{"type":"object","required":["index","message","finish_reason"],"properties":{)"
    R"("finish_reason":{"enum":["stop","length","tool_calls"]},"message":{"type":"object",)"
    R"("required":["role","content"]}}}}}})";
constexpr std::string_view kTextAnswer =
    R"({"type":"object","required":["id","object","created","model","choices","usage"],)"
    R"("properties":{"object":{"const":"text_completion"},"choices":{"type":"array","minItems":1,)"
    R"("items":{"type":"object","required":["index","text","finish_reason"]}}}})";
constexpr std::string_view kMessage =
    R"({"type":"object","required":["id","type","role","content","model","stop_reason","usage"],)"
    R"("properties":{"type":{"const":"message"},"role":{"const":"assistant"}}})";
constexpr std::string_view kCount =
    R"({"type":"object","required":["input_tokens"],)"
    R"("properties":{"input_tokens":{"type":"integer","minimum":0}}})";
constexpr std::string_view kResponse =
    R"({"type":"object","required":["id","object","created_at","status","output","usage"],)"
    R"("properties":{"object":{"const":"response"},"output":{"type":"array"}}})";
constexpr std::string_view kStored = R"({"type":"object","required":["id","object"]})";
constexpr std::string_view kForgotten = R"({"type":"object","required":["id","deleted"]})";
constexpr std::string_view kCancelled = R"({"type":"object","required":["id","cancelled"]})";
constexpr std::string_view kTokens =
    R"({"type":"object","required":["count","max_model_len","tokens"],)"
    R"("properties":{"tokens":{"type":"array","items":{"type":"integer"}}}})";
constexpr std::string_view kPrompt =
    R"({"type":"object","required":["prompt"],"properties":{"prompt":{"type":"string"}}})";

// clang-format off
constexpr Route kRoutes[] = {
    // method, path, open, dialect, handler, summary, its answer, reader of the body, its fields
    {kGet, "/health", true, kChat, &Api::run_health,
     "200 when a request would be answered, 503 otherwise, with the state", kHealth},
    {kGet, "/v1/health", true, kChat, &Api::run_health, "the same", kHealth},
    {kGet, "/health/live", true, kChat, &Api::run_live, "200 while the loop turns", kLive},
    {kGet, "/v1/models", false, kChat, &Api::run_models, "the served model", kModels},
    {kGet, "/models", false, kChat, &Api::run_models, "the same", kModels},
    {kGet, "/v1/models/*", false, kChat, &Api::run_model, "one model", kModel},
    {kPost, "/v1/chat/completions", false, kChat, &Api::run_reply,
     "a reply to a conversation, whole or streamed", kChatAnswer, read_chat_order, chat_fields},
    {kPost, "/v1/completions", false, Dialect::kCompletions, &Api::run_reply,
     "what follows a text", kTextAnswer, read_completion_order, completion_fields},
    {kPost, "/v1/messages", false, kMessages, &Api::run_reply,
     "the Anthropic API: a reply to a conversation", kMessage, read_messages_order,
     messages_fields},
    {kPost, "/v1/messages/count_tokens", false, kMessages, &Api::run_count_tokens,
     "the tokens of such a conversation", kCount, nullptr, messages_fields},
    {kPost, "/v1/responses", false, Dialect::kResponses, &Api::run_reply,
     "the Responses API", kResponse, read_responses_order, responses_fields},
    {kGet, "/v1/responses/*", false, Dialect::kResponses, &Api::run_stored,
     "a stored response", kStored},
    {kDelete, "/v1/responses/*", false, Dialect::kResponses, &Api::run_forget,
     "forgets it", kForgotten},
    {kPost, "/tokenize", false, kChat, &Api::run_tokenize,
     "the token ids of a text or a conversation", kTokens, nullptr, tokenize_fields},
    {kPost, "/v1/tokenize", false, kChat, &Api::run_tokenize, "the same", kTokens, nullptr,
     tokenize_fields},
    {kPost, "/detokenize", false, kChat, &Api::run_detokenize,
     "the text of token ids", kPrompt, nullptr,
     detokenize_fields},
    {kPost, "/v1/detokenize", false, kChat, &Api::run_detokenize, "the same", kPrompt, nullptr,
     detokenize_fields},
    {kDelete, "/v1/requests/*", false, kChat, &Api::run_cancel,
     "cancels a reply in progress by its id", kCancelled},
    {kGet, "/stats", false, kChat, &Api::run_stats, "load, rates and totals, as JSON", kAnyObject},
    {kGet, "/metrics", false, kChat, &Api::run_metrics,
     "the same and more, for Prometheus", kPlainText},
    {kGet, "/v1/metrics", false, kChat, &Api::run_metrics, "the same", kPlainText},
    {kGet, "/openapi.json", false, kChat, &Api::run_openapi,
     "this table and those of fields", kAnyObject},
};
// clang-format on

bool path_matches(std::string_view pattern, std::string_view path) {
  if (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  if (pattern.back() != '*') return pattern == path;
  pattern.remove_suffix(1);
  return path.size() > pattern.size() && path.substr(0, pattern.size()) == pattern &&
         path.find('/', pattern.size()) == std::string_view::npos;
}

}  // namespace

std::span<const Route> route_table() { return kRoutes; }

const Route* find_route(Method method, std::string_view path) {
  if (method == Method::kHead) method = Method::kGet;
  for (const Route& route : kRoutes)
    if (route.method == method && path_matches(route.path, path)) return &route;
  return nullptr;
}

std::string allowed_methods(std::string_view path) {
  std::string out;
  for (const Route& route : kRoutes) {
    if (!path_matches(route.path, path)) continue;
    if (!out.empty()) out += ", ";
    out += http::method_name(route.method);
    if (route.method == Method::kGet) out += ", HEAD";
  }
  return out.empty() ? out : out + ", OPTIONS";
}

Dialect dialect_of(std::string_view path) {
  const bool messages = path.substr(0, 12) == "/v1/messages";
  return messages ? Dialect::kMessages : Dialect::kChat;
}

}  // namespace tensorfold::api
