// See the header.
#include "tests/bench/sim/fit.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace tensorfold::sim {
namespace {

constexpr int kTrials = 240;
constexpr int kFitTokens = 3072;  // of each generated trace
constexpr int kFitTraces = 2;     // of each kind
constexpr double kRatioLeast = 0.995;
constexpr double kLookShareMax = 0.008;  // all that may be lost where drafts never pay: 0.01
constexpr double kShortfallWeight = 4;   // of what falls below kRatioLeast

// The mean gain over the best fixed depth, with what falls short counted several times.
double score(std::span<const Scenario> scenarios, const DraftConstants& constants) {
  double sum = 0;
  for (const Scenario& s : scenarios) {
    const double ratio = run_scenario(s, constants).rate() / s.fixed.result.rate();
    sum += std::log(ratio) - kShortfallWeight * std::max(0.0, kRatioLeast - ratio);
  }
  return sum / static_cast<double>(scenarios.size());
}

double unit(std::mt19937_64& rng) { return static_cast<double>(rng() >> 11) * 0x1p-53; }

// Numbers that are positive: they are moved by factors.
std::vector<double*> scales(DraftConstants& c) {
  return {&c.place_spread,       &c.slope,       &c.slope_spread,         &c.bias_spread,
          &c.bias_drift,         &c.place_drift, &c.slope_drift,          &c.price_rounds,
          &c.price_prior_rounds, &c.lost_runs,   &c.promise_prior_rounds, &c.promise_least,
          &c.look_share,         &c.first_look,  &c.experience_rounds};
}

// One or two numbers moved, by factors or, where they may be negative, by steps.
DraftConstants moved(DraftConstants c, std::mt19937_64& rng) {
  const std::vector<double*> factors = scales(c);
  for (uint64_t moves = 1 + rng() % 2; moves > 0; --moves) {
    const uint64_t which = rng() % (factors.size() + 1 + c.place.size());
    if (which < factors.size()) {
      *factors[which] *= std::exp(1.2 * (unit(rng) - 0.5));
    } else {
      const uint64_t at = which - factors.size();
      (at == 0 ? c.promise_start : c.place[at - 1]) += 0.8 * (unit(rng) - 0.5);
    }
  }
  c.price_rounds = std::max(c.price_rounds, 4.0);
  c.slope = std::min(c.slope, 1.5);
  // Other drafters than those of the traces must be learned too.
  c.slope_spread = std::max(c.slope_spread, 0.15);
  c.bias_spread = std::max(c.bias_spread, 0.5);
  c.look_share = std::min(c.look_share, kLookShareMax);
  c.first_look = std::min(c.first_look, 1.0);
  return c;
}

double rounded(double x) {
  if (x == 0) return 0;
  const double unit_of = std::pow(10, std::floor(std::log10(std::fabs(x))) - 1);
  return std::round(x / unit_of) * unit_of;
}

DraftConstants rounded(DraftConstants c) {
  for (double* x : scales(c)) *x = rounded(*x);
  for (double& x : c.place) x = rounded(x);
  c.promise_start = rounded(c.promise_start);
  return c;
}

}  // namespace

DraftConstants fit_constants(std::span<const Trace> recorded, std::span<const Costs> costs) {
  std::mt19937_64 rng(1);
  std::vector<Scenario> scenarios;
  for (int i = 0; i < kFitTraces; ++i) {
    const uint64_t seed = kFitSeed + static_cast<uint64_t>(i) * 10;
    const std::vector<Trace> part = i == 0 ? part_of(recorded, "fit-") : std::vector<Trace>();
    for (Scenario& s : make_scenarios(part, costs, seed, kFitTokens))
      scenarios.push_back(std::move(s));
  }
  DraftConstants best = kDraftConstants;
  double best_score = score(scenarios, best);
  std::fprintf(stderr, "start: %.5f\n", best_score);
  for (int trial = 0; trial < kTrials; ++trial) {
    const DraftConstants c = rounded(moved(best, rng));
    const double s = score(scenarios, c);
    if (s <= best_score) continue;
    best = c;
    best_score = s;
    std::fprintf(stderr, "%d: %.5f\n", trial, s);
    print_constants(best);  // a search that is broken off is of use too
    std::fflush(stdout);
  }
  return best;
}

void print_constants(const DraftConstants& constants) {
  DraftConstants c = constants;
  static constexpr const char* kNames[] = {
      "place_spread",       "slope",       "slope_spread",         "bias_spread",
      "bias_drift",         "place_drift", "slope_drift",          "price_rounds",
      "price_prior_rounds", "lost_runs",   "promise_prior_rounds", "promise_least",
      "look_share",         "first_look",  "experience_rounds"};
  std::printf("  std::array<double, 5> place = {%g, %g, %g, %g, %g};\n", c.place[0], c.place[1],
              c.place[2], c.place[3], c.place[4]);
  const std::vector<double*> values = scales(c);
  for (size_t i = 0; i < values.size(); ++i)
    std::printf("  double %s = %g;\n", kNames[i], *values[i]);
  std::printf("  double promise_start = %g;\n", c.promise_start);
}

}  // namespace tensorfold::sim
