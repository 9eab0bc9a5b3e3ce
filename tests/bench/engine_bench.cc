// engine_bench MODEL_DIR [--threads N]: speed of the whole CPU engine on one model, beside the
// floor that its bytes and operations give on this machine.
//
// The floor of one token: the weights that a row must read over the measured read bandwidth of a
// buffer of that size, or its multiplies and adds over the measured vector rate, whichever is more.
// Both ceilings are measured here, in the same run. Figures are medians of kRepeats. Not a test.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/model/config.h"

namespace tensorfold {
namespace {

constexpr int kRepeats = 5;
constexpr int kDecodeTokens = 256;
constexpr int kPrefillTokens = 4096;

using Clock64 = std::chrono::steady_clock;
double seconds_since(Clock64::time_point start) {
  return std::chrono::duration<double>(Clock64::now() - start).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// ---- ceilings of the machine

typedef float Vec __attribute__((vector_size(64)));

// The ceilings use the widest vectors of the processor, as the kernels do.
#if defined(__x86_64__) && !defined(__clang__)
#define BENCH_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define BENCH_CLONES
#endif

constexpr int kChains = 8;

BENCH_CLONES float multiply_add(int64_t rounds) {
  Vec acc[kChains] = {};
  const Vec a = Vec{} + 1.0001F, b = Vec{} + 0.5F;
  for (int64_t i = 0; i < rounds; ++i)
    for (Vec& v : acc) v = v * a + b;
  Vec total{};
  for (const Vec& v : acc) total += v;
  return total[0];
}

BENCH_CLONES float read_all(const Vec* part, size_t n, int passes) {
  Vec a{}, b{}, c{}, d{};
  for (int pass = 0; pass < passes; ++pass) {
    for (size_t i = 0; i + 4 <= n; i += 4) {
      a += part[i], b += part[i + 1], c += part[i + 2], d += part[i + 3];
    }
  }
  return (a + b + c + d)[0];
}

// Multiplies and adds a second, all threads together: eight independent chains each.
double vector_rate(int threads) {
  constexpr int64_t kRounds = 20'000'000;
  std::vector<std::thread> pool;
  std::vector<float> sums(static_cast<size_t>(threads));
  const auto start = Clock64::now();
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&sums, t] { sums[static_cast<size_t>(t)] = multiply_add(kRounds); });
  }
  for (std::thread& thread : pool) thread.join();
  const double s = seconds_since(start);
  if (sums[0] == 12345.0F) std::puts("");
  return static_cast<double>(threads) * kRounds * kChains * 16 * 2 / s;
}

// Bytes a second when all threads read their part of a buffer of `bytes` over and over.
double read_rate(int threads, int64_t bytes) {
  const auto n = static_cast<size_t>(bytes / 64 / threads);
  std::vector<std::vector<Vec>> parts(static_cast<size_t>(threads), std::vector<Vec>(n, Vec{}));
  const int passes = static_cast<int>(std::max<int64_t>(4, (int64_t{2} << 30) / bytes));
  std::vector<std::thread> pool;
  std::vector<float> sums(static_cast<size_t>(threads));
  const auto start = Clock64::now();
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      const std::vector<Vec>& part = parts[static_cast<size_t>(t)];
      sums[static_cast<size_t>(t)] = read_all(part.data(), n, passes);
    });
  }
  for (std::thread& thread : pool) thread.join();
  const double s = seconds_since(start);
  if (sums[0] == 12345.0F) std::puts("");
  return static_cast<double>(n) * 64 * threads * passes / s;
}

// ---- what one row must read and do

struct RowCost {
  double bytes = 0;
  double operations = 0;
};

void add_matrix(RowCost& cost, int64_t out, int64_t in, int bytes_per_weight) {
  cost.bytes += static_cast<double>(out * in * bytes_per_weight);
  cost.operations += 2.0 * static_cast<double>(out * in);
}

void add_attention(RowCost& cost, const ModelConfig& c, const LayerRole& role, int layer) {
  constexpr int kBf16 = 2;
  const int64_t h = c.hidden, q = int64_t{c.heads} * c.head_dim;
  const int64_t o = int64_t{c.o_groups} * c.o_lora_rank;
  add_matrix(cost, c.q_lora_rank, h, kBf16);
  add_matrix(cost, q, c.q_lora_rank, kBf16);
  add_matrix(cost, c.head_dim, h, kBf16);
  add_matrix(cost, o, q / c.o_groups, kBf16);
  add_matrix(cost, h, o, kBf16);
  if (role.owns_kv(layer)) {
    add_matrix(cost, int64_t{c.head_dim} * (role.ratio == 2 ? 2 : 1), h, kBf16);
    add_matrix(cost, c.index_head_dim, c.head_dim, kBf16);
  }
  if (role.owns_index(layer)) {
    add_matrix(cost, int64_t{c.index_heads} * c.index_head_dim, c.q_lora_rank, kBf16);
    add_matrix(cost, c.index_heads, h, kBf16);
  }
}

RowCost decode_row_cost(const ModelConfig& c) {
  RowCost cost;
  for (int layer = 0; layer < c.layers; ++layer) {
    const LayerRole& role = c.roles[static_cast<size_t>(layer)];
    add_attention(cost, c, role, layer);
    const int experts = c.experts_per_token + c.shared_experts;
    add_matrix(cost, int64_t{3} * experts * c.moe_intermediate, c.hidden, 2);
    add_matrix(cost, c.routed_experts, c.hidden, 4);
    const int64_t mixes = int64_t{c.hc_mult} * (2 + c.hc_mult);
    add_matrix(cost, 2 * mixes, int64_t{c.hc_mult} * c.hidden, 4);
    if (role.engram >= 0) {
      add_matrix(cost, int64_t{c.hc_mult + 1} * c.hidden,
                 int64_t{c.engram.columns()} * c.engram.row_width, 2);
    }
  }
  add_matrix(cost, c.vocab_size, c.hidden, 2);
  return cost;
}

