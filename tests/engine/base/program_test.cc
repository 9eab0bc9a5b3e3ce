// Programs that are run: what they read and print, how they end, and that neither their silence nor
// their children keep the caller.
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <csignal>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/program.h"

namespace tensorfold {
namespace {

constexpr int64_t kLongMs = 60'000;  // of programs that must not be waited for

ProgramRun captured() {
  ProgramRun run;
  run.capture = true;
  run.from = ProgramRun::Input::kNothing;
  return run;
}

int64_t now_ms() { return system_clock().monotonic_us() / 1000; }

BOOST_AUTO_TEST_CASE(programs_are_fed_and_heard) {
  ProgramRun run = captured();
  run.from = ProgramRun::Input::kText;
  run.input.assign(3'000'000, 'x');  // more than pipes hold
  const auto ended = run_program({"cat"}, run);
  BOOST_REQUIRE(ended.ok());
  BOOST_TEST((ended->output == run.input));
  const auto early = run_program({"true"}, run);  // ends without reading
  BOOST_REQUIRE(early.ok());
  BOOST_TEST(early->exit_status == 0);
  const auto nothing = run_program({"cat"}, captured());
  BOOST_REQUIRE(nothing.ok());
  BOOST_TEST(nothing->output.empty());
}

BOOST_AUTO_TEST_CASE(ends_are_told_apart) {
  BOOST_TEST(run_program({"sh", "-c", "exit 7"})->exit_status == 7);
  BOOST_TEST(run_program({"sh", "-c", "kill -9 $$"})->exit_status == 137);
  const auto missing = run_program({"tensorfoldd-no-such-program"});
  BOOST_TEST((missing.status().code() == StatusCode::kNotFound));
  BOOST_TEST((run_program({"/dev/null"}).status().code() == StatusCode::kIo));
}

BOOST_AUTO_TEST_CASE(words_are_not_read_by_a_shell) {
  const auto said = run_program({"printf", "%s|%s", "a b; $HOME", "*"}, captured());
  BOOST_REQUIRE(said.ok());
  BOOST_TEST(said->output == "a b; $HOME|*");
}

BOOST_AUTO_TEST_CASE(output_past_the_bound_is_read_and_dropped) {
  ProgramRun run = captured();
  run.output_bytes_max = 100'000;
  const auto ended = run_program({"head", "-c", "5000000", "/dev/zero"}, run);
  BOOST_REQUIRE(ended.ok());
  BOOST_TEST(ended->exit_status == 0);
  BOOST_TEST(ended->output.size() == 100'000U);
}

BOOST_AUTO_TEST_CASE(a_deadline_ends_a_program_that_is_silent_or_does_not_read) {
  const int64_t began = now_ms();
  ProgramRun run = captured();
  run.deadline_ms = 300;
  const auto silent = run_program({"sleep", "60"}, run);
  BOOST_REQUIRE(silent.ok());
  BOOST_TEST(silent->timed_out);
  BOOST_TEST(silent->exit_status == 128 + SIGKILL);
  run.from = ProgramRun::Input::kText;
  run.input.assign(1'000'000, 'x');
  BOOST_TEST(run_program({"sleep", "60"}, run)->timed_out);
  run.deadline_ms = kLongMs;
  BOOST_TEST(!run_program({"true"}, run)->timed_out);
  BOOST_TEST(now_ms() - began < kLongMs);
}

// A background child that inherits the pipe, as ssh's shared connections leave one.
BOOST_AUTO_TEST_CASE(what_stays_in_the_background_is_not_waited_for) {
  const int64_t began = now_ms();
  const auto ended = run_program({"sh", "-c", "sleep 20 & echo said"}, captured());
  BOOST_REQUIRE(ended.ok());
  BOOST_TEST(ended->output == "said\n");
  BOOST_TEST(now_ms() - began < kLongMs);
}

BOOST_AUTO_TEST_CASE(several_threads_at_once) {
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&good, t] {
      ProgramRun run = captured();
      run.from = ProgramRun::Input::kText;
      run.input.assign(200'000, static_cast<char>('a' + t));
      for (int i = 0; i < 5; ++i) {
        run_program({"true"}, run).status();
        const auto ended = run_program({"cat"}, run);
        if (ended.ok() && ended->output == run.input) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(good == 20);
}

}  // namespace
}  // namespace tensorfold
