// The canary is asked and what its answers mean is carried out (engine/health_watch.h decides).
// Owner: the engine thread.
#include <utility>

#include "engine/canary.h"
#include "engine/engine_loop.h"

namespace tensorfold {

bool EngineLoop::internal(const Run& run) { return run.submission.ticket->id() == kCanaryRequest; }

void EngineLoop::ask_canary() {
  HealthWatch& health = *parts_.health;
  Submission s;
  s.prompt.ids = health.canary();
  s.price.reply_tokens = kCanaryTokens;
  s.price.blocks = blocks_for(std::ssize(s.prompt.ids) + kCanaryTokens);
  s.submitted_us = parts_.clock.monotonic_us();
  if (s.price.blocks > options_.planner.pool_blocks) return health.canary_failed(s.submitted_us);
  canary_ = std::make_shared<CanarySink>();
  s.ticket = std::make_shared<Ticket>(kCanaryRequest, canary_, canary_book_);
  s.request.sampling.temperature = 0;
  s.request.sampling.top_p = 1;
  s.request.max_tokens = kCanaryTokens;
  s.request.ignore_eos = true;
  s.request.background = true;
  health.canary_began();
  take(std::move(s));
}

void EngineLoop::hear_canary() {
  if (!canary_ || !canary_->ended) return;
  const auto heard = std::exchange(canary_, nullptr);
  const int64_t now = parts_.clock.monotonic_us();
  if (heard->failed) {
    parts_.health->canary_failed(now);
  } else {
    parts_.health->canary_said(now, heard->tokens);
  }
}

void EngineLoop::watch_health() {
  if (parts_.health == nullptr || failed()) return;
  hear_canary();
  using Action = HealthWatch::Action;
  HealthWatch& health = *parts_.health;
  for (;;) {
    switch (health.next(parts_.clock.monotonic_us())) {
      case Action::kNone:
        return publish_health();
      case Action::kAskCanary:
        ask_canary();
        break;
      case Action::kAlarm:
        parts_.log.error("alarm: " + health.reason() + "; nothing is drafted for now",
                         {{"TF_EVENT", "health_alarm"}, {"TF_REASON", health.reason()}});
        break;
      case Action::kAllClear:
        for (auto& run : running_)
          if (run) run->drafting = SequenceDrafting();
        parts_.log.write(LogLevel::kNotice, "the alarm is over: drafts are tried again",
                         {{"TF_EVENT", "health_clear"}});
        break;
      case Action::kNewStart:
        parts_.log.error("the canary is wrong without drafts, too: the model is loaded again",
                         {{"TF_EVENT", "engine_again"}});
        leave_for_new_start();
        return publish_health();
      case Action::kFail:
        fail(internal_error("the canary stays wrong after the model was loaded again " +
                            std::to_string(kNewStartsMax) + " times"));
        return publish_health();
    }
  }
}

// What the sick engine kept may be wrong, in memory and on disk.
void EngineLoop::leave_for_new_start() {
  const Status why =
      unavailable("the engine found itself at fault and begins anew", "engine_restarting");
  end_requests(why);
  planner_.flush_cache(true);
  if (planner_.has_work()) step();
  if (!failed()) broken_ = why;
}

void EngineLoop::publish_health() {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const HealthFigures f = parts_.health->figures();
  parts_.board.canaries.store(f.canaries, kRelaxed);
  parts_.board.canaries_wrong.store(f.canaries_wrong, kRelaxed);
  parts_.board.health_alarms.store(f.alarms, kRelaxed);
  parts_.board.new_starts.store(f.new_starts, kRelaxed);
  parts_.board.health_alarm.store(f.alarm, kRelaxed);
}

}  // namespace tensorfold
