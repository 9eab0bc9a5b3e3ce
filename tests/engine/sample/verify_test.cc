// Drafted == serial at the level of verification: whatever the drafts, the accepted tokens are the
// ones that one-row steps give, with penalties, biases, masks and log-probabilities.
#include "engine/sample/verify.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <limits>
#include <random>

using namespace tensorfold;

namespace {

constexpr int kVocab = 96;
constexpr size_t kWords = 3;

// A toy language: the logits after a prefix are a pure function of it.
std::vector<float> logits_after(std::span<const int32_t> ids) {
  uint64_t h = 1469598103934665603ULL;
  for (const int32_t id : ids.last(std::min<size_t>(ids.size(), 3)))
    h = (h ^ static_cast<uint64_t>(id)) * 1099511628211ULL;
  std::mt19937_64 rng(h);
  std::vector<float> row(kVocab);
  for (float& x : row) x = static_cast<float>(rng() % 2000) / 400.0F;
  return row;
}

// Masks that depend on what came before, as a grammar's do.
std::vector<uint32_t> mask_after(std::span<const int32_t> ids) {
  std::vector<uint32_t> mask(kWords);
  const auto last = static_cast<uint32_t>(ids.empty() ? 0 : ids.back());
  for (size_t i = 0; i < kWords; ++i) mask[i] = 0x9E3779B9U * (last + 1) + 7U * (uint32_t)i;
  mask[last % kWords] |= 1U;
  return mask;
}

struct Run {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  int steps = 0;
};

// Generates `n` tokens with `depth` drafts a step, of which each is right with chance `skill` %.
Run generate(SampleSpec spec, std::vector<int32_t> prompt, size_t n, size_t depth, unsigned skill,
             bool masked, const std::vector<int32_t>& truth) {
  Sampler sampler(kVocab);
  TokenHistory history;
  history.write(0, prompt);
  spec.reply_position = static_cast<int64_t>(prompt.size());
  std::mt19937_64 rng(depth * 1000 + skill);
  Run run;
  while (run.ids.size() < n) {
    std::vector<int32_t> drafts;
    for (size_t i = 0; i < std::min(depth, n - run.ids.size() - 1); ++i) {
      const size_t at = run.ids.size() + i;
      const bool right = at < truth.size() && rng() % 100 < skill;
      drafts.push_back(right ? truth[at] : static_cast<int32_t>(rng() % kVocab));
    }
    spec.verify_rows = 1 + static_cast<int32_t>(drafts.size());
    spec.position = history.size();
    std::vector<int32_t> prefix(history.ids().begin(), history.ids().end());
    std::vector<float> rows;
    std::vector<uint32_t> masks;
    for (size_t i = 0; i <= drafts.size(); ++i) {
      const auto row = logits_after(prefix);
      rows.insert(rows.end(), row.begin(), row.end());
      const auto mask = mask_after(prefix);
      if (masked) masks.insert(masks.end(), mask.begin(), mask.end());
      if (i < drafts.size()) prefix.push_back(drafts[i]);
    }
    SampledTokens out;
    verify(sampler, spec, rows, drafts, masks, history, out);
    BOOST_REQUIRE(out.status.ok());
    BOOST_REQUIRE(!out.accepted.empty());
    run.ids.insert(run.ids.end(), out.accepted.begin(), out.accepted.end());
    for (const auto& l : out.logprobs) run.logprobs.push_back(l.logprob);
    ++run.steps;
  }
  return run;
}

}  // namespace

BOOST_AUTO_TEST_CASE(drafted_equals_serial) {
  std::mt19937_64 rng(77);
  int saved = 0;
  for (int round = 0; round < 300; ++round) {
    SampleSpec spec;
    spec.seed = rng();
    spec.temperature = round % 3 == 0 ? 0.0F : 0.8F;
    spec.top_p = round % 2 ? 0.9F : 1.0F;
    spec.presence_penalty = round % 5 == 0 ? 1.0F : 0.0F;
    spec.frequency_penalty = round % 4 == 0 ? 0.7F : 0.0F;
    spec.repetition_penalty = round % 6 == 0 ? 1.4F : 1.0F;
    spec.top_logprobs = 0;
    if (round % 7 == 0) spec.logit_bias = {{3, 2.0F}, {50, -3.0F}};
    const std::vector<int32_t> prompt = {1, 2, static_cast<int32_t>(rng() % kVocab)};
    const bool masked = round % 2 == 1;
    const Run serial = generate(spec, prompt, 40, 0, 0, masked, {});
    for (const unsigned skill : {0U, 60U, 100U}) {
      for (const size_t depth : {1U, 3U, 5U}) {
        const Run drafted = generate(spec, prompt, 40, depth, skill, masked, serial.ids);
        BOOST_REQUIRE(drafted.ids == serial.ids);
        BOOST_REQUIRE(drafted.logprobs == serial.logprobs);
        saved += serial.steps - drafted.steps;
      }
    }
  }
  BOOST_TEST(saved > 10000, "drafts were never accepted");
}

