// quantize_layer(): one weight in full precision -> EXL3's tensors.
//
// Steps: per-output scales and signs (svh), Hadamard along the outputs, per-input scales and signs
// (suh), Hadamard along the inputs, one global scale found by trying some on sample tiles, then
// LDLQ (ldlq.h) when the second moments of the layer's inputs are known, else plain rounding. The
// fp16 values of suh and svh that are stored are the ones divided by, so their rounding costs
// nothing. All-zero inputs and outputs get a zero scale: they stay exactly zero.
//
// Deterministic: the result depends on the weight, the moments and the options, not on the number
// of threads or the processor. Pure: no files, no clock.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/weights/exl3_codec.h"

namespace tensorfold::exl3 {

inline constexpr int64_t kQuantizeDimMax = int64_t{1} << 22;  // values along one side of a weight

// Second moments of a layer's inputs, x^T x summed over `rows` rows of x.
struct InputMoments {
  int64_t k = 0;
  std::vector<float> sum;  // [k][k], symmetric
  double rows = 0;
};

enum class OutScales : unsigned char {
  kAuto,  // scale outputs unless a few inputs carry most of the energy
  kAlways,
  kNever,
};

struct QuantizeOptions {
  int half_bits = 6;
  Codebook codebook = Codebook::kMul1;
  OutScales out_scales = OutScales::kAuto;
  uint64_t seed = 0;     // of the random signs; seed_of(tensor name)
  double sigma = 0.025;  // share of the mean second moment added to the diagonal
  int threads = 1;
};

struct QuantizedLayer {
  int64_t out = 0, in = 0;      // logical
  int64_t n_out = 0, k_in = 0;  // padded to multiples of 128
  int half_bits = 0;
  Codebook codebook = Codebook::kMul1;
  std::vector<uint16_t> trellis, suh, svh;
  bool used_moments = false;
  double nmse = 0;   // ||W - W'||^2 / ||W||^2 over the logical weight
  double scale = 0;  // the global scale found, relative to the codebook's RMS

  LayerView view() const { return {trellis, suh, svh, k_in, n_out, half_bits, codebook}; }
  double bits_per_weight() const;  // stored bits over logical values
};

// FNV-1a of a name: gives every tensor its own signs.
uint64_t seed_of(std::string_view name);

// weight: fp32 [out][in], finite. moments: of the inputs (k = in), or nullptr. Fails when a value
// is not finite, a size is out of bounds or the moments do not fit.
Result<QuantizedLayer> quantize_layer(std::span<const float> weight, int64_t out, int64_t in,
                                      const InputMoments* moments, const QuantizeOptions& options);

// The weight that a quantized layer stands for, fp32 [out][in] (trimmed).
std::vector<float> dequantized(const QuantizedLayer& layer);

// tr(E R E^T) / tr(W R W^T), E = W - W', R the mean second moments: the share of the output's
// energy that is error, for inputs like those measured.
double output_error(std::span<const float> weight, std::span<const float> quantized, int64_t out,
                    int64_t in, const InputMoments& moments);

}  // namespace tensorfold::exl3
