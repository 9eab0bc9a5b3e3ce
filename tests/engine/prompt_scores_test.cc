// Log-probabilities of prompt tokens: what the decoder gave when it produced the same text, bit for
// bit, however the prompt is cut, whatever shares the steps; each token once, in order, also when
// the sequence was set aside between; no cache hit; one failure ends one request.
#include <random>

#include "tests/engine/mini_runs.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

constexpr int kTop = 3;

bool equal(const TokenLogprob& a, const TokenLogprob& b) {
  return a.id == b.id && a.logprob == b.logprob && a.top == b.top;
}

// Entry i is of ids[i]; the first one follows nothing.
void check_whole(const Reply& reply, const std::vector<TokenId>& ids) {
  BOOST_REQUIRE(reply.prompt.size() == ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const TokenLogprob& one = reply.prompt[i];
    BOOST_REQUIRE(one.id == ids[i]);
    BOOST_REQUIRE((one.rank == 0) == (i == 0));
    if (i == 0) continue;
    const auto at = std::find_if(one.top.begin(), one.top.end(),
                                 [&](const auto& t) { return t.first == one.id; });
    if (at == one.top.end()) {
      BOOST_REQUIRE(one.rank > 1);
      if (!one.top.empty()) BOOST_REQUIRE(one.logprob <= one.top.back().second);
    } else {
      BOOST_REQUIRE(at->second == one.logprob);
      BOOST_REQUIRE(one.rank <= 1 + (at - one.top.begin()));
    }
  }
}

Request scored(std::vector<TokenId> ids, int max_tokens) {
  Request r;
  r.prompt.ids = std::move(ids);
  r.prompt_logprobs = kTop;
  r.max_tokens = max_tokens;
  r.ignore_eos = true;
  r.sampling.temperature = 0;
  return r;
}

std::vector<TokenId> random_ids(std::mt19937_64& rng, size_t count) {
  std::vector<TokenId> ids;
  while (ids.size() < count) ids.push_back(static_cast<TokenId>(6 + rng() % 1000));
  return ids;
}

// A text that the mini model wrote in part, with what it said of its own tokens.
struct Written {
  std::vector<TokenId> ids;
  std::vector<TokenLogprob> said;  // of the last ones
};

Written written(std::mt19937_64& rng, size_t prompt) {
  Request request = random_mini_request(rng, 1);
  request.prompt.ids = random_ids(rng, prompt);
  request.stop.clear();
  request.max_tokens = 24;
  request.top_logprobs = kTop;
  const Reply reply = run_mini(mini_model(), {request}, RunOptions{})[0];
  BOOST_REQUIRE(reply.ids.size() == 24U);
  Written out{*request.prompt.ids, reply.logprobs};
  out.ids.insert(out.ids.end(), reply.ids.begin(), reply.ids.end());
  return out;
}

bool says_the_same(const Reply& reply, const Written& text) {
  const size_t before = text.ids.size() - text.said.size();
  for (size_t i = 0; i < text.said.size(); ++i) {
    if (!equal(reply.prompt[before + i], text.said[i])) return false;
  }
  return true;
}

}  // namespace

BOOST_AUTO_TEST_CASE(they_are_what_the_decoder_said) {
  std::mt19937_64 rng(31);
  for (const size_t prompt : {1U, 170U}) {
    const Written text = written(rng, prompt);
    Reply first;
    for (const int rows : {1024, 17}) {
      RunOptions o;
      o.prefill_rows = rows;
      for (const int max_tokens : {0, 4}) {
        const Reply reply = run_mini(mini_model(), {scored(text.ids, max_tokens)}, o)[0];
        check_whole(reply, text.ids);
        BOOST_REQUIRE(says_the_same(reply, text));
        if (first.prompt.empty()) first = reply;
        BOOST_REQUIRE(
            std::equal(reply.prompt.begin(), reply.prompt.end(), first.prompt.begin(), equal));
      }
      // What is sampled behind a scored prompt is what is sampled behind any.
      Request plain = scored(text.ids, 6), asked = plain;
      plain.prompt_logprobs = -1;
      plain.top_logprobs = asked.top_logprobs = 2;
      BOOST_REQUIRE(
          same(run_mini(mini_model(), {plain}, o)[0], run_mini(mini_model(), {asked}, o)[0]));
    }
  }
}

BOOST_AUTO_TEST_CASE(company_changes_nothing) {
  std::mt19937_64 rng(32);
  const Written text = written(rng, 150), other = written(rng, 90);
  std::vector<Request> requests = {scored(text.ids, 3), random_mini_request(rng, 200),
                                   scored(other.ids, 0), random_mini_request(rng, 50)};
  RunOptions o;
  o.slots = kMiniSlots;
  o.prefill_rows = 90;
  o.depth = 3;
  o.stagger = 7;
  const std::vector<Reply> replies = run_mini(mini_model(), requests, o);
  check_whole(replies[0], text.ids);
  check_whole(replies[2], other.ids);
  BOOST_REQUIRE(says_the_same(replies[0], text));
  BOOST_REQUIRE(says_the_same(replies[2], other));
  for (const size_t plain : {1U, 3U})
    BOOST_REQUIRE(same(replies[plain], run_mini(mini_model(), {requests[plain]}, RunOptions{})[0]));
  // A model whose rows depend on each other is noticed.
  Leaky leaky(mini_model());
  BOOST_TEST(!says_the_same(run_mini(leaky, requests, o)[0], text));
}

