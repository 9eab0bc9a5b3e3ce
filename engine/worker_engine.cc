// See the header.
#include "engine/worker_engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "engine/cluster_start.h"
#include "engine/group/worker_rank.h"
#include "engine/stats_board.h"

namespace tensorfold {
namespace {

using State = EngineStats::State;

constexpr int64_t kSpillStopUs = 3'000'000;  // to write what was taken
constexpr std::chrono::seconds kCloseGrace{2};

class WorkerEngine final : public Engine {
 public:
  WorkerEngine(EngineOptions options, const Clock& clock, LogSink& log)
      : options_(std::move(options)), clock_(clock), log_(log) {
    board_.set_state(State::kLoading, "loading");
    thread_ = std::thread([this] { run(); });
  }

  ~WorkerEngine() override {
    stop_->request();
    {
      // Unless its thread is in an exchange, it closes the group itself.
      std::unique_lock lock(mutex_);
      group_gone_.wait_for(lock, kCloseGrace, [this] { return group_ == nullptr; });
      if (group_ != nullptr) group_->abort(unavailable("this rank is stopping", "aborted"));
    }
    thread_.join();
  }

  Result<RequestId> submit(Request, std::shared_ptr<RequestSink>) override { return refusal(); }
  void cancel(RequestId) override {}
  // The head ends the replies in progress before this rank goes.
  void drain() override { leave(true); }
  void resume() override { leave(false); }
  void flush_cache(bool) override {}

  EngineStats stats() const override;
  ModelInfo model() const override {
    return loaded_.load(std::memory_order_acquire) ? info_ : ModelInfo{};
  }
  std::unique_ptr<OutputStream> output_stream(const OutputOptions&) const override {
    return nullptr;
  }
  std::string token_text(TokenId) const override { return {}; }
  Result<std::vector<TokenId>> encode(const Prompt&) const override { return refusal(); }

 private:
  Status refusal() const {
    return unavailable("this machine is a worker of the model: send requests to its head, " +
                           options_.cluster.head_address,
                       "worker");
  }
  void leave(bool wanted) {
    leaving_.store(wanted, std::memory_order_release);
    const std::lock_guard lock(mutex_);
    if (worker_ != nullptr) worker_->leave(wanted);
  }
  void run();
  Status load_and_serve();
  void serve(ClusterLink& link, WorkerRank& worker, RankReport& report);
  Status serve_group(Group& group, WorkerRank& worker);
  void set_worker(WorkerRank* worker);
  void set_group(Group* group);
  bool stopping() const { return stop_->requested(); }

