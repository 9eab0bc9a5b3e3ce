// quantize_layer() (see quantize.h).
#include "engine/weights/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "engine/base/check.h"
#include "engine/base/half.h"
#include "engine/weights/hadamard.h"
#include "engine/weights/ldlq.h"

namespace tensorfold::exl3 {
namespace {

constexpr double kRms3inst = 1.24371088;  // of the 3inst and mcg codebooks; mul1's is 1
constexpr double kZeroScale = 0.1;        // for an all-zero row or column while regularizing
constexpr double kOutScaleShare = 0.15;   // "auto": see wants_out_scales
constexpr double kOutScaleTop = 0.02;
constexpr double kMomentsMin = 1e-20;    // mean second moment below which there is none
constexpr int64_t kTilesPerSample = 24;  // scale search: one sample per this many tiles
constexpr int64_t kSamplesMin = 4, kSamplesMax = 24;
constexpr double kCoarseScales[] = {0.7, 0.8, 0.9, 1.0, 1.1};
constexpr double kFineStep = 0.05;

int64_t padded(int64_t n) { return (n + kDimMultiple - 1) / kDimMultiple * kDimMultiple; }

// splitmix64: a fixed stream of signs.
class Signs {
 public:
  explicit Signs(uint64_t seed) : state_(seed) {}
  float next() {
    state_ += 0x9E3779B97F4A7C15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return ((z ^ (z >> 31)) & 1) != 0 ? -1.0f : 1.0f;
  }

 private:
  uint64_t state_;
};

// fp16 bits of a scale, never rounded to zero.
uint16_t scale_bits(double value) {
  const uint16_t bits = fp64_to_fp16(value);
  if ((bits & 0x7FFF) != 0) return bits;
  return static_cast<uint16_t>((bits & 0x8000) | 1);
}

// The weight while it is being regularized: fp32 [k_in][n_out], the transpose of what came in.
struct Work {
  int64_t k = 0, n = 0;
  std::vector<float> w;
  float* row(int64_t i) { return w.data() + i * n; }
};

Result<Work> transposed(std::span<const float> weight, int64_t out, int64_t in) {
  Work work{padded(in), padded(out), {}};
  work.w.assign(static_cast<size_t>(work.k * work.n), 0.0f);
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i) {
      const float v = weight[static_cast<size_t>(o * in + i)];
      if (!std::isfinite(v)) {
        return data_loss("value [" + std::to_string(o) + ", " + std::to_string(i) +
                         "] is not finite");
      }
      work.row(i)[o] = v;
    }
  }
  return work;
}

// Output scales help unless a few inputs dominate: "auto" asks whether the top 2% of the inputs'
// RMS hold less than 15% of the sum.
bool wants_out_scales(OutScales choice, const InputMoments* moments) {
  if (choice != OutScales::kAuto) return choice == OutScales::kAlways;
  if (moments == nullptr) return true;
  std::vector<double> rms;
  double sum = 0;
  for (int64_t i = 0; i < moments->k; ++i) {
    const double v = static_cast<double>(moments->sum[static_cast<size_t>(i * moments->k + i)]);
    rms.push_back(std::sqrt(std::max(v, 0.0)));
    sum += rms.back();
  }
  std::sort(rms.begin(), rms.end(), std::greater<>());
  const auto count = static_cast<size_t>(std::ceil(kOutScaleTop * static_cast<double>(rms.size())));
  double top = 0;
  for (size_t i = 0; i < count; ++i) top += rms[i];
  return top < kOutScaleShare * sum;
}

// Divides by svh and rotates the outputs.
std::vector<uint16_t> regularize_outputs(Work& work, bool scales, Signs& signs) {
  const auto n = static_cast<size_t>(work.n);
  std::vector<double> rms(n, 0);
  for (int64_t i = 0; i < work.k; ++i) {
    const float* row = work.row(i);
    for (size_t j = 0; j < n; ++j) {
      rms[j] += static_cast<double>(row[j]) * static_cast<double>(row[j]);
    }
  }
  double mean = 0;
  int64_t used = 0;
  for (double& v : rms) {
    v = std::sqrt(v / static_cast<double>(work.k));
    mean += v;
    used += v > 0 ? 1 : 0;
  }
  mean = used > 0 ? mean / static_cast<double>(used) : 1;
  std::vector<uint16_t> svh(n);
  std::vector<float> divisor(n);
  for (size_t j = 0; j < n; ++j) {
    const double magnitude = rms[j] == 0 ? kZeroScale : scales ? rms[j] / mean : 1.0;
    const uint16_t bits = scale_bits(static_cast<double>(signs.next()) * magnitude);
    divisor[j] = fp16_to_fp32(bits);
    svh[j] = rms[j] == 0 ? uint16_t{0} : bits;
  }
  for (int64_t i = 0; i < work.k; ++i) {
    float* row = work.row(i);
    for (size_t j = 0; j < n; ++j) row[j] /= divisor[j];
    hadamard_row(row, work.n);
  }
  return svh;
}

