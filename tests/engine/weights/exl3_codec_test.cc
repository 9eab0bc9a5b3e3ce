// The EXL3 codec against tests/data/exl3_vectors.json, bit for bit, and against its own inverse.
#include <openssl/sha.h>
#include <simdjson.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/base/half.h"
#include "engine/weights/exl3_codec.h"
#include "engine/weights/hadamard.h"

namespace tensorfold::exl3 {
namespace {

namespace dom = simdjson::dom;

dom::element vectors() {
  static dom::parser parser;
  static dom::element root = parser.load(std::string(TF_TEST_DATA) + "/exl3_vectors.json");
  return root;
}

std::string sha256_le(std::span<const uint16_t> values) {
  std::vector<unsigned char> bytes;
  for (uint16_t v : values) {
    bytes.push_back(static_cast<unsigned char>(v & 0xFF));
    bytes.push_back(static_cast<unsigned char>(v >> 8));
  }
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(bytes.data(), bytes.size(), digest);
  std::string hex;
  for (unsigned char b : digest) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[b >> 4];
    hex += kDigits[b & 15];
  }
  return hex;
}

std::vector<uint16_t> u16_list(dom::element list) {
  std::vector<uint16_t> out;
  for (dom::element v : dom::array(list)) out.push_back(static_cast<uint16_t>(uint64_t(v)));
  return out;
}

// The vectors' generator of pseudo-random 16-bit words.
struct Lcg {
  uint32_t x;
  uint16_t next() {
    x = x * 1664525u + 1013904223u;
    return static_cast<uint16_t>(x >> 16);
  }
};

Codebook codebook_of(dom::element item) {
  const auto codebook = codebook_by_name(std::string_view(item["codebook"]));
  BOOST_REQUIRE(codebook.has_value());
  return *codebook;
}

std::vector<std::pair<int, Codebook>> all_widths() {
  std::vector<std::pair<int, Codebook>> widths;
  for (Codebook c : {Codebook::k3inst, Codebook::kMcg, Codebook::kMul1}) {
    for (int k2 = 0; k2 <= 20; ++k2) {
      if (is_width(k2, c)) widths.emplace_back(k2, c);
    }
  }
  return widths;
}

}  // namespace

BOOST_AUTO_TEST_CASE(half_conversions_are_exact_and_round_once) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const auto bits = static_cast<uint16_t>(h);
    const float f = fp16_to_fp32(bits);
    const int e = (bits >> 10) & 31, m = bits & 1023;
    if (e == 31) {
      BOOST_TEST((m == 0 ? std::isinf(f) : std::isnan(f)));
      BOOST_TEST(std::signbit(f) == ((bits & 0x8000) != 0));
    } else {
      const double want = (bits & 0x8000 ? -1.0 : 1.0) *
                          (e == 0 ? std::ldexp(m, -24) : std::ldexp(1024 + m, e - 25));
      BOOST_REQUIRE_EQUAL(static_cast<double>(f), want);
    }
    if (!std::isnan(f)) BOOST_REQUIRE_EQUAL(fp32_to_fp16(f), bits);
    // Halfway to the next half: ties go to even, a hair beyond goes up.
    if (e == 31 || bits == 0x7BFF || bits == 0xFBFF) continue;
    const double next = static_cast<double>(fp16_to_fp32(static_cast<uint16_t>(bits + 1)));
    const double tie = (static_cast<double>(f) + next) / 2;
    BOOST_REQUIRE_EQUAL(fp64_to_fp16(tie), static_cast<uint16_t>(bits + (bits & 1)));
    BOOST_REQUIRE_EQUAL(fp64_to_fp16(std::nextafter(tie, next)), static_cast<uint16_t>(bits + 1));
    BOOST_REQUIRE_EQUAL(fp64_to_fp16(std::nextafter(tie, 0.0)), bits);
  }
  BOOST_TEST(fp64_to_fp16(65519.999) == 0x7BFF);
  BOOST_TEST(fp64_to_fp16(65520.0) == 0x7C00);
  BOOST_TEST(fp64_to_fp16(-1e300) == 0xFC00);
  BOOST_TEST(std::isnan(fp16_to_fp32(fp32_to_fp16(std::nanf("")))));
}

BOOST_AUTO_TEST_CASE(codebooks_match_their_hashes) {
  int seen = 0;
  for (dom::element check : dom::array(vectors()["codebook_checks"])) {
    const auto table = codebook_bits(codebook_of(check));
    BOOST_TEST(sha256_le(table) == std::string_view(check["sha256_of_65536_le_fp16"]));
    double sum = 0, squares = 0;
    for (float v : codebook_values(codebook_of(check))) {
      sum += static_cast<double>(v);
      squares += static_cast<double>(v) * static_cast<double>(v);
    }
    BOOST_TEST(std::abs(sum / kStates - double(check["mean"])) < 1e-12);
    BOOST_TEST(std::abs(std::sqrt(squares / kStates) - double(check["rms"])) < 1e-12);
    ++seen;
  }
  BOOST_TEST(seen == 3);
}

