// Foreground before background: turns, giving way, going on, and staying.
#include <boost/test/unit_test.hpp>

#include "engine/sched/planner.h"
#include "tests/engine/sched/planner_support.h"

using namespace tensorfold;

BOOST_AUTO_TEST_CASE(queue_keeps_its_order_and_foreground_goes_first) {
  PlannerOptions options;
  options.slots = 2;
  options.pool_blocks = 4;
  EmptyCacheIndex cache;
  Planner planner(options, cache);
  planner.enqueue(spec(1, 256, 200, true));  // 2 blocks
  planner.enqueue(spec(2, 500, 300));        // 4 blocks
  planner.enqueue(spec(3, 10, 10));          // 1 block
  auto admitted = planner.admit();
  BOOST_REQUIRE(admitted.size() == 1U);
  BOOST_TEST(admitted[0].request == 2U);
  BOOST_TEST(planner.waiting() == 2);
  planner.close(admitted[0].slot);
  admitted = planner.admit();
  BOOST_REQUIRE(admitted.size() == 2U);
  BOOST_TEST(admitted[0].request == 3U);
  BOOST_TEST(admitted[1].request == 1U);
  // What waits for memory is not overtaken by what would fit.
  planner.close(admitted[1].slot);
  planner.enqueue(spec(4, 900, 100));
  planner.enqueue(spec(5, 10, 10));
  BOOST_TEST(planner.admit().empty());
  BOOST_TEST(planner.remove(4));
  BOOST_TEST(!planner.remove(4));
  BOOST_TEST(planner.admit().size() == 1U);
}

BOOST_AUTO_TEST_CASE(background_gives_way_and_goes_on_where_it_was) {
  PlannerOptions options;
  options.slots = 2;
  options.prefill_rows = 64;
  options.pool_blocks = 6;
  EmptyCacheIndex cache;
  Planner planner(options, cache);
  planner.enqueue(spec(1, 100, 200, true));
  planner.enqueue(spec(2, 300, 200, true));
  BOOST_REQUIRE(planner.admit().size() == 2U);
  for (int step = 0; step < 30; ++step) commit_plain(planner, planner.plan({}, {}, 0));
  const int64_t replied = 200 - planner.reply_left(0);
  BOOST_REQUIRE(replied > kGivenRowsMax);
  // A slot is enough: the one that has computed least goes, the other stays.
  planner.enqueue(spec(3, 50, 10));
  auto admitted = planner.admit();
  BOOST_REQUIRE(planner.set_aside().size() == 1U);
  BOOST_TEST(planner.set_aside()[0].request == 1U);
  BOOST_REQUIRE(admitted.size() == 1U);
  BOOST_TEST(admitted[0].request == 3U);
  BOOST_TEST(!admitted[0].resumed);
  commit_plain(planner, planner.plan({}, {}, 0));
  planner.close(admitted[0].slot);
  admitted = planner.admit();
  BOOST_REQUIRE(admitted.size() == 1U);
  BOOST_TEST(admitted[0].request == 1U);
  BOOST_TEST(admitted[0].resumed);
  BOOST_TEST(planner.set_aside().empty());
  // Its prompt is filled as before; its reply follows as generated rows, sampled behind the last.
  const SlotId slot = admitted[0].slot;
  BOOST_TEST(planner.fill_left(slot) == 100 + replied);
  int64_t prompt_rows = 0;
  int64_t reply_rows = 0;
  const SampleSpec* sample = nullptr;
  StepPlan plan;
  while (sample == nullptr) {
    plan = planner.plan({}, {}, 0);
    const Slice* s = slice_of(plan, slot);
    BOOST_REQUIRE(s);
    BOOST_TEST((s->source == TokenSource::kGiven));
    (s->row_class == RowClass::kPrompt ? prompt_rows : reply_rows) += s->rows;
    for (const SampleSpec& x : plan.samples) sample = x.slot == slot ? &x : sample;
    BOOST_TEST((s->logits_rows == 1) == (sample != nullptr));
    commit_plain(planner, plan);
  }
  BOOST_TEST(prompt_rows == 100);
  BOOST_TEST(reply_rows == replied);
  BOOST_TEST(sample->position == 100 + replied);
  BOOST_TEST(sample->reply_position == 100);
  BOOST_TEST(planner.reply_left(slot) == 200 - replied - 1);
}

BOOST_AUTO_TEST_CASE(background_that_gave_way_often_enough_stays) {
  PlannerOptions options;
  options.slots = 1;
  options.pool_blocks = 2;
  EmptyCacheIndex cache;
  Planner planner(options, cache);
  planner.enqueue(spec(1, 10, 100, true));
  uint64_t next = 2;
  for (int round = 0; round <= kSetAsideMax; ++round) {
    auto admitted = planner.admit();
    BOOST_REQUIRE(admitted.size() == 1U);
    BOOST_REQUIRE(admitted[0].request == 1U);
    commit_plain(planner, planner.plan({}, {}, 0));
    planner.enqueue(spec(next, 10, 10));
    admitted = planner.admit();
    BOOST_TEST(planner.set_aside().size() == (round < kSetAsideMax ? 1U : 0U));
    if (round == kSetAsideMax) break;
    BOOST_REQUIRE(admitted.size() == 1U);
    BOOST_REQUIRE(admitted[0].request == next++);
    commit_plain(planner, planner.plan({}, {}, 0));
    planner.close(0);
  }
  BOOST_TEST(planner.waiting() == 1);  // the last foreground one waits for it
}
