// Weight: one weight (or a rank's slice of one) in memory, in the form it is stored in, and the
// kinds of storage there are. Plain data; owns its bytes.
//
// The logical weight is always [out, in] (y = W x); a vector is [out, 1]. EXL3 stores its
// transpose in tiles; everything that needs the orientation goes through dequantize() or the
// exl3_view() of the codec.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/weights/exl3_codec.h"

namespace tensorfold {

enum class WeightKind : unsigned char {
  kF32,   // data: float [out][in]
  kF16,   // data: fp16 [out][in]
  kBf16,  // data: bf16 [out][in]
  kFp8,   // data: e4m3 [out][in]; scales: UE8M0, one per scale_rows x 32 block
  kFp4,   // data: e2m1 [out][in/2], low nibble = even input; scales: UE8M0 [out][in/32]
  kExl3,  // data: int16 trellis; suh, svh, bias
};
inline constexpr int kWeightKinds = 6;

std::string_view weight_kind_name(WeightKind kind);  // "f32", "f16", "bf16", "fp8", "fp4", "exl3"

inline constexpr int kScaleBlock = 32;  // inputs per UE8M0 scale; outputs too for kFp8's blocks

struct Weight {
  WeightKind kind = WeightKind::kF32;
  int64_t out = 0, in = 0;  // logical size of what is held here
  std::vector<std::byte> data;
  std::vector<uint8_t> scales;  // kFp8: [ceil(out / scale_rows)][ceil(in / 32)]; kFp4: [out][in/32]
  int scale_rows = 0;  // kFp8: 32 (square blocks) or 1 (one scale per output and 32 inputs)

  // kExl3. padded_* are multiples of 128; rows and columns past out and in are not part of the
  // weight: inputs are extended by zeros, outputs trimmed.
  int64_t padded_out = 0, padded_in = 0;
  int half_bits = 0;  // twice the bits per weight
  exl3::Codebook codebook = exl3::Codebook::kMul1;
  std::vector<uint16_t> suh, svh;  // fp16 [padded_in], [padded_out]
  std::vector<uint16_t> bias;      // fp16 [padded_out], or empty

  // Whether a projection quantises its input to e4m3 in blocks of 32 first (the original formats
  // do; the others take bf16 activations).
  bool wants_fp8_input() const { return kind == WeightKind::kFp8 || kind == WeightKind::kFp4; }

  std::span<const float> f32() const;     // kF32 only (checked): data as values
  std::span<const uint16_t> u16() const;  // kF16, kBf16, kExl3 (checked): data as 16-bit words
  std::span<const uint8_t> u8() const;    // kFp8, kFp4 (checked)
  exl3::LayerView exl3_view() const;      // kExl3 only (checked); lives as long as this
  int64_t bytes() const;                  // of all parts
};

// Bits per weight as stored, scales and signs included.
double bits_per_weight(const Weight& weight);

// e4m3 and UE8M0 bytes as values. NaN for e4m3 0x7F, 0xFF and for scale 0xFF.
float fp8_e4m3_to_fp32(uint8_t byte);
float ue8m0_to_fp32(uint8_t byte);
float fp4_e2m1_to_fp32(uint8_t nibble);  // low 4 bits

constexpr float bf16_to_fp32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
uint16_t fp32_to_bf16(float value);  // to nearest, ties to even; NaN stays NaN (quiet)

// The whole weight as fp32 [out][in]. Exact for every kind but kExl3, which is
// exl3::effective_weight. The bias is not part of it.
void dequantize(const Weight& weight, std::span<float> out);

// Rows [begin, end) only: out [end - begin][in]. For kExl3 begin must be a multiple of 128 and end
// one too or weight.out.
void dequantize_rows(const Weight& weight, int64_t begin, int64_t end, std::span<float> out);

// The same rounded to bf16; exact for kFp8 and kFp4 (unless a value leaves bf16's range).
std::vector<uint16_t> dequantize_bf16(const Weight& weight);

}  // namespace tensorfold
