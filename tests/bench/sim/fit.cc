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
constexpr double kShortfallWeight = 4;  // of what falls below kRatioLeast

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

// One or two numbers moved, by factors or, where they may be negative, by steps.
DraftConstants moved(DraftConstants c, std::mt19937_64& rng) {
  double* const factors[] = {
      &c.slope,       &c.bias_first,        &c.bias_step,    &c.place_step,
      &c.slope_step,  &c.bias_rounds,       &c.price_rounds, &c.price_prior_rounds,
      &c.gain_rounds, &c.gain_prior_rounds, &c.pause_rounds, &c.experience_rounds,
      &c.look_rounds};
  for (uint64_t moves = 1 + rng() % 2; moves > 0; --moves) {
    const uint64_t which = rng() % (std::size(factors) + 2 + c.place.size());
    if (which < std::size(factors)) {
      *factors[which] *= std::exp(1.2 * (unit(rng) - 0.5));
    } else {
      const uint64_t at = which - std::size(factors);
      (at == 0 ? c.bias : at == 1 ? c.gain_start : c.place[at - 2]) += 0.8 * (unit(rng) - 0.5);
    }
  }
  c.price_rounds = std::max(c.price_rounds, 4.0);
  c.gain_rounds = std::max(c.gain_rounds, 8.0);
  c.slope = std::min(c.slope, 1.5);
  c.pause_rounds = std::clamp(c.pause_rounds, 32.0, 512.0);
  c.look_rounds = std::clamp(c.look_rounds, 16.0, 256.0);
  return c;
}

double rounded(double x) {
  if (x == 0) return 0;
  const double unit_of = std::pow(10, std::floor(std::log10(std::fabs(x))) - 1);
  return std::round(x / unit_of) * unit_of;
}

DraftConstants rounded(DraftConstants c) {
  for (double* x :
       {&c.bias, &c.gain_start, &c.slope, &c.bias_first, &c.bias_step, &c.place_step, &c.slope_step,
        &c.bias_rounds, &c.price_rounds, &c.price_prior_rounds, &c.gain_rounds,
        &c.gain_prior_rounds, &c.pause_rounds, &c.experience_rounds, &c.look_rounds})
    *x = rounded(*x);
  for (double& x : c.place) x = rounded(x);
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

void print_constants(const DraftConstants& c) {
  std::printf("  double bias = %g;\n", c.bias);
  std::printf("  std::array<double, 5> place = {%g, %g, %g, %g, %g};\n", c.place[0], c.place[1],
              c.place[2], c.place[3], c.place[4]);
  std::printf("  double slope = %g;\n  double bias_first = %g;\n  double bias_step = %g;\n",
              c.slope, c.bias_first, c.bias_step);
  std::printf("  double place_step = %g;\n  double slope_step = %g;\n  double bias_rounds = %g;\n",
              c.place_step, c.slope_step, c.bias_rounds);
  std::printf("  double price_rounds = %g;\n  double price_prior_rounds = %g;\n", c.price_rounds,
              c.price_prior_rounds);
  std::printf("  double gain_rounds = %g;\n  double gain_prior_rounds = %g;\n", c.gain_rounds,
              c.gain_prior_rounds);
  std::printf("  double gain_start = %g;\n", c.gain_start);
  std::printf("  double pause_rounds = %g;\n  double experience_rounds = %g;\n", c.pause_rounds,
              c.experience_rounds);
  std::printf("  double look_rounds = %g;\n", c.look_rounds);
}

}  // namespace tensorfold::sim
