// Random steps of sampling: what the host's sampler makes of them (engine/sample/verify.h), and the
// same as the device reads it (kernels/sample_rows.h). Logits with ties, infinities and NaN,
// temperatures about where greedy begins, penalties, biases, masks down to one token and to none.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/sample/verify.h"
#include "kernels/sample_rows.h"

namespace tensorfold::test {

struct SampleCase {
  int vocab = 0;
  std::vector<float> logits;
  std::vector<SampleRow> rows;
  std::vector<SampleChange> changes;
  std::vector<uint32_t> masks;
  std::vector<SampleSequence> sequences;
  std::vector<int32_t> drafts;
  std::vector<SampledTokens> expected;  // [sequences]

  int mask_words() const { return (vocab + 31) / 32; }
};

class SampleCases {
 public:
  explicit SampleCases(uint64_t seed) : random_(seed) {}

  SampleCase make(int vocab, int sequences) {
    SampleCase c;
    c.vocab = vocab;
    Sampler sampler(vocab);
    for (int i = 0; i < sequences; ++i) add_sequence(c, sampler);
    return c;
  }

 private:
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  float pick_of(std::initializer_list<float> values) {
    return values.begin()[pick(0, static_cast<int>(values.size()) - 1)];
  }

  SampleSpec make_spec(int vocab) {
    SampleSpec s;
    s.verify_rows = pick(1, 6);
    s.position = pick(0, 40);
    s.reply_position = pick(0, static_cast<int>(s.position));
    s.seed = random_();
    s.choice_index = pick(0, 3);
    s.temperature = pick_of({0, 0, 1e-6F, 9.9e-6F, 1e-5F, 1.1e-5F, 1e-3F, 0.3F, 0.7F, 1, 1, 2, 50});
    s.min_p = pick_of({0, 0, 0.02F, 0.5F, 1});
    if (pick(0, 1) == 0) {
      s.presence_penalty = pick_of({0, 0.5F, -1.5F, 2});
      s.frequency_penalty = pick_of({0, 0.25F, -2, 1.3F});
      s.repetition_penalty = pick_of({1, 1.1F, 0.5F, 2});
    }
    if (pick(0, 2) == 0)
      for (int token = pick(0, 3); token < vocab; token += pick(1, vocab))
        s.logit_bias.emplace_back(token, pick_of({-100, 100, 0.5F, -0.5F, 3}));
    return s;
  }

  void add_row(SampleCase& c) {
    const float spread = pick_of({0, 0.5F, 4, 30});
    const bool ties = pick(0, 1) == 0;
    std::normal_distribution<float> normal(0, 1);
    const size_t first = c.logits.size();
    for (int i = 0; i < c.vocab; ++i) {
      const float v = spread * normal(random_);
      c.logits.push_back(ties ? std::round(2 * v) / 2 : v);
    }
    if (pick(0, 24) == 0)
      c.logits[first + static_cast<size_t>(pick(0, c.vocab - 1))] =
          pick_of({std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                   std::numeric_limits<float>::quiet_NaN()});
  }

  void add_mask(SampleCase& c) {
    const int kept = pick(0, 9);  // 0: none, 1: one, else every kept-th or so
    const size_t first = c.masks.size();
    c.masks.resize(first + static_cast<size_t>(c.mask_words()));
    for (int i = 0; i < c.vocab; ++i)
      if (kept > 1 && pick(0, kept - 1) == 0)
        c.masks[first + static_cast<size_t>(i / 32)] |= 1U << (i % 32);
    const int one = pick(0, c.vocab - 1);
    if (kept != 0 || pick(0, 1) == 0)
      c.masks[first + static_cast<size_t>(one / 32)] |= 1U << (one % 32);
  }

