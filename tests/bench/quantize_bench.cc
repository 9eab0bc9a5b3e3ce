// Milliseconds per tile of 256 weights of the tile search, for every width and vector width that
// this processor has, and for one whole weight with and without LDLQ.
//   quantize_bench [TILES]       the tile search, then a weight of [512, 512]
//   quantize_bench layer OUT IN  one weight of that shape: LDLQ's output error beside plain
//                                rounding's, for inputs with uneven and correlated channels
//
// Operations counted: each step of the search evaluates 65,536 candidates with a subtraction, a
// multiplication, an addition and a minimum; a tile takes 256 steps and what the first pass looks
// around its start.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/weights/quantize.h"
#include "engine/weights/viterbi.h"
#include "engine/weights/viterbi_steps.h"

namespace {

using namespace tensorfold::exl3;

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

void bench_tiles(int half_bits, int lanes, int tiles) {
  TileEncoder encoder(std::make_shared<ViterbiTables>(half_bits, Codebook::kMul1, lanes));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::array<float, kTileValues> tile;
  std::array<uint16_t, kTileValues> states;
  double best_ms = 1e30, total_ms = 0;
  for (int i = 0; i < tiles; ++i) {
    for (float& v : tile) v = normal(random);
    const auto start = std::chrono::steady_clock::now();
    encoder.encode(tile, states);
    const double ms = ms_since(start);
    best_ms = ms < best_ms ? ms : best_ms;
    total_ms += ms;
  }
  const double steps = 256 + 2.0 * TileEncoder::look_steps(half_bits);
  std::printf("%4.1f bits  %2d lanes  %6.2f ms/tile (best %5.2f)  %5.2f G candidates/s\n",
              half_bits / 2.0, lanes, total_ms / tiles, best_ms, steps * 65536 / best_ms / 1e6);
}

// Second moments D (share A A^T / rank + (1 - share) I) D: a low-rank common part of the channels
// and log-normal channel scales D, as the normed inputs of a transformer's layers have them.
InputMoments layer_moments(int64_t in, double share) {
  constexpr int kRank = 64;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto n = static_cast<size_t>(in);
  std::vector<float> common(n * kRank), scale(n);
  for (float& v : common) v = normal(random);
  for (float& v : scale) v = std::exp(0.5f * normal(random));
  InputMoments moments{in, std::vector<float>(n * n), 1};
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      float dot = 0;
      for (size_t r = 0; r < kRank; ++r) dot += common[i * kRank + r] * common[j * kRank + r];
      const double own = i == j ? 1 - share : 0;
      moments.sum[i * n + j] = scale[i] * scale[j] * static_cast<float>(share * dot / kRank + own);
    }
  }
  return moments;
}

void bench_layer(int64_t out, int64_t in, int threads) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> weight(static_cast<size_t>(out * in));
  for (float& v : weight) v = 0.02f * normal(random);
  const InputMoments moments = layer_moments(in, 0.5);
  double plain_error = 0;
  QuantizeOptions options;
  options.half_bits = 6;
  options.threads = threads;
  for (const InputMoments* m :
       {static_cast<const InputMoments*>(nullptr), &std::as_const(moments)}) {
    const auto start = std::chrono::steady_clock::now();
    const auto layer = quantize_layer(weight, out, in, m, options);
    const double ms = ms_since(start);
    if (!layer.ok()) std::exit(1);
    const double tiles = static_cast<double>(out * in) / kTileValues;
    const double error = output_error(weight, dequantized(layer.value()), out, in, moments);
    if (m == nullptr) plain_error = error;
    std::printf(
        "[%lld, %lld] 3 bits, %d threads, %s: %.0f ms, %.2f ms/tile, output error %.5f, "
        "%.3f of plain\n",
        static_cast<long long>(out), static_cast<long long>(in), threads,
        m == nullptr ? "plain" : "LDLQ", ms, ms / tiles, error, error / plain_error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "layer") {
    bench_layer(std::atoll(argv[2]), std::atoll(argv[3]), 1);
    return 0;
  }
  const int tiles = argc > 1 ? std::atoi(argv[1]) : 12;
  for (int half_bits = kHalfBitsMin; half_bits <= kHalfBitsMax; ++half_bits) {
    if (!is_width(half_bits, Codebook::kMul1)) continue;
    for (int lanes : {4, 8, 16}) {
      if (viterbi_step(lanes, 1, 1) != nullptr) bench_tiles(half_bits, lanes, tiles);
    }
  }
  bench_layer(512, 512, static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  return 0;
}
