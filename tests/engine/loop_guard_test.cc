// Replies that go round in circles: where that is noticed, what is done, and that drafts and other
// requests move it by no token.
#include "engine/loop_guard.h"

#include <random>

#include "tests/engine/loop_harness.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

constexpr int kLoopTokens = kLoopWindows * kLoopWindowTokens;

// The place (tokens so far) at which a guard says that `text` is a loop, or -1.
template <typename Text>
int noticed(Text text, int tokens) {
  LoopGuard guard;
  for (int i = 0; i < tokens; ++i) {
    const int32_t may_come = guard.tokens_to_decision();
    BOOST_REQUIRE(may_come > 0);
    if (!guard.add(text(i))) continue;
    BOOST_TEST(may_come == 1);  // it was known that it could fall here
    return i + 1;
  }
  return -1;
}

// What the model says is one of `words`: with few of them it repeats itself by need.
Request guarded(int words, bool thinking, bool greedy, uint64_t seed) {
  Request r;
  r.prompt.ids = {{10, 11, static_cast<TokenId>(12 + seed % 40)}};
  r.prompt.thinking.enabled = thinking;
  r.sampling.temperature = greedy ? 0 : 1;
  r.sampling.top_p = 1;
  r.sampling.seed = seed;
  r.max_tokens = 9000;
  r.loop_guard = true;
  for (TokenId id = 20; id < 20 + words; ++id) r.allowed_tokens.push_back(id);
  return r;
}

LoopScript roomy(int slots, int depth, unsigned skill) {
  LoopScript script;
  script.slots = slots;
  script.fixed_depth = depth;
  script.model.skill = skill;
  script.model.eos_weight = 0;
  script.model.pool_blocks = 64 * slots;
  script.context = 16384;
  return script;
}

void require_equal(const Reply& a, const Reply& b) {
  BOOST_REQUIRE(a.finished == 1 && b.finished == 1);
  BOOST_REQUIRE(a.status.ok() && b.status.ok());
  BOOST_REQUIRE(a.ids == b.ids);
  BOOST_REQUIRE(a.reason == b.reason);
  BOOST_REQUIRE(a.stats.token_sha == b.stats.token_sha);
  BOOST_REQUIRE(a.stats.usage.reasoning_tokens == b.stats.usage.reasoning_tokens);
  BOOST_REQUIRE(a.stats.loop_closed_thinking == b.stats.loop_closed_thinking);
  BOOST_REQUIRE(a.stats.loop_ended == b.stats.loop_ended);
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_repeats_itself_is_noticed_at_the_end_of_the_third_window) {
  BOOST_TEST(noticed([](int) { return 7; }, 9000) == kLoopTokens);
  BOOST_TEST(noticed([](int i) { return i % 13; }, 9000) == kLoopTokens);
  // A period that fills most of a window: its first pass is new, the others are not.
  BOOST_TEST(noticed([](int i) { return i % 1000; }, 9000) == kLoopTokens + kLoopWindowTokens);
  // What came before the loop does not count, wherever the loop begins.
  const auto late = [](int i) { return i < 1500 ? 100 + i : i % 5; };
  BOOST_TEST(noticed(late, 9000) == 2 * kLoopWindowTokens + kLoopTokens);
  // Longer than three windows of memory: a circle of 5,000 tokens is one, too.
  const auto wide = [](int i) { return i % 5000; };
  BOOST_TEST(noticed(wide, 20000) == 5 * kLoopWindowTokens + kLoopTokens);
}

BOOST_AUTO_TEST_CASE(what_says_something_new_goes_on) {
  std::mt19937_64 rng(1);
  BOOST_TEST(noticed([&](int) { return static_cast<int32_t>(rng() % 1000); }, 40000) == -1);
  // Lines of a table that differ in a number.
  const auto table = [](int i) { return i % 20 == 7 ? 1000 + i / 20 : i % 20; };
  BOOST_TEST(noticed(table, 40000) == -1);
  // A token that was never there makes eight new runs: three in a window are too many for a loop,
  // two are not.
  const auto rare = [](int per_window) {
    return [=](int i) {
      const int at = i % kLoopWindowTokens;
      return at % 300 == 10 && at / 300 < per_window ? 1000 + i : i % 3;
    };
  };
  static_assert(2 * kLoopGramTokens < kLoopNewGramsMin && 3 * kLoopGramTokens >= kLoopNewGramsMin);
  BOOST_TEST(noticed(rare(3), 20000) == -1);
  BOOST_TEST(noticed(rare(2), 20000) == kLoopTokens);
  // Two windows of a loop, then news, then two more.
  const auto breath = [](int i) { return i / kLoopWindowTokens % 3 == 2 ? 1000 + i : i % 3; };
  BOOST_TEST(noticed(breath, 20000) == -1);
}

