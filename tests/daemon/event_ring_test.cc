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

BOOST_AUTO_TEST_CASE(sink_overflows_into_an_error_not_a_block) {
  CountingPort port;
  ReplySink sink(port);
  const TokenId id = 7;
  for (size_t i = 0; i < kReplyEventItemsMax - 1; ++i) sink.on_tokens({&id, 1}, {});
  BOOST_TEST(!sink.overflowed());
  sink.on_progress(1, 2);  // dropped: tokens go first
  sink.on_tokens({&id, 1}, {});
  BOOST_TEST(sink.overflowed());
  sink.on_finished(ok_status(), FinishReason::kStop, ReplyStats());
  std::optional<ReplyEvent> last;
  size_t count = 0;
  while (auto event = sink.pop()) {
    last = std::move(event);
    ++count;
  }
  BOOST_TEST(count == kReplyEventItemsMax);
  BOOST_TEST((last->kind == ReplyEvent::Kind::kFinished));
}

BOOST_AUTO_TEST_CASE(sink_between_threads) {
  CountingPort port;
  ReplySink sink(port);
  constexpr int kTokens = 50'000;
  std::thread engine([&] {
    sink.on_accepted(1, 1, 0);
    for (int i = 0; i < kTokens && !sink.overflowed(); ++i) {
      const TokenId id = i;
      sink.on_tokens({&id, 1}, {});
      if (i % 512 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    sink.on_finished(ok_status(), FinishReason::kStop, ReplyStats());
  });
  int next = 0;
  bool finished = false;
  while (!finished) {
    while (auto event = sink.pop()) {
      if (event->kind == ReplyEvent::Kind::kFinished) finished = true;
      if (event->kind == ReplyEvent::Kind::kTokens) {
        if (event->values[0] == next) ++next;
      }
    }
    std::this_thread::yield();
  }
  engine.join();
  BOOST_TEST((sink.overflowed() || next == kTokens));
  BOOST_TEST(port.wakes.load() > 0);
}
