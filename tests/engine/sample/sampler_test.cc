// The sampler against an independent, slow one; its distribution; and that it is a pure function.
#include "engine/sample/sampler.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "engine/sample/noise.h"

using namespace tensorfold;

namespace {

std::vector<float> random_logits(size_t n, std::mt19937_64& rng, double scale) {
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> row(n);
  for (float& x : row) x = static_cast<float>(normal(rng));
  return row;
}

// Written from the header's list alone, in long double and with full sorts.
struct Reference {
  std::vector<int32_t> kept;             // ids left after step 7, descending
  std::vector<long double> probability;  // renormalised over `kept`
};

Reference reference(const std::vector<float>& logits, const SampleSpec& s,
                    const std::vector<int32_t>& history, std::span<const uint32_t> mask) {
  const size_t n = logits.size();
  std::vector<long double> l(logits.begin(), logits.end());
  std::map<int32_t, int> everywhere;
  std::map<int32_t, int> reply;
  for (size_t i = 0; i < history.size(); ++i) {
    ++everywhere[history[i]];
    if (static_cast<int64_t>(i) >= s.reply_position) ++reply[history[i]];
  }
  for (const auto& [t, c] : everywhere) {
    auto& x = l[static_cast<size_t>(t)];
    x = x > 0 ? x / s.repetition_penalty : x * s.repetition_penalty;
  }
  for (const auto& [t, c] : reply)
    l[static_cast<size_t>(t)] -= static_cast<long double>(s.frequency_penalty) * c +
                                 static_cast<long double>(s.presence_penalty);
  for (const auto& [t, b] : s.logit_bias) l[static_cast<size_t>(t)] += b;
  Reference r;
  for (size_t i = 0; i < n; ++i) {
    if (mask.empty() || ((mask[i / 32] >> (i % 32)) & 1U)) r.kept.push_back(static_cast<int>(i));
  }
  const auto z = [&](int32_t id) {
    return l[static_cast<size_t>(id)] / (s.temperature == 0 ? 1.0L : s.temperature);
  };
  std::stable_sort(r.kept.begin(), r.kept.end(), [&](int32_t a, int32_t b) { return z(a) > z(b); });
  if (s.temperature == 0) r.kept.resize(1);
  if (s.top_k > 0 && r.kept.size() > static_cast<size_t>(s.top_k))
    r.kept.resize(static_cast<size_t>(s.top_k));
  long double total = 0;
  for (const int32_t id : r.kept) total += std::exp(z(id) - z(r.kept[0]));
  long double sum = 0;
  size_t keep = 0;
  while (keep < r.kept.size() && (keep == 0 || s.top_p >= 1 || sum < s.top_p * total))
    sum += std::exp(z(r.kept[keep++]) - z(r.kept[0]));
  r.kept.resize(keep);
  while (std::exp(z(r.kept.back()) - z(r.kept[0])) < s.min_p) r.kept.pop_back();
  total = 0;
  for (const int32_t id : r.kept) total += std::exp(z(id) - z(r.kept[0]));
  for (const int32_t id : r.kept) r.probability.push_back(std::exp(z(id) - z(r.kept[0])) / total);
  return r;
}

SampleSpec random_spec(std::mt19937_64& rng) {
  const auto pick = [&](std::initializer_list<float> v) { return v.begin()[rng() % v.size()]; };
  SampleSpec s;
  s.seed = rng();
  s.temperature = pick({0.0F, 0.2F, 0.7F, 1.0F, 1.7F});
  s.top_p = pick({1.0F, 1.0F, 0.95F, 0.5F, 0.1F, 0.0F});
  s.top_k = static_cast<int32_t>(pick({0, 0, 1, 5, 40, 1000}));
  s.min_p = pick({0.0F, 0.0F, 0.05F, 0.5F, 1.0F});
  s.presence_penalty = pick({0.0F, 0.5F, -1.0F});
  s.frequency_penalty = pick({0.0F, 0.3F, 2.0F});
  s.repetition_penalty = pick({1.0F, 1.3F, 0.8F});
  for (uint64_t i = rng() % 4; i > 0; --i)
    s.logit_bias.emplace_back(static_cast<int32_t>(rng() % 100),
                              static_cast<float>(rng() % 9) - 4.0F);
  return s;
}

}  // namespace

