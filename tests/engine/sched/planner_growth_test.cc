// Blocks as a reply grows: what is reserved at first, who gives way when the pool is short, that
// who gave way comes back with more room, and that alone everything goes on to its price.
#include <boost/test/unit_test.hpp>
#include <map>

#include "engine/sched/planner.h"
#include "tests/engine/sched/planner_support.h"

using namespace tensorfold;

namespace {

PlannerOptions growing_options(int slots, int64_t blocks, int64_t allowance) {
  PlannerOptions o;
  o.slots = slots;
  o.prefill_rows = 512;
  o.pool_blocks = blocks;
  o.reply_allowance = allowance;
  return o;
}

// As one that has no limit of its own is priced.
SequenceSpec open_ended(uint64_t request, int64_t prompt, const PlannerOptions& o,
                        bool background = false) {
  return spec(request, prompt, o.pool_blocks * kBlockPositions - prompt, background);
}

}  // namespace

BOOST_AUTO_TEST_CASE(four_conversations_without_limits_run_at_once) {
  // Each may fill the whole pool, which is as large as one context of a million.
  const PlannerOptions o = growing_options(4, 4096, kReplyAllowanceTokens);
  EmptyCacheIndex cache;
  Planner planner(o, cache);
  for (uint64_t r = 1; r <= 4; ++r) planner.enqueue(open_ended(r, 5000, o));
  BOOST_TEST(planner.admit().size() == 4U);
  BOOST_TEST(planner.ledger().promised() == 4 * blocks_for(5000 + kReplyAllowanceTokens));
}

BOOST_AUTO_TEST_CASE(the_youngest_gives_way_and_comes_back_with_more_room) {
  const PlannerOptions o = growing_options(2, 9, 100);
  EmptyCacheIndex cache;
  Planner planner(o, cache);
  planner.enqueue(open_ended(1, 700, o));
  planner.enqueue(open_ended(2, 700, o));
  BOOST_REQUIRE(planner.admit().size() == 2U);
  uint64_t aside = 0;
  int64_t replied = 0;
  for (int step = 0; step < 4000 && aside == 0; ++step) {
    commit_plain(planner, planner.plan({}, {}, 0));
    replied = 0;
    for (SlotId slot = 0; slot < 2; ++slot)
      if (planner.generating(slot)) replied += 1;
    (void)planner.admit();
    if (!planner.set_aside().empty()) aside = planner.set_aside()[0].request;
  }
  BOOST_TEST(aside == 2U);
  BOOST_TEST(replied == 2);
  BOOST_TEST(planner.busy() == 1);
  BOOST_TEST(planner.waiting() == 1);
  // The older one goes on to the last position of its price.
  while (planner.reply_left(0) > 0) {
    commit_plain(planner, planner.plan({}, {}, 0));
    if (planner.reply_left(0) > 0) BOOST_TEST(planner.admit().empty());
    BOOST_TEST(planner.set_aside().empty());
  }
  planner.close(0);
  const auto admitted = planner.admit();
  BOOST_REQUIRE(admitted.size() == 1U);
  BOOST_TEST(admitted[0].request == 2U);
  BOOST_TEST(admitted[0].resumed);
  BOOST_TEST(planner.ledger().promised() >= blocks_for(planner.fill_left(0) + 2 * 100));
}

BOOST_AUTO_TEST_CASE(background_gives_way_first_and_never_pushes_foreground_out) {
  const PlannerOptions o = growing_options(3, 6, 20);
  EmptyCacheIndex cache;
  Planner planner(o, cache);
  planner.enqueue(open_ended(1, 200, o, true));
  BOOST_REQUIRE(planner.admit().size() == 1U);
  planner.enqueue(open_ended(2, 200, o));
  planner.enqueue(open_ended(3, 200, o));
  BOOST_REQUIRE(planner.admit().size() == 2U);
  std::vector<uint64_t> order;
  for (int step = 0; step < 4000 && order.size() < 2; ++step) {
    commit_plain(planner, planner.plan({}, {}, 0));
    (void)planner.admit();
    for (const SetAside& s : planner.set_aside()) order.push_back(s.request);
  }
  BOOST_TEST(order == (std::vector<uint64_t>{1, 3}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(others_are_let_in_only_beside_room_to_grow) {
  const PlannerOptions o = growing_options(4, 5, 20);
  EmptyCacheIndex cache;
  Planner planner(o, cache);
  planner.enqueue(open_ended(1, 500, o));  // 3 blocks at first, and one to grow into
  planner.enqueue(open_ended(2, 300, o));  // 2 blocks
  BOOST_TEST(planner.admit().size() == 1U);
  BOOST_TEST(planner.remove(2));
  planner.enqueue(spec(3, 200, 20));
  BOOST_TEST(planner.admit().size() == 1U);
  planner.enqueue(spec(4, 20, 20));
  BOOST_TEST(planner.admit().empty());
}
