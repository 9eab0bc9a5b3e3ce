// Rates are tokens over the time of the steps that made them, within the last ten seconds.
#include "engine/stats_board.h"

#include <boost/test/unit_test.hpp>

using namespace tensorfold;

namespace {
constexpr int64_t kSecond = 1'000'000;
}

BOOST_AUTO_TEST_CASE(rate_is_tokens_per_busy_time) {
  RateWindow w;
  BOOST_TEST(w.tokens_per_second(0) == 0);
  // 50 steps of 4 tokens in 10 ms each, over 5 s: 400 tokens/s, however idle the time between.
  int64_t now = 100 * kSecond;
  for (int i = 0; i < 50; ++i, now += kSecond / 10) w.add(now, 4, 10'000);
  BOOST_TEST(w.tokens_per_second(now) == 400);
  BOOST_TEST(w.tokens_per_second(now + 4 * kSecond) == 400);
  // What is older than the window is forgotten, a second at a time.
  w.add(now + 8 * kSecond, 1, kSecond);
  BOOST_TEST(w.tokens_per_second(now + 8 * kSecond) < 200);
  BOOST_TEST(w.tokens_per_second(now + 17 * kSecond) == 1);
  BOOST_TEST(w.tokens_per_second(now + 18 * kSecond) == 0);
}

BOOST_AUTO_TEST_CASE(snapshot_has_state_and_detail) {
  StatsBoard board;
  ManualClock clock;
  board.set_state(EngineStats::State::kFailed, "model.safetensors: truncated");
  board.slots_busy = 3;
  board.prefill_us = 2'500'000;
  const EngineStats s = board.snapshot(clock);
  BOOST_TEST((s.state == EngineStats::State::kFailed));
  BOOST_TEST(s.state_detail == "model.safetensors: truncated");
  BOOST_TEST(s.slots_busy == 3);
  BOOST_TEST(s.prefill_seconds_total == 2.5);
}