BOOST_AUTO_TEST_CASE(keeps_what_the_reference_keeps_and_takes_the_noisiest_of_it) {
  std::mt19937_64 rng(11);
  for (int round = 0; round < 3000; ++round) {
    const auto vocab = static_cast<size_t>(100 + rng() % 700);
    Sampler sampler(static_cast<int>(vocab));
    const auto logits = random_logits(vocab, rng, round % 3 == 0 ? 0.5 : 4.0);
    SampleSpec spec = random_spec(rng);
    std::vector<int32_t> ids(rng() % 60);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % (round % 2 ? vocab : 20));
    spec.reply_position = static_cast<int64_t>(ids.size() / 2);
    spec.position = static_cast<int64_t>(ids.size());
    TokenHistory history;
    history.write(0, ids);
    std::vector<uint32_t> mask;
    if (round % 3 == 1) {
      mask.resize((vocab + 31) / 32);
      for (uint32_t& w : mask) w = static_cast<uint32_t>(rng()) & static_cast<uint32_t>(rng());
      mask[0] |= 1U;
    }
    const auto token = sampler.sample(logits, spec, spec.position, history, mask);
    BOOST_REQUIRE(token.ok());
    const Reference r = reference(logits, spec, ids, mask);
    // What the noise makes of the reference's set. A nearer runner-up than 1e-9 proves nothing.
    const NoiseKey key{spec.seed, spec.choice_index, spec.position};
    long double best = -1e300L;
    int32_t winner = -1;
    for (size_t i = 0; i < r.kept.size(); ++i) {
      const long double score =
          std::log(r.probability[i]) + static_cast<long double>(key.noise(r.kept[i]));
      if (score > best) {
        best = score;
        winner = r.kept[i];
      }
    }
    BOOST_REQUIRE_MESSAGE(*token == winner,
                          "round " << round << ": " << *token << " not " << winner);
  }
}

BOOST_AUTO_TEST_CASE(draws_follow_the_softmax) {
  std::mt19937_64 rng(5);
  constexpr size_t kVocab = 50;
  constexpr int kDraws = 200000;
  for (const float top_p : {1.0F, 0.8F}) {
    const auto logits = random_logits(kVocab, rng, 1.5);
    SampleSpec spec;
    spec.temperature = 0.9F;
    spec.top_p = top_p;
    spec.seed = 1234;
    const Reference r = reference(logits, spec, {}, {});
    Sampler sampler(kVocab);
    TokenHistory history;
    std::vector<int> count(kVocab);
    for (int i = 0; i < kDraws; ++i)
      ++count[static_cast<size_t>(*sampler.sample(logits, spec, i, history, {}))];
    double chi_square = 0;
    int seen = 0;
    for (size_t i = 0; i < r.kept.size(); ++i) {
      const auto expected = static_cast<double>(r.probability[i]) * kDraws;
      const int got = count[static_cast<size_t>(r.kept[i])];
      chi_square += (got - expected) * (got - expected) / expected;
      seen += got;
    }
    BOOST_TEST(seen == kDraws);
    const auto df = static_cast<double>(r.kept.size() - 1);
    BOOST_TEST(chi_square < df + 5 * std::sqrt(2 * df),
               "chi-square " << chi_square << " of " << df);
  }
}

