// A serving engine without threads over a real model, whose prefix cache lives on from request to
// request; and cold runs beside it, over another instance of the model, to compare with.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/cache_layout.h"
#include "engine/cluster/collective.h"
#include "tests/engine/loop_harness.h"

namespace tensorfold::scripted {

inline constexpr int64_t kServingContext = 5120;

// A copy of the model folder (by links) with another window, while it lives.
struct WindowFolder {
  WindowFolder(const std::string& folder, int window);
  ~WindowFolder() { std::filesystem::remove_all(path); }
  WindowFolder(const WindowFolder&) = delete;
  WindowFolder& operator=(const WindowFolder&) = delete;
  std::filesystem::path path;
};

inline WindowFolder::WindowFolder(const std::string& folder, int window) {
  namespace fs = std::filesystem;
  path = fs::temp_directory_path() / ("tensorfold_window_" + std::to_string(getpid()));
  const fs::path& made = path;
  fs::create_directories(made);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path to = made / entry.path().filename();
    if (entry.path().filename() == "config.json" || fs::exists(to)) continue;
    fs::create_symlink(entry.path(), to);
  }
  std::ifstream in(fs::path(folder) / "config.json");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::string key = "\"sliding_window\": ";
  const size_t at = text.find(key);
  BOOST_REQUIRE(at != std::string::npos);
  const size_t end = text.find_first_of(",}\n", at);
  text.replace(at, end - at, key + std::to_string(window));
  std::ofstream(made / "config.json") << text;
}

struct ServingOptions {
  int slots = 1;
  int prefill_rows = 1024;
  int depth = 0;
  bool exact = true;
  bool reuse_replies = true;
  int64_t pool_blocks = 24;
  int64_t snapshot_units = 64;  // 0: no cache
  int64_t decoder_span = 0;     // that the cache believes in; 0: the right one
  CacheTier* tier = nullptr;    // the model's
  bool heads = false;           // prompts have heads, of any length
};

// The largest of what the tests use; one instance serves many Servings, one after another.
inline std::unique_ptr<Model> load_model(const std::string& folder, Collective& collective) {
  ModelOptions o;
  o.model_path = folder;
  o.slots = 3;
  o.context = kServingContext;
  o.pool_blocks = 64;
  o.rows_max = 2048 + 3 * 6;
  o.snapshot_bytes = int64_t{64} << 20;
  o.threads = 1;  // many tests share the machine
  auto model = Model::load(o, collective);
  BOOST_REQUIRE_MESSAGE(model.ok(), model.status().message());
  return std::move(model).value();
}

class Serving {
 public:
  Serving(Model& model, const ServingOptions& o, StepRunner* runner = nullptr)
      : heads_(o.heads),
        executor_(model),
        logging_(runner ? *runner : executor_),
        policy_(make_fixed_depth_policy(o.depth)),
        capacity_{kServingContext, o.pool_blocks},
        loop_(options(model, o), {logging_, text_, *policy_, clock_, null_log(), board_}) {}

  ~Serving() {  // the model's snapshots are given back
    loop_.flush_cache(false);
    while (!loop_.failed() && !loop_.idle()) loop_.turn();
  }

  std::shared_ptr<KeepingSink> submit(const Request& request) {
    Submission s;
    auto sink = std::make_shared<KeepingSink>();
    s.ticket = book_.open(sink, SIZE_MAX);
    last_id_ = s.ticket->id();
    s.request = request;
    s.prompt = *text_.encode(request.prompt);
    const auto length = static_cast<int64_t>(s.prompt.ids.size());
    if (heads_) s.prompt.head_tokens = length * (s.prompt.ids[0] % 16 + 1) / 17;
    s.price = *price_request(capacity_, static_cast<int64_t>(s.prompt.ids.size()),
                             request.max_tokens, true);
    loop_.take(std::move(s));
    return sink;
  }
  void turns(uint64_t n) {
    for (; n > 0; --n) loop_.turn();
  }
  void cancel_last() { book_.cancel(last_id_); }
  void run_dry() {
    while (!loop_.idle()) {
      loop_.turn();
      BOOST_REQUIRE_MESSAGE(!loop_.failed(), board_.detail());
    }
  }
  Reply run_one(const Request& request) {
    const auto sink = submit(request);
    run_dry();
    BOOST_REQUIRE_MESSAGE(sink->reply().status.ok(), sink->reply().status.message());
    return sink->reply();
  }
  void flush() { loop_.flush_cache(false); }
  EngineStats stats() const { return board_.snapshot(clock_); }
  int64_t rows() const { return logging_.rows; }

 private:
  static LoopOptions options(const Model& model, const ServingOptions& o) {
    const ModelConfig& config = model.config();
    const auto layout = make_cache_layout(config, 1, 256, 1, int64_t{64} << 20);
    LoopOptions out;
    out.planner.slots = o.slots;
    out.planner.prefill_rows = o.prefill_rows;
    out.planner.pool_blocks = o.pool_blocks;
    out.planner.decoder_span = o.exact ? config.cone_rows() : config.window;
    out.planner.draft_rows = o.depth;
    out.prefix.window = config.window;
    out.prefix.decoder_span = o.decoder_span > 0 ? o.decoder_span : out.planner.decoder_span;
    out.prefix.exact = o.exact;
    out.prefix.reuse_replies = o.reuse_replies;
    out.prefix.snapshot_units = std::min(o.snapshot_units, layout->snapshot_units);
    out.prefix.full_units = layout->full_snapshot_units();
    out.prefix.unit_bytes = layout->snapshot_unit_bytes();
    out.tier = o.tier;
    out.vocab = config.vocab_size;
    out.queue_deadline_us = INT64_MAX;
    return out;
  }

  const bool heads_;
  ScriptedText text_;
  ManualClock clock_;
  StatsBoard board_;
  TicketBook book_;
  StepExecutor executor_;
  LoggingRunner logging_;
  std::unique_ptr<DepthPolicy> policy_;
  Capacity capacity_;
  EngineLoop loop_;
  RequestId last_id_ = 0;
};

inline std::vector<TokenId> random_text(std::mt19937_64& rng, int64_t n, int vocab) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < n; ++i)
    ids.push_back(static_cast<TokenId>(6 + rng() % static_cast<uint64_t>(vocab - 40)));
  return ids;
}

inline Request cache_request(std::vector<TokenId> ids, int max_tokens, std::mt19937_64& rng) {
  Request r;
  r.prompt.ids = std::move(ids);
  r.max_tokens = max_tokens;
  r.ignore_eos = true;
  r.top_logprobs = 2;
  r.sampling.seed = rng();
  r.sampling.temperature = rng() % 2 ? 0.0 : 0.8;
  r.sampling.repetition_penalty = rng() % 4 ? 1.0 : 1.1;
  return r;
}

// Bit for bit, log-probabilities included.
inline bool equal_replies(const Reply& a, const Reply& b) {
  if (a.ids != b.ids || a.logprobs.size() != b.logprobs.size()) return false;
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    if (a.logprobs[i].logprob != b.logprobs[i].logprob || a.logprobs[i].top != b.logprobs[i].top)
      return false;
  }
  return true;
}

}  // namespace tensorfold::scripted
