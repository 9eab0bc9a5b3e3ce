// The small handlers: health, models, stored responses, cancelling, and what runs on a worker.
#include "daemon/api/api.h"
#include "daemon/api/errors.h"
#include "daemon/api/json_out.h"
#include "daemon/api/token_routes.h"

namespace tensorfold::api {
namespace {

std::string last_segment(std::string_view path) {
  if (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return std::string(path.substr(path.rfind('/') + 1));
}

void put_totals(JsonOut& json, const EngineStats& stats) {
  json.key("requests_running").number(stats.slots_busy);
  json.key("requests_waiting").number(stats.waiting);
  json.key("requests_total").number(stats.requests_total);
  json.key("prompt_tokens_total").number(stats.prompt_tokens_total);
  json.key("cached_tokens_total").number(stats.cached_tokens_total);
  json.key("completion_tokens_total").number(stats.completion_tokens_total);
  json.key("prefill_seconds_total").number(stats.prefill_seconds_total);
  json.key("decode_seconds_total").number(stats.decode_seconds_total);
  json.key("rounds_total").number(stats.rounds_total);
  json.key("drafted_total").number(stats.drafted_total);
  json.key("accepted_total").number(stats.accepted_total);
  json.key("forced_drafted_total").number(stats.forced_drafted_total);
  json.key("forced_accepted_total").number(stats.forced_accepted_total);
  json.key("masks_put_off_total").number(stats.masks_put_off_total);
  json.key("loops_closed_total").number(stats.loops_closed_total);
  json.key("loops_ended_total").number(stats.loops_ended_total);
  json.key("context_length").number(stats.context);
  json.key("streams").open_object().key("decoding").number(stats.slots_busy - stats.prefilling);
  json.key("prefilling").number(stats.prefilling).key("max").number(stats.slots_total);
  json.close_object();
}

}  // namespace

void Api::run_health(const std::shared_ptr<http::Exchange>& exchange) {
  const EngineStats stats = engine_.stats();
  const Status& held = replies_.held();
  const bool able = stats.state == EngineStats::State::kReady;
  const bool ready = able && held.ok();
  const std::string_view state = able && !ready ? held.reason() : state_name(stats.state);
  http::Response response;
  response.status = ready ? 200 : 503;
  JsonOut json(response.body);
  json.open_object().key("status").string(ready ? "ok" : state);
  json.key("state").string(state);
  if (!options_.keys) {  // with keys, strangers learn no more than that
    json.key("ok").boolean(ready);
    json.key("detail").string(able && !ready ? held.message() : stats.state_detail);
    put_totals(json, stats);
  }
  json.close_object();
  if (!ready) response.headers.push_back({"Retry-After", std::to_string(kRetryAfterSeconds)});
  exchange->respond(std::move(response));
}

void Api::run_live(const std::shared_ptr<http::Exchange>& exchange) {
  http::Response response;
  response.body = "{\"status\":\"ok\"}";
  exchange->respond(std::move(response));
}

void Api::run_stats(const std::shared_ptr<http::Exchange>& exchange) {
  const EngineStats stats = engine_.stats();
  http::Response response;
  JsonOut json(response.body);
  json.open_object().key("model").string(options_.chat.served_name);
  json.key("state").string(state_name(stats.state));
  put_totals(json, stats);
  json.key("live").open_object();
  json.key("decode_tokens_per_second").number(stats.decode_tokens_per_second);
  json.key("prefill_tokens_per_second").number(stats.prefill_tokens_per_second);
  json.key("connections").number(server_ == nullptr ? 0 : server_->connections());
  json.key("waiting").number(stats.waiting).close_object();
  json.key("cache").open_object().key("pool_tokens").number(stats.pool_tokens_total);
  json.key("used_tokens").number(stats.pool_tokens_used).close_object();
  const ReplyCounters& counters = replies_.counters();
  json.key("http").open_object().key("requests_total").number(counters.requests_total);
  json.key("refused_total").number(counters.refused_total);
  json.key("failed_total").number(counters.failed_total);
  json.key("cancelled_total").number(counters.cancelled_total).close_object();
  json.close_object();
  exchange->respond(std::move(response));
}

std::string Api::model_json() const {
  const EngineStats stats = engine_.stats();
  std::string out;
  JsonOut json(out);
  json.open_object().key("id").string(options_.chat.served_name).key("object").string("model");
  json.key("created").number(started_s_).key("owned_by").string("tensorfold");
  json.key("type").string("model").key("display_name").string(options_.chat.served_name);
  if (stats.context > 0) {
    json.key("max_model_len").number(stats.context).key("context_length").number(stats.context);
  }
  json.key("capabilities").open_object().key("chat").boolean(true);
  json.key("completions").boolean(true).key("fill_in_the_middle").boolean(true);
  json.key("tools").boolean(true).key("thinking").boolean(true);
  json.key("structured_outputs").boolean(true).key("logprobs").boolean(true);
  json.key("vision").boolean(false).close_object();
  json.close_object();
  return out;
}

void Api::run_models(const std::shared_ptr<http::Exchange>& exchange) {
  http::Response response;
  JsonOut json(response.body);
  json.open_object().key("object").string("list").key("data").open_list();
  json.raw(model_json()).close_list();
  const std::string& name = options_.chat.served_name;
  json.key("first_id").string(name).key("last_id").string(name).key("has_more").boolean(false);
  json.close_object();
  exchange->respond(std::move(response));
}

void Api::run_model(const std::shared_ptr<http::Exchange>& exchange) {
  const std::string id = last_segment(exchange->request().path);
  if (id != options_.chat.served_name) {
    exchange->respond(error_response(Status(StatusCode::kNotFound,
                                            "The model `" + id.substr(0, 128) + "` does not exist",
                                            "model", "model_not_found")));
    return;
  }
  http::Response response;
  response.body = model_json();
  exchange->respond(std::move(response));
}

void Api::run_cancel(const std::shared_ptr<http::Exchange>& exchange) {
  const std::string id = last_segment(exchange->request().path);
  const KeyIdentity key = key_of(exchange->request()).value_or(KeyIdentity());
  if (!replies_.cancel(id, key.label)) {
    exchange->respond(error_response(
        Status(StatusCode::kNotFound, "no reply in progress has the id '" + id.substr(0, 64) + "'",
               "id", "request_not_found")));
    return;
  }
  http::Response response;
  JsonOut(response.body).open_object().key("id").string(id).key("cancelled").boolean(true);
  response.body += '}';
  exchange->respond(std::move(response));
}

void Api::run_stored(const std::shared_ptr<http::Exchange>& exchange) {
  const std::string id = last_segment(exchange->request().path);
  const KeyIdentity key = key_of(exchange->request()).value_or(KeyIdentity());
  const StoredResponse* found = store_.find(id, key.label);
  if (found == nullptr) {
    exchange->respond(error_response(Status(
        StatusCode::kNotFound, "no response with the id '" + id.substr(0, 64) + "' is stored",
        "response_id", "response_not_found")));
    return;
  }
  http::Response response;
  response.body = found->json;
  exchange->respond(std::move(response));
}

void Api::run_forget(const std::shared_ptr<http::Exchange>& exchange) {
  const std::string id = last_segment(exchange->request().path);
  const KeyIdentity key = key_of(exchange->request()).value_or(KeyIdentity());
  if (!store_.erase(id, key.label)) return run_stored(exchange);
  http::Response response;
  JsonOut json(response.body);
  json.open_object().key("id").string(id).key("object").string("response");
  json.key("deleted").boolean(true).close_object();
  exchange->respond(std::move(response));
}

void Api::answer_on_worker(const std::shared_ptr<http::Exchange>& exchange, Answer answer) {
  auto body = std::make_shared<std::string>(std::move(exchange->request().body));
  auto response = std::make_shared<http::Response>();
  port_.run_on_worker([this, body, response, answer,
                       settings = options_.chat] { *response = answer(engine_, settings, *body); },
                      [exchange, response] { exchange->respond(std::move(*response)); });
}

void Api::run_tokenize(const std::shared_ptr<http::Exchange>& exchange) {
  answer_on_worker(exchange, answer_tokenize);
}

void Api::run_detokenize(const std::shared_ptr<http::Exchange>& exchange) {
  answer_on_worker(exchange, answer_detokenize);
}

void Api::run_count_tokens(const std::shared_ptr<http::Exchange>& exchange) {
  answer_on_worker(exchange, answer_count_tokens);
}

}  // namespace tensorfold::api
