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

double sigmoid(double x) { return 1 / (1 + portable_exp(-x)); }

double confidence_at(std::span<const float> confidence, int32_t place) {
  const auto at = static_cast<size_t>(place);
  return at < confidence.size() ? confidence[at] : 0.0F;
}

}  // namespace

double Acceptance::chance(int32_t place, float confidence,
                          const DraftExperience& experience) const {
  // Not a number: the drafter's own overflow says nothing.
  double c = confidence;
  if (!(c >= -kLogitMax)) c = c < 0 ? -kLogitMax : 0;
  c = std::min(c, kLogitMax);
  return sigmoid(bias_ + experience.place[static_cast<size_t>(place)] + experience.slope * c);
}

void Acceptance::learn(std::span<const float> confidence, int32_t known, int32_t right,
                       DraftExperience& experience) {
  TF_CHECK(known >= 0 && known <= kDraftRowsMax);
  TF_CHECK(right >= 0 && right <= known && known <= right + 1);
  const double ahead = static_cast<double>(learned_) / constants_.bias_rounds;
  const double bias_step = std::max(constants_.bias_step, constants_.bias_first / (1 + ahead));
  for (int32_t i = 0; i < known; ++i) {
    const double c = confidence_at(confidence, i);
    const double outcome = i < right ? 1 : 0;
    const double error = outcome - chance(i, static_cast<float>(c), experience);
    bias_ = std::clamp(bias_ + bias_step * error, -kLogitMax, kLogitMax);
    double& place = experience.place[static_cast<size_t>(i)];
    place = std::clamp(place + constants_.place_step * error, -kLogitMax, kLogitMax);
    const double bounded = c >= -kLogitMax && c <= kLogitMax ? c : 0;
    double& slope = experience.slope;
    slope = std::clamp(slope + constants_.slope_step * error * bounded, kSlopeMin, kSlopeMax);
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
