// See the header.
#include "daemon/idle_engine.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

using State = EngineStats::State;

constexpr int kGenerationShift = 40;  // ids of one engine stay below it
constexpr RequestId kWaitedBit = RequestId{1} << 62;
constexpr double kSecondUs = 1e6;

constexpr uint64_t EngineStats::*kCounters[] = {
    &EngineStats::cache_lookups_total,  &EngineStats::cache_hits_total,
    &EngineStats::cache_kept_total,     &EngineStats::cache_evicted_total,
    &EngineStats::cache_flushes_total,  &EngineStats::preemptions_total,
    &EngineStats::requests_total,       &EngineStats::prompt_tokens_total,
    &EngineStats::cached_tokens_total,  &EngineStats::completion_tokens_total,
    &EngineStats::rounds_total,         &EngineStats::drafted_total,
    &EngineStats::accepted_total,       &EngineStats::draft_pauses_total,
    &EngineStats::forced_drafted_total, &EngineStats::forced_accepted_total,
    &EngineStats::masks_put_off_total,  &EngineStats::loops_closed_total,
    &EngineStats::loops_ended_total,    &EngineStats::steps_total,
};

void add_counters(EngineStats& to, const EngineStats& of) {
  for (const auto counter : kCounters) to.*counter += of.*counter;
  to.prefill_seconds_total += of.prefill_seconds_total;
  to.decode_seconds_total += of.decode_seconds_total;
}

Status loading_again(const std::string& more) {
  return unavailable("the model was idle and is being loaded again" + more, "loading");
}

std::string seconds(int64_t us) { return std::to_string((us + 999'999) / 1'000'000) + " s"; }

}  // namespace

Result<std::unique_ptr<IdleEngine>> IdleEngine::create(EngineFactory factory, EngineOptions options,
                                                       int64_t idle_us, const Clock& clock,
                                                       LogSink& log) {
  TF_CHECK(idle_us > 0);
  TF_ASSIGN_OR_RETURN(auto first, factory(options, clock, log));
  return std::unique_ptr<IdleEngine>(new IdleEngine(std::move(factory), std::move(options), idle_us,
                                                    clock, log, std::move(first)));
}

IdleEngine::IdleEngine(EngineFactory factory, EngineOptions options, int64_t idle_us,
                       const Clock& clock, LogSink& log, std::unique_ptr<Engine> first)
    : factory_(std::move(factory)),
      options_(std::move(options)),
      idle_us_(idle_us),
      clock_(clock),
      log_(log),
      engine_(std::move(first)),
      idle_since_us_(clock.monotonic_us()),
      loading_since_us_(idle_since_us_) {
  keeper_ = std::thread([this] { keep(); });
}

IdleEngine::~IdleEngine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  keeper_.join();
  for (Waiting& one : waiting_) refuse(one, unavailable("the server is stopping", "stopping"));
}

// ---------------------------------------------------------------- the front

std::shared_ptr<Engine> IdleEngine::engine() const {
  const std::lock_guard lock(mutex_);
  return engine_;
}

RequestId IdleEngine::outer_id(RequestId inner) const {
  return inner | (generation_ << kGenerationShift);
}

Result<RequestId> IdleEngine::submit(Request request, std::shared_ptr<RequestSink> sink) {
  const std::lock_guard lock(mutex_);
  if (!failed_.ok())
    return unavailable("the engine is not running: " + failed_.message(), "engine_failed");
  if (memory() == Memory::kLoaded) {
    TF_ASSIGN_OR_RETURN(const RequestId id, engine_->submit(std::move(request), std::move(sink)));
    return outer_id(id);
  }
  if (draining_) return unavailable("the server is draining", "draining");
  wanted_ = true;
  changed_.notify_all();
  const int64_t now_us = clock_.monotonic_us();
  const int64_t loaded_for_us = memory() == Memory::kLoading ? now_us - loading_since_us_ : 0;
  const int64_t left_us = load_us_ - loaded_for_us;
  if (left_us > options_.queue_deadline_us)
    return loading_again(", which takes about " + seconds(left_us) + " more");
  if (waiting_.size() >=
      static_cast<size_t>(options_.slots) + static_cast<size_t>(options_.queue_requests))
    return Status(StatusCode::kTooMany,
                  std::to_string(waiting_.size()) + " requests are waiting already", "",
                  "queue_full");
  Waiting one{kWaitedBit | next_waiting_++, std::move(request), std::move(sink),
              now_us + options_.queue_deadline_us};
  if (one.request.deadline_us > 0)
    one.deadline_us = std::min(one.deadline_us, one.request.deadline_us);
  waiting_.push_back(std::move(one));
  return waiting_.back().id;
}

void IdleEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if ((id & kWaitedBit) != 0) {
    const auto one = std::find_if(waiting_.begin(), waiting_.end(),
                                  [id](const Waiting& w) { return w.id == id; });
    if (one != waiting_.end()) one->cancelled = true;  // the keeper tells its sink
    changed_.notify_all();
    const auto renamed = renamed_.find(id);
    if (renamed == renamed_.end()) return;
    id = renamed->second;
  }
  if (engine_ && id >> kGenerationShift == generation_)
    engine_->cancel(id & ((RequestId{1} << kGenerationShift) - 1));
}

