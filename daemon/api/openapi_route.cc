// GET /openapi.json: the tables of routes and fields as an OpenAPI 3.1 document.
#include "daemon/api/api.h"
#include "daemon/api/json_out.h"

namespace tensorfold::api {
namespace {

std::string operation_id(const Route& route) {
  std::string out(http::method_name(route.method));
  for (const char c : route.path) out += c == '/' || c == '.' ? '_' : c == '*' ? 'X' : c;
  return out;
}

constexpr std::string_view kError =
    R"({"type":"object","required":["error"],"properties":{"error":{"type":"object",)"
    R"("required":["message","type","param","code"],"properties":{"message":{"type":"string"},)"
    R"("type":{"enum":["invalid_request_error","rate_limit_error","server_error"]}}}}})";
constexpr std::string_view kMessagesError =
    R"({"type":"object","required":["type","error"],"properties":{"type":{"const":"error"},)"
    R"("error":{"type":"object","required":["type","message"]}}})";

void put_field(JsonOut& json, const ChatField& field) {
  json.key(field.name).open_object().key("description");
  if (field.use == FieldUse::kIgnored) {
    json.string("ignored: " + std::string(field.note)).close_object();
    return;
  }
  json.string(std::string(field.note) + "; default: " + std::string(field.fallback));
  if (field.fallback == kNeeded) {
    json.key("allOf").open_list().raw(field.schema).close_list();
  } else {
    json.key("anyOf").open_list().raw(field.schema).raw(R"({"type":"null"})").close_list();
  }
  json.close_object();
}

void put_body(JsonOut& json, const Route& route) {
  json.key("requestBody").open_object().key("required").boolean(true);
  json.key("content").open_object().key("application/json").open_object();
  json.key("schema").open_object().key("type").string("object");
  json.key("additionalProperties").boolean(false).key("properties").open_object();
  for (const ChatField& field : route.fields()) {
    if (field.use != FieldUse::kRefused) put_field(json, field);
  }
  json.close_object().key("required").open_list();
  for (const ChatField& field : route.fields()) {
    if (field.fallback == kNeeded) json.string(field.name);
  }
  json.close_list().close_object().close_object().close_object().close_object();
}

// What comes back: the answer (of a reply also as events), and any other status with an error.
void put_responses(JsonOut& json, const Route& route) {
  json.key("responses").open_object();
  json.key("200").open_object().key("description").string("the answer");
  json.key("content").open_object();
  if (route.answer.empty()) {
    json.key("text/plain").open_object().close_object();
  } else {
    json.key("application/json").open_object().key("schema").raw(route.answer).close_object();
    if (route.read != nullptr) json.key("text/event-stream").open_object().close_object();
  }
  json.close_object().close_object();
  const std::string_view error = route.open                            ? route.answer
                                 : route.dialect == Dialect::kMessages ? kMessagesError
                                                                       : kError;
  json.key("default").open_object().key("description").string("an error");
  json.key("content").open_object().key("application/json").open_object();
  json.key("schema").raw(error).close_object().close_object().close_object().close_object();
}

void put_operation(JsonOut& json, const Route& route) {
  std::string method(http::method_name(route.method));
  for (char& c : method) c = static_cast<char>(c | 0x20);
  json.key(method).open_object().key("operationId").string(operation_id(route));
  json.key("summary").string(route.summary);
  if (route.path.back() == '*') {
    json.key("parameters").open_list().open_object().key("name").string("id");
    json.key("in").string("path").key("required").boolean(true);
    json.key("schema").open_object().key("type").string("string").close_object();
    json.close_object().close_list();
  }
  if (route.fields != nullptr) put_body(json, route);
  json.key("security").open_list();
  if (!route.open) {
    json.open_object().key("key").open_list().close_list().close_object();
    json.open_object().close_object();  // no keys may be configured
  }
  json.close_list();
  put_responses(json, route);
  json.close_object();
}

}  // namespace

std::string openapi_document() {
  std::string out;
  JsonOut json(out);
  json.open_object().key("openapi").string("3.1.0");
  json.key("info").open_object().key("title").string("tensorfoldd");
  json.key("version").string(TF_VERSION).close_object();
  json.key("paths").open_object();
  const auto routes = route_table();
  for (size_t i = 0; i < routes.size(); ++i) {
    bool seen = false;
    for (size_t k = 0; k < i; ++k) seen |= routes[k].path == routes[i].path;
    if (seen) continue;
    std::string path(routes[i].path);
    if (path.back() == '*') path.replace(path.size() - 1, 1, "{id}");
    json.key(path).open_object();
    for (const Route& route : routes)
      if (route.path == routes[i].path) put_operation(json, route);
    json.close_object();
  }
  json.close_object();
  json.key("components").open_object().key("securitySchemes").open_object();
  json.key("key").open_object().key("type").string("http").key("scheme").string("bearer");
  json.close_object().close_object().close_object();
  json.close_object();
  return out;
}

void Api::run_openapi(const std::shared_ptr<http::Exchange>& exchange) {
  http::Response response;
  response.body = openapi_document();
  exchange->respond(std::move(response));
}

}  // namespace tensorfold::api
