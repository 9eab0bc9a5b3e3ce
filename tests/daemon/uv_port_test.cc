// The loop's wake-up: none is lost, and a thread that is stopped anywhere inside wake() does not
// hold the loop. The thread is stopped by a signal whose handler waits, which lands as a debugger's
// hold does: most often in the system call that wakes the loop.
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "daemon/service/uv_port.h"

using namespace tensorfold;

namespace {

constexpr int kHolds = 20;
constexpr std::chrono::seconds kStuck{20};
constexpr uint64_t kLimitMs = 60'000;

std::atomic<bool> g_waking{false};  // the waker is inside wake()
std::atomic<bool> g_hold{false}, g_held{false}, g_missed{false};

void hold_here(int) {
  if (!g_waking) {
    g_missed = true;
    return;
  }
  g_held = true;
  while (g_hold) sched_yield();
  g_held = false;
}

// A loop that stays alive by a timer, as the daemon's does by its tick.
struct Loop {
  Loop() {
    BOOST_REQUIRE(uv_loop_init(&loop) == 0);
    uv_timer_init(&loop, &timer);
    timer.data = this;
    uv_timer_start(
        &timer, [](uv_timer_t* t) { static_cast<Loop*>(t->data)->late = true; }, kLimitMs, 0);
  }
  ~Loop() { BOOST_TEST(uv_loop_close(&loop) == 0); }
  void end(service::UvPort& port) {
    uv_close(reinterpret_cast<uv_handle_t*>(&timer), nullptr);
    port.close();
    uv_run(&loop, UV_RUN_DEFAULT);
  }
  uv_loop_t loop;
  uv_timer_t timer;
  bool late = false;  // the limit has passed
};

}  // namespace

// The holder picks the moments; the loop turns all the time, as it does while tokens come.
BOOST_AUTO_TEST_CASE(a_waker_that_stands_still_does_not_hold_the_loop) {
  Loop loop;
  std::atomic<int64_t> seen{0};
  service::UvPort port(&loop.loop, [&] { ++seen; });
  std::signal(SIGUSR1, hold_here);
  std::atomic<bool> stop{false};
  std::atomic<int64_t> turns{0};
  std::thread waker([&] {
    while (!stop) {
      const int64_t before = seen;
      g_waking = true;
      port.wake();
      g_waking = false;
      while (seen == before && !stop) sched_yield();  // each wakes a loop that sleeps
    }
  });
  int held = 0, stuck = 0;
  std::thread holder([&] {
    while (held < kHolds && stuck == 0) {
      g_missed = false;
      g_hold = true;
      pthread_kill(waker.native_handle(), SIGUSR1);
      while (!g_held && !g_missed) sched_yield();
      if (g_missed) continue;
      ++held;
      const int64_t before = turns;
      const auto end = std::chrono::steady_clock::now() + kStuck;
      while (turns < before + 3 && stuck == 0) {
        if (std::chrono::steady_clock::now() >= end) ++stuck;
        sched_yield();
      }
      g_hold = false;
      while (g_held) sched_yield();
    }
    stop = true;
  });
  for (; !stop; ++turns) uv_run(&loop.loop, UV_RUN_NOWAIT);
  holder.join();
  waker.join();
  BOOST_TEST(stuck == 0, "the loop stood with the thread that was waking it, at hold " << held);
  std::signal(SIGUSR1, SIG_DFL);
  loop.end(port);
}

BOOST_AUTO_TEST_CASE(no_wake_up_is_lost) {
  constexpr int kThreads = 3, kEach = 20'000;
  Loop loop;
  std::atomic<int> made{0};
  int seen = 0;
  service::UvPort port(&loop.loop, [&] { seen = made; });
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kEach; ++k) {
        ++made;
        port.wake();
      }
    });
  }
  while (seen < kThreads * kEach && !loop.late) uv_run(&loop.loop, UV_RUN_ONCE);
  for (std::thread& t : threads) t.join();
  BOOST_TEST(seen == kThreads * kEach);
  loop.end(port);
}
