// The front of the engine and the life of its thread. See the header for the owners.
#include "engine/engine_core.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

using State = EngineStats::State;

// An idle engine thread wakes at least this often.
constexpr int64_t kIdleWaitUs = 100'000;
constexpr int64_t kReadingWaitUs = 1'000;    // while a prefix is read from disk
constexpr int64_t kSpillStopUs = 3'000'000;  // to write what is not on disk yet
constexpr int kQueueRequestsMax = 4096;
constexpr int kPrefillRowsMin = 256;
constexpr int64_t kSnapshotMibMax = 1 << 20;
constexpr int64_t kSpillGibMax = 65'536;

Status check_options(const EngineOptions& o) {
  const auto bad = [](const char* key, int64_t low, int64_t high) {
    return invalid_argument(
        std::string(key) + " must be " + std::to_string(low) + " to " + std::to_string(high), key);
  };
  if (o.slots < 1 || o.slots > kSequencesMax) return bad("engine.slots", 1, kSequencesMax);
  if (o.prefill_rows < kPrefillRowsMin || o.prefill_rows > kPrefillRowsMax)
    return bad("engine.prefill_rows", kPrefillRowsMin, kPrefillRowsMax);
  if (o.context < 0 || o.context > kPositionsMax) return bad("engine.context", 0, kPositionsMax);
  if (o.pool_tokens < 0) return bad("cache.pool_tokens", 0, INT64_MAX);
  if (o.snapshot_mib < 0 || o.snapshot_mib > kSnapshotMibMax)
    return bad("cache.snapshot_mib", 0, kSnapshotMibMax);
  if (o.spill_gib < 0 || o.spill_gib > kSpillGibMax) return bad("cache.spill_gib", 0, kSpillGibMax);
  if (o.queue_requests < 1 || o.queue_requests > kQueueRequestsMax)
    return bad("limits.queue_requests", 1, kQueueRequestsMax);
  if (o.draft_depth < 0 || o.draft_depth > kDraftRowsMax)
    return bad("engine.draft_depth", 0, kDraftRowsMax);
  if (o.queue_deadline_us < 0) return bad("limits.queue_deadline", 0, INT64_MAX);
  return ok_status();
}

class EngineCore final : public Engine {
 public:
  EngineCore(EngineOptions options, const Clock& clock, LogSink& log, EngineLoader loader)
      : options_(std::move(options)),
        clock_(clock),
        log_(log),
        loader_(std::move(loader)),
        requests_max_(static_cast<size_t>(options_.slots + options_.queue_requests)),
        commands_(requests_max_) {
    board_.set_state(State::kLoading, "loading");
    thread_ = std::thread([this] { run(); });
  }

  ~EngineCore() override {
    stop_.store(true, std::memory_order_release);
    {
      const std::lock_guard lock(flag_mutex_);
      if (flag_) flag_->request();
    }
    // The thread may still be loading: it makes the pipeline, so it also takes it down.
    thread_.join();
  }

  Result<RequestId> submit(Request request, std::shared_ptr<RequestSink> sink) override;
  void cancel(RequestId id) override { book_.cancel(id); }
  void drain() override {
    draining_.store(true, std::memory_order_release);
    swap_state(State::kReady, State::kDraining);
  }
  void resume() override {
    draining_.store(false, std::memory_order_release);
    swap_state(State::kDraining, State::kReady);
  }
  void flush_cache(bool spill) override {
    flush_.fetch_or(spill ? kFlushAll : kFlushMemory, std::memory_order_acq_rel);
  }

  EngineStats stats() const override {
    EngineStats s = board_.snapshot(clock_);
    s.waiting = std::max(0, static_cast<int>(book_.size()) - s.slots_busy);
    return s;
  }
  ModelInfo model() const override { return loaded() ? info_ : ModelInfo{}; }
  std::unique_ptr<OutputStream> output_stream(const OutputOptions& options) const override {
    return loaded() ? text_->output_stream(options) : nullptr;
  }
  std::string token_text(TokenId id) const override {
    return loaded() ? text_->token_text(id) : std::string();
  }
  Result<std::vector<TokenId>> encode(const Prompt& prompt) const override {
    if (!loaded()) return unavailable("the model is loading", "loading");
    TF_ASSIGN_OR_RETURN(PromptIds encoded, text_->encode(prompt));
    return std::move(encoded.ids);
  }

