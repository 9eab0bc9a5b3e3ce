// The engine loop under random schedules: arrivals, cancels, deadlines, bad rows, dying devices,
// tiny pools. Every request ends exactly once, nothing leaks, plans repeat from their inputs, and
// one request's failure does not touch its neighbours.
#include <random>

#include "tests/engine/loop_harness.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

struct Outcome {
  std::vector<std::string> digests;
  std::map<StatusCode, int> codes;
  int replies = 0;
};

Request plain_request(uint64_t seed, int prompt, int reply) {
  Request r;
  r.prompt.ids.emplace();
  std::mt19937_64 rng(seed);
  for (int i = 0; i < prompt; ++i) r.prompt.ids->push_back(static_cast<TokenId>(8 + rng() % 50));
  r.max_tokens = reply;
  r.sampling.seed = seed;
  return r;
}

Outcome random_schedule(uint64_t seed) {
  std::mt19937_64 rng(seed);
  LoopScript script;
  script.slots = 1 + static_cast<int>(rng() % 6);
  script.prefill_rows = 1 + static_cast<int>(rng() % 100);
  script.fixed_depth = static_cast<int>(rng() % 7) - 1;
  script.model.pool_blocks = 2 + static_cast<int64_t>(rng() % 8);
  script.model.skill = static_cast<unsigned>(rng() % 101);
  script.queue_deadline_us = 5000 + static_cast<int64_t>(rng() % 100000);
  if (rng() % 20 == 0) script.model.fail_at_forward = 1 + static_cast<int>(rng() % 40);
  if (rng() % 8 == 0) script.model.storage_fails_every = 2 + static_cast<int>(rng() % 20);
  LoopHarness h(script);
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  std::vector<RequestId> ids;
  const int arrivals = 3 + static_cast<int>(rng() % 10);
  for (int turn = 0; turn < 400 && (static_cast<int>(sinks.size()) < arrivals || !h.loop.idle());
       ++turn) {
    h.clock.advance_us(static_cast<int64_t>(rng() % 3000));
    if (static_cast<int>(sinks.size()) < arrivals && rng() % 3 == 0) {
      Request r =
          plain_request(rng(), 1 + static_cast<int>(rng() % 300), static_cast<int>(rng() % 40));
      if (rng() % 8 == 0) r.prompt.ids->back() = kPoison;
      if (rng() % 8 == 0) r.allowed_tokens = {kVocab - 1, static_cast<TokenId>(rng() % kVocab)};
      if (rng() % 6 == 0)
        r.deadline_us = h.clock.monotonic_us() + static_cast<int64_t>(rng() % 20000);
      if (rng() % 6 == 0) r.background = true;
      if (rng() % 10 == 0) r.max_tokens = 5000;  // can't ever fit
      sinks.push_back(h.submit(std::move(r)));
      ids.push_back(h.last_id);
    }
    if (!ids.empty() && rng() % 12 == 0) h.book.cancel(ids[rng() % ids.size()]);
    h.loop.turn();
  }
  h.run_dry();
  Outcome out;
  for (const auto& sink : sinks) {
    const Reply r = sink->reply();
    BOOST_REQUIRE(r.finished == 1);
    ++out.codes[r.status.code()];
    out.replies += r.status.ok();
    BOOST_REQUIRE(r.status.code() != StatusCode::kInternal || r.status.reason() != "");
    BOOST_REQUIRE(r.stats.usage.completion_tokens == static_cast<int>(r.ids.size()));
  }
  BOOST_REQUIRE(h.book.size() == 0);
  if (!h.loop.failed()) {
    BOOST_REQUIRE(h.model.open_slots() == 0);
    BOOST_REQUIRE(h.model.blocks_used() == 0);
    BOOST_REQUIRE(h.board.snapshot(h.clock).pool_tokens_used == 0);
    BOOST_REQUIRE(h.board.snapshot(h.clock).slots_busy == 0);
  }
  out.digests = h.runner.digests;
  return out;
}

}  // namespace

