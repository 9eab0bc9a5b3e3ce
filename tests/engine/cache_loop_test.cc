// The prefix cache in the engine's loop over a scripted model, whose blocks remember what they
// hold: a hit gives the reply of a cold run, at any length, under eviction, flushes and company;
// nothing leaks; users of different salts share nothing.
#include <cstdlib>
#include <random>

#include "tests/engine/loop_harness.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

std::vector<TokenId> text(std::mt19937_64& rng, int64_t n) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<TokenId>(10 + rng() % 50));
  return ids;
}

Request request_of(std::vector<TokenId> ids, int max_tokens, uint64_t seed) {
  Request r;
  r.prompt.ids = std::move(ids);
  r.max_tokens = max_tokens;
  r.sampling.seed = seed;
  r.sampling.temperature = 0.7;
  r.ignore_eos = true;
  // Control ids of the script would mean something else in the next turn's prompt.
  for (TokenId id = 0; id < 10; ++id) r.sampling.logit_bias.push_back({id, -100.0F});
  return r;
}

LoopScript cached_script() {
  LoopScript script;
  script.snapshot_units = 64;
  script.model.eos_weight = 0;
  return script;
}

Reply cold(const Request& request) {
  LoopScript script = cached_script();
  script.snapshot_units = 0;
  return LoopHarness(script).run_one(request);
}

// Nothing is held when the cache is empty and no request runs.
void require_empty(LoopHarness& h) {
  BOOST_REQUIRE_MESSAGE(!h.loop.failed(), h.board.detail());
  h.loop.flush_cache(false);
  h.run_dry();
  const EngineStats s = h.board.snapshot(h.clock);
  BOOST_TEST(s.pool_tokens_used == 0);
  BOOST_TEST(s.pool_tokens_cached == 0);
  BOOST_TEST(s.cache_snapshots == 0);
  BOOST_TEST(s.cache_blocks == 0);
  BOOST_TEST(h.model.blocks_used() == 0);
  BOOST_TEST(h.model.snapshots() == 0U);
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_second_of_two_equal_prompts_computes_one_row) {
  std::mt19937_64 rng(1);
  for (const int64_t n : {16, 17, 255, 256, 257, 511, 512, 513, 900}) {
    LoopHarness h(cached_script());
    const Request request = request_of(text(rng, n), 20, 7);
    const Reply expected = cold(request);
    BOOST_TEST(h.run_one(request).stats.usage.cached_tokens == 0);
    const int64_t before = h.runner.rows;
    const Reply again = h.run_one(request);
    BOOST_TEST(again.stats.usage.cached_tokens == n - 1);
    BOOST_TEST((again.ids == expected.ids));
    BOOST_TEST(h.runner.rows - before < 1 + 20 * 6);
    require_empty(h);
  }
}

BOOST_AUTO_TEST_CASE(the_next_turn_starts_behind_the_reply) {
  std::mt19937_64 rng(2);
  for (const bool reuse : {true, false}) {
    LoopScript script = cached_script();
    script.reuse_replies = reuse;
    LoopHarness h(script);
    std::vector<TokenId> conversation = text(rng, 100);
    int64_t known = 0;
    for (int turn = 0; turn < 8; ++turn) {
      const Request request = request_of(conversation, 40, rng());
      const Reply reply = h.run_one(request);
      BOOST_TEST((reply.ids == cold(request).ids));
      BOOST_TEST(reply.stats.usage.cached_tokens == known);
      // The last token of a reply has not been computed when it ends.
      known = static_cast<int64_t>(conversation.size()) + (reuse ? 39 : 0);
      conversation.insert(conversation.end(), reply.ids.begin(), reply.ids.end());
      const auto next = text(rng, 30);
      conversation.insert(conversation.end(), next.begin(), next.end());
    }
    require_empty(h);
  }
}

BOOST_AUTO_TEST_CASE(a_prompt_that_branches_off_leaves_a_snapshot_for_the_next) {
  std::mt19937_64 rng(3);
  LoopHarness h(cached_script());
  const std::vector<TokenId> system = text(rng, 700);
  std::vector<int> cached;
  for (int i = 0; i < 4; ++i) {
    std::vector<TokenId> ids = system;
    const auto own = text(rng, 20 + i);
    ids.insert(ids.end(), own.begin(), own.end());
    const Request request = request_of(ids, 5, 1);
    const Reply reply = h.run_one(request);
    BOOST_TEST((reply.ids == cold(request).ids));
    cached.push_back(reply.stats.usage.cached_tokens);
  }
  // The second finds where the first was left, but nothing to start from there.
  BOOST_TEST(cached == (std::vector<int>{0, 0, 700, 700}), boost::test_tools::per_element());
  require_empty(h);
}

