// The edges of a request over the real forward pass (the golden mini model): rows that are NaN or
// infinite and what their neighbors see of them, replies that give way, limits of no token and of
// one, prompts around the window and up to the context's last position.
#include <filesystem>
#include <fstream>
#include <random>

#include "engine/cache/cache_layout.h"
#include "tests/engine/loop_harness.h"
#include "tests/engine/passing_model.h"
#include "tests/temp_folder.h"

using namespace tensorfold;
using namespace tensorfold::scripted;
namespace fs = std::filesystem;

namespace {

constexpr int kMiniVocab = 1024;
constexpr int64_t kContext = 1024;
constexpr int kSlots = 3;
constexpr int64_t kSnapshotBytes = int64_t{4} << 20;
constexpr TokenId kNanToken = 700;  // of the broken copy

// A copy of the mini model in which one token has the largest finite embedding: sums of it are
// infinite and their norms NaN, from the first layer on.
class BrokenModel {
 public:
  BrokenModel() {
    const fs::path mini = fs::path(TF_TEST_DATA) / "golden/mini_native";
    for (const char* file : {"config.json", "engram_token_map.i32", "model.safetensors"})
      fs::copy_file(mini / file, path / file);
    std::fstream f(path / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    uint64_t header_bytes = 0;
    f.read(reinterpret_cast<char*>(&header_bytes), 8);
    std::string header(header_bytes, ' ');
    f.read(header.data(), static_cast<std::streamsize>(header_bytes));
    const Json all = *parse_json(header);
    const Json& embed = *all.find("embed.weight");
    const int64_t width = *embed.find("shape")->as_array()[1].as_int64();
    const int64_t begin = *embed.find("data_offsets")->as_array()[0].as_int64();
    const std::vector<uint16_t> huge(static_cast<size_t>(width), 0x7f7f);
    f.seekp(8 + static_cast<int64_t>(header_bytes) + begin + kNanToken * width * 2);
    f.write(reinterpret_cast<const char*>(huge.data()), width * 2);
    BOOST_REQUIRE(f.good());
  }

 private:
  TempFolder folder_;

 public:
  const fs::path path = folder_.path();
};

// Puts values into one sequence's logits behind the real ones, as a broken device would.
class LogitFault final : public PassingModel {
 public:
  using PassingModel::PassingModel;
  SlotId slot = -1;           // whose rows; -1: nobody's
  int64_t from_position = 0;  // and from where on
  std::vector<std::pair<size_t, float>> values;

