// cache_bench [MODEL_DIR [THREADS]]: what the prefix cache saves an agent that calls tools for
// twenty turns.
//
// Three loops over the same texts: replies given back as they were; replies rewritten by the client
// (the reasoning dropped, arguments written with other spaces), as agents do; and replies given
// back with reuse_replies off. Per turn: prompt tokens, rows computed before the first token, and
// the ideal: tokens that were not in the turn before, and one for the last token of a reply, which
// has not been computed when the reply ends. The cold sum is what a server without a cache
// computes. Rows are exact counts; seconds are one run's. Not a test.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace tensorfold {
namespace {

constexpr int kTurns = 20;
constexpr int kSystemTokens = 1200;  // instructions and tools
constexpr int kReplyTokens = 48;     // a tool call
constexpr int kRewrittenTokens = 40;
constexpr int kResultTokens = 150;  // what the tool said

using Clock64 = std::chrono::steady_clock;

class Waiter final : public RequestSink {
 public:
  void on_accepted(RequestId, int, int) override {}
  void on_progress(int, int) override {}
  void on_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob>) override {
    const std::lock_guard lock(mutex_);
    if (reply.empty()) first = Clock64::now();
    reply.insert(reply.end(), ids.begin(), ids.end());
  }
  void on_finished(const Status& s, FinishReason, const ReplyStats& r) override {
    const std::lock_guard lock(mutex_);
    status = s;
    stats = r;
    done_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
  }
  Status status;
  ReplyStats stats;
  std::vector<TokenId> reply;
  Clock64::time_point first;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

std::vector<TokenId> made_up(uint64_t seed, int n) {
  std::vector<TokenId> ids;
  uint64_t x = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (int i = 0; i < n; ++i) {
    x = x * 6364136223846793005ULL + 1442695040888963407ULL;
    ids.push_back(static_cast<TokenId>(300 + (x >> 33) % 1000));
  }
  return ids;
}

struct Turn {
  int prompt = 0, cached = 0, ideal = 0;
  double first_s = 0;
};

void append(std::vector<TokenId>& to, const std::vector<TokenId>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

Result<std::vector<Turn>> agent_loop(Engine& engine, const std::string& salt, bool rewrite,
                                     bool reuse) {
  std::vector<Turn> turns;
  std::vector<TokenId> ids = made_up(1, kSystemTokens);
  int new_tokens = kSystemTokens;
  for (int t = 0; t < kTurns; ++t) {
    auto sink = std::make_shared<Waiter>();
    Request request;
    request.prompt.ids = ids;
    request.sampling.temperature = 0;
    request.max_tokens = kReplyTokens;
    request.ignore_eos = true;
    request.cache_salt = salt;
    const auto begin = Clock64::now();
    const auto id = engine.submit(std::move(request), sink);
    if (!id.ok()) return id.status();
    sink->wait();
    TF_RETURN_IF_ERROR(sink->status);
    Turn turn;
    turn.prompt = sink->stats.usage.prompt_tokens;
    turn.cached = sink->stats.usage.cached_tokens;
    turn.ideal = new_tokens;
    turn.first_s = std::chrono::duration<double>(sink->first - begin).count();
    turns.push_back(turn);
    const auto result = made_up(static_cast<uint64_t>(100 + t), kResultTokens);
    const auto kept =
        rewrite ? made_up(static_cast<uint64_t>(500 + t), kRewrittenTokens) : sink->reply;
    append(ids, kept);
    append(ids, result);
    // The last token of a reply is not computed; what the client wrote is all new.
    new_tokens = kResultTokens + (rewrite || !reuse ? static_cast<int>(kept.size()) : 1);
  }
  return turns;
}

void print(const char* title, const std::vector<Turn>& turns) {
  std::printf("\n%s\n\n| turn | prompt | cached | rows | ideal | first token ms |\n", title);
  std::printf("|---:|---:|---:|---:|---:|---:|\n");
  int64_t rows = 0, ideal = 0, cold = 0;
  for (size_t i = 0; i < turns.size(); ++i) {
    const Turn& t = turns[i];
    rows += t.prompt - t.cached;
    ideal += t.ideal;
    cold += t.prompt;
    std::printf("| %zu | %d | %d | %d | %d | %.0f |\n", i + 1, t.prompt, t.cached,
                t.prompt - t.cached, t.ideal, 1e3 * t.first_s);
  }
  std::printf("| sum | %lld | %lld | %lld | %lld | |\n", static_cast<long long>(cold),
              static_cast<long long>(cold - rows), static_cast<long long>(rows),
              static_cast<long long>(ideal));
  std::printf("\nrows / ideal %.3f, rows / cold %.3f\n",
              static_cast<double>(rows) / static_cast<double>(ideal),
              static_cast<double>(rows) / static_cast<double>(cold));
  std::fflush(stdout);
}

Result<std::unique_ptr<Engine>> start(const std::string& folder, int threads, bool reuse) {
  EngineOptions options;
  options.model_path = folder;
  options.slots = 1;
  options.threads = threads;
  options.reuse_replies = reuse;
  TF_ASSIGN_OR_RETURN(auto engine, Engine::create(options, system_clock(), null_log()));
  using State = EngineStats::State;
  while (engine->stats().state == State::kLoading)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const EngineStats stats = engine->stats();
  if (stats.state != State::kReady) return unavailable(stats.state_detail);
  return engine;
}

Status run(const std::string& folder, int threads) {
  TF_ASSIGN_OR_RETURN(auto engine, start(folder, threads, true));
  TF_ASSIGN_OR_RETURN(const auto kept, agent_loop(*engine, "kept", false, true));
  print("Replies given back as they were", kept);
  TF_ASSIGN_OR_RETURN(const auto rewritten, agent_loop(*engine, "rewritten", true, true));
  print("Replies rewritten by the client", rewritten);
  const EngineStats s = engine->stats();
  std::printf("\nsnapshots %lld, %.1f MiB; cache %lld tokens in blocks\n",
              static_cast<long long>(s.cache_snapshots),
              static_cast<double>(s.cache_snapshot_bytes) / 1048576.0,
              static_cast<long long>(s.pool_tokens_cached));
  engine.reset();
  TF_ASSIGN_OR_RETURN(auto plain, start(folder, threads, false));
  TF_ASSIGN_OR_RETURN(const auto not_kept, agent_loop(*plain, "", false, false));
  print("Replies given back as they were, reuse_replies = false", not_kept);
  return ok_status();
}

}  // namespace
}  // namespace tensorfold

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : TF_SOURCE_DIR "/packaging/tiny-model/model";
  const tensorfold::Status status = tensorfold::run(folder, argc > 2 ? std::atoi(argv[2]) : 0);
  if (status.ok()) return 0;
  std::fprintf(stderr, "cache_bench: %s\n", status.to_string().c_str());
  return 1;
}
