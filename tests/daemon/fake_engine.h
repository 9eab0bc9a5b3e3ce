// A scripted Engine: the daemon's tests and its fault injection run over it.
//
// Tokens are bytes (0..255) and a few control ids. What a request gets is written in its last
// message: see the table of scripts in fake_engine.cc ("echo TEXT", "count N", "slow MS N", ...).
// One thread per request stands for the real engine's thread: calls on a sink come from it in
// order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace tensorfold {

inline constexpr TokenId kFakeEnd = 256;        // end of the reply
inline constexpr TokenId kFakeThinkEnd = 257;   // reasoning -> content
inline constexpr TokenId kFakeCallBegin = 258;  // then the name
inline constexpr TokenId kFakeCallArguments = 259;
inline constexpr TokenId kFakeCallEnd = 260;
inline constexpr int64_t kFakeContext = 4096;

struct FakeSettings {
  int load_ms = 0;
  StatusCode fail_load = StatusCode::kOk;  // TF_FAKE_FAIL_LOAD: its number
  bool stuck = false;                      // cancel() is not heard: a wedged device
};
FakeSettings fake_settings_from_environment();

class FakeEngine final : public Engine {
 public:
  FakeEngine(EngineOptions options, FakeSettings settings, const Clock& clock);
  ~FakeEngine() override;

  Result<RequestId> submit(Request request, std::shared_ptr<RequestSink> sink) override;
  void cancel(RequestId id) override;
  void drain() override;
  void resume() override;
  void flush_cache(bool spill) override;
  EngineStats stats() const override;
  ModelInfo model() const override;
  std::unique_ptr<OutputStream> output_stream(const OutputOptions& options) const override;
  std::string token_text(TokenId id) const override;
  Result<std::vector<TokenId>> encode(const Prompt& prompt) const override;

 private:
  struct Job;
  struct Script;

  static Script script_of(const Request& request);
  void run(Job& job);
  void play(Job& job, const Script& script);
  bool wait_slot(Job& job);
  bool fill(Job& job, int ms, int prompt_tokens);
  bool pause_ms(Job& job, int ms);  // false: cancelled
  EngineStats::State state() const;

  const EngineOptions options_;
  const FakeSettings settings_;
  const Clock& clock_;
  const int64_t started_us_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, std::unique_ptr<Job>> jobs_;
  RequestId next_id_ = 1;
  int busy_ = 0, waiting_ = 0;
  bool draining_ = false;
  EngineStats totals_;
  std::atomic<uint64_t> waited_{0};  // steps of prefills that are played by waiting
};

}  // namespace tensorfold