  Status forward(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                 StepLogits& logits, ForwardProbe* probe) override {
    TF_RETURN_IF_ERROR(inner_.forward(plan, device_tokens, logits, probe));
    for (size_t r = 0; r < logits.rows.size(); ++r) {
      if (logits.rows[r].slot != slot || logits.rows[r].position < from_position) continue;
      for (const auto& [at, value] : values) logits.values[r * kMiniVocab + at] = value;
    }
    return ok_status();
  }
};

std::unique_ptr<Model> load(const fs::path& path) {
  static auto collective = make_single_collective();
  ModelOptions o;
  o.model_path = path.string();
  o.slots = kSlots;
  o.context = kContext;
  o.snapshot_bytes = kSnapshotBytes;
  o.rows_max = 512 + kSlots * 6;
  o.threads = 1;
  auto model = Model::load(o, *collective);
  BOOST_REQUIRE_MESSAGE(model.ok(), model.status().message());
  return std::move(*model);
}

Model& mini_model() {
  static const auto model = load(fs::path(TF_TEST_DATA) / "golden/mini_native");
  return *model;
}

struct BenchOptions {
  int slots = kSlots;
  int prefill_rows = 256;
  bool cache = false;
};

// One loop over a model; several may use a model one after another, each leaves it empty.
class Bench {
 public:
  Bench(Model& model, const BenchOptions& o)
      : executor_(model),
        policy_(make_fixed_depth_policy(3)),
        capacity_{kContext, kSlots * blocks_for(kContext)},
        loop_(loop_options(model, o), {executor_, text_, *policy_, clock_, null_log(), board}) {}
  ~Bench() {
    loop_.flush_cache(false);
    while (!loop_.idle() && !loop_.failed()) loop_.turn();
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  std::shared_ptr<KeepingSink> submit(const Request& request) {
    auto sink = std::make_shared<KeepingSink>();
    Submission s;
    s.ticket = book_.open(sink, SIZE_MAX);
    s.request = request;
    s.prompt = *text_.encode(request.prompt);
    auto price = price_request(capacity_, static_cast<int64_t>(s.prompt.ids.size()),
                               request.max_tokens, true);
    if (!price.ok()) {
      s.ticket->finish(price.status(), FinishReason::kFailed, {});
      return sink;
    }
    s.price = *price;
    loop_.take(std::move(s));
    return sink;
  }
  void turns(int n) {
    for (; n > 0; --n) loop_.turn();
  }
  void run_dry() {
    while (!loop_.idle()) {
      loop_.turn();
      BOOST_REQUIRE(!loop_.failed());
    }
    const EngineStats stats = board.snapshot(clock_);
    BOOST_REQUIRE(stats.slots_busy == 0 && stats.pool_tokens_used == 0);
  }
  Reply run(const Request& request) {
    auto sink = submit(request);
    run_dry();
    return sink->reply();
  }

  StatsBoard board;

 private:
  static LoopOptions loop_options(Model& model, const BenchOptions& o) {
    LoopOptions options;
    options.planner.slots = o.slots;
    options.planner.prefill_rows = o.prefill_rows;
    options.planner.pool_blocks = kSlots * blocks_for(kContext);
    options.planner.decoder_span = model.config().cone_rows();
    options.planner.draft_rows = 5;
    const auto layout = make_cache_layout(model.config(), kSlots, kContext, 0, kSnapshotBytes);
    options.prefix.window = model.config().window;
    options.prefix.decoder_span = model.config().cone_rows();
    options.prefix.snapshot_units = o.cache ? layout->snapshot_units : 0;
    options.prefix.full_units = layout->full_snapshot_units();
    options.vocab = kMiniVocab;
    options.queue_deadline_us = INT64_MAX;
    return options;
  }

  ManualClock clock_;
  ScriptedText text_;
  StepExecutor executor_;
  std::unique_ptr<DepthPolicy> policy_;
  Capacity capacity_;
  TicketBook book_;
  EngineLoop loop_;
};

Request request_of(uint64_t seed, int prompt, int reply) {
  std::mt19937_64 rng(seed);
  Request r;
  r.prompt.ids.emplace();
  for (int i = 0; i < prompt; ++i) {
    auto id = static_cast<TokenId>(6 + rng() % 1000);
    if (id == kNanToken) ++id;
    r.prompt.ids->push_back(id);
  }
  r.max_tokens = reply;
  r.ignore_eos = true;
  r.top_logprobs = 2;
  r.sampling.seed = seed;
  r.sampling.temperature = seed % 2 ? 0.0 : 0.8;
  // Never samples what would break the broken model.
  r.sampling.logit_bias = {{kNanToken, -1000.0F}};
  return r;
}

void require_equal(const Reply& a, const Reply& b) {
  BOOST_REQUIRE_MESSAGE(a.status.ok() && b.status.ok(), a.status.message() + b.status.message());
  BOOST_REQUIRE(a.ids == b.ids);
  BOOST_REQUIRE(a.logprobs.size() == b.logprobs.size());
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    BOOST_REQUIRE(a.logprobs[i].logprob == b.logprobs[i].logprob);  // bit for bit
    BOOST_REQUIRE(a.logprobs[i].top == b.logprobs[i].top);
  }
}

void require_numeric_failure(const Reply& r) {
  BOOST_TEST((r.status.code() == StatusCode::kInternal));
  BOOST_TEST(r.status.reason() == "non_finite_logits");
  BOOST_TEST((r.reason == FinishReason::kFailed));
}

}  // namespace

BOOST_AUTO_TEST_CASE(rows_that_are_not_numbers_end_their_request_and_touch_no_other) {
  const BrokenModel broken;
  const auto model = load(broken.path);
  // Where the bad row is: first, in the middle, last; in the first chunk or a later one.
  const struct { int prompt, at; } cases[] = {{60, 0}, {60, 30}, {60, 59}, {400, 150}, {400, 399}};
  std::vector<Reply> wanted;
  for (const uint64_t seed : {1U, 2U})
    wanted.push_back(Bench(*model, {}).run(request_of(seed, 90 + static_cast<int>(seed), 12)));
  uint64_t seed = 10;
  for (const bool cache : {false, true}) {
    for (const auto& c : cases) {
      Bench bench(*model, {kSlots, 128, cache});
      Request bad = request_of(seed++, c.prompt, 20);
      bad.prompt.ids->at(static_cast<size_t>(c.at)) = kNanToken;
      auto first = bench.submit(request_of(1, 91, 12));
      bench.turns(static_cast<int>(seed % 4));
      auto failing = bench.submit(bad);
      auto second = bench.submit(request_of(2, 92, 12));
      bench.run_dry();
      require_numeric_failure(failing->reply());
      BOOST_TEST(failing->reply().ids.empty());
      require_equal(first->reply(), wanted[0]);
      require_equal(second->reply(), wanted[1]);
      // Slots and blocks that held them are as good as new.
      for (const uint64_t again : {1U, 2U})
        require_equal(bench.run(request_of(again, 90 + static_cast<int>(again), 12)),
                      wanted[again - 1]);
    }
  }
}

BOOST_AUTO_TEST_CASE(logits_that_are_not_numbers_end_their_request_and_touch_no_other) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<std::pair<size_t, float>> all_low;
  for (size_t i = 0; i < kMiniVocab; ++i) all_low.emplace_back(i, -kInf);
  const std::vector<std::vector<std::pair<size_t, float>>> faults = {
      {{0, kNan}}, {{512, kNan}}, {{kMiniVocab - 1, kNan}}, {{9, kInf}}, {{9, -kInf}}, all_low};
  const Request good = request_of(3, 70, 14);
  const Reply wanted = Bench(mini_model(), {}).run(good);
  for (const auto& values : faults) {
    LogitFault faulty(mini_model());
    Bench bench(faulty, {});
    auto failing = bench.submit(request_of(4, 50, 30));  // slot 0
    auto neighbor = bench.submit(good);
    faulty.slot = 0;
    faulty.from_position = 54;  // behind the fifth token of the reply
    faulty.values = values;
    bench.run_dry();
    require_numeric_failure(failing->reply());
    BOOST_TEST(failing->reply().ids.size() == 5U);
    require_equal(neighbor->reply(), wanted);
    faulty.slot = -1;
    require_equal(bench.run(good), wanted);
  }
}

