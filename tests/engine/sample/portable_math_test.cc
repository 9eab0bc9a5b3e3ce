// exp and log against long double; Philox against its published known answers.
#include "engine/sample/portable_math.h"

#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "engine/sample/noise.h"

using namespace tensorfold;

namespace {

constexpr double kUlpsMax = 2.0;

// Distance in units of the last place of the exact value.
double ulps(double got, long double exact) {
  const auto near = static_cast<double>(exact);
  const double next = std::nextafter(std::fabs(near), std::numeric_limits<double>::infinity());
  const long double ulp = static_cast<long double>(next) - std::fabs(near);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - exact) / ulp);
}

}  // namespace

BOOST_AUTO_TEST_CASE(exp_is_within_two_ulps) {
  std::mt19937_64 rng(1);
  double worst = 0;
  for (int i = 0; i < 400000; ++i) {
    const double width = i % 4 == 0 ? 1e-3 : i % 4 == 1 ? 1.0 : i % 4 == 2 ? 30.0 : 707.0;
    const double x = (std::generate_canonical<double, 53>(rng) * 2 - 1) * width;
    worst = std::max(worst, ulps(portable_exp(x), std::exp(static_cast<long double>(x))));
  }
  BOOST_TEST_MESSAGE("worst exp error in ulps: " << worst);
  BOOST_TEST(worst <= kUlpsMax);
}

BOOST_AUTO_TEST_CASE(log_is_within_two_ulps) {
  std::mt19937_64 rng(2);
  double worst = 0;
  for (int i = 0; i < 400000; ++i) {
    const double u = std::generate_canonical<double, 53>(rng);
    double x = u + 1e-300;
    if (i % 4 == 1) x = 1 + (u - 0.5) * 1e-3;
    if (i % 4 == 2) x = (static_cast<double>(static_cast<uint32_t>(rng())) + 0.5) * 0x1p-32;
    if (i % 4 == 3) x = std::bit_cast<double>(rng() % 0x7FF0000000000000ULL);
    if (x == 0 || x == 1) continue;
    worst = std::max(worst, ulps(portable_log(x), std::log(static_cast<long double>(x))));
  }
  BOOST_TEST_MESSAGE("worst log error in ulps: " << worst);
  BOOST_TEST(worst <= kUlpsMax);
}

BOOST_AUTO_TEST_CASE(edges) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  BOOST_TEST(portable_exp(0) == 1.0);
  BOOST_TEST(portable_exp(-kInf) == 0.0);
  BOOST_TEST(portable_exp(-746) == 0.0);
  BOOST_TEST(portable_exp(-745) == std::exp(-745.0));
  BOOST_TEST(portable_exp(kInf) == kInf);
  BOOST_TEST(portable_exp(710) == kInf);
  BOOST_TEST(std::isnan(portable_exp(nan)));
  BOOST_TEST(portable_log(1) == 0.0);
  BOOST_TEST(portable_log(0) == -kInf);
  BOOST_TEST(portable_log(kInf) == kInf);
  BOOST_TEST(std::isnan(portable_log(-1)));
  BOOST_TEST(std::isnan(portable_log(nan)));
  BOOST_TEST(ulps(portable_log(std::numeric_limits<double>::denorm_min()),
                  std::log(static_cast<long double>(std::numeric_limits<double>::denorm_min()))) <=
             kUlpsMax);
}

BOOST_AUTO_TEST_CASE(bits_are_pinned) {
  // The same on every processor: these bits were computed once and must never move.
  uint64_t exp_bits = 0xCBF29CE484222325ULL;
  uint64_t log_bits = exp_bits;
  for (int i = 1; i <= 10000; ++i) {
    const double x = i * 0.01 - 70;
    exp_bits = (exp_bits ^ std::bit_cast<uint64_t>(portable_exp(x))) * 0x100000001B3ULL;
    log_bits = (log_bits ^ std::bit_cast<uint64_t>(portable_log(i * 0.001))) * 0x100000001B3ULL;
  }
  BOOST_TEST(exp_bits == 15952278635531193105ULL);
  BOOST_TEST(log_bits == 5028294143198575365ULL);
}

BOOST_AUTO_TEST_CASE(philox_known_answers) {
  using Words = std::array<uint32_t, 4>;
  const auto equal = [](const Words& a, const Words& b) { return a == b; };
  BOOST_TEST(equal(philox4x32({0, 0, 0, 0}, {0, 0}),
                   {0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  BOOST_TEST(equal(philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}),
                   {0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
  BOOST_TEST(equal(
      philox4x32({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}, {0xa4093822U, 0x299f31d0U}),
      {0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}));
}

BOOST_AUTO_TEST_CASE(gumbel_is_finite_and_below_its_bound) {
  BOOST_TEST(std::isfinite(gumbel(0)));
  BOOST_TEST(gumbel(0xFFFFFFFFU) < kGumbelMax);
  BOOST_TEST(gumbel(0xFFFFFFFFU) > kGumbelMax - 0.001);
  double sum = 0;
  constexpr int kDraws = 1 << 18;
  for (uint32_t i = 0; i < kDraws; ++i) sum += NoiseKey{9, 0, 77}.noise(static_cast<int32_t>(i));
  BOOST_TEST(std::fabs(sum / kDraws - 0.5772156649) < 0.012);  // Euler's constant; 4.8 sigma
}