// RMS of each row over the codebook's; 0 for rows of zeros. Signs applied.
std::vector<double> input_scales(Work& work, double codebook_rms, Signs& signs) {
  std::vector<double> scales;
  for (int64_t i = 0; i < work.k; ++i) {
    const float* row = work.row(i);
    double sum = 0;
    for (int64_t j = 0; j < work.n; ++j) {
      sum += static_cast<double>(row[j]) * static_cast<double>(row[j]);
    }
    const double rms = std::sqrt(sum / static_cast<double>(work.n));
    scales.push_back(static_cast<double>(signs.next()) * rms / codebook_rms);
  }
  return scales;
}

// W / su, rotated along the inputs.
void regularize_inputs(Work& work, std::span<const float> su) {
  for (int64_t i = 0; i < work.k; ++i) {
    float* row = work.row(i);
    const float s = su[static_cast<size_t>(i)];
    for (int64_t j = 0; j < work.n; ++j) row[j] = s == 0 ? 0.0f : row[j] / s;
  }
  hadamard_columns(work.w.data(), work.k, work.n, work.n);
}

using Tile = std::array<float, kTileValues>;

Tile tile_at(const Work& work, int64_t kt, int64_t nt) {
  Tile tile;
  for (int p = 0; p < kTileValues; ++p) {
    const int at = tile_position(p);
    tile[static_cast<size_t>(p)] = work.w[static_cast<size_t>(
        (kt * kTileSide + at / kTileSide) * work.n + nt * kTileSide + at % kTileSide)];
  }
  return tile;
}

// Sample tiles along a wrapped diagonal, and the tiles of the most and least energy.
std::vector<Tile> sample_tiles(const Work& work) {
  const int64_t rows = work.k / kTileSide, columns = work.n / kTileSide;
  const int64_t count = std::clamp(rows * columns / kTilesPerSample, kSamplesMin, kSamplesMax);
  std::vector<Tile> samples;
  for (int64_t i = 0; i < count; ++i) {
    samples.push_back(tile_at(work, i * rows / count % rows, (i * columns / count + i) % columns));
  }
  std::vector<double> energy(static_cast<size_t>(rows * columns), 0);
  for (int64_t r = 0; r < work.k; ++r) {
    for (int64_t c = 0; c < work.n; ++c) {
      const double v = static_cast<double>(work.w[static_cast<size_t>(r * work.n + c)]);
      energy[static_cast<size_t>(r / kTileSide * columns + c / kTileSide)] += v * v;
    }
  }
  const auto [least, most] = std::minmax_element(energy.begin(), energy.end());
  for (int64_t at : {least - energy.begin(), most - energy.begin()}) {
    samples.push_back(tile_at(work, at / columns, at % columns));
  }
  return samples;
}

class ScaleSearch {
 public:
  ScaleSearch(std::vector<Tile> samples, std::shared_ptr<const ViterbiTables> tables, int threads)
      : samples_(std::move(samples)),
        tables_(std::move(tables)),
        threads_(threads),
        encoders_(static_cast<size_t>(threads)) {}

  // The factor g to multiply the weight by: least mean of (Q(g t) / g - t)^2.
  double find() {
    std::vector<double> coarse = errors(kCoarseScales, 3);
    const auto best = std::min_element(coarse.begin(), coarse.end()) - coarse.begin();
    const double center = kCoarseScales[best];
    const double fine[] = {center - kFineStep, center, center + kFineStep};
    const std::vector<double> e = errors(fine, 1);
    const double bend = e[0] - 2 * e[1] + e[2];
    if (!(bend > 0)) return fine[std::min_element(e.begin(), e.end()) - e.begin()];
    const double offset = (e[0] - e[2]) / (2 * bend);  // of the parabola through the three
    return center + kFineStep * std::clamp(offset, -1.0, 1.0);
  }