void IdleEngine::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  if (memory() == Memory::kLoaded) engine_->drain();
}

void IdleEngine::resume() {
  const std::lock_guard lock(mutex_);
  draining_ = false;
  if (memory() == Memory::kLoaded) engine_->resume();
}

void IdleEngine::flush_cache(bool spill) {
  const std::lock_guard lock(mutex_);
  if (memory() == Memory::kLoaded) return engine_->flush_cache(spill);
  if (!spill) {  // there is nothing left in memory
    ++totals_.cache_flushes_total;
    ++last_.cache_flushes_total;
    return;
  }
  flush_disk_ = wanted_ = true;
  changed_.notify_all();
}

EngineStats IdleEngine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats now = engine_ ? engine_->stats() : last_;
  if (engine_) add_counters(now, totals_);
  if (memory() == Memory::kLoaded) return now;
  const bool loading = memory() == Memory::kLoading;
  EngineStats out = last_;
  for (const auto counter : kCounters) out.*counter = now.*counter;
  out.state = draining_ ? State::kDraining : State::kReady;
  out.state_detail = loading ? "loading again" + (engine_ ? ": " + now.state_detail : "")
                             : "unloaded: no request for " + seconds(idle_us_);
  if (!failed_.ok()) {
    out.state = State::kFailed;
    out.state_detail = failed_.message();
    out.failure = failed_.code();
  }
  out.waiting = static_cast<int>(waiting_.size());
  return out;
}

ModelInfo IdleEngine::model() const {
  const std::lock_guard lock(mutex_);
  return memory() == Memory::kLoaded ? engine_->model() : info_;
}

std::unique_ptr<OutputStream> IdleEngine::output_stream(const OutputOptions& options) const {
  const auto now = engine();
  return now ? now->output_stream(options) : nullptr;
}

std::string IdleEngine::token_text(TokenId id) const {
  const auto now = engine();
  return now ? now->token_text(id) : std::string();
}

Result<std::vector<TokenId>> IdleEngine::encode(const Prompt& prompt) const {
  if (const auto now = engine()) return now->encode(prompt);
  {
    const std::lock_guard lock(mutex_);
    wanted_ = true;
  }
  changed_.notify_all();
  return loading_again("");
}

// ---------------------------------------------------------------- the keeper

void IdleEngine::keep() {
  Lock lock(mutex_);
  while (!stop_) {
    changed_.wait_for(lock, std::chrono::milliseconds(kIdleLookMs),
                      [this] { return stop_ || (wanted_ && memory() == Memory::kUnloaded); });
    if (stop_ || !failed_.ok()) continue;
    settle_waiting();
    switch (memory()) {
      case Memory::kLoaded:
        if (idle_for_long()) unload(lock);
        break;
      case Memory::kUnloaded:
        if (wanted_) load(lock);
        break;
      case Memory::kLoading:
        look_at_load();
        break;
    }
  }
}

