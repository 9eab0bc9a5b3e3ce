// A model that is unloaded while nobody asks, over the scripted engine: who waits, for how long,
// what is told meanwhile, and that every request ends exactly once.
#include <algorithm>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "daemon/idle_engine.h"
#include "tests/daemon/fake_engine.h"

using namespace tensorfold;
using Memory = IdleEngine::Memory;
using State = EngineStats::State;

namespace {

constexpr int64_t kMs = 1000;  // in microseconds

class CountingSink final : public RequestSink {
 public:
  void on_accepted(RequestId, int, int) override {}
  void on_progress(int, int) override {}
  void on_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob>) override {
    tokens += static_cast<int>(ids.size());
  }
  void on_finished(const Status& status, FinishReason why, const ReplyStats&) override {
    cancelled = why == FinishReason::kCancelled;
    code = status.code();
    if (ends == 0) reason = status.reason();
    ++ends;
  }
  std::atomic<int> tokens{0}, ends{0};
  std::atomic<StatusCode> code{StatusCode::kOk};
  std::atomic<bool> cancelled{false};
  std::string reason;  // read after the end
};

bool wait_until(const std::function<bool()>& what) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < end) {
    if (what()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

Request request_of(const std::string& script) {
  Request out;
  ChatMessage message;
  message.role = Role::kUser;
  message.content.push_back({ContentPart::Kind::kText, script, ""});
  out.prompt.messages.push_back(message);
  out.max_tokens = 64;
  return out;
}

// Engines whose loads take and end as the table says; the last entry is for all that follow.
struct Loads {
  explicit Loads(std::vector<FakeSettings> table) : settings(std::move(table)) {}
  EngineFactory factory() {
    return [this](EngineOptions options, const Clock& clock, LogSink&) {
      const size_t number = std::min<size_t>(static_cast<size_t>(made++), settings.size() - 1);
      return Result<std::unique_ptr<Engine>>(
          std::make_unique<FakeEngine>(std::move(options), settings[number], clock));
    };
  }
  std::vector<FakeSettings> settings;
  std::atomic<int> made{0};
};

std::unique_ptr<IdleEngine> start(Loads& loads, int64_t idle_us,
                                  int64_t queue_deadline_us = 30'000 * kMs) {
  EngineOptions options;
  options.queue_deadline_us = queue_deadline_us;
  auto engine = IdleEngine::create(loads.factory(), options, idle_us, system_clock(), null_log());
  BOOST_REQUIRE(engine.ok());
  BOOST_REQUIRE(wait_until([&] { return (*engine)->stats().state == State::kReady; }));
  return std::move(engine).value();
}

bool unloaded(const IdleEngine& engine) {
  return wait_until([&] { return engine.memory() == Memory::kUnloaded; });
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_idle_model_goes_and_comes_back_with_a_request) {
  Loads loads({FakeSettings{}});
  const auto engine = start(loads, 300 * kMs);
  const auto first = std::make_shared<CountingSink>();
  const auto first_id = engine->submit(request_of("count 5"), first);
  BOOST_REQUIRE(first_id.ok());
  BOOST_REQUIRE(wait_until([&] { return first->ends == 1; }));
  const EngineStats before = engine->stats();
  const ModelInfo info = engine->model();

  BOOST_REQUIRE(unloaded(*engine));
  BOOST_TEST(loads.made == 1);
  EngineStats idle = engine->stats();
  BOOST_TEST((idle.state == State::kReady));
  BOOST_TEST(idle.state_detail.find("unloaded") == 0U);
  BOOST_TEST(idle.weight_bytes == 0);
  BOOST_TEST(idle.requests_total == before.requests_total);
  BOOST_TEST(idle.slots_total == before.slots_total);
  BOOST_TEST(engine->model().fingerprint == info.fingerprint);
  engine->flush_cache(false);  // nothing is in memory: done
  BOOST_TEST(engine->stats().cache_flushes_total == before.cache_flushes_total + 1);
  BOOST_TEST(engine->encode(Prompt()).status().reason() == "loading");  // and it is loaded for that
  BOOST_REQUIRE(wait_until([&] { return engine->memory() == Memory::kLoaded; }));
  BOOST_REQUIRE(unloaded(*engine));

  const auto second = std::make_shared<CountingSink>();
  const auto second_id = engine->submit(request_of("count 5"), second);
  BOOST_REQUIRE(second_id.ok());
  BOOST_TEST(*second_id != *first_id);
  BOOST_REQUIRE(wait_until([&] { return second->ends == 1; }));
  BOOST_TEST((second->code == StatusCode::kOk));
  BOOST_TEST(second->tokens == first->tokens);
  BOOST_TEST(loads.made == 3);
  BOOST_TEST(engine->stats().requests_total == before.requests_total + 1);
}

BOOST_AUTO_TEST_CASE(requests_wait_for_a_load_and_can_be_cancelled) {
  Loads loads({FakeSettings{}, FakeSettings{.load_ms = 1500}});
  const auto engine = start(loads, 200 * kMs);
  BOOST_REQUIRE(unloaded(*engine));
  std::vector<std::shared_ptr<CountingSink>> sinks;
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<CountingSink>());
    const auto id = engine->submit(request_of(i < 2 ? "count 3" : "slow 50 1000"), sinks.back());
    BOOST_REQUIRE(id.ok());
    ids.push_back(*id);
  }
  BOOST_TEST(engine->stats().waiting == 3);
  BOOST_TEST((engine->stats().state == State::kReady));
  engine->cancel(ids[0]);
  BOOST_REQUIRE(wait_until([&] { return sinks[0]->ends == 1; }));
  BOOST_TEST(sinks[0]->cancelled);
  BOOST_REQUIRE(wait_until([&] { return sinks[1]->ends == 1; }));
  BOOST_TEST((sinks[1]->code == StatusCode::kOk));
  // One that runs now goes by the name that it got while it waited.
  BOOST_REQUIRE(wait_until([&] { return sinks[2]->tokens > 0; }));
  engine->cancel(ids[2]);
  BOOST_REQUIRE(wait_until([&] { return sinks[2]->ends == 1; }));
  BOOST_TEST(sinks[2]->cancelled);
}

