// The expected-gain policy against every other choice of depths, and against what any threshold
// gives in the long run; pauses.
#include "engine/draft/depth_policy.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <random>

#include "engine/draft/draft_pause_log.h"
#include "engine/draft/sequence_drafting.h"

using namespace tensorfold;

namespace {

// Random costs of a step that grow with rows and sequences, in no regular way.
CostTable random_costs(std::mt19937_64& rng) {
  const auto more = [&] { return 0.02 + static_cast<double>(rng() % 100) / 100; };
  CostTable t;
  t.sequences = {1, 2, 4};
  t.rows = {1, 2, 4, 6};
  t.step_us.clear();
  t.draft_us.clear();
  for (size_t s = 0; s < t.sequences.size(); ++s) {
    for (size_t r = 0; r < t.rows.size(); ++r) {
      const double left = r > 0 ? t.step_us.back() : 0;
      const double above = s > 0 ? t.step_us[(s - 1) * t.rows.size() + r] : 0;
      t.step_us.push_back(std::max(left, above) + more());
    }
    t.draft_us.push_back((s > 0 ? t.draft_us.back() : 0) + more() / 4);
  }
  t.prompt_row_us = more() / 10;
  BOOST_REQUIRE(t.check().ok());
  return t;
}

struct Case {
  std::vector<Acceptance> acceptance;
  std::vector<std::vector<float>> confidence;
  std::vector<DepthQuery> queries;
};

Case random_case(std::mt19937_64& rng) {
  Case c;
  DraftExperience experience;
  const size_t n = 1 + rng() % 3;
  c.acceptance.resize(n);
  c.confidence.resize(n);
  c.queries.resize(n);
  for (size_t i = 0; i < n; ++i) {
    for (int32_t k = 0; k < 5; ++k)
      c.confidence[i].push_back(static_cast<float>(rng() % 800) / 100 - 4);
    for (uint64_t k = rng() % 40; k > 0; --k) {
      const auto right = static_cast<int32_t>(rng() % 6);
      c.acceptance[i].learn(c.confidence[i], std::min(right + 1, 5), right, experience);
    }
    c.queries[i].slot = static_cast<SlotId>(i);
    c.queries[i].available = static_cast<int32_t>(rng() % 6);
    c.queries[i].acceptance = &c.acceptance[i];
    if (rng() % 4) c.queries[i].confidence = c.confidence[i];
  }
  return c;
}

double expected_tokens(const Case& c, const std::vector<int32_t>& depths) {
  double tokens = static_cast<double>(depths.size());
  for (size_t i = 0; i < depths.size(); ++i) {
    double survival = 1;
    for (int32_t k = 0; k < depths[i]; ++k) {
      const auto& given = c.queries[i].confidence;
      survival *= c.acceptance[i].chance(k, given.empty() ? 0.0F : given[static_cast<size_t>(k)],
                                         DraftExperience());
      tokens += survival;
    }
  }
  return tokens;
}

int32_t sum(const std::vector<int32_t>& v) {
  int32_t total = 0;
  for (const int32_t x : v) total += x;
  return total;
}

// Every choice of depths, in turn. False: that was the last.
bool next_choice(const Case& c, std::vector<int32_t>& depths) {
  for (size_t i = 0; i < depths.size(); ++i) {
    if (depths[i] < c.queries[i].available) {
      ++depths[i];
      return true;
    }
    depths[i] = 0;
  }
  return false;
}

}  // namespace

