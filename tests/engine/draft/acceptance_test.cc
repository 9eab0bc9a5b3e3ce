// Acceptance learns the chances behind the outcomes, whatever the drafter's confidence means.
#include "engine/draft/acceptance.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "engine/draft/sequence_drafting.h"

using namespace tensorfold;

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double unit(std::mt19937_64& rng) { return static_cast<double>(rng() >> 11) * 0x1p-53; }

// Mean excess of the log-loss over that of the true chances, after learning: 0 is perfect.
// `depth`: so many drafts are verified, so no later one has an outcome.
double excess(double bias, double slope, double place_falls, int depth, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Acceptance a;
  DraftExperience e;
  double loss = 0;
  double best = 0;
  int counted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> confidence;
    std::vector<double> truth;
    for (int i = 0; i < 5; ++i) {
      const double c = 4 * (unit(rng) - 0.5);
      confidence.push_back(static_cast<float>(c));
      truth.push_back(sigmoid(bias + slope * c - place_falls * i));
    }
    int32_t right = 0;
    while (right < depth && unit(rng) < truth[static_cast<size_t>(right)]) ++right;
    const int32_t known = std::min(right + 1, depth);
    for (int32_t i = 0; i < known && round >= 1500; ++i) {
      const auto at = static_cast<size_t>(i);
      const double p = a.chance(i, confidence[at], e);
      loss -= std::log(i < right ? p : 1 - p);
      best -= std::log(i < right ? truth[at] : 1 - truth[at]);
      ++counted;
    }
    a.learn(confidence, known, right, e);
  }
  return (loss - best) / counted;
}

}  // namespace

