// Status, Result, the bounded queue, UTF-8 and the clock that tests turn.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/bounded_queue.h"
#include "engine/base/clock.h"
#include "engine/base/status.h"
#include "engine/base/utf8.h"

namespace tensorfold {
namespace {

BOOST_AUTO_TEST_SUITE(status)

BOOST_AUTO_TEST_CASE(carries_code_message_param_and_reason) {
  const Status s = invalid_argument("too long", "messages[2]", "context_length_exceeded");
  BOOST_TEST(!s.ok());
  BOOST_TEST((s.code() == StatusCode::kInvalidArgument));
  BOOST_TEST(s.to_string() == "invalid argument: too long");
  BOOST_TEST(s.param() == "messages[2]");
  BOOST_TEST(s.reason() == "context_length_exceeded");
  const Status outer = s.with_context("request 7");
  BOOST_TEST(outer.message() == "request 7: too long");
  BOOST_TEST(outer.param() == "messages[2]");
  BOOST_TEST(ok_status().ok());
  BOOST_TEST(ok_status().with_context("x").ok());
  BOOST_TEST(ok_status().message().empty());
  BOOST_TEST(io_error("file.bin", ENOENT).message() == "file.bin: No such file or directory");
}

BOOST_AUTO_TEST_CASE(every_code_has_a_name) {
  std::vector<std::string> names;
  for (int code = 0; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    names.emplace_back(status_code_name(static_cast<StatusCode>(code)));
    BOOST_TEST(names.back() != "unknown");
    for (size_t i = 0; i + 1 < names.size(); ++i) BOOST_TEST(names[i] != names.back());
  }
}

BOOST_AUTO_TEST_CASE(result_holds_a_value_or_a_status) {
  Result<std::unique_ptr<int>> good = std::make_unique<int>(3);
  BOOST_TEST(good.ok());
  BOOST_TEST(good.status().ok());
  const std::unique_ptr<int> taken = *std::move(good);
  BOOST_TEST(*taken == 3);
  const Result<std::string> bad = data_loss("shard 3 is cut");
  BOOST_TEST(!bad.ok());
  BOOST_TEST((bad.status().code() == StatusCode::kDataLoss));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(bounded_queue)

BOOST_AUTO_TEST_CASE(refuses_one_past_its_capacity_and_leaves_the_item_alone) {
  BoundedQueue<std::unique_ptr<int>> queue(2);
  BOOST_TEST(queue.try_push(std::make_unique<int>(1)));
  BOOST_TEST(queue.try_push(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  BOOST_TEST(!queue.try_push(std::move(third)));
  BOOST_REQUIRE(third != nullptr);
  BOOST_TEST(**queue.try_pop() == 1);
  BOOST_TEST(queue.try_push(std::move(third)));
  BOOST_TEST(**queue.try_pop() == 2);
  BOOST_TEST(**queue.try_pop() == 3);
  BOOST_TEST(!queue.try_pop().has_value());
}

BOOST_AUTO_TEST_CASE(close_refuses_new_items_and_gives_out_the_old) {
  BoundedQueue<int> queue(4);
  BOOST_TEST(queue.try_push(1));
  queue.close();
  BOOST_TEST(!queue.try_push(2));
  BOOST_TEST(queue.pop_wait(1'000'000).value() == 1);
  BOOST_TEST(!queue.pop_wait(60'000'000).has_value());  // returns at once
}

BOOST_AUTO_TEST_CASE(waiting_consumer_is_woken_by_push_and_by_close) {
  BoundedQueue<int> queue(1);
  std::atomic<int> sum{0};
  std::thread consumer([&] {
    while (const auto item = queue.pop_wait(60'000'000)) sum += *item;
  });
  for (int i = 1; i <= 100;) {
    if (queue.try_push(int{i})) {
      ++i;
    } else {
      std::this_thread::yield();
    }
  }
  queue.close();
  consumer.join();
  BOOST_TEST(sum.load() == 5050);
  BOOST_TEST(!queue.pop_wait(1).has_value());
}

BOOST_AUTO_TEST_CASE(many_producers_lose_nothing_and_keep_their_own_order) {
  constexpr int kProducers = 4, kItems = 500;
  BoundedQueue<std::pair<int, int>> queue(8);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kItems;) {
        if (queue.try_push({p, i})) {
          ++i;
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  std::vector<int> next(kProducers, 0);
  for (int n = 0; n < kProducers * kItems; ++n) {
    const auto item = queue.pop_wait(60'000'000);
    BOOST_REQUIRE(item.has_value());
    BOOST_TEST(item->second == next[static_cast<size_t>(item->first)]++);
  }
  for (std::thread& producer : producers) producer.join();
  BOOST_TEST(queue.size() == 0u);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(utf8)

BOOST_AUTO_TEST_CASE(every_code_point_survives_and_only_those_are_valid) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string text;
    utf8_append(text, c);
    const Utf8Step step = utf8_step(text, 0);
    const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    BOOST_REQUIRE(step.valid != surrogate);
    if (!surrogate) BOOST_REQUIRE((step.code_point == c && step.bytes == text.size()));
  }
}

BOOST_AUTO_TEST_CASE(broken_text_is_replaced_by_maximal_subparts) {
  // As bytes.decode("utf-8", "replace") does in Python.
  BOOST_TEST(utf8_lossy("a\xE4\xBD z") == "a\uFFFD z");
  BOOST_TEST(utf8_lossy("\xC0\xAF") == "\uFFFD\uFFFD");
  BOOST_TEST(utf8_lossy("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");
  BOOST_TEST(utf8_lossy("\xF0\x9F\x98") == "\uFFFD");
  BOOST_TEST(utf8_lossy("\xF4\x90\x80\x80") == "\uFFFD\uFFFD\uFFFD\uFFFD");
  BOOST_TEST(utf8_lossy("\xFF你") == "\uFFFD你");
}

BOOST_AUTO_TEST_CASE(unfinished_tails_are_measured) {
  BOOST_TEST(utf8_unfinished_tail("abc") == 0u);
  BOOST_TEST(utf8_unfinished_tail("a\xE4") == 1u);
  BOOST_TEST(utf8_unfinished_tail("a\xE4\xBD") == 2u);
  BOOST_TEST(utf8_unfinished_tail("你") == 0u);
  BOOST_TEST(utf8_unfinished_tail("\xF0\x9F\x98") == 3u);
  BOOST_TEST(utf8_unfinished_tail("\xF0\x9F\x98\x80") == 0u);
  BOOST_TEST(utf8_unfinished_tail("\xE4 \xBD") == 0u);
  BOOST_TEST(utf8_unfinished_tail("\x80\x80") == 0u);
  BOOST_TEST(utf8_first_invalid("ab\xE4\xBD") == 2u);
  BOOST_TEST(utf8_first_invalid("ab你") == std::string_view::npos);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(manual_clock_moves_only_when_told) {
  ManualClock clock;
  const int64_t start = clock.monotonic_us();
  BOOST_TEST(clock.monotonic_us() == start);
  clock.advance_us(1500);
  BOOST_TEST(clock.monotonic_us() == start + 1500);
  const int64_t a = system_clock().monotonic_us();
  BOOST_TEST(system_clock().monotonic_us() >= a);
}

}  // namespace

BOOST_AUTO_TEST_CASE(text_from_elsewhere_is_shown_on_one_line) {
  BOOST_TEST(shown_text("plain", 5) == "plain");
  BOOST_TEST(shown_text("longer", 5) == "longe...");
  BOOST_TEST(shown_text("a\n\x1b[2J\x7f", 20) == "a??[2J?");
  BOOST_TEST(shown_text("a\nb", 20, ' ') == "a b");
  BOOST_TEST(shown_text("ab\u00e4", 3) == "ab...");  // never half a character
  BOOST_TEST(shown_text("", 3).empty());
}

}  // namespace tensorfold
