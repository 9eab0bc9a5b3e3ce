// IdleEngine: an Engine that gives the memory of an idle model back and loads it again when a
// request comes. In between it is ready as before: sockets stay open, requests wait.
//
// Owners: the front is called from any thread, as every Engine. The keeper, a thread of its own,
// makes and ends the engine behind it; the front holds that engine only for the time of a call.
// One mutex guards everything that both use; nothing that takes long is done under it.
// Deliberately knows nothing of models: what it makes anew is whatever the factory makes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "daemon/process.h"
#include "engine/engine.h"

namespace tensorfold {

inline constexpr int64_t kIdleLookMs = 100;  // the keeper looks this often

class IdleEngine final : public Engine {
 public:
  enum class Memory : unsigned char { kLoaded, kUnloaded, kLoading };  // kLoading: again

  // Begins the first load. `idle_us`: without a request, before the model goes; more than 0.
  // A request waits for a load for options.queue_deadline_us; it is refused at once when the last
  // load shows that this cannot be enough. Both are kUnavailable with the reason "loading".
  static Result<std::unique_ptr<IdleEngine>> create(EngineFactory factory, EngineOptions options,
                                                    int64_t idle_us, const Clock& clock,
                                                    LogSink& log);
  ~IdleEngine() override;

  Memory memory() const { return memory_.load(std::memory_order_acquire); }

  Result<RequestId> submit(Request request, std::shared_ptr<RequestSink> sink) override;
  void cancel(RequestId id) override;
  void drain() override;
  void resume() override;
  void flush_cache(bool spill) override;  // of the disk: it is loaded for that
  EngineStats stats() const override;
  ModelInfo model() const override;
  std::unique_ptr<OutputStream> output_stream(const OutputOptions& options) const override;
  std::string token_text(TokenId id) const override;
  Result<std::vector<TokenId>> encode(const Prompt& prompt) const override;

 private:
  struct Waiting {
    RequestId id = 0;
    Request request;
    std::shared_ptr<RequestSink> sink;
    int64_t deadline_us = 0;
    bool cancelled = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  IdleEngine(EngineFactory factory, EngineOptions options, int64_t idle_us, const Clock& clock,
             LogSink& log, std::unique_ptr<Engine> first);
  std::shared_ptr<Engine> engine() const;  // null: none just now
  RequestId outer_id(RequestId inner) const;
  // The keeper's.
  void keep();
  bool idle_for_long();
  void unload(Lock& lock);
  void load(Lock& lock);
  void look_at_load();
  void hand_over();
  void settle_waiting();
  void fail(const Status& status);
  static void refuse(Waiting& waiting, const Status& status);

  const EngineFactory factory_;
  const EngineOptions options_;
  const int64_t idle_us_;
  const Clock& clock_;
  LogSink& log_;
  std::atomic<Memory> memory_{Memory::kLoaded};  // written under mutex_
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::shared_ptr<Engine> engine_;
  std::deque<Waiting> waiting_;             // for a load
  std::map<RequestId, RequestId> renamed_;  // of those that waited: the engine's own ids
  uint64_t generation_ = 0;                 // engines before this one
  RequestId next_waiting_ = 1;
  mutable bool wanted_ = false;  // the model, while it is unloaded
  bool stop_ = false, draining_ = false, flush_disk_ = false;
  Status failed_;       // of a load again
  EngineStats last_;    // of the engine that is gone, what came before it included
  EngineStats totals_;  // only its counters: of all engines that are gone
  ModelInfo info_;
  int64_t idle_since_us_ = 0;
  uint64_t requests_seen_ = 0;
  int64_t loading_since_us_ = 0, load_us_ = 0;  // the last load took
  std::thread keeper_;                          // last
};

}  // namespace tensorfold
