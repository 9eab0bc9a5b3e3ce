// A reply that gives way, to foreground work or because the pool is short, and goes on later is,
// bit for bit, the one that nobody disturbed: tokens, log-probabilities, end. Over random requests
// (penalties, biases, masks, stop strings, budgets, drafts), set aside at random moments, several
// times.
#include <random>

#include "tests/engine/random_requests.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

// Of a reply that takes a while.
Request long_request(std::mt19937_64& rng) {
  Request r = random_request(rng);
  r.max_tokens = static_cast<int>(10 + rng() % 60);
  r.ignore_eos = rng() % 100 < 70;
  return r;
}

Request background_request(std::mt19937_64& rng) {
  Request r = long_request(rng);
  r.background = true;
  return r;
}

Request foreground_request(std::mt19937_64& rng) {
  Request r;
  r.prompt.ids.emplace();
  for (uint64_t n = 1 + rng() % 100; n > 0; --n)
    r.prompt.ids->push_back(static_cast<TokenId>(8 + rng() % 50));
  r.max_tokens = static_cast<int>(1 + rng() % 5);
  return r;
}

// Runs `request` beside foreground requests that come at random moments; how often it gave way.
Reply disturbed(const Request& request, const LoopScript& script, std::mt19937_64& rng,
                uint64_t& times) {
  LoopHarness h(script);
  auto sink = h.submit(request);
  std::vector<std::shared_ptr<KeepingSink>> others;
  for (int i = 0; i < 6; ++i) {
    for (uint64_t turns = rng() % 25; turns > 0; --turns) h.loop.turn();
    others.push_back(h.submit(foreground_request(rng)));
  }
  h.run_dry();
  times += h.board.snapshot(h.clock).preemptions_total;
  for (const auto& other : others) BOOST_REQUIRE(other->reply().status.ok());
  BOOST_REQUIRE(h.model.open_slots() == 0);
  return sink->reply();
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_reply_that_gave_way_is_the_undisturbed_one) {
  std::mt19937_64 rng(17);
  uint64_t times = 0;
  for (int round = 0; round < 300; ++round) {
    const Request request = background_request(rng);
    LoopScript script;
    script.slots = 1;
    script.prefill_rows = 5 + static_cast<int>(rng() % 100);
    script.model.skill = static_cast<unsigned>(rng() % 101);
    LoopScript plain = script;
    plain.prefill_rows = 64;
    LoopHarness alone(plain);
    Request serial = request;
    serial.draft = false;
    const Reply wanted = alone.run_one(serial);
    script.fixed_depth = static_cast<int>(rng() % 6);
    require_equal(disturbed(request, script, rng, times), wanted);
  }
  BOOST_TEST(times > 300U);
}

// Conversations without a limit of their own, more of them than the pool has room for.
BOOST_AUTO_TEST_CASE(replies_that_outgrow_the_pool_are_the_undisturbed_ones) {
  std::mt19937_64 rng(29);
  uint64_t times = 0;
  int compared = 0;
  for (int round = 0; round < 40; ++round) {
    LoopScript script;
    script.slots = 2 + static_cast<int>(rng() % 4);
    script.model.pool_blocks = 4 + static_cast<int64_t>(rng() % 3);
    script.context = 256 * script.model.pool_blocks;
    script.reply_allowance = static_cast<int64_t>(rng() % 100);
    script.prefill_rows = 30 + static_cast<int>(rng() % 100);
    script.model.eos_weight = 0;
    script.snapshot_units = rng() % 2 ? 20 : 0;
    script.fixed_depth = static_cast<int>(rng() % 6);
    std::vector<Request> requests;
    for (int i = 0; i < 5; ++i) {
      requests.push_back(long_request(rng));
      Request& r = requests.back();
      r.max_tokens.reset();
      r.ignore_eos = false;
      r.background = rng() % 4 == 0;
      r.sampling.logit_bias.emplace_back(kEos, -100.0F);
      if (rng() % 2) r.stop.clear();
      for (uint64_t n = rng() % 300; n > 0; --n)
        r.prompt.ids->push_back(static_cast<TokenId>(8 + rng() % 50));
    }
    LoopHarness h(script);
    std::vector<std::shared_ptr<KeepingSink>> sinks;
    for (const Request& r : requests) {
      sinks.push_back(h.submit(r));
      for (uint64_t turns = rng() % 40; turns > 0; --turns) h.loop.turn();
    }
    h.run_dry();
    times += h.board.snapshot(h.clock).preemptions_total;
    BOOST_REQUIRE(h.model.open_slots() == 0);
    BOOST_REQUIRE(h.board.snapshot(h.clock).pool_tokens_used == 0);
    for (size_t i = 0; i < requests.size(); ++i, ++compared) {
      LoopScript alone = script;
      alone.slots = 1;
      alone.snapshot_units = 0;
      alone.prefill_rows = 64;
      Request serial = requests[i];
      serial.draft = false;
      require_equal(sinks[i]->reply(), LoopHarness(alone).run_one(serial));
    }
  }
  BOOST_TEST(compared == 200);
  BOOST_TEST(times > 60U);
}