BOOST_AUTO_TEST_CASE(tiles_decode_bit_for_bit) {
  int seen = 0;
  for (dom::element tile : dom::array(vectors()["tiles"])) {
    const int k2 = static_cast<int>(int64_t(tile["K2"]));
    const Codebook codebook = codebook_of(tile);
    BOOST_TEST_CONTEXT("K2 " << k2 << " " << codebook_name(codebook)) {
      BOOST_TEST(is_width(k2, codebook));
      const auto words = u16_list(tile["words16"]);
      Lcg lcg{0xE3000000u | (static_cast<uint32_t>(k2) << 8) | static_cast<uint32_t>(codebook)};
      for (uint16_t w : words) BOOST_REQUIRE_EQUAL(w, lcg.next());
      std::array<uint16_t, kTileValues> states, bits;
      tile_states(words, k2, states);
      const auto want_states = u16_list(tile["states"]);
      BOOST_TEST(std::equal(want_states.begin(), want_states.end(), states.begin(), states.end()));
      decode_tile_bits(words, k2, codebook, bits);
      const auto want_bits = u16_list(tile["wq_fp16_bits"]);
      BOOST_TEST(std::equal(want_bits.begin(), want_bits.end(), bits.begin(), bits.end()));
      BOOST_TEST(sha256_le(bits) == std::string_view(tile["sha256_wq_le_fp16"]));
      std::array<float, kTileValues> values;
      decode_tile(words, k2, codebook, values);
      for (size_t i = 0; i < kTileValues; ++i) {
        BOOST_REQUIRE_EQUAL(values[i], fp16_to_fp32(bits[i]));
      }
      size_t i = 0;
      for (double v : dom::array(tile["wq_first8_float"])) {
        BOOST_TEST(static_cast<double>(values[i++]) == v);
      }
      std::vector<uint16_t> packed(words.size());
      pack_tile(states, k2, packed);
      BOOST_TEST(packed == words);
    }
    ++seen;
  }
  BOOST_TEST(seen == 27);
}

BOOST_AUTO_TEST_CASE(packing_inverts_unpacking_for_every_width) {
  std::mt19937 random(7);
  const auto widths = all_widths();
  BOOST_TEST(widths.size() == 8u * 3u + 3u);
  for (auto [k2, codebook] : widths) {
    for (int round = 0; round < 50; ++round) {
      std::vector<uint16_t> words(static_cast<size_t>(tile_words(k2)));
      for (uint16_t& w : words) w = static_cast<uint16_t>(random());
      std::array<uint16_t, kTileValues> states;
      tile_states(words, k2, states);
      BOOST_REQUIRE(is_ring(states, k2));
      std::vector<uint16_t> packed(words.size());
      pack_tile(states, k2, packed);
      BOOST_REQUIRE(packed == words);
      // One flipped bit of one state breaks the ring (8 bits: each state bit is checked once).
      std::array<uint16_t, kTileValues> broken = states;
      broken[random() % kTileValues] ^= 0x8000;
      BOOST_REQUIRE(!is_ring(broken, k2));
    }
  }
}

BOOST_AUTO_TEST_CASE(tile_positions_are_a_permutation_in_fragment_order) {
  std::vector<int> seen(kTileValues, 0);
  for (int p = 0; p < kTileValues; ++p) ++seen[static_cast<size_t>(tile_position(p))];
  for (int count : seen) BOOST_TEST(count == 1);
  BOOST_TEST(tile_position(0) == 0);
  BOOST_TEST(tile_position(1) == 1 * 16);
  BOOST_TEST(tile_position(2) == 8 * 16);
  BOOST_TEST(tile_position(4) == 8);
  BOOST_TEST(tile_position(8) == 2 * 16);
  BOOST_TEST(tile_position(255) == 15 * 16 + 15);
}

BOOST_AUTO_TEST_CASE(old_sign_words_expand) {
  const std::vector<uint16_t> words = {0x0001, 0x8000};
  const auto signs = expand_signs(words);
  BOOST_REQUIRE(signs.size() == 32u);
  for (size_t i = 0; i < 32; ++i) {
    BOOST_TEST(fp16_to_fp32(signs[i]) == (i == 0 || i == 31 ? -1.0f : 1.0f));
  }
}

