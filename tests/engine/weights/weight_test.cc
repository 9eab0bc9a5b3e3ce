// Stored formats as values: every byte of the small formats, rounding to bf16, the published row
// that a loader is checked with, and a whole EXL3 layer read from a file.
#include "engine/weights/weight.h"

#include <simdjson.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <random>

#include "engine/base/half.h"
#include "engine/weights/stored_weight.h"
#include "tests/engine/weights/weights_support.h"

namespace tensorfold {
namespace {

BOOST_AUTO_TEST_CASE(every_byte_of_the_small_formats) {
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    const int exponent = (b >> 3) & 15, fraction = b & 7;
    const float value = fp8_e4m3_to_fp32(byte);
    if (exponent == 15 && fraction == 7) {
      BOOST_TEST(std::isnan(value));
    } else {
      const double magnitude = exponent == 0 ? fraction * std::ldexp(1.0, -9)
                                             : (1 + fraction / 8.0) * std::ldexp(1.0, exponent - 7);
      BOOST_TEST(static_cast<double>(value) == (b < 128 ? magnitude : -magnitude));
      BOOST_TEST(std::signbit(value) == (b >= 128));
    }
    const float scale = ue8m0_to_fp32(byte);
    if (b == 255) {
      BOOST_TEST(std::isnan(scale));
    } else {
      BOOST_TEST(static_cast<double>(scale) == std::ldexp(1.0, b - 127));
    }
  }
  const float grid[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  for (int n = 0; n < 16; ++n) {
    BOOST_TEST(fp4_e2m1_to_fp32(static_cast<uint8_t>(n)) == grid[n]);
    BOOST_TEST(fp4_e2m1_to_fp32(static_cast<uint8_t>(0xF0 | n)) == grid[n]);
  }
  BOOST_TEST(fp8_e4m3_to_fp32(0x7E) == 448.0f);
}

BOOST_AUTO_TEST_CASE(bf16_rounds_to_nearest_even_once) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {  // each bf16 value is its own image
    const float value = bf16_to_fp32(static_cast<uint16_t>(bits));
    const uint16_t back = fp32_to_bf16(value);
    if (std::isnan(value)) {
      BOOST_REQUIRE(std::isnan(bf16_to_fp32(back)));
    } else {
      BOOST_REQUIRE_EQUAL(back, bits);
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    const auto low = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    const auto high = static_cast<uint16_t>(low + 1);
    // Distances in double are exact; infinity stands for 2^128.
    const auto real = [](uint16_t b) {
      const double v = static_cast<double>(bf16_to_fp32(b));
      return std::isinf(v) ? std::copysign(std::ldexp(1.0, 128), v) : v;
    };
    const double down = std::abs(static_cast<double>(value) - real(low));
    const double up = std::abs(real(high) - static_cast<double>(value));
    const uint16_t nearest = down < up ? low : up < down ? high : (low & 1) == 0 ? low : high;
    BOOST_REQUIRE_EQUAL(fp32_to_bf16(value), nearest);
  }
}

// Row 0 of layers.0.attn.wkv of the published checkpoint begins like this.
BOOST_AUTO_TEST_CASE(the_published_loader_vector) {
  Weight w;
  w.kind = WeightKind::kFp8;
  w.out = 1;
  w.in = 8;
  w.scale_rows = kScaleBlock;
  for (int byte : {0xd8, 0x71, 0xf2, 0x79, 0x70, 0x69, 0xf0, 0xe5}) {
    w.data.push_back(static_cast<std::byte>(byte));
  }
  w.scales = {0x73};
  const std::vector<float> expected = {-0.00390625f, 0.03515625f,  -0.0390625f, 0.0703125f,
                                       0.03125f,     0.017578125f, -0.03125f,   -0.0126953125f};
  std::vector<float> values(8);
  dequantize(w, values);
  BOOST_TEST(values == expected, boost::test_tools::per_element());
  BOOST_TEST(w.wants_fp8_input());
  BOOST_TEST(bits_per_weight(w) == 9.0);
}

std::vector<uint16_t> u16_list(simdjson::dom::element list) {
  std::vector<uint16_t> out;
  for (simdjson::dom::element v : simdjson::dom::array(list)) {
    out.push_back(static_cast<uint16_t>(uint64_t(v)));
  }
  return out;
}

std::string bytes_of_words(const std::vector<uint16_t>& words) {
  return {reinterpret_cast<const char*>(words.data()), words.size() * 2};
}

// The vectors' layer, written as a file and loaded as layers do: y = W x in double, and the same
// from its output and input halves.
BOOST_AUTO_TEST_CASE(the_vector_layer_from_a_file) {
  simdjson::dom::parser parser;
  const simdjson::dom::element layer =
      parser.load(std::string(TF_TEST_DATA) + "/exl3_vectors.json")["layer"];
  constexpr int64_t kIn = 256, kOut = 128;
  uint32_t state = 0xE3FF0001u;
  std::vector<uint16_t> trellis;
  for (int64_t i = 0; i < kIn * kOut / 256 * 48; ++i) {
    state = state * 1664525u + 1013904223u;
    trellis.push_back(static_cast<uint16_t>(state >> 16));
  }
  const TempFolder folder;
  const std::string path = folder.path("layer.safetensors");
  const uint32_t marker = exl3::kMcgMultiplier;
  test::write_safetensors(
      path, {{"w.trellis", DType::kI16, {kIn / 16, kOut / 16, 48}, bytes_of_words(trellis)},
             {"w.suh", DType::kF16, {kIn}, bytes_of_words(u16_list(layer["suh_fp16_bits"]))},
             {"w.svh", DType::kF16, {kOut}, bytes_of_words(u16_list(layer["svh_fp16_bits"]))},
             {"w.mcg", DType::kI32, {}, {reinterpret_cast<const char*>(&marker), 4}}});
  WeightSpec spec;
  spec.name = "w";
  spec.weight_class = WeightClass::kMatrix;
  spec.out = kOut;
  spec.in = kIn;
  const Result<Safetensors> files = Safetensors::open(path);
  BOOST_REQUIRE(files.ok());
  const auto stored = find_stored(*files, spec);
  BOOST_REQUIRE_MESSAGE(stored.ok(), stored.status().message());
  const StoredPart& part = (*stored)->parts[0];
  BOOST_TEST(part.half_bits == 6);

  const std::vector<uint16_t> x = u16_list(layer["x_fp16_bits"]);
  std::vector<double> y;
  for (simdjson::dom::element v : simdjson::dom::array(layer["y_float64_exact_arithmetic"])) {
    y.push_back(double(v));
  }
  double error = 0, norm = 0;
  std::vector<double> sum(kOut, 0.0);
  for (const Range columns : {Range{0, 128}, Range{128, 256}}) {
    const Result<Weight> w = read_stored(*files, part, {0, kOut}, columns);
    BOOST_REQUIRE_MESSAGE(w.ok(), w.status().message());
    std::vector<float> values(static_cast<size_t>(w->out * w->in));
    dequantize(*w, values);
    for (size_t n = 0; n < y.size(); ++n) {
      for (size_t k = 0; k < 128; ++k) {
        const auto input =
            static_cast<double>(fp16_to_fp32(x[static_cast<size_t>(columns.begin) + k]));
        sum[n] += static_cast<double>(values[n * 128 + k]) * input;
      }
    }
  }
  for (size_t n = 0; n < y.size(); ++n) {
    error += (sum[n] - y[n]) * (sum[n] - y[n]);
    norm += y[n] * y[n];
  }
  BOOST_TEST(std::sqrt(error / norm) < 1e-6);
}

BOOST_AUTO_TEST_CASE(dequantized_bf16_is_exact_for_the_original_formats) {
  std::mt19937 random(3);
  for (WeightKind kind : {WeightKind::kFp8, WeightKind::kFp4}) {
    Weight w;
    w.kind = kind;
    w.out = 64;
    w.in = 96;
    w.scale_rows = kScaleBlock;
    const int64_t values = w.out * w.in;
    const bool fp8 = kind == WeightKind::kFp8;
    for (int64_t i = 0; i < (fp8 ? values : values / 2); ++i) {
      auto byte = static_cast<uint8_t>(random());
      if (fp8 && (byte & 0x7F) == 0x7F) byte = 0;
      w.data.push_back(std::byte{byte});
    }
    for (int64_t i = 0; i < (fp8 ? 2 * 3 : 64 * 3); ++i) {
      w.scales.push_back(static_cast<uint8_t>(20 + random() % 200));
    }
    std::vector<float> exact(static_cast<size_t>(values));
    dequantize(w, exact);
    const std::vector<uint16_t> rounded = dequantize_bf16(w);
    for (size_t i = 0; i < exact.size(); ++i) {
      BOOST_REQUIRE_EQUAL(bf16_to_fp32(rounded[i]), exact[i]);
    }
  }
}

}  // namespace
}  // namespace tensorfold