BOOST_AUTO_TEST_CASE(a_model_that_remembers_its_batch_is_caught) {
  // The planted fault: logits that depend on how many rows share the step.
  std::mt19937_64 rng(19);
  int different = 0;
  uint64_t times = 0;
  for (int round = 0; round < 40; ++round) {
    Request request = background_request(rng);
    request.max_tokens = 60;
    request.ignore_eos = true;
    request.allowed_tokens.clear();
    request.stop.clear();
    request.parallel_tool_calls = true;
    request.draft = false;
    LoopScript script;
    script.slots = 2;
    script.model.plant_leak = true;
    LoopHarness alone(script);
    const Reply wanted = alone.run_one(request);
    different += disturbed(request, script, rng, times).ids != wanted.ids;
  }
  BOOST_TEST(different > 20);
}

BOOST_AUTO_TEST_CASE(what_waits_set_aside_can_be_cancelled_and_fails_with_the_rest) {
  std::mt19937_64 rng(23);
  LoopScript script;
  script.slots = 1;
  for (const bool cancel : {true, false}) {
    LoopHarness h(script);
    Request back = background_request(rng);
    back.max_tokens = 200;
    back.ignore_eos = true;
    back.allowed_tokens.clear();
    back.stop.clear();
    back.parallel_tool_calls = true;
    back.prompt.thinking = {};
    auto sink = h.submit(back);
    const RequestId id = h.last_id;
    for (int i = 0; i < 30; ++i) h.loop.turn();
    const size_t sent = sink->reply().ids.size();
    BOOST_TEST(sent > 5U);
    Request front = foreground_request(rng);
    front.max_tokens = 300;
    front.ignore_eos = true;
    auto other = h.submit(front);
    h.loop.turn();
    BOOST_TEST(other->reply().accepted);
    BOOST_TEST(h.board.snapshot(h.clock).preemptions_total == 1U);
    // The queue's deadline does not end what has begun to answer.
    h.clock.advance_us(script.queue_deadline_us + 1);
    h.loop.turn();
    BOOST_TEST(sink->reply().finished == 0);
    if (cancel) {
      h.book.cancel(id);
      h.loop.turn();
      BOOST_TEST((sink->reply().reason == FinishReason::kCancelled));
      BOOST_TEST(other->reply().finished == 0);
    } else {
      h.loop.end_all(unavailable("the server is stopping", "stopping"));
      BOOST_TEST((sink->reply().status.code() == StatusCode::kUnavailable));
      BOOST_TEST((other->reply().status.code() == StatusCode::kUnavailable));
    }
    BOOST_TEST(sink->reply().ids.size() == sent);
    BOOST_TEST(sink->reply().stats.usage.completion_tokens == static_cast<int>(sent));
  }
}