BOOST_AUTO_TEST_CASE(a_load_that_takes_too_long_is_told) {
  Loads loads({FakeSettings{}, FakeSettings{.load_ms = 2000}});
  const auto engine = start(loads, 200 * kMs, 300 * kMs);
  BOOST_REQUIRE(unloaded(*engine));
  const auto late = std::make_shared<CountingSink>();
  BOOST_REQUIRE(engine->submit(request_of("count 3"), late).ok());
  BOOST_REQUIRE(wait_until([&] { return late->ends == 1; }));
  BOOST_TEST((late->code == StatusCode::kUnavailable));
  BOOST_TEST(late->reason == "loading");
  BOOST_TEST((engine->memory() == Memory::kLoading));  // it goes on: the client comes again
  BOOST_REQUIRE(wait_until([&] { return engine->memory() == Memory::kLoaded; }));
  BOOST_REQUIRE(unloaded(*engine));
  // Now it is known how long a load takes.
  const auto refused =
      engine->submit(request_of("count 3"), std::make_shared<CountingSink>()).status();
  BOOST_TEST((refused.code() == StatusCode::kUnavailable));
  BOOST_TEST(refused.reason() == "loading");
  BOOST_REQUIRE(wait_until([&] { return engine->memory() == Memory::kLoaded; }));
}

BOOST_AUTO_TEST_CASE(a_load_that_fails_ends_those_that_wait) {
  Loads loads({FakeSettings{},
               FakeSettings{.load_ms = 300, .fail_load = StatusCode::kDataLoss, .stuck = false}});
  const auto engine = start(loads, 200 * kMs);
  BOOST_REQUIRE(unloaded(*engine));
  const auto sink = std::make_shared<CountingSink>();
  BOOST_REQUIRE(engine->submit(request_of("count 3"), sink).ok());
  BOOST_REQUIRE(wait_until([&] { return sink->ends == 1; }));
  BOOST_TEST(sink->reason == "engine_failed");
  const EngineStats stats = engine->stats();
  BOOST_TEST((stats.state == State::kFailed));
  BOOST_TEST((stats.failure == StatusCode::kDataLoss));
  BOOST_TEST(!engine->submit(request_of("count 3"), std::make_shared<CountingSink>()).ok());
}

BOOST_AUTO_TEST_CASE(a_drained_engine_loads_for_nobody) {
  Loads loads({FakeSettings{}});
  const auto engine = start(loads, 200 * kMs);
  BOOST_REQUIRE(unloaded(*engine));
  engine->drain();
  BOOST_TEST((engine->stats().state == State::kDraining));
  const auto refused = engine->submit(request_of("count 3"), std::make_shared<CountingSink>());
  BOOST_TEST(refused.status().reason() == "draining");
  engine->resume();
  const auto sink = std::make_shared<CountingSink>();
  BOOST_REQUIRE(engine->submit(request_of("count 3"), sink).ok());
  BOOST_TEST(wait_until([&] { return sink->ends == 1; }));
  BOOST_TEST((sink->code == StatusCode::kOk));
}

// The model goes as soon as it may, so that calls meet it at every moment of its way.
BOOST_AUTO_TEST_CASE(every_request_ends_once_whenever_it_comes) {
  constexpr int kThreads = 3, kEach = 60;
  Loads loads({FakeSettings{}, FakeSettings{.load_ms = 20}});
  const auto engine = start(loads, 1);
  std::vector<std::shared_ptr<CountingSink>> sinks(kThreads * kEach);
  std::vector<std::thread> threads;
  std::atomic<int> taken{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int k = 0; k < kEach; ++k) {
        auto& sink = sinks[static_cast<size_t>(t * kEach + k)];
        sink = std::make_shared<CountingSink>();
        const auto id = engine->submit(request_of("count 2"), sink);
        if (!id.ok()) sink = nullptr;
        if (id.ok()) ++taken;
        if (id.ok() && k % 5 == 0) engine->cancel(*id);
        (void)engine->stats();
        (void)engine->token_text(65);
        std::this_thread::sleep_for(std::chrono::milliseconds(k % 7 == 0 ? 150 : 3));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(taken > kThreads * kEach / 2);
  for (const auto& sink : sinks)
    if (sink) BOOST_TEST(wait_until([&] { return sink->ends > 0; }));
  BOOST_TEST(unloaded(*engine));
  for (const auto& sink : sinks)
    if (sink) BOOST_TEST(sink->ends == 1);
  BOOST_TEST(loads.made > 2);
}
