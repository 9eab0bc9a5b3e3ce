// The ring between the engine's thread and the loop: order, bounds, and two threads under TSan.
#include <boost/test/unit_test.hpp>
#include <string>
#include <thread>

#include "daemon/api/event_ring.h"
#include "daemon/api/reply_sink.h"

using namespace tensorfold;
using namespace tensorfold::api;

namespace {

class CountingPort final : public LoopPort {
 public:
  void wake() override { wakes.fetch_add(1); }
  void run_on_worker(std::function<void()>, std::function<void()>) override {}
  std::atomic<int> wakes{0};
};

}  // namespace

BOOST_AUTO_TEST_CASE(full_and_empty) {
  EventRing<int> ring(4);
  BOOST_TEST(!ring.try_pop());
  for (int i = 0; i < 4; ++i) BOOST_TEST(ring.try_push(std::move(i)));
  BOOST_TEST(!ring.try_push(9));
  BOOST_TEST(*ring.try_pop() == 0);
  BOOST_TEST(!ring.try_push(9, 1));  // one slot must stay free
  BOOST_TEST(ring.try_push(4));
  for (int i = 1; i <= 4; ++i) BOOST_TEST(*ring.try_pop() == i);
  BOOST_TEST(!ring.try_pop());
}

BOOST_AUTO_TEST_CASE(two_threads_keep_order) {
  constexpr int kCount = 200'000;
  EventRing<std::unique_ptr<int>> ring(64);
  std::thread producer([&] {
    for (int i = 0; i < kCount;) {
      if (ring.try_push(std::make_unique<int>(i))) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  int expected = 0;
  while (expected < kCount) {
    auto item = ring.try_pop();
    if (!item) {
      std::this_thread::yield();
      continue;
    }
    if (**item != expected) break;
    ++expected;
  }
  producer.join();
  BOOST_TEST(expected == kCount);
}

BOOST_AUTO_TEST_CASE(sink_splits_tokens_and_keeps_the_end) {
  CountingPort port;
  ReplySink sink(port);
  sink.on_accepted(1, 10, 4);
  std::vector<TokenId> ids;
  for (int i = 0; i < 19; ++i) ids.push_back(i);
  std::vector<TokenLogprob> logprobs;
  for (const TokenId id : ids) logprobs.push_back({id, -1.0f, {}});
  sink.on_tokens(ids, logprobs);
  auto event = sink.pop();
  BOOST_REQUIRE(event.has_value());
  BOOST_TEST((event->kind == ReplyEvent::Kind::kAccepted));
  BOOST_TEST(event->values[0] == 10);
  std::vector<TokenId> got;
  while ((event = sink.pop())) {
    BOOST_TEST(event->extra->logprobs.size() == event->count);
    got.insert(got.end(), event->values.begin(), event->values.begin() + event->count);
  }
  BOOST_TEST(got == ids, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_full_ring_keeps_tokens_and_their_order) {
  CountingPort port;
  ReplySink sink(port);
  std::vector<TokenId> sent, got;
  const auto send = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const TokenId id = static_cast<TokenId>(sent.size());
      const TokenLogprob logprob{id, -1.0f, {}};
      sink.on_tokens({&id, 1}, {&logprob, 1});
      sent.push_back(id);
    }
  };
  size_t logprobs = 0;
  const auto take = [&](const ReplyEvent& event) {
    if (event.extra) {
      got.insert(got.end(), event.extra->ids.begin(), event.extra->ids.end());
      logprobs += event.extra->logprobs.size();
    }
    got.insert(got.end(), event.values.begin(), event.values.begin() + event.count);
  };
  send(static_cast<int>(kReplyEventItemsMax) + 500);  // the last ones find no room
  sink.on_progress(1, 2);                             // dropped: tokens go first
  for (int i = 0; i < 10; ++i) take(*sink.pop());
  send(300);
  BOOST_TEST(!sink.overflowed());
  sink.on_finished(ok_status(), FinishReason::kStop, ReplyStats());
  bool finished = false;
  while (auto event = sink.pop()) {
    BOOST_TEST(!finished);
    take(*event);
    finished = event->kind == ReplyEvent::Kind::kFinished;
  }
  BOOST_TEST(finished);
  BOOST_TEST((got == sent));
  BOOST_TEST(logprobs == sent.size());
}

BOOST_AUTO_TEST_CASE(prompt_logprobs_wait_for_room_and_come_first) {
  CountingPort port;
  ReplySink sink(port);
  std::vector<TokenId> sent, got;
  for (int i = 0; i < static_cast<int>(kReplyEventItemsMax) + 40; ++i) {
    const TokenLogprob one{i, -1.0f, {}, 1};
    sink.on_prompt_logprobs({&one, 1});
    sent.push_back(i);
  }
  const auto take = [&](const ReplyEvent& event) {
    if (!event.extra) return;
    for (const TokenLogprob& one : event.extra->prompt) got.push_back(one.id);
  };
  for (int i = 0; i < 3; ++i) take(*sink.pop());
  const TokenId token = 7;
  sink.on_tokens({&token, 1}, {});  // what waited goes in front of it
  sink.on_finished(ok_status(), FinishReason::kStop, ReplyStats());
  bool tokens = false;
  while (auto event = sink.pop()) {
    BOOST_TEST((!tokens || !event->extra || event->extra->prompt.empty()));
    tokens = tokens || event->kind == ReplyEvent::Kind::kTokens;
    take(*event);
  }
  BOOST_TEST(tokens);
  BOOST_TEST((got == sent));
}

BOOST_AUTO_TEST_CASE(one_token_past_what_is_held_is_an_error) {
  CountingPort port;
  ReplySink sink(port);
  const std::vector<TokenId> step(1024, 7);
  const size_t ring_tokens = (kReplyEventItemsMax - 1) * kIdsPerEvent;
  size_t sent = 0;
  while (sent + step.size() <= ring_tokens + kHeldTokensMax) {
    sink.on_tokens(step, {});
    sent += step.size();
  }
  BOOST_TEST(!sink.overflowed());
  sink.on_tokens(step, {});
  BOOST_TEST(sink.overflowed());
  sink.on_finished(ok_status(), FinishReason::kStop, ReplyStats());
}

BOOST_AUTO_TEST_CASE(sink_between_threads) {
  CountingPort port;
  ReplySink sink(port);
  constexpr int kTokens = 50'000;
  std::thread engine([&] {
    sink.on_accepted(1, 1, 0);
    for (TokenId id = 0; id < kTokens; ++id) sink.on_tokens({&id, 1}, {});
    sink.on_finished(ok_status(), FinishReason::kStop, ReplyStats());
  });
  int next = 0;
  bool finished = false;
  while (!finished) {
    while (auto event = sink.pop()) {
      if (event->kind == ReplyEvent::Kind::kFinished) finished = true;
      const auto check = [&](TokenId id) { next += id == next ? 1 : 0; };
      if (event->extra) {
        for (const TokenId id : event->extra->ids) check(id);
      }
      for (int i = 0; i < event->count; ++i) check(event->values[static_cast<size_t>(i)]);
    }
    std::this_thread::yield();
  }
  engine.join();
  BOOST_TEST(next == kTokens);
  BOOST_TEST(port.wakes.load() > 0);
}