BOOST_AUTO_TEST_CASE(thinking_is_closed_once_and_the_answer_is_cut) {
  LoopHarness h(roomy(1, 3, 80));
  const Reply r = h.run_one(guarded(1, true, true, 1));
  BOOST_TEST(r.ids.size() == static_cast<size_t>(2 * kLoopTokens + 1));
  BOOST_TEST(r.ids[kLoopTokens] == kThinkEnd);
  BOOST_TEST(std::count(r.ids.begin(), r.ids.end(), kThinkEnd) == 1);
  BOOST_TEST(r.stats.usage.reasoning_tokens == kLoopTokens);
  BOOST_CHECK(r.reason == FinishReason::kLength);
  BOOST_TEST((r.stats.loop_closed_thinking && r.stats.loop_ended));
  const EngineStats stats = h.board.snapshot(h.clock);
  BOOST_TEST((stats.loops_closed_total == 1U && stats.loops_ended_total == 1U));
  // Not asked for: on until max_tokens.
  Request plain = guarded(1, true, true, 1);
  plain.loop_guard = false;
  plain.max_tokens = 7000;
  const Reply other = h.run_one(plain);
  BOOST_TEST(other.ids.size() == 7000U);
  BOOST_TEST(!(other.stats.loop_closed_thinking || other.stats.loop_ended));
}

BOOST_AUTO_TEST_CASE(a_thinking_budget_that_comes_first_closes_and_the_count_begins_anew) {
  LoopHarness h(roomy(1, 5, 90));
  Request request = guarded(1, true, true, 2);
  request.prompt.thinking.budget = kLoopTokens - 1;
  const Reply r = h.run_one(request);
  BOOST_TEST(r.ids[kLoopTokens - 1] == kThinkEnd);
  BOOST_TEST(!r.stats.loop_closed_thinking);
  BOOST_TEST(r.stats.loop_ended);
  BOOST_TEST(r.ids.size() == static_cast<size_t>(2 * kLoopTokens));
  // Both at the same token: thinking is closed once.
  request.prompt.thinking.budget = kLoopTokens;
  const Reply both = h.run_one(request);
  BOOST_TEST(std::count(both.ids.begin(), both.ids.end(), kThinkEnd) == 1);
  BOOST_TEST(both.ids[kLoopTokens] == kThinkEnd);
}

BOOST_AUTO_TEST_CASE(drafts_and_neighbors_move_it_by_no_token) {
  std::mt19937_64 rng(3);
  int closed = 0;
  int ended = 0;
  int free = 0;
  int accepted = 0;
  for (int round = 0; round < 12; ++round) {
    std::vector<Request> requests;
    for (int i = 0; i < 3; ++i) {
      // Two words can be put in 256 orders: after some thousand tokens all were there.
      const int words = i == 0 ? 1 + static_cast<int>(rng() % 2) : 1 + static_cast<int>(rng() % 6);
      requests.push_back(guarded(words, rng() % 2 == 0, rng() % 3 == 0, rng()));
      if (rng() % 3 == 0) requests.back().prompt.thinking.budget = static_cast<int>(rng() % 5000);
    }
    std::vector<Reply> alone;
    for (Request request : requests) {
      const auto skill = static_cast<unsigned>(rng() % 101);
      const int depth = 1 + static_cast<int>(rng() % 5);
      const Reply drafted = LoopHarness(roomy(1, depth, skill)).run_one(request);
      accepted += drafted.stats.accepted;
      request.draft = false;
      alone.push_back(LoopHarness(roomy(1, 0, skill)).run_one(request));
      require_equal(drafted, alone.back());
      closed += drafted.stats.loop_closed_thinking;
      ended += drafted.stats.loop_ended;
      free += !drafted.stats.loop_closed_thinking && !drafted.stats.loop_ended;
    }
    LoopHarness together(roomy(3, 4, 70));
    std::vector<std::shared_ptr<KeepingSink>> sinks;
    for (const Request& request : requests) sinks.push_back(together.submit(request));
    together.run_dry();
    for (size_t i = 0; i < sinks.size(); ++i) require_equal(sinks[i]->reply(), alone[i]);
  }
  BOOST_TEST(closed >= 5);
  BOOST_TEST(ended >= 5);
  BOOST_TEST(free >= 5);
  BOOST_TEST(accepted > 3000);
}