BOOST_AUTO_TEST_CASE(the_second_chat_starts_behind_the_system_text_of_the_first) {
  std::mt19937_64 rng(9);
  const auto letters = [&](int64_t n) {
    std::string s;
    while (static_cast<int64_t>(s.size()) < n) s.push_back(static_cast<char>('a' + rng() % 26));
    return s;
  };
  for (const int64_t system : {16, 40, 256, 700}) {
    LoopHarness h(cached_script());
    const std::string text_of_system = letters(system);
    for (int chat = 0; chat < 3; ++chat) {
      Request request = request_of({}, 5, 1);
      request.prompt.ids.reset();
      ChatMessage message;
      message.role = Role::kSystem;
      message.content.emplace_back().text = text_of_system;
      request.prompt.messages.push_back(message);
      message.role = Role::kUser;
      const std::string begin(1, static_cast<char>('a' + chat));
      message.content[0].text = begin + letters(chat == 1 ? 3 : 300);
      request.prompt.messages.push_back(message);
      const Reply reply = h.run_one(request);
      BOOST_TEST((reply.ids == cold(request).ids));
      BOOST_TEST(reply.stats.usage.cached_tokens == (chat == 0 ? 0 : system));
    }
    require_empty(h);
  }
}

// Rows that are not numbers behind a prompt: the same prompt is computed from its first row again,
// whether its reply had begun, others had started from it, or it was long enough for snapshots in
// its middle. What only begins alike serves on.
BOOST_AUTO_TEST_CASE(a_prompt_whose_rows_fail_serves_nobody) {
  std::mt19937_64 rng(10);
  for (const int64_t n : {40, 256, 700, 4500}) {
    for (const bool company : {false, true}) {
      LoopScript script = cached_script();
      script.context = 8192;
      script.prefill_rows = 2048;
      LoopHarness h(script);
      auto common = text(rng, n / 2);
      const auto joined = [&](std::vector<TokenId> more) {
        std::vector<TokenId> ids = common;
        ids.insert(ids.end(), more.begin(), more.end());
        return ids;
      };
      const Request good = request_of(joined(text(rng, n / 2)), 5, 1);
      (void)h.run_one(good);
      std::vector<TokenId> bad = joined(text(rng, n / 2));
      bad[bad.size() - 2] = kPoison;
      const Request failing = request_of(bad, 50, 1);
      const auto fails = [&](const Reply& r) {
        BOOST_TEST(r.status.reason() == "non_finite_logits");
        return r.stats.usage.cached_tokens;
      };
      auto sink = h.submit(failing);
      std::shared_ptr<KeepingSink> other;
      if (company) {  // starts from the snapshot at the prompt's end
        while (sink->reply().ids.empty()) h.loop.turn();
        other = h.submit(failing);
      }
      h.run_dry();
      (void)fails(sink->reply());
      if (company) BOOST_TEST(fails(other->reply()) >= n - 1);
      for (int again = 0; again < 2; ++again) BOOST_TEST(fails(h.run_one(failing)) == 0);
      const Reply kept = h.run_one(good);
      BOOST_TEST(kept.stats.usage.cached_tokens == static_cast<int>(good.prompt.ids->size()) - 1);
      LoopScript none = script;
      none.snapshot_units = 0;
      BOOST_TEST((kept.ids == LoopHarness(none).run_one(good).ids));
      require_empty(h);
    }
  }
}

BOOST_AUTO_TEST_CASE(salts_share_nothing) {
  std::mt19937_64 rng(4);
  LoopHarness h(cached_script());
  Request request = request_of(text(rng, 300), 5, 1);
  const auto cached = [&](const std::string& salt) {
    request.cache_salt = salt;
    return h.run_one(request).stats.usage.cached_tokens;
  };
  BOOST_TEST(cached("") == 0);
  BOOST_TEST(cached("a") == 0);
  BOOST_TEST(cached("b") == 0);
  BOOST_TEST(cached("a") == 299);
  BOOST_TEST(cached("") == 299);
  require_empty(h);
}

BOOST_AUTO_TEST_CASE(a_flush_while_serving_changes_no_reply) {
  std::mt19937_64 rng(5);
  LoopHarness h(cached_script());
  const Request request = request_of(text(rng, 600), 60, 9);
  const Reply expected = cold(request);
  for (int round = 0; round < 20; ++round) {
    auto first = h.submit(request);
    for (uint64_t turns = rng() % 30; turns > 0; --turns) h.loop.turn();
    h.loop.flush_cache(false);
    auto second = h.submit(request);
    h.run_dry();
    BOOST_TEST((first->reply().ids == expected.ids));
    BOOST_TEST((second->reply().ids == expected.ids));
  }
  require_empty(h);
}

BOOST_AUTO_TEST_CASE(a_prompt_that_was_left_is_gone_on_with) {
  std::mt19937_64 rng(6);
  LoopHarness h(cached_script());
  const Request request = request_of(text(rng, 1000), 5, 9);
  auto left = h.submit(request);
  for (int turns = 0; turns < 10; ++turns) h.loop.turn();
  h.book.cancel(h.last_id);
  h.run_dry();
  BOOST_TEST((left->reply().reason == FinishReason::kCancelled));
  const Reply reply = h.run_one(request);
  BOOST_TEST(reply.stats.usage.cached_tokens == 640);  // ten chunks of 64
  BOOST_TEST((reply.ids == cold(request).ids));
  require_empty(h);
}

