// The head's runner and its workers without processes and sockets (fake_ranks.h): plans by link and
// by broadcast, and what is left in every rank's memory after each way that a group can break: it
// is what all plans say, on all ranks, or nothing, on all ranks. With the planted fault a worker
// remembers what it was told to forget, which two cases must notice.
#include <boost/test/unit_test.hpp>
#include <random>

#include "tests/engine/group/fake_ranks.h"

using namespace tensorfold;
using namespace tensorfold::test;
using Kind = CacheCommand::Kind;

namespace {

#ifdef TF_PLANTED_FAULT
constexpr bool kForgets = false;
#else
constexpr bool kForgets = true;
#endif

// Ranks, and what a rank must remember by the plans alone.
struct World {
  explicit World(int world_size) : ranks(world_size) { (void)ranks.regain(); }

  StepPlan plan(std::vector<CacheCommand> commands, bool samples = true) {
    StepPlan out;
    out.step = ++step;
    out.commands = std::move(commands);
    Memory after = expected;
    (void)after.apply(out);
    for (const auto& [slot, state] : after.slots) {
      if (!samples) break;
      Slice slice;
      slice.slot = slot;
      slice.rows = slice.decoder_rows = slice.logits_rows = 1;
      slice.first_position = static_cast<int64_t>(step);
      slice.row_class = RowClass::kGenerated;
      slice.source = TokenSource::kDevice;
      out.slices.push_back(slice);
      SampleSpec sample;
      sample.slot = slot;
      sample.position = static_cast<int64_t>(step) + 1;
      out.samples.push_back(sample);
    }
    return out;
  }
  // A step, with what the results must be.
  Status run(const StepPlan& p) {
    const Status status = ranks.runner->run(p, results);
    (void)expected.apply(p);
    if (!status.ok()) return status;
    ranks.settle(p.step);
    BOOST_REQUIRE_EQUAL(results.size(), p.samples.size());
    for (size_t i = 0; i < results.size(); ++i) {
      uint64_t& state = expected.slots[p.samples[i].slot];
      if (!results[i].status.ok()) continue;
      const int32_t token = Memory::next(state, p.samples[i].position);
      BOOST_REQUIRE_EQUAL(results[i].accepted.size(), 1U);
      BOOST_REQUIRE_EQUAL(results[i].accepted[0], token);
      state = mix(state, static_cast<uint64_t>(token));
    }
    return status;
  }
  Status run(std::vector<CacheCommand> commands, bool samples = true) {
    return run(plan(std::move(commands), samples));
  }
  // Together again: sequences end, saved states stay or are gone.
  bool regain() {
    std::vector<CacheCommand> closing;
    for (const auto& [slot, state] : expected.slots)
      closing.push_back({Kind::kCloseSlot, slot, 0, 0});
    StepPlan close = plan(closing, false);
    const bool kept = ranks.regain(close).kept;
    if (!kept) {
      expected = {};
    } else {
      (void)expected.apply(close);
      if (!closing.empty()) ranks.settle(close.step);
    }
    return kept;
  }
  bool agrees() {
    bool same = ranks.head->executor.memory == expected;
    for (auto& w : ranks.workers) same = same && w->executor().memory == expected;
    return same;
  }

  FakeRanks ranks;
  Memory expected;
  uint64_t step = 0;
  std::vector<SampledTokens> results;
};

const std::vector<CacheCommand> kOpenTwo = {{Kind::kOpenSlot, 0, 0, 0}, {Kind::kOpenSlot, 1, 0, 0}};

std::vector<CacheCommand> save(SlotId slot, int64_t number) {
  return {{Kind::kSnapshot, slot, 0, number}};
}

// The n-th thing from now that is on its way to `rank` is lost.
std::function<bool(int)> lose_at(int rank, int n) {
  return [rank, left = n](int to) mutable { return to == rank && --left == 0; };
}

}  // namespace