BOOST_AUTO_TEST_CASE(chances_are_learned) {
  uint64_t seed = 1;
  for (const double bias : {-2.0, 0.0, 2.0}) {
    for (const double slope : {0.0, 0.5, 1.0}) {
      for (const double falls : {0.0, 0.4}) {
        for (const int depth : {1, 3, 5}) {
          BOOST_TEST_CONTEXT("bias " << bias << " slope " << slope << " falls " << falls)
          BOOST_TEST(excess(bias, slope, falls, depth, seed++) < 0.03);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(collapse_and_recovery_are_noticed_within_rounds) {
  Acceptance a;
  DraftExperience e;
  const std::vector<float> confidence(5, 1.0F);
  for (int i = 0; i < 100; ++i) a.learn(confidence, 5, 5, e);
  BOOST_TEST(a.chance(0, 1.0F, e) > 0.9);
  int rounds = 0;
  while (a.chance(0, 1.0F, e) > 0.3) {
    a.learn(confidence, 1, 0, e);
    BOOST_REQUIRE(++rounds < 60);
  }
  while (a.chance(0, 1.0F, e) < 0.7) {
    a.learn(confidence, 5, 5, e);
    BOOST_REQUIRE(++rounds < 120);
  }
  BOOST_TEST(a.rate(0) > 0);
  BOOST_TEST(a.rate(0) < 1);
}

BOOST_AUTO_TEST_CASE(what_is_half_forgotten_is_soon_learned_anew) {
  DraftExperience e;
  Acceptance settled;
  settled.count(5, 3);
  for (int i = 0; i < 50; ++i) settled.learn({}, 1, 0, e);
  Acceptance open = settled;
  open.forget();
  BOOST_TEST(open.chance(0, 0, e) > settled.chance(0, 0, e));
  BOOST_TEST(open.chance(0, 0, e) < Acceptance().chance(0, 0, e));
  DraftExperience other = e;
  settled.learn({}, 1, 1, e);
  open.learn({}, 1, 1, other);
  BOOST_TEST(open.chance(0, 0, other) > settled.chance(0, 0, e));
  BOOST_TEST(open.drafted() == 5);
  BOOST_TEST(open.accepted() == 3);
}

BOOST_AUTO_TEST_CASE(what_a_new_drafter_is_like_is_known_within_a_reply) {
  // Its confidence is far too high and says nothing: 10 whatever the draft, four of five right, or
  // one of five. A slope that is believed at first must not stand in the way for long.
  for (const int wrong_of_five : {1, 4}) {
    DraftExperience e;
    Acceptance a;
    std::mt19937_64 rng(5);
    const std::vector<float> confidence(5, 10.0F);
    for (int round = 0; round < 60; ++round) {
      int32_t right = 0;
      while (right < 5 && static_cast<int>(rng() % 5) >= wrong_of_five) ++right;
      a.learn(confidence, std::min(right + 1, 5), right, e);
    }
    for (int32_t place = 0; place < (wrong_of_five == 1 ? 5 : 1); ++place)
      BOOST_TEST(std::abs(a.chance(place, 10, e) - (1 - wrong_of_five / 5.0)) < 0.15);
  }
}

BOOST_AUTO_TEST_CASE(what_is_believed_stays_between_its_bounds) {
  // Any outcomes in any order: no variance below zero or above what it was, no mean that grows.
  std::mt19937_64 rng(6);
  DraftExperience e;
  const DraftExperience start;
  Acceptance a;
  for (int round = 0; round < 20000; ++round) {
    if (rng() % 50 == 0) a = Acceptance();
    std::vector<float> confidence;
    for (int i = 0; i < 5; ++i) confidence.push_back(static_cast<float>(rng() % 400) / 10 - 20);
    const auto right = static_cast<int32_t>(rng() % 2 * (rng() % 6));
    a.learn(confidence, std::min(right + static_cast<int32_t>(rng() % 2), 5), right, e);
    for (size_t i = 0; i < DraftExperience::kSize; ++i) {
      BOOST_REQUIRE(e.covariance[i][i] > 0);
      BOOST_REQUIRE(e.covariance[i][i] <= start.covariance[i][i] * (1 + 1e-9));
      BOOST_REQUIRE(std::abs(e.mean[i]) <= 8);
    }
  }
}

BOOST_AUTO_TEST_CASE(sequences_teach_one_another_about_the_drafter) {
  // Its confidence means nothing: the next sequence knows.
  DraftExperience e;
  std::mt19937_64 rng(2);
  for (int sequence = 0; sequence < 20; ++sequence) {
    Acceptance a;
    for (int i = 0; i < 100; ++i) {
      const std::vector<float> confidence(5, rng() % 2 ? 2.0F : -2.0F);
      const int32_t right = rng() % 2 ? 1 : 0;
      a.learn(confidence, 1, right, e);
    }
  }
  const Acceptance fresh;
  BOOST_TEST(std::abs(fresh.chance(0, 2, e) - fresh.chance(0, -2, e)) < 0.2);
}

BOOST_AUTO_TEST_CASE(a_confidence_that_is_no_number_does_no_harm) {
  Acceptance a;
  DraftExperience e;
  const float odd[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(), 1e30F, -1e30F};
  for (int i = 0; i < 100; ++i) a.learn(odd, i % 6, i % 6, e);
  for (int i = 0; i < 100; ++i) a.learn(odd, 1, 0, e);
  for (int32_t place = 0; place < 5; ++place) {
    for (const float c : odd) {
      BOOST_TEST(a.chance(place, c, e) >= 0);
      BOOST_TEST(a.chance(place, c, e) <= 1);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_next_token_tells_about_one_draft_more) {
  // What is learned from a round: as many drafts as have an outcome, and no more.
  struct Case {
    std::vector<int32_t> ready, accepted;
    int32_t verified, known, right;
  };
  const Case cases[] = {{{1, 2, 3}, {9}, 0, 1, 0},    {{1, 2, 3}, {1}, 0, 1, 1},
                        {{1, 2, 3}, {1, 2}, 1, 2, 2}, {{1, 2, 3}, {1, 9}, 1, 2, 1},
                        {{1, 2, 3}, {1, 9}, 3, 2, 1}, {{1, 2, 3}, {1, 2, 3, 4}, 3, 3, 3},
                        {{}, {1}, 0, 0, 0},           {{1, 2, 3}, {}, 2, 0, 0}};
  const auto policy = make_fixed_depth_policy(3);
  for (const Case& c : cases) {
    const std::vector<float> confidence(c.ready.size(), 0.7F);
    SequenceDrafting drafting;
    policy->experience = DraftExperience();
    drafting.end_round(c.ready, confidence, c.verified, c.accepted, *policy);
    Acceptance expected;
    DraftExperience e;
    expected.learn(confidence, c.known, c.right, e);
    for (int32_t place = 0; place < 5; ++place)
      BOOST_TEST(drafting.acceptance.chance(place, 0.7F, policy->experience) ==
                 expected.chance(place, 0.7F, e));
  }
}