namespace {

// Texts that begin alike, branch, are edited and continued; small pools, so that entries go.
struct Life {
  explicit Life(uint64_t seed, const LoopScript& script) : rng(seed), h(script) {
    for (int i = 0; i < 3; ++i) bases.push_back(text(rng, 1200));
  }
  std::vector<TokenId> prompt() {
    std::vector<TokenId> ids = bases[rng() % bases.size()];
    ids.resize(1 + rng() % 1200);
    if (!past.empty() && rng() % 3 == 0) {  // the next turn of a conversation
      const auto& [request, sink] = past[rng() % past.size()];
      ids = *request.prompt.ids;
      const auto reply = sink->reply().ids;
      ids.insert(ids.end(), reply.begin(), reply.end());
    }
    if (rng() % 4 == 0) ids[rng() % ids.size()] = 11;  // an edit in the middle
    const auto own = text(rng, static_cast<int64_t>(rng() % 40));
    ids.insert(ids.end(), own.begin(), own.end());
    ids.resize(std::min<size_t>(ids.size(), 1400));
    return ids;
  }
  void live(int requests) {
    for (int i = 0; i < requests; ++i) {
      Request r = request_of(prompt(), 1 + static_cast<int>(rng() % 40), rng());
      if (rng() % 8 == 0) r.cache_salt = "other";
      if (rng() % 6 == 0) r.background = true;
      past.push_back({r, h.submit(r)});
      for (uint64_t turns = rng() % 20; turns > 0; --turns) {
        h.clock.advance_us(1000);
        h.loop.turn();
      }
      if (rng() % 10 == 0) h.book.cancel(h.last_id);
      if (rng() % 40 == 0) h.loop.flush_cache(false);
    }
    h.run_dry();
  }
  std::mt19937_64 rng;
  LoopHarness h;
  std::vector<std::vector<TokenId>> bases;
  std::vector<std::pair<Request, std::shared_ptr<KeepingSink>>> past;
};

LoopScript life_script(uint64_t seed) {
  LoopScript script = cached_script();
  std::mt19937_64 rng(seed);
  script.slots = 1 + static_cast<int>(rng() % 4);
  script.prefill_rows = 1 + static_cast<int>(rng() % 300);
  script.model.pool_blocks = 7 + static_cast<int64_t>(rng() % 20);
  script.context = 1536;
  script.snapshot_units = static_cast<int64_t>(rng() % 20);
  script.exact = rng() % 4 != 0;
  script.reuse_replies = rng() % 3 != 0;
  script.fingerprint_mask = rng() % 2 != 0 ? 3 : ~uint64_t{0};  // nearly every hash collides
  return script;
}

}  // namespace

BOOST_AUTO_TEST_CASE(random_lives_give_the_replies_of_cold_runs_and_leak_nothing) {
  uint64_t hits = 0;
  uint64_t evicted = 0;
  const char* more = std::getenv("TENSORFOLD_CACHE_LIVES");
  const uint64_t lives = more != nullptr ? std::strtoull(more, nullptr, 10) : 40;
  for (uint64_t seed = 1; seed <= lives; ++seed) {
    Life life(seed, life_script(seed));
    life.live(40);
    BOOST_REQUIRE_MESSAGE(!life.h.loop.failed(), life.h.board.detail());
    for (const auto& [request, sink] : life.past) {
      const Reply reply = sink->reply();
      BOOST_REQUIRE_EQUAL(reply.finished, 1);
      if (reply.reason == FinishReason::kCancelled || !reply.status.ok()) continue;
      BOOST_REQUIRE((reply.ids == cold(request).ids));
    }
    const EngineStats s = life.h.board.snapshot(life.h.clock);
    hits += s.cache_hits_total;
    evicted += s.cache_evicted_total;
    BOOST_TEST(s.cache_snapshot_bytes <= s.cache_snapshot_bytes_max);
    require_empty(life.h);
  }
  BOOST_TEST(hits > 200U);
  BOOST_TEST(evicted > 200U);
}

BOOST_AUTO_TEST_CASE(the_same_life_gives_the_same_plans) {
  const LoopScript script = life_script(5);
  Life a(77, script);
  Life b(77, script);
  a.live(30);
  b.live(30);
  BOOST_TEST((a.h.runner.digests == b.h.runner.digests));
  BOOST_TEST(a.h.runner.digests.size() > 100U);
}

BOOST_AUTO_TEST_CASE(a_copy_that_is_not_one_is_caught) {
  // The planted fault: copied blocks hold something else.
  std::mt19937_64 rng(8);
  LoopScript script = cached_script();
  script.model.plant_stale = true;
  LoopHarness h(script);
  const Request request = request_of(text(rng, 300), 5, 1);
  (void)h.run_one(request);
  BOOST_TEST(!h.loop.failed());
  (void)h.submit(request);
  h.run_dry();
  BOOST_TEST(h.loop.failed());
}