BOOST_AUTO_TEST_CASE(no_other_choice_of_depths_is_worth_more) {
  std::mt19937_64 rng(4);
  int drafted = 0;
  int held_back = 0;
  for (int round = 0; round < 400; ++round) {
    const CostTable costs = random_costs(rng);
    const Case c = random_case(rng);
    const auto n = static_cast<int32_t>(c.queries.size());
    const auto rate = [&](const std::vector<int32_t>& depths) {
      return expected_tokens(c, depths) / (costs.step(n, n + sum(depths)) + costs.draft(n));
    };
    // At first the price of time is what this step alone can give: the best ratio wins.
    const auto policy = make_expected_gain_policy(costs);
    const auto chosen = policy->choose(c.queries, 0);
    BOOST_REQUIRE(chosen.size() == c.queries.size());
    double best = 0;
    std::vector<int32_t> depths(chosen.size(), 0);
    do best = std::max(best, rate(depths));
    while (next_choice(c, depths));
    for (size_t i = 0; i < chosen.size(); ++i) {
      BOOST_REQUIRE(chosen[i] >= 0 && chosen[i] <= c.queries[i].available);
      drafted += chosen[i];
      held_back += c.queries[i].available - chosen[i];
    }
    BOOST_REQUIRE(rate(chosen) >= best * (1 - 1e-12));
    // Beside prompt rows a row costs what it costs there, and time has the price it had before.
    const auto mixed = policy->choose(c.queries, 100);
    const auto worth = [&](const std::vector<int32_t>& d) {
      return expected_tokens(c, d) - best * costs.prompt_row_us * (n + sum(d));
    };
    double most = -1e9;
    do most = std::max(most, worth(depths));
    while (next_choice(c, depths));
    BOOST_REQUIRE(worth(mixed) >= most - 1e-9);
  }
  BOOST_TEST(drafted > 100);
  BOOST_TEST(held_back > 100);
}

BOOST_AUTO_TEST_CASE(time_gets_the_price_of_the_long_run) {
  // Rounds are likely or unlikely to have right drafts, and the confidence says which. With the
  // price of the long run the unlikely ones are cut short; a step seen alone would not do so.
  const CostTable costs = CostTable::linear(6, 1);
  constexpr double kUnlikely = 0.2;
  std::mt19937_64 rng(9);
  DraftConstants trusting;
  trusting.slope = 1;
  trusting.place = {};
  const auto policy = make_expected_gain_policy(costs, trusting);
  const Acceptance acceptance(trusting);
  const auto logit = [](double p) { return static_cast<float>(std::log(p / (1 - p))); };
  const std::vector<float> likely(5, logit(0.98));
  const std::vector<float> unlikely(5, logit(kUnlikely));
  int32_t deep = 0;
  int32_t good_rounds = 0;
  int32_t shallow = 0;
  for (int round = 0; round < 600; ++round) {
    const bool good = rng() % 2;
    DepthQuery q;
    q.available = 5;
    q.confidence = good ? likely : unlikely;
    q.acceptance = &acceptance;
    const int32_t depth = policy->choose(std::span(&q, 1), 0)[0];
    int32_t tokens = 1;
    for (int32_t k = 0;
         k < depth && static_cast<double>(rng() % 1000) / 1000 < (good ? 0.98 : kUnlikely); ++k)
      ++tokens;
    policy->observe(tokens);
    if (round < 300) continue;
    (good ? deep : shallow) += depth;
    good_rounds += good;
  }
  // Alone: 1 + 0.2 tokens in 8 beats 1 in 7. In the long run time gives 0.37 tokens a unit.
  BOOST_TEST(1.2 / 8 > 1.0 / 7);
  BOOST_TEST(good_rounds > 100);
  BOOST_TEST(deep == 5 * good_rounds);
  BOOST_TEST(shallow == 0);
}

BOOST_AUTO_TEST_CASE(depth_shrinks_under_many_streams) {
  // A step's fixed cost is shared by all: what a row must give to pay for itself grows.
  CostTable costs = CostTable::linear(10, 1);
  const Acceptance acceptance;
  std::vector<int32_t> depths;
  for (const size_t n : {1U, 2U, 4U, 8U, 16U, 64U}) {
    std::vector<DepthQuery> queries(n);
    for (DepthQuery& q : queries) {
      q.available = 5;
      q.acceptance = &acceptance;
    }
    depths.push_back(sum(make_expected_gain_policy(costs)->choose(queries, 0)));
    depths.back() = depths.back() * 100 / static_cast<int32_t>(n);
  }
  BOOST_TEST(depths.front() >= 200);
  BOOST_TEST(depths.back() == 0);
  BOOST_TEST(std::is_sorted(depths.rbegin(), depths.rend()));
}