  const EngineOptions options_;
  const Clock& clock_;
  LogSink& log_;
  StatsBoard board_;
  const std::shared_ptr<StopFlag> stop_ = std::make_shared<StopFlag>();
  std::atomic<bool> leaving_{false};
  std::atomic<bool> loaded_{false};
  ModelInfo info_;  // written before loaded_
  mutable std::mutex mutex_;
  std::condition_variable group_gone_;
  WorkerRank* worker_ = nullptr;  // while the thread has them
  Group* group_ = nullptr;
  std::thread thread_;  // last
};

EngineStats WorkerEngine::stats() const {
  EngineStats s = board_.snapshot(clock_);
  const std::lock_guard lock(mutex_);
  if (worker_ == nullptr) return s;
  s.slots_busy = worker_->busy();
  s.steps_total = worker_->steps();
  if (leaving_.load(std::memory_order_acquire)) {
    if (s.state == State::kReady) s.state = State::kDraining;
    s.slots_busy = worker_->may_leave() ? 0 : std::max(1, s.slots_busy);
  }
  return s;
}

void WorkerEngine::set_worker(WorkerRank* worker) {
  const std::lock_guard lock(mutex_);
  worker_ = worker;
  if (worker != nullptr) worker->leave(leaving_.load(std::memory_order_acquire));
}

void WorkerEngine::set_group(Group* group) {
  const std::lock_guard lock(mutex_);
  group_ = group;
  group_gone_.notify_all();
}

void WorkerEngine::run() {
  Status status;
  try {
    status = load_and_serve();
  } catch (const std::exception& e) {
    status = internal_error(std::string("the worker failed: ") + e.what());
  }
  if (stopping()) return board_.set_state(State::kStopped, "stopped");
  board_.failure.store(status.code(), std::memory_order_relaxed);
  board_.set_state(State::kFailed, status.message());
}

Status WorkerEngine::load_and_serve() {
  if (options_.model_path.empty())
    return invalid_argument("model.path is not set: a folder with config.json", "model.path");
  const auto progress = [this](std::string detail) {
    board_.set_state(State::kLoading, std::move(detail));
  };
  progress("loading: configuration");
  TF_ASSIGN_OR_RETURN(const RankSizes sizes, size_rank(options_, log_));
  TF_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedRank> rank,
                      load_rank(options_, sizes, progress, clock_, log_));
  TF_ASSIGN_OR_RETURN(const auto link, open_link(options_, sizes, rank, clock_, log_));
  info_ = {rank->model->fingerprint(), sizes.config.architecture, sizes.context, rank->parameters,
           sizes.config.vocab_size};
  board_.slots_total.store(options_.slots, std::memory_order_relaxed);
  board_.context.store(sizes.context, std::memory_order_relaxed);
  board_.weight_bytes.store(rank->model->weight_bytes(), std::memory_order_relaxed);
  board_.cache_bytes.store(rank->model->cache_bytes(), std::memory_order_relaxed);
  ClusterStats stats;
  stats.role = options_.cluster.role;
  stats.world_size = options_.cluster.world_size;
  RankReport report(stats, options_.cluster.rank, &board_.cluster, clock_);
  report.set_memory(rank->model->weight_bytes(), rank->model->cache_bytes());
  const WorkerRankParts parts = {*rank->executor,  rank->gate, *rank->seat,
                                 rank->tier.get(), report,     log_};
  const RankShape shape = {options_.slots, sizes.layout.snapshot_units};
  WorkerRank worker(parts, shape, random_process_id());
  loaded_.store(true, std::memory_order_release);
  set_worker(&worker);
  serve(*link, worker, report);
  set_worker(nullptr);
  if (rank->tier) rank->tier->settle(kSpillStopUs);
  return ok_status();
}

void WorkerEngine::serve(ClusterLink& link, WorkerRank& worker, RankReport& report) {
  std::string before;  // why the last group ended
  while (!stopping()) {
    report.tick_now(nullptr);
    const auto show = [&](const std::string& text) {
      board_.set_state(State::kWaiting, before.empty() ? text : before + "; " + text);
    };
    show("waiting for the head at " + options_.cluster.head_address);
    auto group = link.former->form(*stop_, [&](const FormProgress& p) { show(p.text); });
    if (!group.ok()) {
      if (stopping()) return;
      before = group.status().message();
      log_.error("the group cannot form: " + before);
      std::this_thread::sleep_for(std::chrono::milliseconds(kWorkerIdleMs));
      continue;
    }
    const Status ended = serve_group(**group, worker);
    if (stopping()) return;
    before = ended.message();
    report.lost(before);
    log_.write(LogLevel::kError, "the group is broken: " + before, {{"TF_EVENT", "group_lost"}});
  }
}

Status WorkerEngine::serve_group(Group& group, WorkerRank& worker) {
  set_group(&group);
  const Status ended = worker.serve(group, *stop_, [this] {
    board_.set_state(State::kReady, "ready");
    log_.write(LogLevel::kNotice, "the group stands", {{"TF_EVENT", "group_formed"}});
  });
  set_group(nullptr);
  return ended;
}

}  // namespace

Result<std::unique_ptr<Engine>> start_worker_engine(EngineOptions options, const Clock& clock,
                                                    LogSink& log) {
  return std::unique_ptr<Engine>(std::make_unique<WorkerEngine>(std::move(options), clock, log));
}

}  // namespace tensorfold