BOOST_AUTO_TEST_CASE(hadamard_matches_its_definition) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(128), rows(256 * 3), columns(256 * 3);
  for (float& v : x) v = normal(random);
  auto y = x;
  hadamard128(y.data());
  for (unsigned i = 0; i < 128; ++i) {
    double want = 0;
    for (unsigned j = 0; j < 128; ++j) {
      want += (std::popcount(i & j) & 1 ? -1.0 : 1.0) * static_cast<double>(x[j]);
    }
    BOOST_TEST(std::abs(want / std::sqrt(128.0) - static_cast<double>(y[i])) < 4e-6);
  }
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = normal(random);
  for (size_t r = 0; r < 3; ++r) {
    for (size_t c = 0; c < 256; ++c) columns[c * 3 + r] = rows[r * 256 + c];
  }
  for (size_t r = 0; r < 3; ++r) hadamard_row(rows.data() + r * 256, 256);
  hadamard_columns(columns.data(), 256, 3, 3);
  for (size_t r = 0; r < 3; ++r) {
    for (size_t c = 0; c < 256; ++c) BOOST_REQUIRE_EQUAL(columns[c * 3 + r], rows[r * 256 + c]);
  }
}

struct LayerVector {
  std::vector<uint16_t> trellis, suh, svh, x;
  LayerView view;
};

LayerVector layer_vector() {
  dom::element layer = vectors()["layer"];
  LayerVector v;
  v.view.k_in = int64_t(layer["in_features"]);
  v.view.n_out = int64_t(layer["out_features"]);
  v.view.half_bits = static_cast<int>(2 * int64_t(layer["bits"]));
  v.view.codebook = codebook_of(layer);
  Lcg lcg{0xE3FF0001u};
  const auto tiles = static_cast<size_t>(v.view.k_in / 16 * (v.view.n_out / 16));
  for (size_t i = 0; i < tiles * static_cast<size_t>(tile_words(v.view.half_bits)); ++i) {
    v.trellis.push_back(lcg.next());
  }
  v.suh = u16_list(layer["suh_fp16_bits"]);
  v.svh = u16_list(layer["svh_fp16_bits"]);
  v.x = u16_list(layer["x_fp16_bits"]);
  BOOST_TEST(sha256_le(v.trellis) == std::string_view(layer["trellis_sha256_le_u16"]));
  v.view.trellis = v.trellis;
  v.view.suh = v.suh;
  v.view.svh = v.svh;
  return v;
}

BOOST_AUTO_TEST_CASE(effective_weight_gives_the_layers_outputs) {
  const LayerVector v = layer_vector();
  BOOST_REQUIRE(check_layer(v.view).ok());
  const auto k = static_cast<size_t>(v.view.k_in), n = static_cast<size_t>(v.view.n_out);
  std::vector<float> w(n * k);
  effective_weight(v.view, 0, v.view.n_out, 0, v.view.k_in, w.data(), v.view.k_in);
  double error = 0, norm = 0;
  size_t j = 0;
  for (double want : dom::array(vectors()["layer"]["y_float64_exact_arithmetic"])) {
    double y = 0;
    for (size_t i = 0; i < k; ++i) {
      y += static_cast<double>(fp16_to_fp32(v.x[i])) * static_cast<double>(w[j * k + i]);
    }
    error += (y - want) * (y - want);
    norm += want * want;
    ++j;
  }
  BOOST_TEST(j == n);
  BOOST_TEST(std::sqrt(error / norm) < 1e-6);
  // A part is the same part of the whole, bit for bit.
  std::vector<float> part(128 * 128);
  effective_weight(v.view, 0, 128, 128, 256, part.data(), 128);
  for (size_t r = 0; r < 128; ++r) {
    BOOST_REQUIRE(std::memcmp(&part[r * 128], &w[r * k + 128], 128 * sizeof(float)) == 0);
  }
}

BOOST_AUTO_TEST_CASE(layers_that_contradict_themselves_are_named) {
  const LayerVector v = layer_vector();
  auto message = [](LayerView view) { return check_layer(view).message(); };
  LayerView view = v.view;
  view.half_bits = 5;
  BOOST_TEST(message(view).find("5 half bits") != std::string::npos);
  view = v.view;
  view.k_in = 192;
  BOOST_TEST(message(view).find("k_in 192") != std::string::npos);
  view = v.view;
  view.n_out = 0;
  BOOST_TEST(message(view).find("n_out 0") != std::string::npos);
  view = v.view;
  view.trellis = view.trellis.first(view.trellis.size() - 1);
  BOOST_TEST(message(view).find("trellis") != std::string::npos);
  view = v.view;
  view.suh = view.suh.first(255);
  BOOST_TEST(message(view).find("suh") != std::string::npos);
  view = v.view;
  view.svh = view.svh.first(127);
  BOOST_TEST(message(view).find("svh") != std::string::npos);
}

}  // namespace tensorfold::exl3