BOOST_AUTO_TEST_CASE(random_schedules) {
  constexpr uint64_t kSchedules = 3000;
  std::map<StatusCode, int> codes;
  for (uint64_t seed = 1; seed <= kSchedules; ++seed) {
    const Outcome out = random_schedule(seed);
    for (const auto& [code, n] : out.codes) codes[code] += n;
    // Reproducible from its inputs: the same plans, byte for byte.
    if (seed % 10 == 0) BOOST_REQUIRE(random_schedule(seed).digests == out.digests);
  }
  BOOST_TEST(codes[StatusCode::kOk] > 5000);
  BOOST_TEST(codes[StatusCode::kCancelled] > 500);
  BOOST_TEST(codes[StatusCode::kDeadline] > 300);
  BOOST_TEST(codes[StatusCode::kUnavailable] > 300);
  BOOST_TEST(codes[StatusCode::kInvalidArgument] > 300);
  BOOST_TEST(codes[StatusCode::kInternal] > 300);
}

BOOST_AUTO_TEST_CASE(a_bad_row_ends_its_request_and_no_other) {
  LoopScript script;
  LoopHarness alone(script);
  const Request good = plain_request(1, 50, 60);
  const Reply reference = alone.run_one(good);
  LoopHarness h(script);
  Request bad = plain_request(2, 70, 60);
  bad.prompt.ids->at(20) = kPoison;
  bad.ignore_eos = true;
  auto good_sink = h.submit(good);
  auto bad_sink = h.submit(bad);
  h.run_dry();
  const Reply failed = bad_sink->reply();
  BOOST_TEST((failed.status.code() == StatusCode::kInternal));
  BOOST_TEST(failed.status.reason() == "non_finite_logits");
  BOOST_TEST((failed.reason == FinishReason::kFailed));
  BOOST_TEST(failed.ids.size() >= 1U);
  BOOST_TEST(good_sink->reply().status.ok());
  BOOST_TEST(good_sink->reply().ids == reference.ids);
  BOOST_TEST(h.model.open_slots() == 0);
}

