// Sampling of one row. See the header for the order of steps and why noise is per token.
#include "engine/sample/sampler.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/sample/noise.h"
#include "engine/sample/portable_math.h"

namespace tensorfold {
namespace {

bool all_finite(std::span<const float> row) {
  // The sum of x * 0 is 0 exactly when every x is finite.
  float poison = 0;
  for (const float x : row) poison += x * 0.0F;
  return poison == 0.0F;
}

bool has_penalty(const SampleSpec& s) {
  return s.presence_penalty != 0 || s.frequency_penalty != 0 || s.repetition_penalty != 1;
}

bool allowed(std::span<const uint32_t> mask, int32_t id) {
  return mask.empty() || ((mask[static_cast<size_t>(id) / 32] >> (id % 32)) & 1U) != 0;
}

}  // namespace

Status non_finite_row(int64_t position) {
  return Status(StatusCode::kInternal,
                "the model gave NaN or infinity at position " + std::to_string(position), "",
                std::string(kReasonNonFinite));
}

Sampler::Sampler(int vocab_size)
    : vocab_size_(vocab_size), adjusted_(static_cast<size_t>(vocab_size)) {
  TF_CHECK(vocab_size > 0);
  candidates_.reserve(static_cast<size_t>(vocab_size));
}

Result<int32_t> Sampler::sample(std::span<const float> logits, const SampleSpec& spec,
                                int64_t position, TokenHistory& history,
                                std::span<const uint32_t> mask) {
  TF_CHECK_EQ(logits.size(), static_cast<size_t>(vocab_size_));
  TF_CHECK(mask.empty() || mask.size() == (logits.size() + 31) / 32);
  if (!all_finite(logits)) return non_finite_row(position);
  adjust(logits, spec, history);
  const bool greedy = spec.temperature < kGreedyBelow;
  if (!collect(mask, greedy ? 1.0 : spec.temperature))
    return Status(StatusCode::kInternal,
                  "no token is allowed at position " + std::to_string(position), "", "dead_end");
  if (greedy) return std::min_element(candidates_.begin(), candidates_.end(), before)->id;
  if (spec.top_k > 0) keep_top_k(spec.top_k);
  if (spec.top_p < 1) keep_top_p(spec.top_p);
  if (spec.min_p > 0) keep_min_p(spec.min_p);
  const bool everything = candidates_.size() == logits.size() && !sorted_;
  return everything ? draw_all(spec, position) : draw_kept(spec, position);
}

void Sampler::adjust(std::span<const float> logits, const SampleSpec& spec, TokenHistory& history) {
  for (size_t i = 0; i < logits.size(); ++i) adjusted_[i] = logits[i];
  if (has_penalty(spec)) {
    const double r = spec.repetition_penalty;
    for (const auto& [token, count] : history.counts(spec.reply_position)) {
      if (token < 0 || token >= vocab_size_) continue;
      double& l = adjusted_[static_cast<size_t>(token)];
      l = l > 0 ? l / r : l * r;
      if (count.reply > 0)
        l -= static_cast<double>(spec.frequency_penalty) * count.reply +
             static_cast<double>(spec.presence_penalty);
    }
  }
  for (const auto& [token, bias] : spec.logit_bias) {
    if (token >= 0 && token < vocab_size_) adjusted_[static_cast<size_t>(token)] += bias;
  }
}

bool Sampler::collect(std::span<const uint32_t> mask, double temperature) {
  candidates_.clear();
  sorted_ = false;
  for (int32_t id = 0; id < vocab_size_; ++id) {
    if (allowed(mask, id))
      candidates_.push_back({adjusted_[static_cast<size_t>(id)] / temperature, id});
  }
  return !candidates_.empty();
}

void Sampler::keep_top_k(int32_t k) {
  const auto keep = static_cast<size_t>(k);
  if (keep < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(), before);
    candidates_.resize(keep);
  }
  std::sort(candidates_.begin(), candidates_.end(), before);
  sorted_ = true;
}

void Sampler::keep_top_p(double top_p) {
  const double largest = std::min_element(candidates_.begin(), candidates_.end(), before)->z;
  double total = 0;
  for (const Candidate& c : candidates_) total += portable_exp(c.z - largest);
  const double wanted = top_p * total;
  // Sorted a piece at a time: a nucleus is small beside the vocabulary.
  constexpr size_t kFirstPiece = 64;
  double sum = 0;
  size_t kept = 0;
  size_t in_order = sorted_ ? candidates_.size() : 0;
  while (kept < candidates_.size() && (kept == 0 || sum < wanted)) {
    if (kept == in_order) {
      in_order = std::min(candidates_.size(), std::max(kFirstPiece, 4 * in_order));
      const auto at = [&](size_t i) { return candidates_.begin() + static_cast<ptrdiff_t>(i); };
      std::partial_sort(at(kept), at(in_order), candidates_.end(), before);
    }
    sum += portable_exp(candidates_[kept].z - largest);
    ++kept;
  }
  candidates_.resize(kept);
  sorted_ = true;
}

void Sampler::keep_min_p(double min_p) {
  const double largest = std::min_element(candidates_.begin(), candidates_.end(), before)->z;
  // The largest has exp(0) = 1 and stays for every min_p up to 1.
  std::erase_if(candidates_, [&](const Candidate& c) {
    return c.z != largest && portable_exp(c.z - largest) < min_p;
  });
}

// Every token in id order: four to a block of noise, and none for tokens that can't win.
int32_t Sampler::draw_all(const SampleSpec& spec, int64_t position) const {
  const NoiseKey key{spec.seed, spec.choice_index, position};
  double best = 0;
  int32_t winner = -1;
  for (size_t first = 0; first < candidates_.size(); first += 4) {
    const size_t end = std::min(first + 4, candidates_.size());
    bool hopeful = winner < 0;
    for (size_t i = first; i < end; ++i) hopeful |= candidates_[i].z + kGumbelMax > best;
    if (!hopeful) continue;
    const auto words = key.words(static_cast<uint32_t>(first / 4));
    for (size_t i = first; i < end; ++i) {
      const double score = candidates_[i].z + gumbel(words[i - first]);
      if (winner >= 0 && score <= best) continue;
      best = score;
      winner = candidates_[i].id;
    }
  }
  return winner;
}

int32_t Sampler::draw_kept(const SampleSpec& spec, int64_t position) const {
  const NoiseKey key{spec.seed, spec.choice_index, position};
  double best = 0;
  int32_t winner = -1;
  for (const Candidate& c : candidates_) {
    if (winner >= 0 && c.z + kGumbelMax < best) continue;
    const double score = c.z + key.noise(c.id);
    if (winner >= 0 && (score < best || (score == best && c.id > winner))) continue;
    best = score;
    winner = c.id;
  }
  return winner;
}

SampledLogprob Sampler::logprob(std::span<const float> logits, int32_t token, int top) const {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += portable_exp(static_cast<double>(l) - largest);
  const double log_sum = largest + portable_log(sum);
  const auto value = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum);
  };
  SampledLogprob result;
  result.logprob = value(token);
  const auto n = std::min(static_cast<size_t>(std::max(top, 0)), logits.size());
  if (n == 0) return result;
  std::vector<Candidate> order(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) order[i] = {logits[i], static_cast<int32_t>(i)};
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(n), order.end(), before);
  for (size_t i = 0; i < n; ++i) result.top.emplace_back(order[i].id, value(order[i].id));
  return result;
}

}  // namespace tensorfold