bool IdleEngine::idle_for_long() {
  const EngineStats now = engine_->stats();
  const int64_t now_us = clock_.monotonic_us();
  if (load_us_ == 0 && now.state == State::kReady) load_us_ = now_us - loading_since_us_;
  const bool busy = now.state != State::kReady || now.slots_busy > 0 || now.waiting > 0 ||
                    now.requests_total != requests_seen_;
  requests_seen_ = now.requests_total;
  if (busy) idle_since_us_ = now_us;
  return now_us - idle_since_us_ >= idle_us_;
}

// What is still in use by a call of the front ends with that call.
void IdleEngine::unload(Lock& lock) {
  info_ = engine_->model();
  last_ = engine_->stats();
  add_counters(last_, totals_);
  totals_ = EngineStats();
  add_counters(totals_, last_);
  last_.weight_bytes = last_.cache_bytes = 0;
  last_.pool_tokens_used = last_.pool_tokens_cached = 0;
  last_.cache_blocks = last_.cache_snapshots = last_.cache_snapshot_bytes = 0;
  std::shared_ptr<Engine> gone = std::move(engine_);
  engine_ = nullptr;
  memory_.store(Memory::kUnloaded, std::memory_order_release);
  ++generation_;
  renamed_.clear();
  wanted_ = false;
  lock.unlock();
  while (gone.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  gone.reset();
  malloc_trim(0);
  log_.info("the model is unloaded: no request for " + seconds(idle_us_) +
            "; the next one loads it again");
  lock.lock();
}

void IdleEngine::load(Lock& lock) {
  wanted_ = false;
  memory_.store(Memory::kLoading, std::memory_order_release);
  loading_since_us_ = clock_.monotonic_us();
  lock.unlock();
  log_.info("a request came: the model is loaded again");
  auto made = factory_(options_, clock_, log_);
  lock.lock();
  if (!made.ok()) return fail(made.status());
  engine_ = std::move(made).value();
}

void IdleEngine::look_at_load() {
  const EngineStats now = engine_->stats();
  if (now.state == State::kFailed) return fail(Status(now.failure, now.state_detail));
  if (now.state == State::kReady) hand_over();
}

void IdleEngine::hand_over() {
  load_us_ = clock_.monotonic_us() - loading_since_us_;
  idle_since_us_ = clock_.monotonic_us();
  requests_seen_ = 0;
  memory_.store(Memory::kLoaded, std::memory_order_release);
  log_.info("the model is loaded again after " +
            std::to_string(static_cast<double>(load_us_) / kSecondUs).substr(0, 5) + " s; " +
            std::to_string(waiting_.size()) + " requests waited");
  for (Waiting& one : waiting_) {
    const auto id = engine_->submit(std::move(one.request), one.sink);
    if (id.ok()) renamed_[one.id] = outer_id(*id);
    if (!id.ok()) refuse(one, id.status());
  }
  waiting_.clear();
  if (flush_disk_) engine_->flush_cache(true);
  flush_disk_ = false;
  if (draining_) engine_->drain();
}

// Tells those that need not wait any longer.
void IdleEngine::settle_waiting() {
  const int64_t now_us = clock_.monotonic_us();
  for (auto one = waiting_.begin(); one != waiting_.end();) {
    if (!one->cancelled && now_us < one->deadline_us) {
      ++one;
      continue;
    }
    refuse(*one, one->cancelled ? Status(StatusCode::kCancelled, "the request was cancelled")
                                : loading_again(", which takes longer than a request may wait"));
    one = waiting_.erase(one);
  }
}

void IdleEngine::fail(const Status& status) {
  failed_ = status;
  for (Waiting& one : waiting_)
    refuse(one, unavailable("the model could not be loaded again: " + status.message(),
                            "engine_failed"));
  waiting_.clear();
}

void IdleEngine::refuse(Waiting& waiting, const Status& status) {
  const bool cancelled = status.code() == StatusCode::kCancelled;
  waiting.sink->on_finished(status, cancelled ? FinishReason::kCancelled : FinishReason::kFailed,
                            {});
}

}  // namespace tensorfold