 private:
  void run();
  bool load_and_serve();
  void show(const EngineParts& parts);
  bool begin(EngineParts& parts);
  bool serve(EngineParts& parts);
  void begin_serving(EngineParts& parts);
  void take_commands(EngineLoop& loop);
  bool stopping() const { return stop_.load(std::memory_order_acquire); }
  bool loaded() const { return loaded_.load(std::memory_order_acquire); }
  void swap_state(State from, State to) {
    board_.state.compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }

  const EngineOptions options_;
  const Clock& clock_;
  LogSink& log_;
  const EngineLoader loader_;
  const size_t requests_max_;
  StatsBoard board_;
  HealthWatch health_;  // the engine thread's; outlives what is loaded
  TicketBook book_;
  BoundedQueue<Submission> commands_;  // prepared requests for the engine thread
  std::atomic<int64_t> pending_{0};    // in commands_: spares the step path its mutex
  std::atomic<bool> stop_{false};
  std::atomic<bool> draining_{false};  // asked for, also while it can't be the state
  std::mutex flag_mutex_;
  std::shared_ptr<StopFlag> flag_;  // for those who wait elsewhere than here
  static constexpr int kFlushMemory = 1, kFlushAll = 3;
  std::atomic<int> flush_{0};  // asked for and not done yet
  // Written by the engine thread before loaded_ is set, constant afterwards.
  std::atomic<bool> loaded_{false};
  ModelInfo info_;
  std::shared_ptr<const TextCodec> text_;
  std::unique_ptr<SubmitPipeline> pipeline_;
  std::thread thread_;  // last: everything above is there when it starts
};

Result<RequestId> EngineCore::submit(Request request, std::shared_ptr<RequestSink> sink) {
  TF_CHECK(sink != nullptr);
  switch (board_.state.load(std::memory_order_acquire)) {
    case State::kReady:
      break;
    case State::kLoading:
      return unavailable("the model is loading", "loading");
    case State::kDraining:
      return unavailable("the server is draining", "draining");
    case State::kWaiting:
      return unavailable("the model's ranks are not together: " + board_.detail(), "peer_lost");
    default:
      return unavailable("the engine is not running: " + board_.detail(), "engine_failed");
  }
  auto ticket = book_.open(std::move(sink), requests_max_);
  if (!ticket)
    return Status(StatusCode::kTooMany,
                  std::to_string(requests_max_) + " requests are running or waiting already", "",
                  "queue_full");
  const RequestId id = ticket->id();
  Submission submission;
  submission.ticket = std::move(ticket);
  submission.request = std::move(request);
  submission.submitted_us = clock_.monotonic_us();
  if (!pipeline_->push(std::move(submission))) {
    book_.close(id);
    return unavailable("the server is stopping", "stopping");
  }
  return id;
}

void EngineCore::run() {
  while (load_and_serve()) {
    // What was loaded is gone; prompt workers and what they have delivered stay.
    health_.began_anew(clock_.monotonic_us());
  }
}

// True: to be done again.
bool EngineCore::load_and_serve() {
  auto parts = [&]() -> Result<EngineParts> {
    try {
      return loader_(options_, [&](std::string detail) {
        board_.set_state(State::kLoading, std::move(detail));
      });
    } catch (const std::exception& e) {
      return internal_error(std::string("loading failed: ") + e.what());
    }
  }();
  if (!parts.ok()) {  // whoever watches the state says it, once
    board_.failure.store(parts.status().code(), std::memory_order_relaxed);
    board_.set_state(State::kFailed, parts.status().message());
    return false;
  }
  show(*parts);
  if (!begin(*parts)) return false;
  if (serve(*parts)) {
    board_.set_state(State::kLoading, "loading again");
    return true;
  }
  board_.set_state(State::kStopped, "stopped");
  return false;
}

