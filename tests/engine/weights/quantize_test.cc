// quantize_layer(): what it stores is what it says it stores, LDLQ beats plain rounding where
// inputs are correlated, odd shapes and zeros come out right, threads do not change a bit.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "engine/base/half.h"
#include "engine/weights/hadamard.h"
#include "engine/weights/ldlq.h"
#include "engine/weights/quantize.h"

namespace tensorfold::exl3 {
namespace {

std::vector<float> normal_values(size_t count, unsigned seed, float sigma = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

// A weight whose rows and columns differ in size, with a few large values, as trained ones have.
std::vector<float> trained_like(int64_t out, int64_t in, unsigned seed) {
  auto w = normal_values(static_cast<size_t>(out * in), seed, 0.02f);
  const auto rows = normal_values(static_cast<size_t>(out), seed + 1, 0.4f);
  const auto columns = normal_values(static_cast<size_t>(in), seed + 2, 0.4f);
  std::mt19937 random(seed + 3);
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i) {
      float& v = w[static_cast<size_t>(o * in + i)];
      v *= std::exp(rows[static_cast<size_t>(o)] + columns[static_cast<size_t>(i)]);
      if (random() % 1000 == 0) v *= 8;
    }
  }
  return w;
}

// Second moments of rows x = z A: few strong directions over a weak floor, channel scales that
// differ by an order of magnitude: the look of a residual stream.
InputMoments correlated(int64_t k, int rows, unsigned seed) {
  const int64_t rank = k / 8;
  const auto directions = normal_values(static_cast<size_t>(rank * k), seed);
  const auto channel = normal_values(static_cast<size_t>(k), seed + 1, 0.7f);
  std::mt19937 random(seed + 2);
  std::normal_distribution<float> normal;
  InputMoments m{k, std::vector<float>(static_cast<size_t>(k * k), 0.0f),
                 static_cast<double>(rows)};
  std::vector<float> x(static_cast<size_t>(k));
  for (int r = 0; r < rows; ++r) {
    for (float& v : x) v = normal(random);
    for (int64_t d = 0; d < rank; ++d) {
      const float z = normal(random) / static_cast<float>(1 + d);
      for (int64_t i = 0; i < k; ++i) {
        x[static_cast<size_t>(i)] += z * directions[static_cast<size_t>(d * k + i)];
      }
    }
    for (int64_t i = 0; i < k; ++i) {
      x[static_cast<size_t>(i)] *= std::exp(channel[static_cast<size_t>(i)]);
    }
    for (int64_t i = 0; i < k; ++i) {
      float* row = m.sum.data() + i * k;
      for (int64_t j = 0; j < k; ++j)
        row[j] += x[static_cast<size_t>(i)] * x[static_cast<size_t>(j)];
    }
  }
  return m;
}

QuantizeOptions options_of(int half_bits, int threads = 2) {
  QuantizeOptions options;
  options.half_bits = half_bits;
  options.threads = threads;
  options.seed = seed_of("layers.0.attn.wq_b");
  return options;
}

QuantizedLayer quantized(const std::vector<float>& w, int64_t out, int64_t in,
                         const InputMoments* moments, const QuantizeOptions& options) {
  auto layer = quantize_layer(w, out, in, moments, options);
  BOOST_REQUIRE_MESSAGE(layer.ok(), layer.status().message());
  BOOST_REQUIRE(check_layer(layer->view()).ok());
  return std::move(layer).value();
}

double nmse(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, energy = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    error += d * d;
    energy += static_cast<double>(a[i]) * static_cast<double>(a[i]);
  }
  return error / energy;
}

}  // namespace

BOOST_AUTO_TEST_CASE(ldlq_beats_plain_rounding_on_correlated_inputs) {
  constexpr int64_t kOut = 256, kIn = 1280;
  const auto w = trained_like(kOut, kIn, 20);
  const auto moments = correlated(kIn, 1500, 30);
  const auto plain = quantized(w, kOut, kIn, nullptr, options_of(6));
  const auto better = quantized(w, kOut, kIn, &moments, options_of(6));
  BOOST_TEST(!plain.used_moments);
  BOOST_TEST(better.used_moments);
  const double e_plain = output_error(w, dequantized(plain), kOut, kIn, moments);
  const double e_better = output_error(w, dequantized(better), kOut, kIn, moments);
  BOOST_TEST_MESSAGE("output error: plain " << e_plain << ", LDLQ " << e_better << ", ratio "
                                            << e_better / e_plain);
  BOOST_TEST(e_better < 0.9 * e_plain);
  // LDLQ spends weight error to save output error, within reason.
  BOOST_TEST(plain.nmse < 0.03);
  BOOST_TEST(better.nmse < 3 * plain.nmse);
}