BOOST_AUTO_TEST_CASE(tokens_are_pinned) {
  // Equal on every processor: a change here changes what every seed means.
  Sampler sampler(1000);
  std::vector<float> row(1000);
  for (size_t i = 0; i < row.size(); ++i)
    row[i] = static_cast<float>(static_cast<int>(i * 7919 % 1000) - 500) / 64.0F;
  TokenHistory history;
  std::vector<int32_t> tokens;
  for (int position = 0; position < 12; ++position) {
    SampleSpec spec;
    spec.seed = 99;
    spec.choice_index = position % 2;
    spec.top_p = position % 3 == 0 ? 1.0F : 0.95F;
    tokens.push_back(*sampler.sample(row, spec, position, history, {}));
  }
  const std::vector<int32_t> expected = {531, 642, 816, 408, 939, 988, 223, 457, 766, 247, 99, 607};
  BOOST_TEST(tokens == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(greedy_ties_go_to_the_lowest_id) {
  Sampler sampler(64);
  TokenHistory history;
  SampleSpec spec;
  spec.temperature = 0;
  std::vector<float> row(64, -1.0F);
  row[9] = row[40] = row[41] = 3.0F;
  BOOST_TEST(*sampler.sample(row, spec, 0, history, {}) == 9);
  spec.logit_bias = {{9, -0.5F}};
  BOOST_TEST(*sampler.sample(row, spec, 0, history, {}) == 40);
  spec.logit_bias = {{63, 100.0F}};
  BOOST_TEST(*sampler.sample(row, spec, 0, history, {}) == 63);
}

BOOST_AUTO_TEST_CASE(bad_rows_and_dead_ends_fail_alone) {
  Sampler sampler(40);
  TokenHistory history;
  SampleSpec spec;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {size_t{0}, size_t{17}, size_t{39}}) {
      std::vector<float> row(40, 0.5F);
      row[at] = bad;
      const auto token = sampler.sample(row, spec, 8, history, {});
      BOOST_REQUIRE(!token.ok());
      BOOST_TEST(token.status().reason() == "non_finite_logits");
      BOOST_TEST(token.status().message().find("position 8") != std::string::npos);
    }
  }
  const std::vector<float> row(40, std::numeric_limits<float>::max());
  BOOST_TEST(sampler.sample(row, spec, 0, history, {}).ok());
  const std::vector<uint32_t> nothing(2, 0U);
  BOOST_TEST(sampler.sample(row, spec, 0, history, nothing).status().reason() == "dead_end");
}

BOOST_AUTO_TEST_CASE(logprobs_are_the_rows_own) {
  std::mt19937_64 rng(3);
  const auto row = random_logits(333, rng, 3);
  Sampler sampler(333);
  long double sum = 0;
  for (const float x : row) sum += std::exp(static_cast<long double>(x));
  const SampledLogprob l = sampler.logprob(row, 17, 5);
  BOOST_TEST(std::fabs(l.logprob - static_cast<double>(row[17] - std::log(sum))) < 1e-6);
  BOOST_REQUIRE(l.top.size() == 5U);
  std::vector<int32_t> order(333);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
  });
  for (size_t i = 0; i < 5; ++i) BOOST_TEST(l.top[i].first == order[i]);
  BOOST_TEST(sampler.logprob(row, 17, 0).top.empty());
}

BOOST_AUTO_TEST_CASE(history_counts_follow_writes_and_truncation) {
  std::mt19937_64 rng(21);
  TokenHistory history;
  std::vector<int32_t> ids;
  int64_t reply = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto keep = ids.empty() ? 0 : rng() % (ids.size() + 1);
    if (rng() % 3 == 0) {
      ids.resize(keep);
      history.truncate(static_cast<int64_t>(keep));
    } else {
      ids.resize(std::max(keep, ids.size() - std::min<size_t>(ids.size(), 3)));
      std::vector<int32_t> more(rng() % 5);
      for (int32_t& t : more) t = static_cast<int32_t>(rng() % 8);
      history.write(static_cast<int64_t>(ids.size()), more);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    if (rng() % 50 == 0) reply = static_cast<int64_t>(rng() % (ids.size() + 1));
    if (rng() % 2 == 0) continue;
    std::map<int32_t, std::pair<int, int>> expected;
    for (size_t i = 0; i < ids.size(); ++i) {
      auto& c = expected[ids[i]];
      ++(static_cast<int64_t>(i) >= reply ? c.second : c.first);
    }
    const auto& counts = history.counts(reply);
    BOOST_REQUIRE(counts.size() == expected.size());
    for (const auto& [token, c] : expected) {
      BOOST_REQUIRE(counts.at(token).prompt == c.first);
      BOOST_REQUIRE(counts.at(token).reply == c.second);
    }
  }
}
