// Exactness over the real forward pass, in numbers: drafted equals serial, batched equals alone and
// any chunking equals any other, each over 200 random requests and more, greedy and seeded, with
// penalties, biases, masks, stop strings and log-probabilities, bit for bit. Each comparison must
// also notice a model that is not row-invariant.
#include <algorithm>
#include <random>

#include "tests/engine/mini_runs.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

constexpr int kCases = 200;  // of each comparison
constexpr int kFaultyCases = 6;
constexpr int kPromptMax = 12;
constexpr int kReplyMax = 8;

Request short_request(std::mt19937_64& rng) {
  Request r = random_mini_request(rng, kPromptMax);
  r.max_tokens = 2 + static_cast<int>(rng() % (kReplyMax - 1));
  return r;
}

Reply serial(Model& model, Request request) {
  request.draft = false;
  const Reply r = run_mini(model, {request}, RunOptions{})[0];
  BOOST_REQUIRE(r.stats.drafted == 0);
  return r;
}

struct Tally {
  int different = 0;
  int drafted = 0, accepted = 0;
  int greedy = 0, masked = 0, stopped = 0;
};

void count(const Request& request, const Reply& reply, Tally& tally) {
  tally.drafted += reply.stats.drafted;
  tally.accepted += reply.stats.accepted;
  tally.greedy += request.sampling.temperature == 0;
  tally.masked += !request.allowed_tokens.empty();
  tally.stopped += reply.reason == FinishReason::kStop;
}

// Drafts of any depth and quality against none. `model` runs both.
Tally drafted_and_serial(Model& model, int cases, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Tally tally;
  for (int i = 0; i < cases; ++i) {
    const Request request = short_request(rng);
    const Reply plain = serial(model, request);
    const unsigned skills[] = {0, 70, 90, 100};
    KnowingDrafter drafter(model, skills[rng() % 4]);
    drafter.know(*request.prompt.ids, plain.ids);
    RunOptions o;
    o.depth = 1 + static_cast<int>(rng() % 5);
    o.adaptive = rng() % 4 == 0;
    const Reply drafted = run_mini(drafter, {request}, o)[0];
    tally.different += !same(drafted, plain);
    count(request, drafted, tally);
  }
  return tally;
}

// Several at once, arriving at different times, drafted or not, beside each alone.
Tally batched_and_alone(Model& model, int cases, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Tally tally;
  for (int done = 0; done < cases;) {
    std::vector<Request> requests;
    std::vector<Reply> expected;
    KnowingDrafter drafter(model, 70);
    for (uint64_t n = 3 + rng() % 4; n > 0; --n, ++done) {
      requests.push_back(short_request(rng));
      expected.push_back(serial(model, requests.back()));
      drafter.know(*requests.back().prompt.ids, expected.back().ids);
    }
    RunOptions o;
    o.slots = 2 + static_cast<int>(rng() % 3);
    o.prefill_rows = 5 + static_cast<int>(rng() % 60);
    o.depth = static_cast<int>(rng() % 6);
    o.adaptive = rng() % 4 == 0;
    o.stagger = 1 + rng() % 1000;
    const auto replies = run_mini(drafter, requests, o);
    for (size_t i = 0; i < replies.size(); ++i) {
      tally.different += !same(replies[i], expected[i]);
      count(requests[i], replies[i], tally);
    }
  }
  return tally;
}

// Prompts cut anywhere, on both sides of the window (32) and of the cone (156 rows).
Tally whole_and_cut(Model& model, int cases, uint64_t seed) {
  const int64_t edges[] = {model.config().window, model.config().cone_rows()};
  std::mt19937_64 rng(seed);
  Tally tally;
  for (int i = 0; i < cases; ++i) {
    Request request = short_request(rng);
    request.max_tokens = 2;
    int64_t length = 2 + static_cast<int64_t>(rng() % 40);
    if (i % 6 == 0) length = edges[i % 18 == 0 ? 1 : 0] - 2 + static_cast<int64_t>(rng() % 5);
    request.prompt.ids->clear();
    for (int64_t n = length; n > 0; --n)
      request.prompt.ids->push_back(static_cast<TokenId>(6 + rng() % 1000));
    RunOptions o;
    o.exact = rng() % 4 != 0;
    const Reply whole = run_mini(model, {request}, o)[0];
    o.prefill_rows = 1 + static_cast<int>(rng() % static_cast<uint64_t>(length - 1));
    const Reply cut = run_mini(model, {request}, o)[0];
    tally.different += !same(cut, whole);
    count(request, cut, tally);
  }
  return tally;
}

void require_exact(const Tally& tally) {
  BOOST_TEST(tally.different == 0);
  BOOST_TEST(tally.greedy > kCases / 4);
  BOOST_TEST(tally.greedy < kCases * 3 / 4);
  BOOST_TEST(tally.masked > kCases / 10);
}

}  // namespace

BOOST_AUTO_TEST_CASE(drafted_equals_serial) {
  const Tally tally = drafted_and_serial(narrow_mini_model(), kCases, 1);
  require_exact(tally);
  BOOST_TEST(tally.accepted > kCases);
  BOOST_TEST(tally.drafted - tally.accepted > kCases);
  BOOST_TEST(tally.stopped > 0);
}

BOOST_AUTO_TEST_CASE(batched_equals_alone) {
  const Tally tally = batched_and_alone(narrow_mini_model(), kCases, 2);
  require_exact(tally);
  BOOST_TEST(tally.accepted > kCases / 4);
}

BOOST_AUTO_TEST_CASE(any_chunking_equals_any_other) {
  require_exact(whole_and_cut(narrow_mini_model(), kCases, 3));
}

BOOST_AUTO_TEST_CASE(each_comparison_notices_rows_that_leak) {
  // The planted fault: the last bits of the logits depend on how many rows share the step.
  Leaky leaky(narrow_mini_model());
  BOOST_TEST(drafted_and_serial(leaky, kFaultyCases, 1).different > 0);
  BOOST_TEST(batched_and_alone(leaky, kFaultyCases, 2).different > 0);
  BOOST_TEST(whole_and_cut(leaky, kFaultyCases, 3).different > 0);
}
