// The Engine as the daemon uses it, with its threads: loading, refusals, cancel in every place a
// request can be, draining, failure, and destruction with work in flight. Runs under TSan too.
#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <thread>

#include "engine/engine_core.h"
#include "tests/engine/scripted_text.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

// A latch that opens once.
class Gate {
 public:
  void open() { promise_.set_value(); }
  void wait() const { future_.wait(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

// Makes steps last, so that a cancel finds its request where it should be.
class SlowRunner final : public StepRunner {
 public:
  SlowRunner(StepRunner& inner, int step_us) : inner_(inner), step_us_(step_us) {}
  Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
    std::this_thread::sleep_for(std::chrono::microseconds(step_us_));
    return inner_.run(plan, results);
  }

 private:
  StepRunner& inner_;
  const int step_us_;
};

struct Fixture {
  ScriptedModel::Script model;
  std::shared_ptr<ScriptedText> text = std::make_shared<ScriptedText>();
  EngineOptions options;
  int step_us = 20;
  Status load_status;
  std::function<void()> on_load;

  std::unique_ptr<Engine> start() {
    options.slots = options.slots == 4 ? 2 : options.slots;
    auto engine = start_engine(options, system_clock(), null_log(),
                               [this](const EngineOptions& o, const auto& progress) {
                                 progress("loading: half of it");
                                 if (on_load) on_load();
                                 return load(o);
                               });
    BOOST_REQUIRE(engine.ok());
    return std::move(engine).value();
  }

  std::unique_ptr<Engine> start_ready() {
    auto engine = start();
    wait_for(*engine, EngineStats::State::kReady);
    return engine;
  }

  static void wait_for(const Engine& engine, EngineStats::State state) {
    for (int i = 0; i < 60000 && engine.stats().state != state; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    BOOST_REQUIRE((engine.stats().state == state));
  }

 private:
  struct Owned {
    explicit Owned(const ScriptedModel::Script& script, int step_us)
        : model(script), executor(model), slow(executor, step_us) {}
    ScriptedModel model;
    StepExecutor executor;
    SlowRunner slow;
  };
  class Borrowed final : public StepRunner {
   public:
    explicit Borrowed(StepRunner& r) : r_(r) {}
    Status run(const StepPlan& p, std::vector<SampledTokens>& o) override { return r_.run(p, o); }

   private:
    StepRunner& r_;
  };

  Result<EngineParts> load(const EngineOptions& o) {
    if (!load_status.ok()) return load_status;
    auto owned = std::make_shared<Owned>(model, step_us);
    EngineParts parts;
    parts.runner = std::make_unique<Borrowed>(owned->slow);
    parts.keep = owned;
    parts.text = text;
    parts.depth_policy = make_fixed_depth_policy(3);
    parts.loop.planner.slots = o.slots;
    parts.loop.planner.prefill_rows = 16;
    parts.loop.planner.pool_blocks = model.pool_blocks;
    parts.loop.planner.draft_rows = 5;
    parts.loop.vocab = kVocab;
    parts.loop.queue_deadline_us = o.queue_deadline_us;
    parts.capacity = {int64_t{1} << 20, model.pool_blocks};
    parts.info = {"print", "Scripted", parts.capacity.context, 7, kVocab};
    parts.weight_bytes = 11;
    return parts;
  }
};

Request request(int prompt, int reply, uint64_t seed = 1) {
  Request r;
  r.prompt.ids = std::vector<TokenId>(static_cast<size_t>(prompt), 9);
  r.max_tokens = reply;
  r.sampling.seed = seed;
  r.ignore_eos = true;
  return r;
}

std::shared_ptr<KeepingSink> submit(Engine& engine, Request r, RequestId* id = nullptr) {
  auto sink = std::make_shared<KeepingSink>();
  const auto result = engine.submit(std::move(r), sink);
  BOOST_REQUIRE_MESSAGE(result.ok(), result.status().message());
  if (id) *id = *result;
  return sink;
}

}  // namespace

BOOST_AUTO_TEST_CASE(loading_shows_and_refuses) {
  Fixture f;
  Gate gate;
  f.on_load = [&] { gate.wait(); };
  auto engine = f.start();
  for (int i = 0; i < 60000 && engine->stats().state_detail != "loading: half of it"; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  BOOST_TEST((engine->stats().state == EngineStats::State::kLoading));
  const auto refused = engine->submit(request(3, 3), std::make_shared<KeepingSink>());
  BOOST_TEST((refused.status().code() == StatusCode::kUnavailable));
  BOOST_TEST(refused.status().reason() == "loading");
  BOOST_TEST(!engine->output_stream({}));
  gate.open();
  Fixture::wait_for(*engine, EngineStats::State::kReady);
  BOOST_TEST(engine->model().architecture == "Scripted");
  BOOST_TEST(engine->stats().weight_bytes == 11);
  BOOST_TEST(engine->stats().slots_total == 2);
  BOOST_TEST(engine->output_stream({}) != nullptr);
  BOOST_TEST(engine->token_text(2) == "C");
}

BOOST_AUTO_TEST_CASE(failed_load_says_why) {
  Fixture f;
  f.load_status = data_loss("model-00001.safetensors: truncated");
  auto engine = f.start();
  Fixture::wait_for(*engine, EngineStats::State::kFailed);
  BOOST_TEST(engine->stats().state_detail == "model-00001.safetensors: truncated");
  BOOST_TEST((engine->stats().failure == StatusCode::kDataLoss));
  const auto refused = engine->submit(request(3, 3), std::make_shared<KeepingSink>());
  BOOST_TEST((refused.status().code() == StatusCode::kUnavailable));
  BOOST_TEST(refused.status().message().find("truncated") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(options_out_of_bounds_are_refused_by_name) {
  const auto refuse = [](auto change, const char* key) {
    EngineOptions o;
    change(o);
    const auto engine = start_engine(o, system_clock(), null_log(), {});
    BOOST_REQUIRE(!engine.ok());
    BOOST_TEST(engine.status().param() == key);
  };
  refuse([](EngineOptions& o) { o.slots = 0; }, "engine.slots");
  refuse([](EngineOptions& o) { o.slots = 65; }, "engine.slots");
  refuse([](EngineOptions& o) { o.prefill_rows = 255; }, "engine.prefill_rows");
  refuse([](EngineOptions& o) { o.prefill_rows = 8193; }, "engine.prefill_rows");
  refuse([](EngineOptions& o) { o.context = -1; }, "engine.context");
  refuse([](EngineOptions& o) { o.pool_tokens = -1; }, "cache.pool_tokens");
  refuse([](EngineOptions& o) { o.queue_requests = 0; }, "limits.queue_requests");
  refuse([](EngineOptions& o) { o.draft_depth = 6; }, "engine.draft_depth");
}

BOOST_AUTO_TEST_CASE(many_clients_get_what_they_would_get_alone) {
  constexpr int kClients = 4;
  constexpr int kEach = 12;
  Fixture f;
  f.step_us = 0;
  std::vector<std::vector<TokenId>> alone;
  {
    auto engine = f.start_ready();
    for (int i = 0; i < kClients * kEach; ++i) {
      auto sink = submit(*engine, request(5 + i, 30, static_cast<uint64_t>(i)));
      alone.push_back(sink->wait_finished().ids);
    }
  }
  auto engine = f.start_ready();
  std::vector<std::shared_ptr<KeepingSink>> sinks(kClients * kEach);
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      for (int i = c * kEach; i < (c + 1) * kEach; ++i) {
        auto sink = std::make_shared<KeepingSink>();
        sinks[static_cast<size_t>(i)] = sink;
        while (!engine->submit(request(5 + i, 30, static_cast<uint64_t>(i)), sink).ok())
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        (void)engine->stats();
      }
    });
  }
  for (auto& t : clients) t.join();
  for (size_t i = 0; i < sinks.size(); ++i) {
    const Reply r = sinks[i]->wait_finished();
    BOOST_TEST(r.status.ok());
    BOOST_TEST(r.ids == alone[i]);
  }
  const EngineStats s = engine->stats();
  BOOST_TEST(s.slots_busy == 0);
  BOOST_TEST(s.waiting == 0);
  BOOST_TEST(s.requests_total == static_cast<uint64_t>(kClients * kEach));
  BOOST_TEST(s.completion_tokens_total == static_cast<uint64_t>(kClients * kEach * 30));
  BOOST_TEST(s.decode_tokens_per_second > 0);
  BOOST_TEST(s.prefill_tokens_per_second > 0);
}

BOOST_AUTO_TEST_CASE(refusals_of_the_workers) {
  Fixture f;
  auto engine = f.start_ready();
  Request bad;
  bad.prompt.messages.push_back({});
  bad.prompt.messages[0].content = {{ContentPart::Kind::kText, "bad", ""}};
  Reply r = submit(*engine, bad)->wait_finished();
  BOOST_TEST((r.status.code() == StatusCode::kInvalidArgument));
  BOOST_TEST(r.status.param() == "messages");
  BOOST_TEST(!r.accepted);
  r = submit(*engine, request(64 * 256, 1))->wait_finished();
  BOOST_TEST(r.status.reason() == "context_length_exceeded");
  BOOST_TEST(r.status.message().find("maximum context length is 16384 tokens") !=
             std::string::npos);
  Request foreign = request(3, 3);
  foreign.prompt.ids->push_back(kVocab);
  BOOST_TEST(submit(*engine, foreign)->wait_finished().status.param() == "prompt");
  Request hot = request(3, 3);
  hot.sampling.temperature = -1;
  BOOST_TEST(submit(*engine, hot)->wait_finished().status.param() == "temperature");
  Request stops = request(3, 3);
  stops.stop = {""};
  BOOST_TEST(submit(*engine, stops)->wait_finished().status.param() == "stop");
  BOOST_TEST(engine->stats().waiting == 0);
}

BOOST_AUTO_TEST_CASE(cancel_wherever_a_request_is) {
  Fixture f;
  f.options.slots = 1;
  f.step_us = 500;
  Gate gate;
  std::atomic<int> encodes{0};
  std::atomic<bool> hold{false};
  f.text->on_encode = [&] {
    ++encodes;
    if (hold) gate.wait();
  };
  auto engine = f.start_ready();
  const auto cancelled = [](const Reply& r) {
    BOOST_TEST((r.reason == FinishReason::kCancelled));
    BOOST_TEST((r.status.code() == StatusCode::kCancelled));
  };
  RequestId id = 0;
  // Prefill: the prompt needs 500 steps.
  auto filling = submit(*engine, request(8000, 10), &id);
  BOOST_REQUIRE(filling->wait([](const Reply& r) { return r.progress > 0; }));
  engine->cancel(id);
  Reply r = filling->wait_finished();
  cancelled(r);
  BOOST_TEST(r.accepted);
  BOOST_TEST(r.progress < 8000);
  // Decode.
  auto decoding = submit(*engine, request(10, 10000), &id);
  BOOST_REQUIRE(decoding->wait([](const Reply& x) { return x.ids.size() > 3; }));
  // Queue, behind it.
  RequestId queued_id = 0;
  auto queued = submit(*engine, request(10, 10), &queued_id);
  engine->cancel(queued_id);
  r = queued->wait_finished();
  cancelled(r);
  BOOST_TEST(!r.accepted);
  engine->cancel(id);
  r = decoding->wait_finished();
  cancelled(r);
  BOOST_TEST((r.ids.size() > 3U && r.ids.size() < 10000U));
  BOOST_TEST(r.stats.usage.completion_tokens == static_cast<int>(r.ids.size()));
  // Worker: it is held inside the prompt encoder.
  hold = true;
  const int before = encodes;
  auto in_worker = submit(*engine, request(10, 10), &id);
  while (encodes == before) std::this_thread::yield();
  engine->cancel(id);
  gate.open();
  cancelled(in_worker->wait_finished());
  // Unknown and long ended ids are nothing.
  engine->cancel(id);
  engine->cancel(123456);
  BOOST_TEST(submit(*engine, request(10, 10))->wait_finished().status.ok());
  BOOST_TEST(engine->stats().pool_tokens_used == 0);
}

BOOST_AUTO_TEST_CASE(the_queue_is_bounded) {
  Fixture f;
  f.options.slots = 1;
  f.options.queue_requests = 3;
  f.step_us = 300;
  auto engine = f.start_ready();
  std::vector<std::pair<RequestId, std::shared_ptr<KeepingSink>>> open;
  for (int i = 0; i < 4; ++i) {
    RequestId id = 0;
    auto sink = submit(*engine, request(10, 10000), &id);
    open.emplace_back(id, sink);
  }
  auto extra = std::make_shared<KeepingSink>();
  const auto refused = engine->submit(request(3, 3), extra);
  BOOST_TEST((refused.status().code() == StatusCode::kTooMany));
  BOOST_TEST(extra->reply().finished == 0);  // a refused submit says nothing to its sink
  for (auto& [id, sink] : open) engine->cancel(id);
  for (auto& [id, sink] : open) sink->wait_finished();
  BOOST_TEST(submit(*engine, request(3, 3))->wait_finished().status.ok());
}

BOOST_AUTO_TEST_CASE(drain_finishes_what_is_there_and_resume_goes_on) {
  Fixture f;
  f.step_us = 100;
  auto engine = f.start_ready();
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  for (uint64_t i = 0; i < 6; ++i) sinks.push_back(submit(*engine, request(20, 50, i)));
  engine->drain();
  BOOST_TEST((engine->stats().state == EngineStats::State::kDraining));
  const auto refused = engine->submit(request(3, 3), std::make_shared<KeepingSink>());
  BOOST_TEST(refused.status().reason() == "draining");
  for (auto& sink : sinks) BOOST_TEST(sink->wait_finished().status.ok());
  engine->resume();
  BOOST_TEST((engine->stats().state == EngineStats::State::kReady));
  BOOST_TEST(submit(*engine, request(3, 3))->wait_finished().status.ok());
}

BOOST_AUTO_TEST_CASE(a_dead_device_is_a_failed_engine) {
  Fixture f;
  f.model.fail_at_forward = 5;
  auto engine = f.start_ready();
  auto sink = submit(*engine, request(10, 1000));
  const Reply r = sink->wait_finished();
  BOOST_TEST((r.status.code() == StatusCode::kUnavailable));
  BOOST_TEST(r.status.reason() == "engine_failed");
  Fixture::wait_for(*engine, EngineStats::State::kFailed);
  engine->resume();  // does not make it ready
  const auto refused = engine->submit(request(3, 3), std::make_shared<KeepingSink>());
  BOOST_TEST((refused.status().code() == StatusCode::kUnavailable));
}

BOOST_AUTO_TEST_CASE(destruction_ends_everything_once) {
  for (int round = 0; round < 20; ++round) {
    Fixture f;
    f.step_us = 50;
    std::vector<std::shared_ptr<KeepingSink>> sinks;
    {
      auto engine = f.start_ready();
      for (uint64_t i = 0; i < 12; ++i) sinks.push_back(submit(*engine, request(40, 300, i)));
      std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    }
    for (auto& sink : sinks) {
      const Reply r = sink->reply();
      BOOST_TEST(r.finished == 1);
      BOOST_TEST((r.status.ok() || r.status.code() == StatusCode::kUnavailable));
    }
  }
}