BOOST_AUTO_TEST_CASE(the_error_falls_with_the_bits_and_is_what_the_tensors_give) {
  constexpr int64_t kOut = 128, kIn = 256;
  const auto w = trained_like(kOut, kIn, 40);
  double before = 1;
  for (int half_bits : {2, 3, 4, 5, 6, 7, 8, 10, 12, 16}) {
    const auto layer = quantized(w, kOut, kIn, nullptr, options_of(half_bits));
    const double measured = nmse(w, dequantized(layer));
    BOOST_TEST(measured == layer.nmse);
    BOOST_TEST(measured < 0.75 * before);
    // The distortion of the tile search, with room for scales and values far out.
    const double room = half_bits <= 12 ? 1.35 : 2;  // 8 bits: the codebook's end shows
    BOOST_TEST(measured < room * std::pow(2.0, -half_bits), "half bits " << half_bits);
    BOOST_TEST(layer.scale > 0.6);
    BOOST_TEST(layer.scale < 1.2);
    before = measured;
  }
}

BOOST_AUTO_TEST_CASE(every_codebook_and_out_scale_choice_works) {
  constexpr int64_t kOut = 128, kIn = 128;
  const auto w = trained_like(kOut, kIn, 50);
  for (Codebook codebook : {Codebook::k3inst, Codebook::kMcg, Codebook::kMul1}) {
    for (OutScales scales : {OutScales::kAuto, OutScales::kAlways, OutScales::kNever}) {
      QuantizeOptions options = options_of(8);
      options.codebook = codebook;
      options.out_scales = scales;
      const auto layer = quantized(w, kOut, kIn, nullptr, options);
      BOOST_TEST(layer.nmse < 0.0065);
      bool all_one = true;
      for (uint16_t v : layer.svh) all_one = all_one && (v & 0x7FFF) == 0x3C00;
      BOOST_TEST(all_one == (scales == OutScales::kNever));
    }
  }
}

BOOST_AUTO_TEST_CASE(sizes_off_the_grid_are_padded_and_zeros_stay_zero) {
  constexpr int64_t kOut = 200, kIn = 130;
  auto w = trained_like(kOut, kIn, 60);
  for (int64_t i = 0; i < kIn; ++i) w[static_cast<size_t>(7 * kIn + i)] = 0;    // output 7
  for (int64_t o = 0; o < kOut; ++o) w[static_cast<size_t>(o * kIn + 11)] = 0;  // input 11
  const auto moments = correlated(kIn, 400, 61);
  for (const InputMoments* m : {static_cast<const InputMoments*>(nullptr), &moments}) {
    const auto layer = quantized(w, kOut, kIn, m, options_of(8));
    BOOST_TEST(layer.n_out == 256);
    BOOST_TEST(layer.k_in == 256);
    const auto back = dequantized(layer);
    for (int64_t i = 0; i < kIn; ++i) {
      BOOST_REQUIRE_EQUAL(back[static_cast<size_t>(7 * kIn + i)], 0.0f);
    }
    for (int64_t o = 0; o < kOut; ++o) {
      BOOST_REQUIRE_EQUAL(back[static_cast<size_t>(o * kIn + 11)], 0.0f);
    }
    for (int64_t o = kOut; o < 256; ++o) BOOST_TEST(layer.svh[static_cast<size_t>(o)] == 0);
    for (int64_t i = kIn; i < 256; ++i) BOOST_TEST(layer.suh[static_cast<size_t>(i)] == 0);
    BOOST_TEST(layer.nmse < 0.02);
  }
  // A weight of nothing but zeros comes back as zeros.
  const std::vector<float> zeros(128 * 128, 0.0f);
  const auto layer = quantized(zeros, 128, 128, nullptr, options_of(4));
  for (float v : dequantized(layer)) BOOST_REQUIRE_EQUAL(v, 0.0f);
}

BOOST_AUTO_TEST_CASE(threads_do_not_change_a_bit_and_names_change_the_signs) {
  constexpr int64_t kOut = 384, kIn = 128;
  const auto w = trained_like(kOut, kIn, 70);
  const auto moments = correlated(kIn, 300, 71);
  const auto one = quantized(w, kOut, kIn, &moments, options_of(5, 1));
  const auto five = quantized(w, kOut, kIn, &moments, options_of(5, 5));
  BOOST_TEST((one.trellis == five.trellis && one.suh == five.suh && one.svh == five.svh));
  QuantizeOptions other = options_of(5);
  other.seed = seed_of("layers.1.attn.wq_b");
  const auto renamed = quantized(w, kOut, kIn, &moments, other);
  BOOST_TEST((renamed.suh != one.suh));
}

