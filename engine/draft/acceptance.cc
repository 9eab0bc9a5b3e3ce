// Online logistic regression with variances. Owner: the engine thread.
#include "engine/draft/acceptance.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/sample/portable_math.h"

namespace tensorfold {
namespace {

constexpr double kLogitMax = 8;  // beyond it a confidence says no more
constexpr double kSlopeMin = 0;  // a confidence that misleads is left out, not turned round
constexpr double kSlopeMax = 2;
constexpr double kRateMemory = 1.0 / 32;  // weight of the newest outcome in rate()
constexpr int kNewtonSteps = 8;

double sigmoid(double x) { return 1 / (1 + portable_exp(-x)); }

double confidence_at(std::span<const float> confidence, int32_t place) {
  const auto at = static_cast<size_t>(place);
  return at < confidence.size() ? confidence[at] : 0.0F;
}

// Not a number: the drafter's own overflow says nothing.
double bounded(double c) {
  if (!(c >= -kLogitMax)) return c < 0 ? -kLogitMax : 0;
  return std::min(c, kLogitMax);
}

// Where a logit of this mean and variance is likeliest after the outcome: the root of x = mean +
// variance * (outcome - sigmoid(x)), between bounds that Newton's steps may not leave.
double likeliest(double mean, double variance, double outcome) {
  double low = mean - (1 - outcome) * variance;
  double high = mean + outcome * variance;
  double x = mean;
  for (int step = 0; step < kNewtonSteps; ++step) {
    const double p = sigmoid(x);
    const double f = x - mean - variance * (outcome - p);
    (f > 0 ? high : low) = x;
    const double next = x - f / (1 + variance * p * (1 - p));
    x = next > low && next < high ? next : 0.5 * (low + high);
  }
  return x;
}

// What is learned loses a little of its certainty, down to that of the start.
void drift(double& variance, double by, double spread) {
  variance = std::min(variance + by * by, std::max(variance, spread * spread));
}

}  // namespace

DraftExperience::DraftExperience(const DraftConstants& constants)
    : promise(constants.promise_start) {
  for (size_t i = 0; i < kSize; ++i) {
    const bool is_place = i < kDraftRowsMax;
    mean[i] = is_place ? constants.place[i] : constants.slope;
    const double spread = is_place ? constants.place_spread : constants.slope_spread;
    covariance[i][i] = spread * spread;
  }
}

Acceptance::Acceptance(const DraftConstants& constants)
    : constants_(constants), variance_(constants.bias_spread * constants.bias_spread) {
  rate_.fill(kRateStart);
}

void Acceptance::forget() {
  bias_ *= 0.5;
  variance_ = constants_.bias_spread * constants_.bias_spread;
}

double Acceptance::chance(int32_t place, float confidence,
                          const DraftExperience& experience) const {
  return sigmoid(bias_ + experience.mean[static_cast<size_t>(place)] +
                 experience.slope() * bounded(confidence));
}

void Acceptance::learn_one(int32_t place, double confidence, bool right,
                           DraftExperience& experience) {
  constexpr size_t kSlope = kDraftRowsMax;
  const auto at = static_cast<size_t>(place);
  const double c = bounded(confidence);
  auto& mean = experience.mean;
  auto& covariance = experience.covariance;
  // The logit is bias + mean[at] + c * mean[kSlope].
  std::array<double, DraftExperience::kSize> with{};  // their covariance with it
  for (size_t i = 0; i < with.size(); ++i) with[i] = covariance[i][at] + c * covariance[i][kSlope];
  const double variance = variance_ + with[at] + c * with[kSlope];
  const double before = bias_ + mean[at] + c * mean[kSlope];
  const double after = likeliest(before, variance, right ? 1 : 0);
  const double p = sigmoid(after);
  const double step = (after - before) / variance;
  const double curvature = p * (1 - p);
  const double shrink = curvature / (1 + curvature * variance);
  bias_ = std::clamp(bias_ + step * variance_, -kLogitMax, kLogitMax);
  variance_ -= variance_ * variance_ * shrink;
  for (size_t i = 0; i < with.size(); ++i) {
    mean[i] = std::clamp(mean[i] + step * with[i], -kLogitMax, kLogitMax);
    for (size_t j = 0; j < with.size(); ++j) covariance[i][j] -= with[i] * with[j] * shrink;
  }
  mean[kSlope] = std::clamp(mean[kSlope], kSlopeMin, kSlopeMax);
}

void Acceptance::learn(std::span<const float> confidence, int32_t known, int32_t right,
                       DraftExperience& experience) {
  TF_CHECK(known >= 0 && known <= kDraftRowsMax);
  TF_CHECK(right >= 0 && right <= known && known <= right + 1);
  if (known == 0) return;
  drift(variance_, constants_.bias_drift, constants_.bias_spread);
  for (size_t i = 0; i < DraftExperience::kSize; ++i) {
    const bool is_place = i < kDraftRowsMax;
    drift(experience.covariance[i][i], is_place ? constants_.place_drift : constants_.slope_drift,
          is_place ? constants_.place_spread : constants_.slope_spread);
  }
  for (int32_t i = 0; i < known; ++i) {
    learn_one(i, confidence_at(confidence, i), i < right, experience);
    double& rate = rate_[static_cast<size_t>(i)];
    rate += kRateMemory * ((i < right ? 1.0 : 0.0) - rate);
  }
}

void Acceptance::count(int32_t verified, int32_t accepted) {
  TF_CHECK(verified >= 0 && verified <= kDraftRowsMax);
  TF_CHECK(accepted >= 0 && accepted <= verified);
  drafted_ += verified;
  accepted_ += accepted;
}

}  // namespace tensorfold