BOOST_AUTO_TEST_CASE(plans_come_by_broadcast_while_work_flows) {
  World w(3);
  BOOST_REQUIRE(w.run(kOpenTwo).ok());
  const auto link = w.ranks.meeting.link();
  const auto counts = [&] {
    const std::lock_guard lock(link->mutex);
    return std::pair(link->messages, link->broadcasts);
  };
  const auto waiting = [&] {
    const std::lock_guard lock(link->mutex);
    return link->in_broadcast.size();
  };
  const auto [messages, before] = counts();
  BOOST_TEST(before == 0);
  for (int i = 0; i < 5; ++i) BOOST_REQUIRE(w.run(save(0, i)).ok());
  BOOST_TEST(counts().first == messages);
  BOOST_TEST(counts().second == 5);
  // A plan that does not fit the first broadcast: a mask for each row.
  StepPlan large = w.plan({});
  large.mask_words = 4000;
  for (SampleSpec& s : large.samples)
    s.mask_slot = static_cast<int32_t>(large.masks.size()) / large.mask_words,
    large.masks.resize(large.masks.size() + 4000, 0x5A5A5A5AU);
  BOOST_REQUIRE(w.run(large).ok());
  BOOST_TEST(counts().second == 7);
  // Nothing to do: nobody waits in an exchange, and the next plan comes over the link.
  while (waiting() != 2) std::this_thread::sleep_for(kLookMs);
  w.ranks.runner->idle();
  w.ranks.runner->idle();
  BOOST_TEST(counts().second == 8);
  while (waiting() != 0) std::this_thread::sleep_for(kLookMs);
  BOOST_REQUIRE(w.run(save(1, 7)).ok());
  BOOST_TEST(counts().first == messages + 2);
  // Commands alone are the end of a flow, too.
  BOOST_REQUIRE(w.run({{Kind::kCloseSlot, 0, 0, 0}, {Kind::kCloseSlot, 1, 0, 0}}, false).ok());
  BOOST_TEST(counts().second == 9);
  BOOST_TEST(waiting() == 0U);
  BOOST_TEST(w.ranks.runner->check().ok());
  BOOST_TEST(w.agrees());
}

BOOST_AUTO_TEST_CASE(memory_is_kept_when_all_ranks_have_the_last_plan) {
  for (const bool flowing : {false, true}) {
    World w(3);
    BOOST_REQUIRE(w.run(kOpenTwo).ok());
    BOOST_REQUIRE(w.run(save(0, 3)).ok());
    if (!flowing) w.ranks.runner->idle();
    w.ranks.meeting.link()->fail(unavailable("rank 2 is silent", "peer_lost"));
    BOOST_TEST(w.ranks.runner->check().message() == "rank 2 is silent");
    BOOST_TEST(w.ranks.runner->run(w.plan({}), w.results).reason() == "peer_lost");
    // That plan was carried out nowhere: what it would have left is not known to be the same.
    BOOST_TEST(!w.regain());
    BOOST_REQUIRE(w.run(kOpenTwo).ok());
    BOOST_REQUIRE(w.run(save(1, 5)).ok());
    w.ranks.meeting.link()->fail(unavailable("rank 1 is silent", "peer_lost"));
    BOOST_TEST(!w.ranks.runner->check().ok());
    BOOST_TEST(w.regain());
    BOOST_TEST(w.expected.snapshots.count(5) == 1U);
    BOOST_TEST(w.agrees());
  }
}