// ---- the engine under test

class WaitSink final : public RequestSink {
 public:
  void on_accepted(RequestId, int, int) override {}
  void on_progress(int, int) override {}
  void on_tokens(std::span<const TokenId>, std::span<const TokenLogprob>) override {}
  void on_finished(const Status& status, FinishReason, const ReplyStats& stats) override {
    std::lock_guard lock(mutex_);
    status_ = status;
    stats_ = stats;
    done_ = true;
    ready_.notify_all();
  }
  Result<ReplyStats> wait() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return done_; });
    if (!status_.ok()) return status_;
    return stats_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  bool done_ = false;
  Status status_;
  ReplyStats stats_;
};

Result<ReplyStats> run_request(Engine& engine, int prompt_tokens, int reply_tokens, bool draft,
                               uint64_t salt) {
  Request request;
  std::vector<TokenId> ids;
  const int vocab = engine.model().vocab_size;
  for (int i = 0; i < prompt_tokens; ++i) {
    const uint64_t x = (static_cast<uint64_t>(i) + salt * 7919) * 0x9E3779B97F4A7C15ULL;
    ids.push_back(static_cast<TokenId>(64 + (x >> 33) % static_cast<uint64_t>(vocab - 128)));
  }
  request.prompt.ids = std::move(ids);
  request.sampling.temperature = 0;
  request.max_tokens = reply_tokens;
  request.ignore_eos = true;
  request.draft = draft;
  auto sink = std::make_shared<WaitSink>();
  TF_ASSIGN_OR_RETURN(const RequestId id, engine.submit(std::move(request), sink));
  (void)id;
  return sink->wait();
}

double peak_resident_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

Status wait_ready(const Engine& engine) {
  for (int i = 0; i < 600; ++i) {
    const EngineStats stats = engine.stats();
    if (stats.state == EngineStats::State::kReady) return ok_status();
    if (stats.state == EngineStats::State::kFailed) return internal_error(stats.state_detail);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return internal_error("the model did not load within 60 s");
}

Status bench(const std::string& model_path, int threads) {
  TF_ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(model_path + "/config.json"));
  EngineOptions options;
  options.model_path = model_path;
  options.device = "cpu";
  options.threads = threads;
  TF_ASSIGN_OR_RETURN(auto engine, Engine::create(options, system_clock(), null_log()));
  TF_RETURN_IF_ERROR(wait_ready(*engine));
  const RowCost cost = decode_row_cost(config);
  std::vector<double> serial, drafted, prefill;
  for (int i = 0; i < kRepeats; ++i) {
    const auto salt = static_cast<uint64_t>(i);
    TF_ASSIGN_OR_RETURN(auto a, run_request(*engine, 32, kDecodeTokens, false, salt));
    TF_ASSIGN_OR_RETURN(auto b, run_request(*engine, 32, kDecodeTokens, true, salt));
    TF_ASSIGN_OR_RETURN(auto c, run_request(*engine, kPrefillTokens, 1, false, salt + 1000));
    serial.push_back((kDecodeTokens - 1) / a.decode_s);
    drafted.push_back((kDecodeTokens - 1) / b.decode_s);
    prefill.push_back(kPrefillTokens / c.prefill_s);
  }
  const double resident = peak_resident_mb();
  engine.reset();
  const double rate = vector_rate(threads);
  const double bandwidth = read_rate(threads, static_cast<int64_t>(cost.bytes));
  const double floor_s = std::max(cost.bytes / bandwidth, cost.operations / rate);
  const double prefill_floor_s = cost.operations / rate;
  std::printf("threads %d, weights read per row %.2f MB, operations per row %.2f M\n", threads,
              cost.bytes / 1e6, cost.operations / 1e6);
  std::printf("ceilings: read %.1f GB/s at that size, vector %.1f Gop/s\n", bandwidth / 1e9,
              rate / 1e9);
  std::printf("%-28s %10s %10s %8s\n", "", "tokens/s", "floor", "of it");
  std::printf("%-28s %10.1f %10.1f %7.1f%%\n", "decode, serial", median(serial), 1 / floor_s,
              100 * median(serial) * floor_s);
  std::printf("%-28s %10.1f\n", "decode, drafted (random text)", median(drafted));
  std::printf("%-28s %10.1f %10.1f %7.1f%%\n", "prefill, 4096 tokens", median(prefill),
              1 / prefill_floor_s, 100 * median(prefill) * prefill_floor_s);
  std::printf("peak resident memory %.0f MB\n", resident);
  return ok_status();
}

}  // namespace
}  // namespace tensorfold

int main(int argc, char** argv) {
  std::string model;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
      threads = std::atoi(argv[++i]);
    else
      model = argv[i];
  }
  if (model.empty() || threads < 1 || threads > 64) {
    std::fprintf(stderr, "usage: engine_bench MODEL_DIR [--threads N]\n");
    return 2;
  }
  const tensorfold::Status status = tensorfold::bench(model, threads);
  if (!status.ok()) std::fprintf(stderr, "engine_bench: %s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