BOOST_AUTO_TEST_CASE(no_cache_hit_and_each_token_once) {
  std::mt19937_64 rng(33);
  LoopScript script;
  script.slots = 2;
  script.snapshot_units = 64;
  script.model.pool_blocks = 24;
  int hits = 0;
  for (int round = 0; round < 60; ++round) {
    LoopHarness h(script);
    std::vector<TokenId> ids;
    for (uint64_t n = 1 + rng() % 700; n > 0; --n)
      ids.push_back(static_cast<TokenId>(8 + rng() % 50));
    Request request = scored(ids, static_cast<int>(rng() % 40));
    request.background = true;
    Request plain = request;
    plain.prompt_logprobs = -1;
    const Reply before = h.run_one(plain);  // it is in the cache now
    const auto sink = h.submit(request);
    std::vector<std::shared_ptr<KeepingSink>> others;
    for (int i = 0; i < 3; ++i) {  // it gives way, somewhere
      for (uint64_t turns = rng() % 12; turns > 0; --turns) h.loop.turn();
      Request front = plain;
      front.background = false;
      front.max_tokens = 1 + static_cast<int>(rng() % 4);
      others.push_back(h.submit(front));
      others.push_back(h.submit(front));
    }
    h.run_dry();
    const Reply reply = sink->reply();
    BOOST_REQUIRE(reply.status.ok());
    BOOST_REQUIRE(reply.stats.usage.cached_tokens == 0);
    check_whole(reply, ids);
    BOOST_REQUIRE(reply.ids == before.ids);
    LoopHarness alone(script);
    const Reply undisturbed = alone.run_one(request);
    const Reply behind = alone.run_one(plain);  // what it left serves others
    BOOST_REQUIRE(behind.ids == before.ids);
    hits += behind.stats.usage.cached_tokens > 0 ? 1 : 0;
    BOOST_REQUIRE(std::equal(reply.prompt.begin(), reply.prompt.end(), undisturbed.prompt.begin(),
                             undisturbed.prompt.end(), equal));
  }
  BOOST_TEST(hits > 10);
}

BOOST_AUTO_TEST_CASE(a_row_that_is_no_number_ends_its_request_alone) {
  // Both fill in turns; the broken one's rows come as NaN from one on.
  class Broken final : public PassingModel {
   public:
    explicit Broken(Model& inner) : PassingModel(inner) {}
    Status forward(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                   StepLogits& logits, ForwardProbe* probe) override {
      TF_RETURN_IF_ERROR(inner_.forward(plan, device_tokens, logits, probe));
      const auto vocab = logits.values.size() / std::max<size_t>(1, logits.rows.size());
      for (size_t r = 0; r < logits.rows.size(); ++r) {
        if (logits.rows[r].slot == 0 && logits.rows[r].position == 70)
          logits.values[r * vocab + 5] = std::numeric_limits<float>::quiet_NaN();
      }
      return ok_status();
    }
  };
  std::mt19937_64 rng(34);
  Broken broken(mini_model());
  StepExecutor executor(broken);
  ScriptedText text;
  ManualClock clock;
  StatsBoard board;
  TicketBook book;
  const auto policy = make_fixed_depth_policy(0);
  LoopOptions options;
  options.planner.slots = 2;
  options.planner.pool_blocks = kMiniSlots * blocks_for(kMiniContext);
  options.planner.decoder_span = broken.config().cone_rows();
  options.vocab = kMiniVocab;
  options.queue_deadline_us = INT64_MAX;
  EngineLoop loop(options, {executor, text, *policy, clock, null_log(), board});
  const std::vector<TokenId> ids = random_ids(rng, 130);
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  for (int i = 0; i < 2; ++i) {
    Submission s;
    sinks.push_back(std::make_shared<KeepingSink>());
    s.ticket = book.open(sinks.back(), SIZE_MAX);
    s.request = scored(ids, 2);
    s.prompt = *text.encode(s.request.prompt);
    s.price = *price_request({kMiniContext, options.planner.pool_blocks}, 130, 2, true);
    loop.take(std::move(s));
  }
  while (!loop.idle()) BOOST_REQUIRE((loop.turn(), !loop.failed()));
  BOOST_TEST(sinks[0]->reply().status.reason() == kReasonNonFinite);
  BOOST_TEST(sinks[0]->reply().prompt.size() == 65U);  // of the chunk before
  BOOST_TEST(sinks[1]->reply().status.ok());
  check_whole(sinks[1]->reply(), ids);
}