 private:
  // Mean squared error at each scale over every `stride`-th sample.
  std::vector<double> errors(std::span<const double> scales, size_t stride) {
    const size_t used = (samples_.size() + stride - 1) / stride;
    std::vector<double> each(scales.size() * used, 0);
    parallel_for(static_cast<int64_t>(each.size()), threads_, [&](int64_t item, int worker) {
      auto& encoder = encoders_[static_cast<size_t>(worker)];
      if (encoder == nullptr) encoder = std::make_unique<TileEncoder>(tables_);
      const auto at = static_cast<size_t>(item);
      const double g = scales[at / used];
      Tile target = samples_[at % used * stride];
      for (float& v : target) v = static_cast<float>(static_cast<double>(v) * g);
      std::array<uint16_t, kTileValues> states;
      each[at] = static_cast<double>(encoder->encode(target, states)) / (g * g);
    });
    std::vector<double> sums(scales.size(), 0);
    for (size_t i = 0; i < each.size(); ++i) sums[i / used] += each[i];
    return sums;
  }

  std::vector<Tile> samples_;
  std::shared_ptr<const ViterbiTables> tables_;
  const int threads_;
  std::vector<std::unique_ptr<TileEncoder>> encoders_;
};

// H_k diag(su) R diag(su) H_k with its diagonal raised: the second moments of the rotated inputs.
std::vector<double> rotated_moments(const InputMoments& moments, std::span<const float> su,
                                    double sigma) {
  const auto k = static_cast<int64_t>(su.size());
  std::vector<float> r(static_cast<size_t>(k * k), 0.0f);
  double mean = 0;
  for (int64_t i = 0; i < moments.k; ++i) {
    for (int64_t j = 0; j < moments.k; ++j) {
      const double v = static_cast<double>(moments.sum[static_cast<size_t>(i * moments.k + j)]) /
                       moments.rows * static_cast<double>(su[static_cast<size_t>(i)]) *
                       static_cast<double>(su[static_cast<size_t>(j)]);
      r[static_cast<size_t>(i * k + j)] = static_cast<float>(v);
      if (i == j) mean += v;
    }
  }
  mean /= static_cast<double>(k);
  hadamard_columns(r.data(), k, k, k);
  for (int64_t i = 0; i < k; ++i) hadamard_row(r.data() + i * k, k);
  std::vector<double> h(r.begin(), r.end());
  for (int64_t i = 0; i < k; ++i) h[static_cast<size_t>(i * k + i)] += sigma * mean;
  return h;
}

Status check_moments(const InputMoments& moments, int64_t in, bool& usable) {
  if (moments.k != in || moments.sum.size() != static_cast<size_t>(in * in)) {
    return invalid_argument("second moments are [" + std::to_string(moments.k) + ", " +
                            std::to_string(moments.k) + "], the weight has " + std::to_string(in) +
                            " inputs");
  }
  double mean = 0;
  for (int64_t i = 0; i < in; ++i)
    mean += static_cast<double>(moments.sum[static_cast<size_t>(i * in + i)]);
  for (float v : moments.sum) {
    if (!std::isfinite(v)) return data_loss("second moments hold a value that is not finite");
  }
  usable = moments.rows > 0 && mean / moments.rows / static_cast<double>(in) > kMomentsMin;
  return ok_status();
}

void measure(std::span<const float> weight, QuantizedLayer& layer) {
  const std::vector<float> back = dequantized(layer);
  double error = 0, energy = 0;
  for (size_t i = 0; i < back.size(); ++i) {
    const double w = static_cast<double>(weight[i]), d = static_cast<double>(back[i]) - w;
    error += d * d;
    energy += w * w;
  }
  layer.nmse = energy > 0 ? error / energy : 0;
}

}  // namespace

double QuantizedLayer::bits_per_weight() const {
  const double words = static_cast<double>(trellis.size() + suh.size() + svh.size());
  return 16 * words / static_cast<double>(out * in);
}

uint64_t seed_of(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return hash;
}