  // The row as the device reads it; `history` has the drafts before it.
  void add_device_row(SampleCase& c, const SampleSpec& s, int64_t position, TokenHistory& history,
                      int mask_row) {
    SampleRow r;
    r.seed = s.seed;
    r.position = position;
    r.choice_index = s.choice_index;
    r.temperature = s.temperature;
    r.min_p = s.min_p;
    r.presence_penalty = s.presence_penalty;
    r.frequency_penalty = s.frequency_penalty;
    r.repetition_penalty = s.repetition_penalty;
    r.greedy = s.temperature < kGreedyBelow ? 1 : 0;
    r.mask_row = mask_row;
    r.first_change = static_cast<int32_t>(c.changes.size());
    std::vector<SampleChange> changes(static_cast<size_t>(c.vocab));
    if (s.presence_penalty != 0 || s.frequency_penalty != 0 || s.repetition_penalty != 1)
      for (const auto& [token, count] : history.counts(s.reply_position)) {
        changes[static_cast<size_t>(token)].seen = 1;
        changes[static_cast<size_t>(token)].reply = count.reply;
      }
    for (const auto& [token, bias] : s.logit_bias) changes[static_cast<size_t>(token)].bias = bias;
    for (int token = 0; token < c.vocab; ++token) {
      SampleChange& change = changes[static_cast<size_t>(token)];
      change.token = token;
      if (change.seen != 0 || change.bias != 0) c.changes.push_back(change);
    }
    r.changes = static_cast<int32_t>(c.changes.size()) - r.first_change;
    c.rows.push_back(r);
  }

  void add_sequence(SampleCase& c, Sampler& sampler) {
    const SampleSpec s = make_spec(c.vocab);
    const bool masked = pick(0, 2) == 0;
    const auto words = static_cast<size_t>(masked ? c.mask_words() : 0);
    const auto vocab = static_cast<size_t>(c.vocab);
    SampleSequence q;
    q.first_row = static_cast<int32_t>(c.rows.size());
    q.rows = s.verify_rows;
    q.first_draft = static_cast<int32_t>(c.drafts.size());
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < s.position; ++i) ids.push_back(pick(0, c.vocab - 1));
    TokenHistory history, walk;
    history.write(0, ids);
    walk.write(0, ids);
    const size_t first_logit = c.logits.size(), first_mask = c.masks.size();
    for (int i = 0; i < s.verify_rows; ++i) {
      add_row(c);
      if (masked) add_mask(c);
      add_device_row(c, s, s.position + i, walk,
                     masked ? static_cast<int>(c.masks.size() / words) - 1 : -1);
      if (i + 1 == s.verify_rows) break;
      const Result<int32_t> right = sampler.sample(
          std::span(c.logits).last(vocab), s, s.position + i, walk, std::span(c.masks).last(words));
      const int32_t draft = right.ok() && pick(0, 3) != 0 ? *right : pick(0, c.vocab - 1);
      c.drafts.push_back(draft);
      walk.write(s.position + i, std::span(&draft, 1));
    }
    SampledTokens out;
    verify(sampler, s, std::span(c.logits).subspan(first_logit),
           std::span(c.drafts).subspan(static_cast<size_t>(q.first_draft)),
           std::span(c.masks).subspan(masked ? first_mask : c.masks.size()), history, out);
    c.sequences.push_back(q);
    c.expected.push_back(out);
  }

  std::mt19937_64 random_;
};

struct SampleOutcome {
  std::vector<int32_t> token, state, accepted;
};

// Sequences whose tokens, count or failure differ from what the host's sampler gave.
inline int differing_sequences(const SampleCase& c, const SampleOutcome& got) {
  int differing = 0;
  for (size_t i = 0; i < c.sequences.size(); ++i) {
    const SampledTokens& want = c.expected[i];
    const SampleSequence& q = c.sequences[i];
    const size_t count = want.accepted.size();
    bool same = got.accepted[i] == static_cast<int32_t>(count);
    for (size_t r = 0; r < count; ++r)
      same = same && got.token[static_cast<size_t>(q.first_row) + r] == want.accepted[r];
    if (!want.status.ok()) {
      const bool finite = want.status.reason() != kReasonNonFinite;
      same = same &&
             got.state[static_cast<size_t>(q.first_row) + count] ==
                 static_cast<int32_t>(finite ? SampleState::kDeadEnd : SampleState::kNonFinite);
    }
    differing += same ? 0 : 1;
  }
  return differing;
}

}  // namespace tensorfold::test
