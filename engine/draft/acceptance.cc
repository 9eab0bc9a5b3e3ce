// Online logistic regression by place. Owner: the engine thread.
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
constexpr double kRateStart = 0.5;

double sigmoid(double x) { return 1 / (1 + portable_exp(-x)); }

double confidence_at(std::span<const float> confidence, int32_t place) {
  const auto at = static_cast<size_t>(place);
  return at < confidence.size() ? confidence[at] : 0.0F;
}

}  // namespace

Acceptance::Acceptance(const DraftConstants& constants) : constants_(constants) {
  rate_.fill(kRateStart);
  forget();
}

void Acceptance::forget() {
  bias_ = constants_.bias;
  slope_ = constants_.slope;
  for (size_t i = 0; i < place_.size(); ++i) place_[i] = constants_.place[i];
  learned_ = 0;
}

double Acceptance::chance(int32_t place, float confidence) const {
  // Not a number: the drafter's own overflow says nothing.
  double c = confidence;
  if (!(c >= -kLogitMax)) c = c < 0 ? -kLogitMax : 0;
  c = std::min(c, kLogitMax);
  return sigmoid(bias_ + place_[static_cast<size_t>(place)] + slope_ * c);
}

void Acceptance::learn(std::span<const float> confidence, int32_t known, int32_t right) {
  TF_CHECK(known >= 0 && known <= kDraftRowsMax);
  TF_CHECK(right >= 0 && right <= known && known <= right + 1);
  const double ahead = static_cast<double>(learned_) / constants_.bias_rounds;
  const double bias_step = std::max(constants_.bias_step, constants_.bias_first / (1 + ahead));
  for (int32_t i = 0; i < known; ++i) {
    const double c = confidence_at(confidence, i);
    const double outcome = i < right ? 1 : 0;
    const double error = outcome - chance(i, static_cast<float>(c));
    bias_ = std::clamp(bias_ + bias_step * error, -kLogitMax, kLogitMax);
    double& place = place_[static_cast<size_t>(i)];
    place = std::clamp(place + constants_.place_step * error, -kLogitMax, kLogitMax);
    const double bounded = c >= -kLogitMax && c <= kLogitMax ? c : 0;
    slope_ = std::clamp(slope_ + constants_.slope_step * error * bounded, kSlopeMin, kSlopeMax);
    double& rate = rate_[static_cast<size_t>(i)];
    rate += kRateMemory * (outcome - rate);
  }
  if (known > 0) ++learned_;
}

void Acceptance::count(int32_t verified, int32_t accepted) {
  TF_CHECK(verified >= 0 && verified <= kDraftRowsMax);
  TF_CHECK(accepted >= 0 && accepted <= verified);
  drafted_ += verified;
  accepted_ += accepted;
}

}  // namespace tensorfold
