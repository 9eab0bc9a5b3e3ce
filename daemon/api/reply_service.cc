// Replies from body to start, and the end of all. What the engine says is in reply_events.cc.
#include "daemon/api/reply_service.h"

#include <algorithm>
#include <optional>

#include "daemon/api/active_reply.h"
#include "daemon/api/errors.h"
#include "daemon/api/random.h"

namespace tensorfold::api {
ReplyService::ReplyService(Engine& engine, ReplySettings settings, const Clock& clock, LogSink& log,
                           LoopPort& port)
    : engine_(engine),
      settings_(std::make_shared<const ReplySettings>(std::move(settings))),
      clock_(clock),
      log_(log),
      port_(port),
      token_text_([&engine](TokenId id) { return engine.token_text(id); }) {}

ReplyService::~ReplyService() = default;

void ReplyService::set_settings(ReplySettings settings) {
  settings_ = std::make_shared<const ReplySettings>(std::move(settings));
}

void ReplyService::handle(const std::shared_ptr<http::Exchange>& exchange, const KeyIdentity& key,
                          Dialect dialect, ReadBody read, const Prepare& prepare) {
  ++counters_.requests_total;
  metrics_.count_label(key.label);
  if (!held_.ok()) return refuse(*exchange, dialect, held_);
  auto body = std::make_shared<std::string>(std::move(exchange->request().body));
  if (body->size() <= kInlineBodyBytesMax) {
    auto order = read(*body, settings_->defaults);
    parsed(exchange, key, dialect, std::move(order), prepare);
    return;
  }
  auto order = std::make_shared<std::optional<Result<ReplyOrder>>>();
  ++parsing_;
  port_.run_on_worker(
      [order, body, read, settings = settings_] {
        order->emplace(read(*body, settings->defaults));
        body->clear();
        body->shrink_to_fit();
      },
      [this, order, exchange, key, dialect, prepare] {
        --parsing_;
        parsed(exchange, key, dialect, std::move(**order), prepare);
      });
}

Status ReplyService::check_order(const ReplyOrder& order) const {
  if (order.model.empty() || order.model == settings_->served_name) return ok_status();
  return Status(StatusCode::kNotFound,
                "The model `" + order.model.substr(0, 128) +
                    "` does not exist; this server serves " + settings_->served_name,
                "model", "model_not_found");
}

void ReplyService::refuse(http::Exchange& exchange, Dialect dialect, const Status& status) {
  ++counters_.refused_total;
  exchange.respond(error_response(dialect, status));
}

// The body is understood: the reply starts, waits at its key's bound, or is refused.
void ReplyService::parsed(const std::shared_ptr<http::Exchange>& exchange, const KeyIdentity& key,
                          Dialect dialect, Result<ReplyOrder> order, const Prepare& prepare) {
  if (exchange->gone()) return;
  Status refusal = order.status();
  if (refusal.ok()) refusal = check_order(*order);
  if (refusal.ok() && prepare) refusal = prepare(*order);
  if (!refusal.ok()) return refuse(*exchange, dialect, refusal);
  auto held = std::make_shared<ReplyOrder>(std::move(order).value());
  KeyGate::Entry entry;
  entry.start = [this, exchange, key, held] { return start(exchange, key, std::move(*held)); };
  entry.drop = [this, exchange, dialect](const Status& why) { refuse(*exchange, dialect, why); };
  entry.gone = [exchange] { return exchange->gone(); };
  entry.deadline_us = clock_.monotonic_us() + settings_->queue_wait_us;
  const Status entered = gate_.enter(key, std::move(entry));
  if (!entered.ok()) refuse(*exchange, dialect, entered);
}

bool ReplyService::start(std::shared_ptr<http::Exchange> exchange, const KeyIdentity& key,
                         ReplyOrder order) {
  auto owned = std::make_unique<ActiveReply>();
  ActiveReply& reply = *owned;
  reply.exchange = std::move(exchange);
  reply.key = key;
  reply.order = std::move(order);
  reply.started_us = clock_.monotonic_us();
  reply.info.id = random_id(reply.order.writer->id_prefix());
  reply.info.created_s = clock_.unix_us() / 1'000'000;
  reply.info.model = settings_->served_name;
  reply.info.text = token_text_;
  const uint64_t seed = random_u64() >> 1;  // can be sent back: "seed" takes signed numbers
  for (Request& request : reply.order.prompts) {
    if (!reply.order.seed_given) request.sampling.seed = seed;
    request.label = key.label;
    request.background = request.background || key.background;
  }
  reply.choices.resize(reply.order.prompts.size() * static_cast<size_t>(reply.order.n));
  if (const Status status = start_choice(reply, 0); !status.ok()) {
    refuse(*reply.exchange, reply.order.dialect, status);
    return false;
  }
  reply.exchange->on_gone([this, raw = &reply] {
    raw->gone = true;
    stop_choices(*raw);
  });
  active_.push_back(std::move(owned));
  return true;
}

Status ReplyService::start_choice(ActiveReply& reply, size_t index) {
  const auto n = static_cast<size_t>(reply.order.n);
  Request& prompt = reply.order.prompts[index / n];
  // A single one needs no copy; of several one may be refused and tried again.
  Request request = reply.choices.size() == 1 ? std::move(prompt) : prompt;
  request.sampling.choice_index = static_cast<int>(index % n);
  if (index % n > 0) request.prompt_logprobs = -1;  // choices share their prompt
  ChoiceRun& choice = reply.choices[index];
  choice.options.starts_in_reasoning = starts_in_reasoning(request.prompt);
  choice.options.parse_tool_calls = reply.order.parse_calls;
  choice.options.stop = request.stop;
  choice.options.call_id_seed = random_u64();
  choice.sink = std::make_shared<ReplySink>(port_);
  auto submitted = engine_.submit(std::move(request), choice.sink);
  if (!submitted.ok()) {
    choice.sink.reset();
    return submitted.status();
  }
  choice.id = *submitted;
  choice.started = true;
  ++reply.started;
  ++reply.running;
  return ok_status();
}

// The other choices follow when the first one's prompt is computed, so that they find it in the
// cache; no more at a time than the engine has slots.
void ReplyService::start_more(ActiveReply& reply) {
  if (reply.started == reply.choices.size() || reply.answered || reply.gone || reply.forced) return;
  const auto most = static_cast<size_t>(std::max(1, engine_.stats().slots_total));
  while (reply.started < reply.choices.size() && reply.running < most) {
    const Status status = start_choice(reply, reply.started);
    if (status.ok()) continue;
    // A full queue is tried again when one of the others ends.
    if (status.code() == StatusCode::kTooMany && reply.running > 0) return;
    return fail(reply, status);
  }
}

void ReplyService::stop_choices(ActiveReply& reply) {
  for (ChoiceRun& choice : reply.choices) {
    if (!choice.started || choice.done || choice.cancelled) continue;
    choice.cancelled = true;
    engine_.cancel(choice.id);
  }
}

void ReplyService::tick() {
  const EngineStats stats = engine_.stats();
  const int64_t now_us = clock_.monotonic_us();
  const bool idle = stats.slots_busy == 0;
  if (stats.steps_total != last_steps_) moved_after_us_ = last_tick_us_;
  if (idle || stats.steps_total != last_steps_ || last_step_us_ == 0) last_step_us_ = now_us;
  last_steps_ = stats.steps_total;
  last_tick_us_ = now_us;
  gate_.tick(now_us);
  for (auto& reply : active_) {
    if (!reply->answered && !reply->gone) watch(*reply, now_us);
  }
  on_wake();  // also catches an overflow whose wake-up was the last one
}

// Comments on a silent stream, as long as the engine moves; the end of a reply when it does not.
void ReplyService::watch(ActiveReply& reply, int64_t now_us) {
  if (reply.first_token_us != 0) start_more(reply);
  const int64_t still_us = now_us - std::max(last_step_us_, reply.started_us);
  if (settings_->stall_us > 0 && still_us > settings_->stall_us && reply.accepted) {
    log_.error("request " + reply.info.id + ": the engine has not moved for " +
                   std::to_string(still_us / 1'000'000) + " s",
               {{"TF_REQUEST_ID", reply.info.id}});
    fail(reply,
         Status(StatusCode::kInternal, "the engine makes no progress", {}, "engine_stalled"));
    return;
  }
  const int64_t keepalive_us = settings_->keepalive_us;
  if (!reply.streaming || keepalive_us == 0 || now_us - reply.last_write_us < keepalive_us) return;
  if (moved_after_us_ < reply.last_write_us) return;  // not since then, as far as is known
  const bool filling = reply.first_token_us == 0;
  reply.order.writer->keepalive(filling ? reply.prompt_done : 0, filling ? reply.prompt_total : 0,
                                reply.unsent);
  flush(reply);
}

void ReplyService::cancel_all(const Status& why) {
  gate_.drop_all(why);
  for (auto& reply : active_) {
    if (!reply->forced) reply->forced = why;
    stop_choices(*reply);
  }
}

bool ReplyService::cut_newest(const Status& why) {
  const auto newest = std::find_if(active_.rbegin(), active_.rend(), [](const auto& reply) {
    return !reply->answered && !reply->gone && !reply->forced;
  });
  if (newest == active_.rend()) return false;
  (*newest)->forced = why;
  stop_choices(**newest);
  return true;
}

bool ReplyService::cancel(std::string_view id, std::string_view label) {
  for (auto& reply : active_) {
    if (reply->info.id != id || reply->key.label != label || reply->answered) continue;
    cancel(*reply);
    return true;
  }
  return false;
}

bool ReplyService::cancel(std::string_view id) {
  for (auto& reply : active_) {
    if (reply->info.id != id || reply->answered) continue;
    cancel(*reply);
    return true;
  }
  return false;
}

void ReplyService::cancel(ActiveReply& reply) {
  if (!reply.forced) {
    reply.forced = Status(StatusCode::kCancelled, "the request was cancelled", {}, "cancelled");
  }
  stop_choices(reply);
}

}  // namespace tensorfold::api