BOOST_AUTO_TEST_CASE(fixed_depth_is_bounded_by_what_there_is) {
  std::vector<DepthQuery> queries(3);
  queries[1].available = 2;
  queries[2].available = 5;
  BOOST_TEST((make_fixed_depth_policy(3)->choose(queries, 0) == std::vector<int32_t>{0, 2, 3}));
  BOOST_TEST(make_fixed_depth_policy(3)->choose({}, 7).empty());
  BOOST_TEST(make_expected_gain_policy({})->choose({}, 7).empty());
}

BOOST_AUTO_TEST_CASE(drafting_that_costs_more_than_it_gives_pauses_and_comes_back) {
  // The drafter is right four times of five, then never, then again.
  const CostTable costs = CostTable::linear(10, 1, 3);
  const auto policy = make_expected_gain_policy(costs);
  SequenceDrafting drafting;
  std::mt19937_64 rng(3);
  const std::vector<float> confidence(5, 0.5F);
  std::vector<int32_t> ready;
  int pauses = 0;
  int drafted_while_bad = 0;
  int paused_while_good = 0;
  constexpr int kPhase = 1500;
  for (int round = 0; round < 3 * kPhase; ++round) {
    const bool good = round / kPhase != 1;
    DepthQuery q;
    q.available = static_cast<int32_t>(ready.size());
    q.confidence = std::span(confidence).first(ready.size());
    const bool proposing = drafting.begin_round(*policy, q.confidence);
    q.acceptance = &drafting.acceptance;
    q.drafting = proposing;
    const int32_t depth = policy->choose(std::span(&q, 1), 0)[0];
    std::vector<int32_t> accepted;
    for (int32_t k = 0; k <= depth; ++k) {
      const bool right = good && rng() % 5 != 0;
      const auto at = static_cast<size_t>(k);
      accepted.push_back(right && at < ready.size() ? ready[at] : 1000);
      if (accepted.back() == 1000) break;
    }
    pauses += drafting.end_round(ready, q.confidence, depth, accepted, *policy);
    policy->observe(static_cast<int64_t>(accepted.size()));
    ready.assign(proposing ? 5 : 0, 7);
    // The first rounds of the bad phase are needed to notice it; a pause of the bad phase may
    // reach into the good one.
    if (!good && round % kPhase > 100) drafted_while_bad += proposing;
    if (good && round % kPhase > DraftPause::kPauseRoundsMax) paused_while_good += !proposing;
  }
  BOOST_TEST(pauses >= 2);
  BOOST_TEST(pauses <= 30);  // looks that were followed by a short trial, most of them
  BOOST_TEST(drafted_while_bad < kPhase / 7);
  BOOST_TEST(drafted_while_bad > 0);
  BOOST_TEST(paused_while_good == 0);
}