Result<QuantizedLayer> quantize_layer(std::span<const float> weight, int64_t out, int64_t in,
                                      const InputMoments* moments, const QuantizeOptions& options) {
  if (out < 1 || in < 1 || out > kQuantizeDimMax || in > kQuantizeDimMax) {
    return invalid_argument("a weight of [" + std::to_string(out) + ", " + std::to_string(in) +
                            "] cannot be quantized");
  }
  TF_CHECK_EQ(weight.size(), static_cast<size_t>(out * in));
  TF_CHECK(is_width(options.half_bits, options.codebook));
  bool usable = false;
  if (moments != nullptr) TF_RETURN_IF_ERROR(check_moments(*moments, in, usable));
  if (!usable) moments = nullptr;
  TF_ASSIGN_OR_RETURN(Work work, transposed(weight, out, in));
  QuantizedLayer layer;
  layer.out = out;
  layer.in = in;
  layer.n_out = work.n;
  layer.k_in = work.k;
  layer.half_bits = options.half_bits;
  layer.codebook = options.codebook;
  Signs signs(options.seed);
  layer.svh = regularize_outputs(work, wants_out_scales(options.out_scales, moments), signs);
  const double rms = options.codebook == Codebook::kMul1 ? 1.0 : kRms3inst;
  const std::vector<double> scales = input_scales(work, rms, signs);

  // The global scale is searched on the weight regularized with exact scales; what is stored is
  // those scales over g, rounded to fp16, and the weight is divided by just these.
  const auto tables = std::make_shared<const ViterbiTables>(options.half_bits, options.codebook);
  std::vector<float> su(scales.begin(), scales.end());
  Work trial = work;
  regularize_inputs(trial, su);
  layer.scale = ScaleSearch(sample_tiles(trial), tables, options.threads).find();
  trial.w.clear();
  trial.w.shrink_to_fit();
  for (size_t i = 0; i < scales.size(); ++i) {
    layer.suh.push_back(scales[i] == 0 ? uint16_t{0} : scale_bits(scales[i] / layer.scale));
    su[i] = fp16_to_fp32(layer.suh[i]);
  }
  regularize_inputs(work, su);

  std::unique_ptr<BlockFactor> factor;
  if (moments != nullptr) {
    auto made =
        BlockFactor::of(rotated_moments(*moments, su, options.sigma), work.k, options.sigma);
    if (!made.ok()) return made.status();
    factor = std::make_unique<BlockFactor>(std::move(made).value());
    layer.used_moments = true;
  }
  layer.trellis =
      round_to_trellis(work.w, work.k, work.n, factor.get(), tables, options.threads, nullptr);
  measure(weight, layer);
  return layer;
}

std::vector<float> dequantized(const QuantizedLayer& layer) {
  std::vector<float> out(static_cast<size_t>(layer.out * layer.in));
  std::vector<float> band(static_cast<size_t>(kDimMultiple * layer.k_in));
  for (int64_t n = 0; n < layer.out; n += kDimMultiple) {
    effective_weight(layer.view(), n, n + kDimMultiple, 0, layer.k_in, band.data(), layer.k_in);
    for (int64_t r = n; r < std::min(n + kDimMultiple, layer.out); ++r) {
      std::copy_n(band.data() + (r - n) * layer.k_in, layer.in, out.data() + r * layer.in);
    }
  }
  return out;
}

double output_error(std::span<const float> weight, std::span<const float> quantized, int64_t out,
                    int64_t in, const InputMoments& moments) {
  TF_CHECK(moments.k == in && weight.size() == quantized.size());
  double error = 0, energy = 0;
  std::vector<double> we(static_cast<size_t>(in)), ww(static_cast<size_t>(in));
  for (int64_t o = 0; o < out; ++o) {
    const float* w = weight.data() + o * in;
    const float* q = quantized.data() + o * in;
    std::fill(we.begin(), we.end(), 0.0);
    std::fill(ww.begin(), ww.end(), 0.0);
    for (int64_t i = 0; i < in; ++i) {
      const double a = static_cast<double>(w[i]), e = a - static_cast<double>(q[i]);
      const float* r = moments.sum.data() + i * in;
      for (int64_t j = 0; j < in; ++j) {
        we[static_cast<size_t>(j)] += e * static_cast<double>(r[j]);
        ww[static_cast<size_t>(j)] += a * static_cast<double>(r[j]);
      }
    }
    for (int64_t j = 0; j < in; ++j) {
      const double a = static_cast<double>(w[j]), e = a - static_cast<double>(q[j]);
      error += e * we[static_cast<size_t>(j)];
      energy += a * ww[static_cast<size_t>(j)];
    }
  }
  return energy > 0 ? error / energy : 0;
}

}  // namespace tensorfold::exl3