// False: it was stopped meanwhile, or it failed.
bool EngineCore::begin(EngineParts& parts) {
  if (!parts.begin) return true;
  {
    const std::lock_guard lock(flag_mutex_);
    flag_ = parts.stop;
    if (stopping() && flag_) flag_->request();
  }
  const Status status = parts.begin(parts, board_, [this](std::string detail) {
    board_.set_state(State::kWaiting, std::move(detail));
    return !stopping();
  });
  if (status.ok()) return true;
  if (stopping()) {
    board_.set_state(State::kStopped, "stopped");
    return false;
  }
  log_.error("the group could not begin: " + status.message());
  board_.failure.store(status.code(), std::memory_order_relaxed);
  board_.set_state(State::kFailed, status.message());
  return false;
}

void EngineCore::show(const EngineParts& parts) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  board_.slots_total.store(parts.loop.planner.slots, kRelaxed);
  board_.context.store(parts.capacity.positions_max(), kRelaxed);
  board_.pool_tokens_total.store(parts.capacity.pool_blocks * kBlockPositions, kRelaxed);
  board_.weight_bytes.store(parts.weight_bytes, kRelaxed);
  board_.cache_bytes.store(parts.cache_bytes, kRelaxed);
}

// What other threads use of the first load stays with every later one: it is of the same model.
void EngineCore::begin_serving(EngineParts& parts) {
  if (loaded()) return;
  info_ = parts.info;
  text_ = parts.text;
  const auto deliver = [this](Submission&& s) {
    pending_.fetch_add(1, std::memory_order_release);
    return commands_.try_push(std::move(s));
  };
  pipeline_ = std::make_unique<SubmitPipeline>(parts.text, parts.loop.vocab, parts.capacity, clock_,
                                               requests_max_, deliver, parts.constraints);
  health_.set_canary(parts.canary);
  loaded_.store(true, std::memory_order_release);
}

// True: the model is to be loaded again.
bool EngineCore::serve(EngineParts& parts) {
  begin_serving(parts);
  EngineLoop loop(parts.loop, {*parts.runner, *parts.text, *parts.depth_policy, clock_, log_,
                               board_, &health_});
  // What is on disk is known before the first request, and the canary was heard.
  do {
    loop.turn();
  } while (loop.asking_canary() && !stopping());
  if (!loop.apart() && !loop.failed()) board_.set_state(State::kReady, "ready");
  while (!stopping() && !health_.begins_anew()) {
    take_commands(loop);
    if (const int flush = flush_.exchange(0, std::memory_order_acq_rel))
      loop.flush_cache(flush == kFlushAll);
    loop.turn();
    if (draining_.load(std::memory_order_acquire)) swap_state(State::kReady, State::kDraining);
  }
  if (!stopping()) return true;
  // Whoever destroys the engine submits no more. Workers finish first: they may still deliver.
  const Status stopped = unavailable("the server is stopping", "stopping");
  pipeline_.reset();
  const bool well = !loop.failed();
  loop.end_all(stopped);
  while (auto submission = commands_.try_pop()) loop.take(std::move(*submission));
  if (well) loop.finish_spilling(kSpillStopUs);
  return false;
}

void EngineCore::take_commands(EngineLoop& loop) {
  if (loop.resting() || loop.failed() || loop.apart()) {
    if (auto s = commands_.pop_wait(loop.reading() ? kReadingWaitUs : kIdleWaitUs)) {
      pending_.fetch_sub(1, std::memory_order_relaxed);
      loop.take(std::move(*s));
    }
  }
  while (pending_.load(std::memory_order_acquire) > 0) {
    auto s = commands_.try_pop();
    if (!s) return;  // counted but not pushed yet
    pending_.fetch_sub(1, std::memory_order_relaxed);
    loop.take(std::move(*s));
  }
}

}  // namespace

Result<std::unique_ptr<Engine>> start_engine(EngineOptions options, const Clock& clock,
                                             LogSink& log, EngineLoader loader) {
  TF_RETURN_IF_ERROR(check_options(options));
  return std::unique_ptr<Engine>(
      std::make_unique<EngineCore>(std::move(options), clock, log, std::move(loader)));
}

}  // namespace tensorfold