BOOST_AUTO_TEST_CASE(a_look_at_the_confidence_costs_one_run_of_the_drafter) {
  // Drafting never pays, the drafter knows it, and it is as dear as a step: a new sequence runs it
  // rarely, to look; where it is confident, the look leads on.
  const CostTable costs = CostTable::linear(10, 1, 10);
  const auto policy = make_expected_gain_policy(costs);
  const std::vector<float> low(5, -3.0F);
  const std::vector<float> high(5, 5.0F);
  std::vector<int32_t> ready;
  const auto run = [&](SequenceDrafting& drafting, const std::vector<float>& confidence, bool right,
                       int rounds) {
    int proposed = 0;
    ready.clear();
    for (int round = 0; round < rounds; ++round) {
      DepthQuery q;
      q.available = static_cast<int32_t>(ready.size());
      q.confidence = std::span(confidence).first(ready.size());
      q.drafting = drafting.begin_round(*policy, q.confidence);
      q.acceptance = &drafting.acceptance;
      const int32_t depth = policy->choose(std::span(&q, 1), 0)[0];
      std::vector<int32_t> accepted(right ? static_cast<size_t>(depth) + 1 : 1, right ? 7 : 8);
      drafting.end_round(ready, q.confidence, depth, accepted, *policy);
      policy->observe(static_cast<int64_t>(accepted.size()));
      proposed += q.drafting;
      ready.assign(q.drafting ? 5 : 0, 7);
    }
    return proposed;
  };
  for (int others = 0; others < 60; ++others) {
    SequenceDrafting other;
    (void)run(other, low, false, 100);
  }
  BOOST_REQUIRE(policy->experience.promise < 0);
  SequenceDrafting next;
  BOOST_TEST(run(next, low, false, 40) <= 2);
  const int looks = run(next, low, false, 3000);
  BOOST_TEST(looks >= 3000 / DraftPause::kPauseRoundsMax);
  BOOST_TEST(looks < 60);
  SequenceDrafting confident;
  const int first_look = confident.pause.look_rounds(policy->draft_price());
  BOOST_TEST(run(confident, high, true, first_look + 200) >= 195);
}

BOOST_AUTO_TEST_CASE(short_replies_do_without_drafts_behind_their_prompts) {
  // Drafts of a reply give a little, but what runs behind its prompt and behind its last round is
  // lost; so of long replies all begin with drafts, and of short ones few, to look.
  const CostTable costs = CostTable::linear(10, 1, 10);
  const std::vector<float> confidence(5, 2.0F);
  for (const int rounds : {2, 400}) {
    const auto policy = make_expected_gain_policy(costs);
    std::mt19937_64 rng(7);
    std::vector<int> first;
    for (int reply = 0; reply < 400 / rounds * 4 + 20; ++reply) {
      SequenceDrafting drafting;
      bool ready = drafting.begin_reply(*policy);
      BOOST_TEST(drafting.begin_reply(*policy) == ready);  // in every chunk of a prompt
      first.push_back(ready);
      for (int round = 0; round < rounds; ++round) {
        DepthQuery q;
        q.available = ready ? 5 : 0;
        q.confidence = std::span(confidence).first(ready ? 5U : 0U);
        q.drafting = drafting.begin_round(*policy, q.confidence);
        q.acceptance = &drafting.acceptance;
        const int32_t depth = policy->choose(std::span(&q, 1), 0)[0];
        std::vector<int32_t> accepted;
        do accepted.push_back(rng() % 3 != 0 ? 7 : 8);
        while (std::ssize(accepted) <= depth && accepted.back() == 7);
        const std::vector<int32_t> drafts(ready ? 5 : 0, 7);
        drafting.end_round(drafts, q.confidence, depth, accepted, *policy);
        policy->observe(std::ssize(accepted));
        ready = q.drafting;
      }
    }
    const auto begun = std::count(first.end() - 20, first.end(), 1);
    BOOST_TEST_CONTEXT(rounds << " rounds, " << begun << " of 20")
    BOOST_TEST((rounds == 2 ? begun <= 3 : begun == 20));
  }
}

BOOST_AUTO_TEST_CASE(one_line_a_minute_says_that_drafting_pauses) {
  class Lines final : public LogSink {
   public:
    void write(LogLevel, std::string_view message, std::initializer_list<LogField>) override {
      lines.emplace_back(message);
    }
    std::vector<std::string> lines;
  };
  Lines log;
  DraftPauseLog pauses;
  SequenceDrafting drafting;
  for (int second = 0; second < 130; ++second) pauses.note(7, drafting, second * 1'000'000, log);
  BOOST_REQUIRE(log.lines.size() == 3U);
  BOOST_TEST(log.lines[0].find("drafts of request 7") != std::string::npos);
  BOOST_TEST(log.lines[0].find("more times") == std::string::npos);
  BOOST_TEST(log.lines[1].find("59 more times") != std::string::npos);
}