BOOST_AUTO_TEST_CASE(small_and_large_weights_keep_their_accuracy) {
  auto w = trained_like(128, 128, 80);
  const double usual = quantized(w, 128, 128, nullptr, options_of(8)).nmse;
  for (float factor : {1e-3f, 1e3f}) {
    auto scaled = w;
    for (float& v : scaled) v *= factor;
    BOOST_TEST(quantized(scaled, 128, 128, nullptr, options_of(8)).nmse < 1.2 * usual);
  }
}

BOOST_AUTO_TEST_CASE(bad_input_is_refused_with_the_place) {
  auto w = trained_like(128, 128, 90);
  InputMoments moments = correlated(256, 10, 91);
  auto result = quantize_layer(w, 128, 128, &moments, options_of(6));
  BOOST_REQUIRE(!result.ok());
  BOOST_TEST(result.status().message().find("[256, 256]") != std::string::npos);
  moments = correlated(128, 200, 91);
  moments.sum[5] = std::nanf("");
  result = quantize_layer(w, 128, 128, &moments, options_of(6));
  BOOST_REQUIRE(!result.ok());
  BOOST_TEST(result.status().message().find("not finite") != std::string::npos);
  // No rows seen: plain rounding.
  moments = correlated(128, 200, 91);
  moments.rows = 0;
  BOOST_TEST(!quantized(w, 128, 128, &moments, options_of(6)).used_moments);
  w[128 * 3 + 4] = std::numeric_limits<float>::infinity();
  result = quantize_layer(w, 128, 128, nullptr, options_of(6));
  BOOST_REQUIRE(!result.ok());
  BOOST_TEST(result.status().message().find("[3, 4]") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_block_factor_rebuilds_the_matrix) {
  constexpr int64_t kK = 64;
  const auto m = correlated(kK, 200, 95);
  std::vector<double> h(m.sum.begin(), m.sum.end());
  for (int64_t i = 0; i < kK; ++i) h[static_cast<size_t>(i * kK + i)] += 10;
  auto factor = BlockFactor::of(h, kK, 0.025);
  BOOST_REQUIRE(factor.ok());
  // L with identity diagonal blocks; D = L^-1 H L^-T must be block diagonal.
  std::vector<double> l(kK * kK, 0);
  for (int64_t i = 0; i < kK; ++i) {
    l[static_cast<size_t>(i * kK + i)] = 1;
    for (int64_t j = (i / 16 + 1) * 16; j < kK; ++j) {
      l[static_cast<size_t>(j * kK + i)] = static_cast<double>(factor->row(i)[j]);
    }
  }
  auto left_solve = [&](std::vector<double>& a) {  // a := L^-1 a
    for (int64_t j = 0; j < kK; ++j) {
      for (int64_t i = 0; i < j; ++i) {
        const double f = l[static_cast<size_t>(j * kK + i)];
        for (int64_t c = 0; c < kK; ++c) {
          a[static_cast<size_t>(j * kK + c)] -= f * a[static_cast<size_t>(i * kK + c)];
        }
      }
    }
  };
  std::vector<double> d = h;
  left_solve(d);
  std::vector<double> t(d.size());
  for (int64_t i = 0; i < kK; ++i) {
    for (int64_t j = 0; j < kK; ++j)
      t[static_cast<size_t>(j * kK + i)] = d[static_cast<size_t>(i * kK + j)];
  }
  left_solve(t);
  double off = 0, on = 0;
  for (int64_t i = 0; i < kK; ++i) {
    for (int64_t j = 0; j < kK; ++j) {
      const double v = t[static_cast<size_t>(i * kK + j)];
      (i / 16 == j / 16 ? on : off) += v * v;
    }
  }
  BOOST_TEST(std::sqrt(off / on) < 1e-5);
  // Hopeless input is refused, a barely indefinite one is repaired.
  std::vector<double> negative(16 * 16, 0.0);
  for (int i = 0; i < 16; ++i) negative[static_cast<size_t>(17 * i)] = i == 3 ? -100.0 : 10.0;
  BOOST_TEST(!BlockFactor::of(negative, 16, 0.025).ok());
  negative[17 * 3] = -0.1;
  BOOST_TEST(BlockFactor::of(negative, 16, 0.025).ok());
}

}  // namespace tensorfold::exl3
