// Settings, log level, and the verbs that change the running process.
#include <algorithm>

#include "daemon/api/errors.h"
#include "daemon/api/json_out.h"
#include "daemon/config/key_table.h"
#include "daemon/control/control.h"
#include "daemon/control/protocol.h"
#include "daemon/log/journal_log.h"

namespace tensorfold::control {
namespace {

using ExchangePtr = std::shared_ptr<http::Exchange>;

void respond(const ExchangePtr& exchange, std::string body) {
  http::Response response;
  response.body = std::move(body);
  exchange->respond(std::move(response));
}

// {"schema_version": 1, "done": "drain"}
void respond_done(const ExchangePtr& exchange, std::string_view what) {
  std::string out;
  api::JsonOut(out).open_object().key("schema_version").number(kSchemaVersion);
  out += ",\"done\":\"" + std::string(what) + "\"}";
  respond(exchange, std::move(out));
}

void respond_outcome(const ExchangePtr& exchange, const Status& status, std::string_view what) {
  if (status.ok()) {
    respond_done(exchange, what);
  } else {
    exchange->respond(api::error_response(409, status));
  }
}

// The one string member of a body {"name": "..."}.
Result<std::string> string_member(const std::string& body, std::string_view name) {
  TF_ASSIGN_OR_RETURN(const Json document, parse_json(body));
  const Json* value = document.is_object() ? document.find(name) : nullptr;
  if (value == nullptr || !value->is_string()) {
    return invalid_argument("the body must be {\"" + std::string(name) + "\": \"...\"}",
                            std::string(name));
  }
  return value->as_string();
}

bool is_level(std::string_view name) {
  for (const LogLevel level : {LogLevel::kError, LogLevel::kWarning, LogLevel::kNotice,
                               LogLevel::kInfo, LogLevel::kDebug}) {
    if (log::name_of(level) == name) return true;
  }
  return false;
}

}  // namespace

void Control::run_config(const ExchangePtr& exchange) {
  const config::Config& config = commands_.config();
  const config::Config defaults = config::default_config();
  std::string out;
  api::JsonOut json(out);
  json.open_object().key("schema_version").number(kSchemaVersion);
  json.key("file").string(commands_.config_file()).key("settings").open_object();
  for (const config::Key& key : config::key_table()) {
    const std::string value = value_text(config, key);
    json.key(key.name).open_object().key("value").raw(value);
    json.key("default").boolean(value == value_text(defaults, key));
    json.key("reload").boolean(key.effect == config::Effect::kReload).close_object();
  }
  json.close_object().close_object();
  respond(exchange, std::move(out));
}

void Control::run_log_level(const ExchangePtr& exchange) {
  std::string out;
  api::JsonOut json(out);
  json.open_object().key("schema_version").number(kSchemaVersion);
  json.key("level").string(log::name_of(commands_.log_level())).close_object();
  respond(exchange, std::move(out));
}

void Control::run_set_level(const ExchangePtr& exchange) {
  const auto level = string_member(exchange->request().body, "level");
  if (!level.ok() || !is_level(*level)) {
    const Status wrong =
        level.ok() ? invalid_argument("level must be error, warning, notice, info or debug, not '" +
                                          level->substr(0, 64) + "'",
                                      "level")
                   : level.status();
    exchange->respond(api::error_response(400, wrong));
    return;
  }
  log_change(*exchange, "log level " + *level);
  commands_.set_log_level(log::level_of(*level));
  respond_done(exchange, "log-level");
}

void Control::run_reload(const ExchangePtr& exchange) {
  log_change(*exchange, "reload");
  const auto left = commands_.reload();
  if (!left.ok()) {
    exchange->respond(api::error_response(409, left.status()));
    return;
  }
  std::string out;
  api::JsonOut json(out);
  json.open_object().key("schema_version").number(kSchemaVersion).key("done").string("reload");
  json.key("need_restart").open_list();
  for (const std::string& key : *left) json.string(key);
  json.close_list().close_object();
  respond(exchange, std::move(out));
}

void Control::run_drain(const ExchangePtr& exchange) {
  log_change(*exchange, "drain");
  respond_outcome(exchange, commands_.drain(), "drain");
}

void Control::run_resume(const ExchangePtr& exchange) {
  log_change(*exchange, "resume");
  respond_outcome(exchange, commands_.resume(), "resume");
}

void Control::run_stop(const ExchangePtr& exchange) {
  const bool now = exchange->request().query == "now=1";
  log_change(*exchange, now ? "stop at once" : "stop");
  respond_done(exchange, "stop");
  commands_.stop(now);
}

void Control::run_requests(const ExchangePtr& exchange) {
  std::string out;
  api::JsonOut json(out);
  json.open_object().key("schema_version").number(kSchemaVersion).key("requests").open_list();
  for (const api::ActiveInfo& one : api_.chat().list()) {
    json.open_object().key("id").string(one.id).key("label").string(one.label);
    json.key("api").string(one.dialect).key("state").string(one.state);
    json.key("stream").boolean(one.stream).key("prompt_tokens").number(one.prompt_tokens);
    json.key("prompt_done").number(one.prompt_done).key("reply_tokens").number(one.reply_tokens);
    json.key("age_s").number(static_cast<double>(one.age_us / 1000) / 1000).close_object();
  }
  json.close_list().close_object();
  respond(exchange, std::move(out));
}

void Control::run_cancel(const ExchangePtr& exchange) {
  const auto id = string_member(exchange->request().body, "id");
  if (!id.ok()) {
    exchange->respond(api::error_response(400, id.status()));
    return;
  }
  if (!api_.chat().cancel(*id)) {
    exchange->respond(api::error_response(
        404, Status(StatusCode::kNotFound, "no reply in progress has the id " + id->substr(0, 64),
                    "id")));
    return;
  }
  log_change(*exchange, "cancel of " + *id);
  respond_done(exchange, "cancel");
}

}  // namespace tensorfold::control