BOOST_AUTO_TEST_CASE(a_bad_row_keeps_the_tokens_before_it) {
  Sampler sampler(kVocab);
  TokenHistory history;
  history.write(0, std::vector<int32_t>{1, 2});
  SampleSpec spec;
  spec.temperature = 0;
  spec.verify_rows = 3;
  spec.position = 2;
  std::vector<float> rows(3 * kVocab, 0.0F);
  rows[7] = 1;           // row 0: token 7
  rows[kVocab + 8] = 1;  // row 1: token 8
  rows[2 * kVocab + 3] = std::numeric_limits<float>::quiet_NaN();
  SampledTokens out;
  verify(sampler, spec, rows, std::vector<int32_t>{7, 8}, {}, history, out);
  BOOST_TEST(!out.status.ok());
  BOOST_TEST((out.accepted == std::vector<int32_t>{7, 8}));
  // The bad row is behind a rejected draft: nobody reads it.
  history.truncate(2);
  SampledTokens fine;
  verify(sampler, spec, rows, std::vector<int32_t>{7, 9}, {}, history, fine);
  BOOST_TEST(fine.status.ok());
  BOOST_TEST((fine.accepted == std::vector<int32_t>{7, 8}));
}

// A device's tokens count as the sampler's do: rows as choice_rows asks for them, chosen one by one
// by the functions that a device runs.
BOOST_AUTO_TEST_CASE(chosen_tokens_count_like_sampled_ones) {
  std::mt19937_64 rng(11);
  for (int round = 0; round < 300; ++round) {
    StepPlan plan;
    SampleSpec spec;
    spec.slot = 2;
    spec.verify_rows = 1 + static_cast<int32_t>(rng() % 6);
    spec.position = 4;
    spec.seed = rng();
    spec.temperature = round % 3 == 0 ? 0.0F : 0.8F;
    spec.top_p = round % 3 == 0 ? 0.9F : 1.0F;  // greedy rows may have one
    spec.min_p = round % 3 == 1 ? 0.05F : 0.0F;
    Slice slice;
    slice.slot = spec.slot;
    slice.rows = slice.logits_rows = spec.verify_rows;
    plan.slices.push_back(slice);
    plan.samples.push_back(spec);
    const std::vector<SampleRow> ask = choice_rows(plan);
    const auto rows = static_cast<size_t>(spec.verify_rows);
    BOOST_REQUIRE_EQUAL(ask.size(), rows);
    std::vector<float> logits(rows * kVocab);
    for (float& x : logits) x = static_cast<float>(rng() % 1000) / 200.0F;
    if (round % 5 == 4) logits[rng() % logits.size()] = std::numeric_limits<float>::quiet_NaN();
    std::vector<int32_t> tokens, states, drafts;
    for (size_t i = 0; i < rows; ++i) {
      const std::vector<uint32_t> changed(kWords);
      SampleScan scan;
      scan.row = ask[i];
      SampleBest best;
      bool finite = true;
      for (const bool draw : {false, true}) {
        if (draw && scan.row.greedy != 0) break;
        scan.draw = draw;
        best = {};
        sample_plain(scan, &logits[i * kVocab], kVocab, changed.data(), 0, 1, best, finite);
        scan.largest = best.score;
      }
      tokens.push_back(finite ? best.id : -1);
      states.push_back(static_cast<int32_t>(finite ? SampleState::kDone : SampleState::kNonFinite));
      if (i + 1 < rows) drafts.push_back(rng() % 4 == 0 ? 1 : best.id);
    }
    const std::vector<int32_t> prompt = {1, 2, 3, 4};
    Sampler sampler(kVocab);
    TokenHistory sampled_history, chosen_history;
    sampled_history.write(0, prompt);
    chosen_history.write(0, prompt);
    SampledTokens sampled, chosen;
    verify(sampler, spec, logits, drafts, {}, sampled_history, sampled);
    verify_chosen(spec, tokens, states, drafts, chosen_history, chosen);
    BOOST_REQUIRE(chosen.accepted == sampled.accepted);
    BOOST_REQUIRE_EQUAL(chosen.status.message(), sampled.status.message());
    BOOST_REQUIRE_EQUAL(chosen_history.size(), sampled_history.size());
  }
}

BOOST_AUTO_TEST_CASE(only_plain_rows_are_asked_for) {
  StepPlan plan;
  Slice slice;
  slice.rows = slice.logits_rows = 1;
  plan.slices.push_back(slice);
  plan.samples.emplace_back();
  const auto asked = [&](auto change) {
    StepPlan other = plan;
    change(other.samples[0]);
    return !choice_rows(other).empty();
  };
  BOOST_CHECK(asked([](SampleSpec&) {}));
  BOOST_CHECK(asked([](SampleSpec& s) { s.min_p = 0.1F; }));
  BOOST_CHECK(asked([](SampleSpec& s) { s.temperature = 0, s.top_p = 0.5F, s.top_k = 3; }));
  BOOST_CHECK(!asked([](SampleSpec& s) { s.top_p = 0.5F; }));
  BOOST_CHECK(!asked([](SampleSpec& s) { s.top_k = 3; }));
  BOOST_CHECK(!asked([](SampleSpec& s) { s.presence_penalty = 0.1F; }));
  BOOST_CHECK(!asked([](SampleSpec& s) { s.frequency_penalty = 0.1F; }));
  BOOST_CHECK(!asked([](SampleSpec& s) { s.repetition_penalty = 1.1F; }));
  BOOST_CHECK(!asked([](SampleSpec& s) { s.top_logprobs = 0; }));
  BOOST_CHECK(!asked([](SampleSpec& s) { s.mask_slot = 0; }));
  BOOST_CHECK(!asked([](SampleSpec& s) { s.scored_rows = 1; }));
  BOOST_CHECK(!asked([](SampleSpec& s) { s.logit_bias.emplace_back(3, 1.0F); }));
}
