// The table of routes. /openapi.json, docs/http-api.md's test and dispatch derive from it.
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

// clang-format off
constexpr Route kRoutes[] = {
    // method, path, open, dialect, handler, summary, reader of the body, its fields
    {kGet, "/health", true, kChat, &Api::run_health,
     "200 when a request would be answered, 503 otherwise, with the state"},
    {kGet, "/v1/health", true, kChat, &Api::run_health, "the same"},
    {kGet, "/health/live", true, kChat, &Api::run_live, "200 while the loop turns"},
    {kGet, "/v1/models", false, kChat, &Api::run_models, "the served model"},
    {kGet, "/models", false, kChat, &Api::run_models, "the same"},
    {kGet, "/v1/models/*", false, kChat, &Api::run_model, "one model"},
    {kPost, "/v1/chat/completions", false, kChat, &Api::run_reply,
     "a reply to a conversation, whole or streamed", read_chat_order, chat_fields},
    {kPost, "/v1/completions", false, Dialect::kCompletions, &Api::run_reply,
     "what follows a text", read_completion_order, completion_fields},
    {kPost, "/v1/messages", false, kMessages, &Api::run_reply,
     "the Anthropic API: a reply to a conversation", read_messages_order, messages_fields},
    {kPost, "/v1/messages/count_tokens", false, kMessages, &Api::run_count_tokens,
     "the tokens of such a conversation", nullptr, messages_fields},
    {kPost, "/v1/responses", false, Dialect::kResponses, &Api::run_reply,
     "the Responses API", read_responses_order, responses_fields},
    {kGet, "/v1/responses/*", false, Dialect::kResponses, &Api::run_stored, "a stored response"},
    {kDelete, "/v1/responses/*", false, Dialect::kResponses, &Api::run_forget, "forgets it"},
    {kPost, "/tokenize", false, kChat, &Api::run_tokenize,
     "the token ids of a text or a conversation", nullptr, tokenize_fields},
    {kPost, "/v1/tokenize", false, kChat, &Api::run_tokenize, "the same", nullptr,
     tokenize_fields},
    {kPost, "/detokenize", false, kChat, &Api::run_detokenize, "the text of token ids", nullptr,
     detokenize_fields},
    {kPost, "/v1/detokenize", false, kChat, &Api::run_detokenize, "the same", nullptr,
     detokenize_fields},
    {kDelete, "/v1/requests/*", false, kChat, &Api::run_cancel,
     "cancels a reply in progress by its id"},
    {kGet, "/stats", false, kChat, &Api::run_stats, "load, rates and totals, as JSON"},
    {kGet, "/metrics", false, kChat, &Api::run_metrics, "the same and more, for Prometheus"},
    {kGet, "/v1/metrics", false, kChat, &Api::run_metrics, "the same"},
    {kGet, "/openapi.json", false, kChat, &Api::run_openapi, "this table and those of fields"},
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