BOOST_AUTO_TEST_CASE(storage_that_fails_ends_the_steps_requests_and_spoils_nothing) {
  const Request good = plain_request(1, 300, 12);
  const Reply reference = LoopHarness(LoopScript{}).run_one(good);
  for (const int every : {7, 23, 40}) {
    LoopScript script;
    script.model.storage_fails_every = every;
    LoopHarness h(script);
    int whole = 0, broken = 0;
    for (int i = 0; i < 40; ++i) {
      const Reply r = h.run_one(good);
      BOOST_REQUIRE(!h.loop.failed());
      BOOST_REQUIRE(r.status.ok() || r.status.reason() == kReasonStorage);
      if (r.status.ok()) BOOST_REQUIRE(r.ids == reference.ids);
      ++(r.status.ok() ? whole : broken);
    }
    BOOST_TEST(broken > 0);
    BOOST_TEST((whole > 0 || every == 7));
    BOOST_TEST(h.model.open_slots() == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_bad_row_fails_at_the_same_token_with_any_drafts) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Request bad = plain_request(seed, 30, 60);
    bad.prompt.ids->at(3) = kPoison;
    std::optional<Reply> serial;
    for (const int depth : {0, 1, 3, 5}) {
      LoopScript script;
      script.fixed_depth = depth;
      script.model.skill = 90;
      script.model.eos_weight = 20;  // some end before the bad row
      LoopHarness h(script);
      const Reply r = h.run_one(bad);
      if (!serial) serial = r;
      BOOST_REQUIRE(r.ids == serial->ids);
      BOOST_REQUIRE(r.status.code() == serial->status.code());
      BOOST_REQUIRE(r.stats.usage.completion_tokens == static_cast<int>(r.ids.size()));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_dead_device_fails_everything_with_the_reason) {
  LoopScript script;
  script.slots = 2;
  script.model.fail_at_forward = 4;
  LoopHarness h(script);
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  for (uint64_t i = 0; i < 5; ++i) {
    Request r = plain_request(i, 20, 50);
    r.ignore_eos = true;
    r.draft = false;
    sinks.push_back(h.submit(r));
  }
  h.run_dry();
  BOOST_TEST(h.loop.failed());
  for (const auto& sink : sinks) {
    BOOST_TEST((sink->reply().status.code() == StatusCode::kUnavailable));
    BOOST_TEST(sink->reply().status.message().find("device is gone") != std::string::npos);
  }
  const EngineStats stats = h.board.snapshot(h.clock);
  BOOST_TEST((stats.state == EngineStats::State::kFailed));
  BOOST_TEST(stats.state_detail.find("device is gone") != std::string::npos);
  BOOST_TEST((h.submit(plain_request(9, 5, 5))->reply().status.code() == StatusCode::kUnavailable));
}

BOOST_AUTO_TEST_CASE(cancel_and_deadlines_take_effect_at_the_next_step) {
  LoopScript script;
  script.slots = 1;
  script.prefill_rows = 10;
  script.queue_deadline_us = 50000;
  LoopHarness h(script);
  Request r = plain_request(1, 100, 500);
  r.ignore_eos = true;
  r.draft = false;
  // While its prompt fills.
  auto filling = h.submit(r);
  h.loop.turn();
  BOOST_TEST(filling->reply().progress == 10);
  h.book.cancel(h.last_id);
  h.loop.turn();
  BOOST_TEST((filling->reply().reason == FinishReason::kCancelled));
  BOOST_TEST(h.model.open_slots() == 0);
  // While it generates, by its own deadline.
  r.deadline_us = h.clock.monotonic_us() + 1000;
  auto decoding = h.submit(r);
  for (int i = 0; i < 15; ++i) h.loop.turn();
  BOOST_TEST(decoding->reply().ids.size() == 6U);
  h.clock.advance_us(1000);
  h.loop.turn();
  BOOST_TEST((decoding->reply().status.code() == StatusCode::kDeadline));
  BOOST_TEST(decoding->reply().ids.size() == 6U);
  // In the queue: cancelled, by its own deadline, by the queue's.
  r.deadline_us = 0;
  auto busy = h.submit(r);
  h.loop.turn();
  auto cancelled = h.submit(r);
  h.book.cancel(h.last_id);
  Request late = r;
  late.deadline_us = h.clock.monotonic_us() + 10;
  auto expired = h.submit(late);
  auto patient = h.submit(r);
  h.clock.advance_us(20);
  h.loop.turn();
  BOOST_TEST((cancelled->reply().reason == FinishReason::kCancelled));
  BOOST_TEST(!cancelled->reply().accepted);
  BOOST_TEST((expired->reply().status.code() == StatusCode::kDeadline));
  BOOST_TEST(patient->reply().finished == 0);
  h.clock.advance_us(50000);
  h.loop.turn();
  BOOST_TEST((patient->reply().status.code() == StatusCode::kUnavailable));
  BOOST_TEST(patient->reply().status.reason() == "queue_deadline");
  BOOST_TEST(busy->reply().finished == 0);
}

BOOST_AUTO_TEST_CASE(a_key_with_twenty_jobs_does_not_hold_up_another_key) {
  LoopScript script;
  script.slots = 1;
  LoopHarness h(script);
  std::vector<std::shared_ptr<KeepingSink>> jobs;
  for (uint64_t i = 0; i < 20; ++i) {
    Request r = plain_request(i, 20, 5);
    r.ignore_eos = true;
    r.label = "script";
    jobs.push_back(h.submit(r));
  }
  for (int i = 0; i < 2; ++i) h.loop.turn();
  BOOST_TEST(jobs[0]->reply().accepted);
  Request r = plain_request(99, 20, 5);
  r.label = "person";
  auto other = h.submit(r);
  while (other->reply().finished == 0) h.loop.turn();
  BOOST_TEST(jobs[0]->reply().finished == 1);
  BOOST_TEST(!jobs[1]->reply().accepted);  // the other key's request was next
  h.run_dry();
  for (const auto& job : jobs) BOOST_TEST(job->reply().status.ok());
}

BOOST_AUTO_TEST_CASE(limits_of_zero_and_one_token) {
  LoopScript script;
  LoopHarness h(script);
  const Reply none = h.run_one(plain_request(1, 30, 0));
  BOOST_TEST(none.accepted);
  BOOST_TEST(none.ids.empty());
  BOOST_TEST((none.reason == FinishReason::kLength));
  BOOST_TEST(none.stats.token_sha == "e3b0c44298fc");
  Request one = plain_request(1, 30, 1);
  one.ignore_eos = true;
  const Reply single = h.run_one(one);
  BOOST_TEST(single.ids.size() == 1U);
  BOOST_TEST((single.reason == FinishReason::kLength));
  Request budget = plain_request(1, 30, 1);
  budget.prompt.thinking.enabled = true;
  budget.prompt.thinking.budget = 0;
  const Reply closed = h.run_one(budget);
  BOOST_TEST((closed.ids == std::vector<TokenId>{kThinkEnd}));
  BOOST_TEST(closed.stats.usage.reasoning_tokens == 0);
}

BOOST_AUTO_TEST_CASE(thinking_budget_closes_thinking_after_exactly_so_many_tokens) {
  for (const int budget : {0, 1, 2, 5, 9}) {
    LoopScript script;
    script.fixed_depth = 5;
    script.model.skill = 100;
    LoopHarness h(script);
    Request r = plain_request(3, 40, 30);
    r.ignore_eos = true;
    r.prompt.thinking.enabled = true;
    r.prompt.thinking.budget = budget;
    for (TokenId id = 0; id < kVocab; ++id) {
      if (id != kThinkEnd) r.allowed_tokens.push_back(id);  // never closes by itself
    }
    const Reply reply = h.run_one(r);
    BOOST_REQUIRE(reply.ids.size() == 30U);
    const auto at = std::find(reply.ids.begin(), reply.ids.end(), kThinkEnd) - reply.ids.begin();
    BOOST_TEST(at == budget);
    BOOST_TEST(reply.stats.usage.reasoning_tokens == budget);
    BOOST_TEST(reply.stats.accepted > 0);
  }
}

BOOST_AUTO_TEST_CASE(stop_strings_end_on_their_own_token) {
  LoopScript script;
  script.fixed_depth = 5;
  script.model.skill = 100;
  Request r = plain_request(8, 40, 60);
  r.ignore_eos = true;
  r.sampling.temperature = 0;
  for (TokenId id = 8; id < kVocab; ++id) r.allowed_tokens.push_back(id);  // tokens with text
  LoopHarness free_run(script);
  const Reply whole = free_run.run_one(r);
  BOOST_REQUIRE(whole.ids.size() == 60U);
  int checked = 0;
  for (size_t n = 1; n < 40; ++n) {
    std::string stop;
    for (size_t i = n - std::min<size_t>(n, 2); i < n; ++i)
      stop.push_back(static_cast<char>('A' + whole.ids[i]));
    std::string text;
    for (size_t i = 0; i + 1 < n; ++i) text.push_back(static_cast<char>('A' + whole.ids[i]));
    if (text.find(stop) != std::string::npos) continue;  // stops before
    Request stopping = r;
    stopping.stop = {stop};
    LoopHarness h(script);
    const Reply reply = h.run_one(stopping);
    BOOST_REQUIRE(reply.ids.size() == n);
    BOOST_REQUIRE(std::equal(reply.ids.begin(), reply.ids.end(), whole.ids.begin()));
    BOOST_REQUIRE(reply.reason == FinishReason::kStop);
    ++checked;
  }
  BOOST_TEST(checked > 10);
}

BOOST_AUTO_TEST_CASE(figures_of_a_reply) {
  LoopScript script;
  script.fixed_depth = 3;
  LoopHarness h(script);
  Request r = plain_request(5, 100, 40);
  r.ignore_eos = true;
  const Reply reply = h.run_one(r);
  const ReplyStats& s = reply.stats;
  BOOST_TEST(s.usage.prompt_tokens == 100);
  BOOST_TEST(s.usage.completion_tokens == 40);
  BOOST_TEST(s.sampling_seed == 5U);
  BOOST_TEST(s.rounds + s.accepted == 39);  // the first token comes with the prompt
  BOOST_TEST(s.drafted >= s.accepted);
  BOOST_TEST(reply.progress == 100);
  const EngineStats e = h.board.snapshot(h.clock);
  BOOST_TEST(e.completion_tokens_total == 40U);
  BOOST_TEST(e.prompt_tokens_total == 100U);
  BOOST_TEST(e.accepted_total == static_cast<uint64_t>(s.accepted));
}
