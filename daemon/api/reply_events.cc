// Replies from the engine's first word to the last byte.
#include <cstdio>
#include <utility>

#include "daemon/api/active_reply.h"
#include "daemon/api/errors.h"
#include "daemon/api/reply_service.h"
#include "engine/base/check.h"

namespace tensorfold::api {
namespace {

// What SHA-256 gives for no tokens, as far as it is shown.
constexpr std::string_view kShaOfNothing = "e3b0c44298fc";
constexpr size_t kUnsentBytesMax = size_t{64} * 1024;  // of a stream, gathered for one write

std::string_view request_id_header(Dialect dialect) {
  return dialect == Dialect::kMessages ? "Request-Id" : "X-Request-Id";
}

}  // namespace

void ReplyService::on_wake() {
  for (auto it = active_.begin(); it != active_.end();) {
    ActiveReply& reply = **it;
    if (!drain(reply)) {
      ++it;
      continue;
    }
    reply.exchange->on_gone(nullptr);  // it holds a pointer to what ends now
    const std::string label = reply.key.label;
    it = active_.erase(it);
    gate_.leave(label);
  }
}

bool ReplyService::drain(ActiveReply& reply) {
  for (size_t i = 0; i < reply.started; ++i) {
    if (!reply.choices[i].done) drain_choice(reply, i);
  }
  flush(reply);
  if (!reply.over()) return false;
  if (reply.gone && !reply.answered) {
    ++counters_.cancelled_total;
    ++metrics_.aborts;
    log_end(reply, ok_status());
  }
  return true;
}

void ReplyService::drain_choice(ActiveReply& reply, size_t index) {
  ChoiceRun& choice = reply.choices[index];
  while (auto event = choice.sink->pop()) {
    const ReplyEvent::Extra* extra = event->extra.get();
    switch (event->kind) {
      case ReplyEvent::Kind::kAccepted:
        on_accepted(reply, index, event->values[0], event->values[1]);
        break;
      case ReplyEvent::Kind::kProgress:
        on_progress(reply, index, event->values[0], event->values[1]);
        break;
      case ReplyEvent::Kind::kPrompt:
        on_prompt(reply, index, extra->prompt);
        break;
      case ReplyEvent::Kind::kTokens: {
        const bool long_event = extra != nullptr && !extra->ids.empty();
        on_tokens(reply, index,
                  long_event ? std::span<const TokenId>(extra->ids)
                             : std::span<const TokenId>(event->values.data(), event->count),
                  extra != nullptr ? std::span<const TokenLogprob>(extra->logprobs)
                                   : std::span<const TokenLogprob>());
        break;
      }
      case ReplyEvent::Kind::kFinished:
        if (!extra->prompt.empty()) on_prompt(reply, index, extra->prompt);
        if (!extra->ids.empty()) on_tokens(reply, index, extra->ids, extra->logprobs);
        on_finished(reply, index, extra->status, extra->reason, extra->stats);
        return;
      case ReplyEvent::Kind::kNone:
        break;
    }
  }
  if (choice.sink->overflowed() && !choice.cancelled) {
    fail(reply, internal_error("the reply was made faster than it could be passed on"));
  }
}

void ReplyService::on_accepted(ActiveReply& reply, size_t index, int prompt_tokens, int cached) {
  ChoiceRun& choice = reply.choices[index];
  choice.output = engine_.output_stream(choice.options);
  if (reply.accepted) return;
  reply.accepted = true;
  reply.prompt_total = prompt_tokens;
  reply.info.prompt_tokens = prompt_tokens;
  reply.info.cached_tokens = cached;
  reply.info.fingerprint = engine_.model().fingerprint.substr(0, 16);
  if (reply.gone || reply.answered) return;
  http::Response head;
  reply.order.writer->begin(reply.info, head.body);
  if (!reply.order.stream) return;
  head.content_type = "text/event-stream";
  head.headers = {{"Cache-Control", "no-cache"},
                  {"X-Accel-Buffering", "no"},
                  {std::string(request_id_header(reply.order.dialect)), reply.info.id}};
  reply.exchange->begin_stream(std::move(head));
  reply.streaming = true;
  reply.last_write_us = clock_.monotonic_us();
}

// One write for all that a turn of the loop made of a stream: a write costs more than making it.
void ReplyService::flush(ActiveReply& reply) {
  if (reply.unsent.empty() || !reply.streaming) return;
  if (!reply.gone && !reply.answered) {
    reply.exchange->write(reply.unsent);
    reply.last_write_us = clock_.monotonic_us();
  }
  reply.unsent.clear();
}

void ReplyService::on_progress(ActiveReply& reply, size_t index, int done, int total) {
  if (index != 0 || reply.gone || reply.answered) return;
  reply.prompt_done = done;
  reply.prompt_total = total;
  if (!reply.streaming || !reply.order.progress) return;
  reply.order.writer->progress(done, total, reply.unsent);
}

void ReplyService::on_prompt(ActiveReply& reply, size_t index,
                             std::span<const TokenLogprob> tokens) {
  if (reply.gone || reply.answered || reply.forced) return;
  reply.order.writer->prompt_logprobs(static_cast<int>(index), tokens, token_text_);
}

void ReplyService::on_tokens(ActiveReply& reply, size_t index, std::span<const TokenId> ids,
                             std::span<const TokenLogprob> logprobs) {
  if (reply.gone || reply.answered || reply.forced) return;
  ChoiceRun& choice = reply.choices[index];
  reply.reply_tokens += static_cast<int64_t>(ids.size());
  if (reply.first_token_us == 0) {
    reply.first_token_us = clock_.monotonic_us();
    metrics_.first_token.add(static_cast<double>(reply.first_token_us - reply.started_us) / 1e6);
  }
  if (!reply.order.prefill_only) {
    OutputDelta delta = choice.output->feed(ids);
    if (reply.order.hide_calls) delta.tool_calls.clear();
    reply.order.writer->piece({static_cast<int>(index), delta, ids, logprobs, token_text_},
                              reply.unsent);
    if (reply.unsent.size() > kUnsentBytesMax) flush(reply);
  }
  if (index == 0) start_more(reply);
}

void ReplyService::on_finished(ActiveReply& reply, size_t index, const Status& engine_status,
                               FinishReason reason, const ReplyStats& stats) {
  ChoiceRun& choice = reply.choices[index];
  choice.done = true;
  --reply.running;
  ++reply.ended;
  if (index == 0 || reply.first_stats.token_sha.empty()) reply.first_stats = stats;
  reply.usage.completion_tokens += stats.usage.completion_tokens;
  reply.usage.reasoning_tokens += stats.usage.reasoning_tokens;
  if (index % static_cast<size_t>(reply.order.n) == 0) {  // choices share their prompt
    reply.usage.prompt_tokens += stats.usage.prompt_tokens;
    reply.usage.cached_tokens += stats.usage.cached_tokens;
  }
  if (reply.gone || reply.answered) return;
  Status status = reply.forced.value_or(engine_status);
  if (status.ok() && reason == FinishReason::kCancelled) {
    status = Status(StatusCode::kCancelled, "the request was cancelled", {}, "cancelled");
  }
  if (status.ok() && (reason == FinishReason::kFailed || choice.output == nullptr)) {
    status = internal_error("the reply failed");
  }
  if (!status.ok()) return fail(reply, status);
  choice_done(reply, index, reason, stats);
}

void ReplyService::choice_done(ActiveReply& reply, size_t index, FinishReason reason,
                               const ReplyStats& stats) {
  ChoiceRun& choice = reply.choices[index];
  ReplyStats shown = stats;
  int stop_index = -1;
  if (reply.order.prefill_only) {
    shown.usage.completion_tokens = shown.usage.reasoning_tokens = 0;
    shown.token_sha = kShaOfNothing;
    reply.usage.completion_tokens = reply.usage.reasoning_tokens = 0;
    reason = FinishReason::kLength;
  } else {
    OutputDelta rest = choice.output->finish();
    if (reply.order.hide_calls) rest.tool_calls.clear();
    if (!rest.empty()) {
      reply.order.writer->piece({static_cast<int>(index), rest, {}, {}, token_text_}, reply.unsent);
    }
    stop_index = choice.output->stop_index();
    reply.calls += reply.order.hide_calls ? 0 : choice.output->tool_calls();
  }
  reply.last_reason = reason;
  const bool last = reply.ended == reply.choices.size();
  reply.order.writer->finish(
      {static_cast<int>(index), reason, shown, last ? &reply.usage : nullptr, stop_index},
      reply.unsent);
  metrics_.queue.add(stats.queue_s);
  metrics_.prefill.add(stats.prefill_s);
  metrics_.decode.add(stats.decode_s);
  if (stats.usage.completion_tokens > 1) {
    metrics_.per_token.add(stats.decode_s / (stats.usage.completion_tokens - 1));
  }
  if (!last) return start_more(reply);
  reply.order.writer->end(reply.unsent);
  reply.answered = true;
  const std::string_view end = finish_name(reason, reply.calls);
  ++(end == "stop" ? metrics_.stops : end == "length" ? metrics_.lengths : metrics_.calls);
  metrics_.whole.add(static_cast<double>(clock_.monotonic_us() - reply.started_us) / 1e6);
  log_end(reply, ok_status());
  if (reply.streaming) return reply.exchange->end_stream(std::exchange(reply.unsent, {}));
  http::Response response;
  response.headers = {{std::string(request_id_header(reply.order.dialect)), reply.info.id}};
  response.body = std::exchange(reply.unsent, {});
  reply.exchange->respond(std::move(response));
}

// Ends the reply, and only it, with an error: before the headers with a status of its own.
void ReplyService::fail(ActiveReply& reply, const Status& status) {
  if (reply.answered || reply.gone) return;
  reply.answered = true;
  reply.accepted ? ++counters_.failed_total : ++counters_.refused_total;
  ++metrics_.errors;
  log_end(reply, status);
  stop_choices(reply);
  if (!reply.streaming) {
    http::Response response = error_response(reply.order.dialect, status);
    response.headers.push_back(
        {std::string(request_id_header(reply.order.dialect)), reply.info.id});
    reply.exchange->respond(std::move(response));
    return;
  }
  reply.order.writer->error(http_status(status), status, reply.unsent);
  reply.exchange->end_stream(std::exchange(reply.unsent, {}));
}

void ReplyService::log_end(const ActiveReply& reply, const Status& status) {
  const ReplyStats& stats = reply.first_stats;
  const Usage& usage = reply.usage;
  // The first token comes with the prompt: the time that is measured made the others.
  const int timed = stats.usage.completion_tokens - 1;
  const double rate = timed > 0 && stats.decode_s > 0 ? timed / stats.decode_s : 0;
  const int64_t first_us = reply.first_token_us == 0 ? 0 : reply.first_token_us - reply.started_us;
  const std::string end = !status.ok() ? std::string(status_code_name(status.code()))
                          : reply.gone ? "gone"
                                       : std::string(finish_name(reply.last_reason, reply.calls));
  const std::string choices =
      reply.choices.size() == 1 ? "" : " choices=" + std::to_string(reply.choices.size());
  char text[384];
  std::snprintf(text, sizeof text,
                "done %s prompt=%d cached=%d thinking=%d tokens=%d sha=%s finish=%s tok/s=%.1f "
                "ttft=%.3f prefill=%.3f rounds=%d accepted=%d/%d%s",
                reply.info.id.c_str(), usage.prompt_tokens, usage.cached_tokens,
                usage.reasoning_tokens, usage.completion_tokens, stats.token_sha.c_str(),
                end.c_str(), rate, static_cast<double>(first_us) / 1e6, stats.prefill_s,
                stats.rounds, stats.accepted, stats.drafted, choices.c_str());
  log_.info(text, {{"TF_EVENT", "request_done"},
                   {"TF_REQUEST_ID", reply.info.id},
                   {"TF_LABEL", reply.key.label},
                   {"TF_PROMPT_TOKENS", std::to_string(usage.prompt_tokens)},
                   {"TF_COMPLETION_TOKENS", std::to_string(usage.completion_tokens)}});
}

}  // namespace tensorfold::api
