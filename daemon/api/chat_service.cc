#include "daemon/api/chat_service.h"

#include <cstdio>
#include <optional>

#include "daemon/api/errors.h"
#include "daemon/api/random.h"

namespace tensorfold::api {

struct ChatService::Active {
  std::shared_ptr<http::Exchange> exchange;
  std::string label;
  ReplyInfo info;
  bool stream = false;
  OutputOptions output_options;
  std::shared_ptr<ReplySink> sink;
  RequestId id = 0;
  std::unique_ptr<OutputStream> output;
  ChatReply whole;
  ChatStream events{ReplyInfo()};
  bool headers_sent = false;  // of a stream
  bool gone = false;          // the client went away
  bool cancelled = false;
  std::optional<Status> forced;  // ends with this instead of what the engine says
  int64_t started_us = 0, first_token_us = 0, last_write_us = 0;
};

ChatService::ChatService(Engine& engine, ChatSettings settings, const Clock& clock, LogSink& log,
                         LoopPort& port)
    : engine_(engine),
      settings_(std::make_shared<const ChatSettings>(std::move(settings))),
      clock_(clock),
      log_(log),
      port_(port) {}

ChatService::~ChatService() = default;

void ChatService::set_settings(ChatSettings settings) {
  settings_ = std::make_shared<const ChatSettings>(std::move(settings));
}

void ChatService::handle(std::shared_ptr<http::Exchange> exchange, std::string label) {
  ++counters_.requests_total;
  auto body = std::make_shared<std::string>(std::move(exchange->request().body));
  if (body->size() <= kInlineBodyBytesMax) {
    start(std::move(exchange), std::move(label), parse_chat(*body, settings_->defaults));
    return;
  }
  auto parsed = std::make_shared<std::optional<Result<ChatCall>>>();
  ++parsing_;
  port_.run_on_worker(
      [parsed, body, settings = settings_] {
        parsed->emplace(parse_chat(*body, settings->defaults));
        body->clear();
        body->shrink_to_fit();
      },
      [this, parsed, exchange, label] {
        --parsing_;
        start(exchange, label, std::move(**parsed));
      });
}

void ChatService::start(std::shared_ptr<http::Exchange> exchange, std::string label,
                        Result<ChatCall> parsed) {
  if (exchange->gone()) return;
  Status refusal = parsed.status();
  if (refusal.ok() && !parsed->model.empty() && parsed->model != settings_->served_name) {
    refusal = Status(StatusCode::kNotFound,
                     "The model `" + parsed->model.substr(0, 128) +
                         "` does not exist; this server serves " + settings_->served_name,
                     "model", "model_not_found");
  }
  if (!refusal.ok()) {
    ++counters_.refused_total;
    exchange->respond(error_response(refusal));
    return;
  }
  ChatCall call = std::move(parsed).value();
  auto reply = std::make_unique<Active>();
  reply->exchange = std::move(exchange);
  reply->label = label;
  reply->stream = call.stream;
  reply->started_us = clock_.monotonic_us();
  reply->info.id = random_id("chatcmpl-");
  reply->info.created_s = clock_.unix_us() / 1'000'000;
  reply->info.model = settings_->served_name;
  reply->info.include_usage = call.include_usage;
  reply->info.logprobs = call.logprobs;
  reply->info.hide_calls = call.tool_choice == ToolChoice::kNone;
  reply->output_options.starts_in_reasoning = call.request.prompt.thinking.enabled;
  reply->output_options.parse_tool_calls = call.tools_given;
  reply->output_options.stop = call.request.stop;
  reply->output_options.call_id_seed = random_u64();
  // A seed that can be sent back: "seed" takes signed numbers.
  if (!call.seed_given) call.request.sampling.seed = random_u64() >> 1;
  call.request.label = std::move(label);
  reply->sink = std::make_shared<ReplySink>(port_);
  auto submitted = engine_.submit(std::move(call.request), reply->sink);
  if (!submitted.ok()) {
    ++counters_.refused_total;
    reply->exchange->respond(error_response(submitted.status()));
    return;
  }
  reply->id = *submitted;
  Active* raw = reply.get();
  reply->exchange->on_gone([this, raw] {
    raw->gone = true;
    engine_.cancel(raw->id);
  });
  active_.push_back(std::move(reply));
}

void ChatService::on_wake() {
  for (auto it = active_.begin(); it != active_.end();) {
    it = drain(**it) ? active_.erase(it) : std::next(it);
  }
}

bool ChatService::drain(Active& reply) {
  while (auto event = reply.sink->pop()) {
    switch (event->kind) {
      case ReplyEvent::Kind::kAccepted:
        on_accepted(reply, event->values[0], event->values[1]);
        break;
      case ReplyEvent::Kind::kTokens: {
        const bool long_event = event->extra != nullptr && !event->extra->ids.empty();
        on_tokens(reply,
                  long_event ? std::span<const TokenId>(event->extra->ids)
                             : std::span<const TokenId>(event->values.data(), event->count),
                  event->extra ? std::span<const TokenLogprob>(event->extra->logprobs)
                               : std::span<const TokenLogprob>());
        break;
      }
      case ReplyEvent::Kind::kFinished:
        if (!event->extra->ids.empty()) on_tokens(reply, event->extra->ids, event->extra->logprobs);
        on_finished(reply, *event->extra);
        reply.exchange->on_gone(nullptr);  // it holds a pointer to what ends now
        return true;
      case ReplyEvent::Kind::kProgress:
      case ReplyEvent::Kind::kNone:
        break;
    }
  }
  if (reply.sink->overflowed() && !reply.cancelled) {
    reply.cancelled = true;
    reply.forced = internal_error("the reply was made faster than it could be passed on");
    engine_.cancel(reply.id);
  }
  return false;
}

void ChatService::on_accepted(Active& reply, int, int) {
  reply.output = engine_.output_stream(reply.output_options);
  reply.info.fingerprint = engine_.model().fingerprint.substr(0, 16);
  if (!reply.stream || reply.gone) return;
  reply.events = ChatStream(reply.info);
  http::Response head;
  head.content_type = "text/event-stream";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  reply.exchange->begin_stream(std::move(head));
  reply.exchange->write(reply.events.role());
  reply.headers_sent = true;
  reply.last_write_us = clock_.monotonic_us();
}

void ChatService::on_tokens(Active& reply, std::span<const TokenId> ids,
                            std::span<const TokenLogprob> logprobs_of_ids) {
  if (reply.gone || reply.forced) return;
  const int64_t now_us = clock_.monotonic_us();
  if (reply.first_token_us == 0) reply.first_token_us = now_us;
  const OutputDelta delta = reply.output->feed(ids);
  std::string logprobs;
  if (reply.info.logprobs) {
    append_logprobs(logprobs, logprobs_of_ids,
                    [this](TokenId id) { return engine_.token_text(id); });
  }
  if (!reply.stream) {
    reply.whole.add(delta);
    reply.whole.add_logprobs(logprobs);
    return;
  }
  if (const std::string bytes = reply.events.delta(delta, logprobs); !bytes.empty()) {
    reply.exchange->write(bytes);
    reply.last_write_us = now_us;
  }
}

void ChatService::on_finished(Active& reply, const ReplyEvent::Extra& end) {
  Status status = reply.forced.value_or(end.status);
  if (status.ok() && end.reason == FinishReason::kCancelled) {
    status = Status(StatusCode::kCancelled, "the request was cancelled", {}, "cancelled");
  }
  if (status.ok() && (end.reason == FinishReason::kFailed || reply.output == nullptr)) {
    status = internal_error("the reply failed");
  }
  log_end(reply, status, end.reason, end.stats);
  if (reply.gone) {
    ++counters_.cancelled_total;
  } else if (status.ok()) {
    succeed(reply, end.reason, end.stats);
  } else {
    fail(reply, status);
  }
}

void ChatService::succeed(Active& reply, FinishReason reason, const ReplyStats& stats) {
  const OutputDelta rest = reply.output->finish();
  if (!reply.stream) {
    reply.whole.add(rest);
    http::Response response;
    response.body = reply.whole.render(reply.info, reason, stats);
    reply.exchange->respond(std::move(response));
    return;
  }
  std::string bytes = reply.events.delta(rest, "");
  bytes += reply.events.finish(reason, stats);
  bytes += reply.events.usage(stats);
  bytes += ChatStream::done();
  reply.exchange->write(bytes);
  reply.exchange->end_stream();
}

void ChatService::fail(Active& reply, const Status& status) {
  reply.output ? ++counters_.failed_total : ++counters_.refused_total;
  if (!reply.headers_sent) {
    reply.exchange->respond(error_response(status));
    return;
  }
  reply.exchange->write(ChatStream::error(http_status(status), status));
  reply.exchange->write(ChatStream::done());
  reply.exchange->end_stream();
}

void ChatService::tick() {
  on_wake();  // also catches an overflow whose wake-up was the last one
  const int64_t keepalive_us = settings_->keepalive_us;
  const int64_t now_us = clock_.monotonic_us();
  if (keepalive_us == 0) return;
  for (auto& reply : active_) {
    if (!reply->headers_sent || reply->gone || reply->first_token_us != 0) continue;
    if (now_us - reply->last_write_us < keepalive_us) continue;
    reply->exchange->write(ChatStream::keepalive());
    reply->last_write_us = now_us;
  }
}

void ChatService::cancel_all(const Status& why) {
  for (auto& reply : active_) {
    if (!reply->forced) reply->forced = why;
    engine_.cancel(reply->id);
  }
}

void ChatService::log_end(const Active& reply, const Status& status, FinishReason reason,
                          const ReplyStats& stats) {
  const Usage& usage = stats.usage;
  const double rate =
      stats.decode_s > 0 ? static_cast<double>(usage.completion_tokens) / stats.decode_s : 0;
  const int64_t first_us = reply.first_token_us == 0 ? 0 : reply.first_token_us - reply.started_us;
  const std::string end = !status.ok() ? std::string(status_code_name(status.code()))
                          : reply.gone
                              ? "gone"
                              : std::string(finish_name(reason, reply.output->tool_calls()));
  char text[320];
  std::snprintf(text, sizeof text,
                "done %s prompt=%d cached=%d thinking=%d tokens=%d sha=%s finish=%s tok/s=%.1f "
                "ttft=%.3f prefill=%.3f rounds=%d accepted=%d/%d",
                reply.info.id.c_str(), usage.prompt_tokens, usage.cached_tokens,
                usage.reasoning_tokens, usage.completion_tokens, stats.token_sha.c_str(),
                end.c_str(), rate, static_cast<double>(first_us) / 1e6, stats.prefill_s,
                stats.rounds, stats.accepted, stats.drafted);
  log_.info(text, {{"TF_EVENT", "request_done"},
                   {"TF_REQUEST_ID", reply.info.id},
                   {"TF_LABEL", reply.label},
                   {"TF_PROMPT_TOKENS", std::to_string(usage.prompt_tokens)},
                   {"TF_COMPLETION_TOKENS", std::to_string(usage.completion_tokens)}});
}

}  // namespace tensorfold::api
