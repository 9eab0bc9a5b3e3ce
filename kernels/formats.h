// Number formats and packed cache rows. Exact on every processor: integer arithmetic on bits and
// exact fp32 operations only.
//
// bf16: round to nearest even. e4m3: the "fn" variant, largest 448, no infinity. UE8M0: the byte is
// the exponent field of a power of two. e2m1: {0, .5, 1, 1.5, 2, 3, 4, 6} with a sign bit 3.
#pragma once

#include <bit>
#include <cstdint>

namespace tensorfold {

inline constexpr int kFp8Block = 32;      // values per UE8M0 scale, fp8 rows and index keys
inline constexpr int kMainFp4Block = 16;  // values per e4m3 scale of a main entry
inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE2m1Max = 6.0f;

// ---------------------------------------------------------------- bf16
inline float bf16_to_f32(uint16_t v) { return std::bit_cast<float>(uint32_t{v} << 16); }
inline uint16_t f32_to_bf16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);  // NaN
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
inline float round_bf16(float v) { return bf16_to_f32(f32_to_bf16(v)); }

// ---------------------------------------------------------------- e4m3
uint8_t f32_to_e4m3(float v);  // nearest even, saturates at 448; NaN -> 0x7f
float e4m3_to_f32(uint8_t v);  // 0x7f and 0xff are NaN
const float* e4m3_table();     // 256 values

// ---------------------------------------------------------------- UE8M0
inline float ue8m0_to_f32(uint8_t e) {  // 2^(e - 127); 0 is 2^-127, 255 is NaN
  if (e == 0) return std::bit_cast<float>(0x00400000u);
  if (e == 255) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(uint32_t{e} << 23);
}
// The smallest power of two s with amax <= s * max, by exponent bits: x = amax * (1 / max) in fp32,
// exponent field of x, plus one if its mantissa is not zero.
uint8_t ue8m0_scale(float amax, float format_max);

// ---------------------------------------------------------------- e2m1
uint8_t f32_to_e2m1(float v);  // nearest, ties to the even code, clips to +-6; code 0..15
float e2m1_to_f32(uint8_t code);
const float* e2m1_table();  // 16 values

// ---------------------------------------------------------------- blocks
// x[n] -> e4m3 codes and one UE8M0 byte; amax floor 1e-4.
uint8_t quantise_fp8_block(const float* x, int n, uint8_t* codes);
// x[n] -> e2m1 codes (one per byte) and one UE8M0 byte; amax floor 6 * 2^-126.
uint8_t quantise_fp4_ue8m0_block(const float* x, int n, uint8_t* codes);
// x[n] -> e2m1 codes (one per byte) and one e4m3 scale byte; amax floor 6 * 2^-9.
uint8_t quantise_fp4_e4m3_block(const float* x, int n, uint8_t* codes);

// Fake quantisation of a row to e4m3 in blocks of 32: y = dequantised value (exact in bf16).
void fake_quantise_fp8(const float* x, int n, float* y);
// The same for e2m1 with UE8M0 scales in blocks of 32.
void fake_quantise_fp4_ue8m0(const float* x, int n, float* y);

// ---------------------------------------------------------------- packed rows
// Window row: D e4m3 bytes, then D/32 UE8M0 bytes.
constexpr int64_t window_row_bytes(int d) { return d + d / kFp8Block; }
// Main entry: D/2 bytes of e2m1 (low nibble = even channel), then D/16 e4m3 bytes.
constexpr int64_t main_entry_bytes(int d) { return d / 2 + d / kMainFp4Block; }
// Index key: d/2 bytes of e2m1, then d/32 UE8M0 bytes.
constexpr int64_t index_key_bytes(int d) { return d / 2 + d / kFp8Block; }

void pack_window_row(const float* x, int d, uint8_t* row);
void unpack_window_row(const uint8_t* row, int d, float* x);
void pack_main_entry(const float* x, int d, uint8_t* row);
void unpack_main_entry(const uint8_t* row, int d, float* x);
void pack_index_key(const float* x, int d, uint8_t* row);
void unpack_index_key(const uint8_t* row, int d, float* x);

}  // namespace tensorfold
