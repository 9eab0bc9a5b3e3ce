// Random schedules (tests/engine/sched/schedule_sim.h), and faults planted in them.
#include "tests/engine/sched/schedule_sim.h"

#include <cstdlib>

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

// TF_SCHEDULES=n runs others; the seeds are 1..n.
uint64_t schedules() {
  const char* asked = std::getenv("TF_SCHEDULES");
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : 10'000;
}

// How many of `seeds` schedules find a fault, with `sabotage` made anew for each.
int found(uint64_t seeds, const std::function<Sabotage()>& make, std::string& first) {
  int n = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const SimOutcome out = Schedule(seed, make()).run();
    if (!out.fault.empty() && n++ == 0) first = out.fault;
  }
  return n;
}

}  // namespace

BOOST_AUTO_TEST_CASE(random_schedules_keep_every_promise) {
  SimOutcome all;
  double closest = 0;
  double longest_pause = 0;
  for (uint64_t seed = 1; seed <= schedules(); ++seed) {
    const SimOutcome out = Schedule(seed).run();
    BOOST_REQUIRE_MESSAGE(out.fault.empty(), "seed " << seed << ": " << out.fault);
    if (seed % 10 == 0) {
      const SimOutcome again = Schedule(seed).run();
      BOOST_REQUIRE_MESSAGE(again.digests == out.digests, "seed " << seed << " does not repeat");
    }
    all.ended += out.ended;
    all.whole += out.whole;
    all.cancelled += out.cancelled;
    all.failed += out.failed;
    all.late += out.late;
    all.refused += out.refused;
    all.set_aside += out.set_aside;
    all.shared_rows += out.shared_rows;
    closest = std::max(closest,
                       static_cast<double>(out.longest_wait) / static_cast<double>(out.wait_bound));
    longest_pause = std::max(longest_pause, static_cast<double>(out.longest_pause) /
                                                static_cast<double>(out.pause_bound));
  }
  BOOST_TEST_MESSAGE(all.ended << " requests: " << all.whole << " whole, " << all.cancelled
                               << " cancelled, " << all.failed << " failed, " << all.late
                               << " late, " << all.refused << " refused; set aside "
                               << all.set_aside << " times, " << all.shared_rows
                               << " positions from the cache; longest wait " << closest
                               << " of its bound, longest pause of a reply " << longest_pause);
  const auto n = static_cast<int>(schedules());
  BOOST_TEST(all.whole > 3 * n);
  BOOST_TEST(all.cancelled > n / 10);
  BOOST_TEST(all.failed > n / 10);
  BOOST_TEST(all.late > n / 10);
  BOOST_TEST(all.refused > n / 10);
  BOOST_TEST(all.set_aside > static_cast<uint64_t>(n / 10));
  BOOST_TEST(closest > 0.2);
}

// ---------------------------------------------------------------- planted faults

BOOST_AUTO_TEST_CASE(a_slot_that_is_not_closed_is_found) {
  std::string what;
  const auto make = [] {
    return Sabotage([left = 3](StepPlan& plan) mutable {
      std::erase_if(plan.commands, [&](const CacheCommand& c) {
        return c.kind == CacheCommand::Kind::kCloseSlot && --left == 0;
      });
    });
  };
  BOOST_TEST(found(50, make, what) > 30);
}

BOOST_AUTO_TEST_CASE(a_block_that_two_sequences_write_is_found) {
  std::string what;
  const auto make = [] {
    return Sabotage([last = BlockId{-1}](StepPlan& plan) mutable {
      for (CacheCommand& c : plan.commands) {
        if (c.kind != CacheCommand::Kind::kAppendBlock) continue;
        if (last >= 0) c.block = last;
        last = c.block;
      }
    });
  };
  BOOST_TEST(found(50, make, what) > 20);
}

BOOST_AUTO_TEST_CASE(a_row_of_a_resumed_reply_that_is_fed_wrong_is_found) {
  std::string what;
  const auto make = [] {
    return Sabotage([](StepPlan& plan) {
      for (const Slice& s : plan.slices) {
        if (s.row_class != RowClass::kGenerated || s.source != TokenSource::kGiven) continue;
        plan.tokens[static_cast<size_t>(s.token_offset)] ^= 1;
      }
    });
  };
  // Only where something was set aside after it had begun to reply.
  BOOST_TEST(found(300, make, what) > 10);
  BOOST_TEST(what == "a reply is not what it would be alone");
}

BOOST_AUTO_TEST_CASE(a_chunk_that_is_put_off_for_ever_is_found) {
  // One row of prompt less than planned, in every step: the device sees rows that don't follow.
  std::string what;
  const auto make = [] {
    return Sabotage([](StepPlan& plan) {
      for (Slice& s : plan.slices) {
        if (s.row_class == RowClass::kPrompt && s.rows > 1 && s.logits_rows == 0) --s.rows;
      }
    });
  };
  BOOST_TEST(found(50, make, what) > 20);
}
