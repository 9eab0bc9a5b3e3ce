// Random requests to the scripted model, greedy and seeded, with penalties, biases, stop strings,
// log-probabilities, masks and thinking budgets; and replies compared whole.
#pragma once

#include <random>

#include "tests/engine/loop_harness.h"

namespace tensorfold::scripted {

inline Request random_request(std::mt19937_64& rng) {
  const auto chance = [&](unsigned percent) { return rng() % 100 < percent; };
  Request r;
  r.prompt.ids.emplace();
  for (uint64_t n = 1 + rng() % 150; n > 0; --n)
    r.prompt.ids->push_back(static_cast<TokenId>(8 + rng() % 50));
  r.prompt.thinking.enabled = chance(40);
  if (r.prompt.thinking.enabled && chance(60))
    r.prompt.thinking.budget = static_cast<int>(rng() % 20);
  SamplingParams& s = r.sampling;
  s.temperature = chance(40) ? 0.0 : 0.3 + static_cast<double>(rng() % 10) / 10;
  s.top_p = chance(50) ? 1.0 : 0.8;
  s.top_k = chance(30) ? 6 : 0;
  s.min_p = chance(20) ? 0.1 : 0.0;
  s.presence_penalty = chance(25) ? 1.5 : 0.0;
  s.frequency_penalty = chance(25) ? 0.8 : 0.0;
  s.repetition_penalty = chance(25) ? 1.3 : 1.0;
  s.seed = rng();
  if (chance(25)) s.logit_bias = {{static_cast<TokenId>(rng() % kVocab), 4.0F}, {9, -3.0F}};
  if (chance(80)) r.max_tokens = static_cast<int>(1 + rng() % 60);
  if (chance(30)) {
    const auto letter = static_cast<char>('A' + 8 + rng() % 40);
    r.stop = {std::string(1, letter), std::string("XY")};
  }
  r.parallel_tool_calls = !chance(15);
  r.ignore_eos = chance(15);
  if (r.ignore_eos && !r.max_tokens) r.max_tokens = 50;
  if (chance(30)) r.top_logprobs = static_cast<int>(rng() % 4);
  if (chance(25)) {
    for (TokenId id = 0; id < kVocab; ++id) {
      if (rng() % 3 != 0 || id == kEos) r.allowed_tokens.push_back(id);
    }
  }
  return r;
}

inline void require_equal(const Reply& a, const Reply& b) {
  BOOST_REQUIRE(a.finished == 1 && b.finished == 1);
  BOOST_REQUIRE(a.status.code() == b.status.code());
  BOOST_REQUIRE(a.ids == b.ids);
  BOOST_REQUIRE(a.reason == b.reason);
  BOOST_REQUIRE(a.stats.token_sha == b.stats.token_sha);
  BOOST_REQUIRE(a.stats.usage.completion_tokens == b.stats.usage.completion_tokens);
  BOOST_REQUIRE(a.stats.usage.reasoning_tokens == b.stats.usage.reasoning_tokens);
  BOOST_REQUIRE(a.logprobs.size() == b.logprobs.size());
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    BOOST_REQUIRE(a.logprobs[i].id == b.logprobs[i].id);
    BOOST_REQUIRE(a.logprobs[i].logprob == b.logprobs[i].logprob);
    BOOST_REQUIRE(a.logprobs[i].top == b.logprobs[i].top);
  }
}

}  // namespace tensorfold::scripted