BOOST_AUTO_TEST_CASE(a_reply_that_gave_way_is_the_undisturbed_one) {
  uint64_t resumed = 0;
  for (uint64_t seed = 20; seed < 23; ++seed) {
    Request back = request_of(seed, 100 + static_cast<int>(seed % 3) * 60, 24);
    const Reply wanted = Bench(mini_model(), {}).run(back);
    back.background = true;
    for (const bool cache : {false, true}) {
      Bench bench(mini_model(), {1, 37 + static_cast<int>(seed) * 9, cache});
      auto sink = bench.submit(back);
      for (uint64_t i = 0; i < 3; ++i) {
        bench.turns(static_cast<int>(4 + (seed + i) % 7));
        bench.submit(request_of(100 + seed + i, 20, 3));
      }
      bench.run_dry();
      resumed += bench.board.preemptions.load();
      require_equal(sink->reply(), wanted);
    }
  }
  BOOST_TEST(resumed > 10U);
}

BOOST_AUTO_TEST_CASE(prompts_around_the_window_and_limits_of_none_and_one) {
  const int window = mini_model().config().window;
  for (const int prompt : {1, window - 1, window, window + 1}) {
    const Reply long_one =
        Bench(mini_model(), {}).run(request_of(static_cast<uint64_t>(prompt), prompt, 3));
    BOOST_TEST(long_one.ids.size() == 3U);
    for (const bool cache : {false, true}) {
      Bench bench(mini_model(), {1, 64, cache});
      Request r = request_of(static_cast<uint64_t>(prompt), prompt, 0);
      const Reply none = bench.run(r);
      BOOST_TEST(none.status.ok());
      BOOST_TEST((none.reason == FinishReason::kLength));
      BOOST_TEST(none.ids.empty());
      BOOST_TEST(none.progress == prompt);  // the prompt was filled
      r.max_tokens = 1;
      const Reply one = bench.run(r);
      BOOST_TEST((one.reason == FinishReason::kLength));
      BOOST_REQUIRE(one.ids.size() == 1U);
      BOOST_TEST(one.ids[0] == long_one.ids[0]);
      // What filled the prompt without a reply warmed the cache for this one.
      if (cache && prompt > 1) BOOST_TEST(one.stats.usage.cached_tokens > 0);
      // Stop at once: the first token is the one that ends it.
      Request stop = request_of(static_cast<uint64_t>(prompt), prompt, 50);
      stop.ignore_eos = false;
      stop.sampling.logit_bias = {{kEos, 1000.0F}};
      const Reply ended = bench.run(stop);
      BOOST_TEST((ended.reason == FinishReason::kStop));
      BOOST_TEST(ended.ids.empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(the_context_is_filled_to_its_last_position) {
  Bench bench(mini_model(), {});
  const Reply full = bench.run(request_of(31, kContext - 3, 3));
  BOOST_TEST(full.status.ok());
  BOOST_TEST(full.ids.size() == 3U);
  Request open = request_of(31, kContext - 3, 0);
  open.max_tokens.reset();  // as far as the context goes
  const Reply rest = bench.run(open);
  BOOST_TEST((rest.ids == full.ids));
  BOOST_TEST((rest.reason == FinishReason::kLength));
  BOOST_TEST(bench.run(request_of(32, kContext, 0)).status.ok());
  for (const auto& [prompt, reply] :
       {std::pair(kContext, 1), std::pair(kContext - 3, 4), std::pair(kContext + 1, 0)}) {
    const Reply over = bench.run(request_of(33, static_cast<int>(prompt), reply));
    BOOST_TEST((over.status.code() == StatusCode::kInvalidArgument));
    BOOST_TEST(over.status.reason() == "context_length_exceeded");
    BOOST_TEST(!over.accepted);
  }
}