// A plan is on its way when the link breaks; `by` whatever, and whichever worker does not get it.
BOOST_AUTO_TEST_CASE(a_worker_that_lacks_the_last_plan_catches_up) {
  for (const bool flowing : {false, true}) {
    for (const int lost : {1, 2}) {
      World w(3);
      BOOST_REQUIRE(w.run(kOpenTwo).ok());
      BOOST_REQUIRE(w.run(save(0, 1)).ok());
      if (!flowing) w.ranks.runner->idle();
      w.ranks.meeting.faults.lose = lose_at(lost, 1);
      std::vector<CacheCommand> commands = save(1, 2);
      commands.push_back({Kind::kDropSnapshot, 0, 0, 1});
      BOOST_TEST(!w.run(commands).ok());
      w.ranks.meeting.faults.lose = nullptr;
      BOOST_TEST(w.regain());
      BOOST_TEST(w.expected.snapshots.size() == 1U);
      BOOST_TEST(w.agrees());
      BOOST_REQUIRE(w.run(kOpenTwo).ok());
      BOOST_TEST(w.agrees());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_new_process_on_either_side_empties_all_ranks) {
  for (const int who : {0, 1, 2}) {
    World w(3);
    BOOST_REQUIRE(w.run(kOpenTwo).ok());
    BOOST_REQUIRE(w.run(save(0, 3)).ok());
    if (who == 0) {
      w.ranks.restart_head();
      w.expected = {};
    } else {
      w.ranks.workers[static_cast<size_t>(who - 1)]->restart();
      BOOST_TEST(!w.ranks.runner->check().ok());
    }
    BOOST_TEST(!w.regain());
    BOOST_TEST(w.agrees() == kForgets);
    if (!kForgets) continue;
    BOOST_REQUIRE(w.run(kOpenTwo).ok());
    BOOST_TEST(w.agrees());
  }
}

BOOST_AUTO_TEST_CASE(a_plan_that_was_changed_on_its_way_is_out_of_step) {
  for (const bool flowing : {false, true}) {
    World w(3);
    BOOST_REQUIRE(w.run(kOpenTwo).ok());
    BOOST_REQUIRE(w.run(save(0, 3)).ok());
    if (!flowing) w.ranks.runner->idle();
    StepPlan plan = w.plan({});
    plan.samples[0].seed = 0x1122334455667788U;
    w.ranks.meeting.faults.change = [&](int to, Bytes& body) {
      const Bytes seed = {std::byte{0x88}, std::byte{0x77}, std::byte{0x66}, std::byte{0x55}};
      const auto at = std::search(body.begin(), body.end(), seed.begin(), seed.end());
      if (to == 2 && at != body.end()) *at = std::byte{0x89};
    };
    const Status status = w.run(plan);
    w.ranks.meeting.faults.change = nullptr;
    BOOST_TEST(status.reason() == kReasonOutOfStep);
    BOOST_TEST(status.message().find("another plan") != std::string::npos, status.message());
    BOOST_TEST(!w.regain());
    BOOST_TEST(w.agrees());
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_remembers_something_else_is_out_of_step) {
  World w(2);
  BOOST_REQUIRE(w.run(kOpenTwo).ok());
  w.ranks.workers[0]->executor().memory.slots[1] = 77;
  const Status status = w.run(w.plan({}));
  BOOST_TEST(status.reason() == kReasonOutOfStep);
  BOOST_TEST(!w.regain());
  BOOST_TEST(w.agrees());
}

BOOST_AUTO_TEST_CASE(a_request_that_fails_on_one_rank_fails_on_all_and_alone) {
  World w(3);
  BOOST_REQUIRE(w.run(kOpenTwo).ok());
  const uint64_t generation = w.ranks.meeting.link()->generation;
  for (const int rank : {0, 1, 2}) {
    FakeExecutor& there = rank == 0 ? w.ranks.head->executor
                                    : w.ranks.workers[static_cast<size_t>(rank - 1)]->executor();
    there.fails = 1;
    BOOST_REQUIRE(w.run(w.plan({})).ok());
    BOOST_TEST(w.results[0].status.ok());
    BOOST_TEST(!w.results[1].status.ok());
    BOOST_TEST(w.results[1].accepted.empty());
    there.fails = -1;
    BOOST_TEST(w.agrees());
    // The request ends; its slot serves another one.
    BOOST_REQUIRE(w.run({{Kind::kCloseSlot, 1, 0, 0}, {Kind::kOpenSlot, 1, 0, 0}}).ok());
    BOOST_TEST(w.agrees());
  }
  BOOST_TEST(w.ranks.meeting.link()->generation == generation);
}

BOOST_AUTO_TEST_CASE(a_step_that_throws_breaks_the_group_and_empties_it) {
  for (const int rank : {0, 1}) {
    World w(2);
    BOOST_REQUIRE(w.run(kOpenTwo).ok());
    BOOST_REQUIRE(w.run(save(0, 3)).ok());
    (rank == 0 ? w.ranks.head->executor : w.ranks.workers[0]->executor()).throws = true;
    const Status status = w.run(w.plan({}));
    BOOST_TEST(!status.ok());
    BOOST_TEST(status.message().find("out of memory") != std::string::npos, status.message());
    BOOST_TEST(!w.regain());
    BOOST_TEST(w.agrees());
  }
}

BOOST_AUTO_TEST_CASE(a_worker_that_does_not_answer_is_given_up) {
  World w(2);
  BOOST_REQUIRE(w.run(kOpenTwo).ok());
  w.ranks.meeting.link()->fail(unavailable("rank 1 is silent", "peer_lost"));
  BOOST_TEST(!w.ranks.runner->check().ok());
  // What says how to go on is lost without a word.
  w.ranks.meeting.faults.change = [](int, Bytes& body) { body.assign(1, std::byte{0xFF}); };
  std::string text;
  while (text.find("aborted") == std::string::npos && text.find("sync") == std::string::npos &&
         text.find("wrong or missing") == std::string::npos)
    BOOST_REQUIRE(!w.ranks.runner->regain(text));
  w.ranks.meeting.faults.change = nullptr;
  BOOST_TEST(w.regain());
  BOOST_TEST(w.agrees());
}

BOOST_AUTO_TEST_CASE(a_worker_that_is_leaving_waits_for_its_head) {
  World w(3);
  BOOST_REQUIRE(w.run(kOpenTwo).ok());
  w.ranks.workers[1]->worker().leave(true);
  BOOST_REQUIRE(w.run(w.plan({})).ok());  // a turn, in which it tells
  while (w.ranks.runner->leaving().empty()) BOOST_REQUIRE(w.ranks.runner->check().ok());
  BOOST_TEST(w.ranks.runner->leaving().find("rank 2") != std::string::npos);
  BOOST_TEST(!w.ranks.workers[1]->worker().may_leave());
  BOOST_REQUIRE(w.run(w.plan({})).ok());
  BOOST_REQUIRE(w.run({{Kind::kCloseSlot, 0, 0, 0}, {Kind::kCloseSlot, 1, 0, 0}}, false).ok());
  w.ranks.runner->resting();
  while (!w.ranks.workers[1]->worker().may_leave()) std::this_thread::sleep_for(kLookMs);
  BOOST_TEST(!w.ranks.workers[0]->worker().may_leave());
}

// Whatever breaks, in whatever order.
BOOST_AUTO_TEST_CASE(ranks_agree_after_every_break) {
  std::mt19937_64 rng(7);
  World w(3);
  const auto one_of = [&](int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); };
  const auto commands = [&] {
    std::vector<CacheCommand> out;
    const SlotId slot = one_of(kSlots);
    const int64_t number = one_of(static_cast<int>(kSnapshots));
    const bool open = w.expected.slots.contains(slot);
    const bool saved = w.expected.snapshots.contains(number);
    if (!open) {
      out.push_back({Kind::kOpenSlot, slot, 0, 0});
      if (saved) out.push_back({Kind::kRestore, slot, 0, number});
    } else if (one_of(3) == 0) {
      out.push_back({Kind::kCloseSlot, slot, 0, 0});
    } else if (saved) {
      out.push_back({Kind::kDropSnapshot, 0, 0, number});
    } else {
      out.push_back({Kind::kSnapshot, slot, 0, number});
    }
    return out;
  };
  int kept = 0, emptied = 0, differ = 0;
  for (int event = 0; event < 600; ++event) {
    const int what = one_of(14);
    const int rank = 1 + one_of(2);
    bool apart = false;
    if (what == 0) {
      w.ranks.meeting.link()->fail(unavailable("a rank is silent", "peer_lost"));
      apart = true;
    } else if (what <= 2) {
      w.ranks.meeting.faults.lose = lose_at(rank, 1);
    } else if (what == 3 && one_of(4) == 0) {
      w.ranks.workers[static_cast<size_t>(rank - 1)]->executor().throws = true;
    } else if (what == 4 && one_of(4) == 0) {
      w.ranks.workers[static_cast<size_t>(rank - 1)]->restart();
      apart = true;
    } else if (what == 5) {
      w.ranks.runner->idle();
    }
    if (apart) BOOST_REQUIRE(!w.ranks.runner->check().ok());
    const Status status = apart ? unavailable("apart") : w.run(commands());
    w.ranks.meeting.faults.lose = nullptr;
    if (status.ok()) continue;
    const bool keeps = w.regain();
    keeps ? ++kept : ++emptied;
    if (!w.agrees()) ++differ;
    if (differ > 0) break;
  }
  BOOST_TEST((differ == 0) == kForgets);
  if (kForgets) {
    BOOST_TEST(kept > 30);
    BOOST_TEST(emptied > 5);
  }
}
