// Sampler: one row of logits becomes one token. A pure function of (row, spec, position, history,
// mask), equal on every processor and rank; owns only scratch memory. One per executor.
//
// In this order, all in fp64:
//   1. penalties     repetition r over tokens of prompt and reply: l > 0 ? l / r : l * r;
//                    then l -= frequency * count + presence, over tokens of the reply
//   2. logit_bias    l += bias
//   3. mask          tokens whose bit is clear are out
//   4. temperature below kGreedyBelow: the largest l, ties to the lowest id. Otherwise
//                    z = l / temperature, and
//   5. top_k         the k largest z (ties: lower id first); 0 is off
//   6. top_p         of those, the shortest prefix in descending order whose share reaches top_p;
//                    at least one token; 1 is off
//   7. min_p         of those, tokens whose probability is at least min_p times the largest one's
//   8. the token with the largest z + noise(seed, choice, position, token): an exact draw from the
//                    softmax of what is left (Gumbel's maximum), without a sum that order could
//                    change
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/sample/token_history.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

inline constexpr float kGreedyBelow = 1e-5F;  // temperatures that mean 0
inline constexpr std::string_view kReasonNonFinite = "non_finite_logits";

// A row with a NaN or an infinity: what sample() says of it.
Status non_finite_row(int64_t position);

class Sampler {
 public:
  explicit Sampler(int vocab_size);
  int vocab_size() const { return vocab_size_; }

  // logits [vocab]; mask [ceil(vocab / 32)] or empty. The token for `position`.
  // kInternal with kReasonNonFinite for a NaN or infinity in the row, "dead_end" when
  // the mask allows nothing: failures of this sequence, not of the step.
  Result<int32_t> sample(std::span<const float> logits, const SampleSpec& spec, int64_t position,
                         TokenHistory& history, std::span<const uint32_t> mask);

  // Log-probabilities under the row's own softmax (no penalty, bias, mask or temperature).
  SampledLogprob logprob(std::span<const float> logits, int32_t token, int top) const;

 private:
  struct Candidate {
    double z;
    int32_t id;
  };
  // Descending z, then ascending id: a total order, so every sort has one result.
  static bool before(const Candidate& a, const Candidate& b) {
    return a.z != b.z ? a.z > b.z : a.id < b.id;
  }

  void adjust(std::span<const float> logits, const SampleSpec& spec, TokenHistory& history);
  bool collect(std::span<const uint32_t> mask, double temperature);
  void keep_top_k(int32_t k);
  void keep_top_p(double top_p);
  void keep_min_p(double min_p);
  int32_t draw_all(const SampleSpec& spec, int64_t position) const;
  int32_t draw_kept(const SampleSpec& spec, int64_t position) const;

  const int vocab_size_;
  std::vector<double> adjusted_;       // [vocab]
  std::vector<Candidate> candidates_;  // allowed tokens, z = adjusted / temperature
  bool sorted_ = false;                // candidates_ are in `before` order
};

}  // namespace tensorfold
