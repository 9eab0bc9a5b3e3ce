// Number formats and packed rows (kernels/formats.h), in the header's order.
#include "kernels/formats.h"

#include <array>

namespace tensorfold {
namespace {

uint32_t bits_of(float v) { return std::bit_cast<uint32_t>(v); }
uint32_t abs_bits(float v) { return bits_of(v) & 0x7fffffffu; }

std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> t{};
  for (uint32_t v = 0; v < 256; ++v) {
    const uint32_t exponent = (v >> 3) & 15u, mantissa = v & 7u;
    float m = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                            : std::bit_cast<float>(((exponent + 120u) << 23) | (mantissa << 20));
    if ((v & 0x7fu) == 0x7fu) m = std::bit_cast<float>(0x7fc00000u);
    t[v] = (v & 0x80u) ? -m : m;
  }
  return t;
}

constexpr std::array<float, 16> kE2m1 = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                         -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
const std::array<float, 256> kE4m3 = make_e4m3_table();

// Largest absolute value of a block as bits, at least `floor`; a NaN is larger than everything, so
// a damaged block gets a NaN scale and stays visible.
float block_amax(const float* x, int n, float floor) {
  uint32_t m = bits_of(floor);
  for (int i = 0; i < n; ++i) m = abs_bits(x[i]) > m ? abs_bits(x[i]) : m;
  return std::bit_cast<float>(m);
}

void pack_nibbles(const uint8_t* codes, int n, uint8_t* out) {
  for (int i = 0; i < n / 2; ++i)
    out[i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
}

}  // namespace

// ---------------------------------------------------------------- e4m3
uint8_t f32_to_e4m3(float v) {
  const auto sign = static_cast<uint8_t>((bits_of(v) >> 24) & 0x80u);
  const uint32_t a = abs_bits(v);
  if (a > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (a >= bits_of(kE4m3Max)) return static_cast<uint8_t>(sign | 0x7eu);
  if (a < bits_of(0x1p-6f)) {  // subnormal: adding 2^14 rounds to a multiple of 2^-9
    const float t = std::bit_cast<float>(a) + 16384.0f;
    return static_cast<uint8_t>(sign | (bits_of(t) - bits_of(16384.0f)));
  }
  const uint32_t rounded = a + 0x7ffffu + ((a >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code < 0x7eu ? code : 0x7eu));
}

float e4m3_to_f32(uint8_t v) { return kE4m3[v]; }
const float* e4m3_table() { return kE4m3.data(); }

// ---------------------------------------------------------------- UE8M0
uint8_t ue8m0_scale(float amax, float format_max) {
  const uint32_t u = bits_of(amax * (1.0f / format_max));
  const uint32_t e = ((u >> 23) & 0xffu) + ((u & 0x7fffffu) != 0 ? 1u : 0u);
  return static_cast<uint8_t>(e < 255u ? e : 255u);
}

// ---------------------------------------------------------------- e2m1
uint8_t f32_to_e2m1(float v) {
  const float a = std::bit_cast<float>(abs_bits(v));
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                   (a >= 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>(code | ((bits_of(v) >> 28) & 8u));
}

float e2m1_to_f32(uint8_t code) { return kE2m1[code & 15u]; }
const float* e2m1_table() { return kE2m1.data(); }

// ---------------------------------------------------------------- blocks
uint8_t quantise_fp8_block(const float* x, int n, uint8_t* codes) {
  const uint8_t scale = ue8m0_scale(block_amax(x, n, 1e-4f), kE4m3Max);
  const float s = ue8m0_to_f32(scale);
  for (int i = 0; i < n; ++i) codes[i] = f32_to_e4m3(x[i] / s);
  return scale;
}

uint8_t quantise_fp4_ue8m0_block(const float* x, int n, uint8_t* codes) {
  const uint8_t scale = ue8m0_scale(block_amax(x, n, 6.0f * 0x1p-126f), kE2m1Max);
  const float s = ue8m0_to_f32(scale);
  for (int i = 0; i < n; ++i) codes[i] = f32_to_e2m1(x[i] / s);
  return scale;
}

uint8_t quantise_fp4_e4m3_block(const float* x, int n, uint8_t* codes) {
  const uint8_t scale = f32_to_e4m3(block_amax(x, n, 6.0f * 0x1p-9f) / kE2m1Max);
  const float s = kE4m3[scale];
  for (int i = 0; i < n; ++i) codes[i] = f32_to_e2m1(x[i] / s);
  return scale;
}

void fake_quantise_fp8(const float* x, int n, float* y) {
  uint8_t codes[kFp8Block];
  for (int i = 0; i < n; i += kFp8Block) {
    const float s = ue8m0_to_f32(quantise_fp8_block(x + i, kFp8Block, codes));
    for (int j = 0; j < kFp8Block; ++j) y[i + j] = kE4m3[codes[j]] * s;
  }
}

void fake_quantise_fp4_ue8m0(const float* x, int n, float* y) {
  uint8_t codes[kFp8Block];
  for (int i = 0; i < n; i += kFp8Block) {
    const float s = ue8m0_to_f32(quantise_fp4_ue8m0_block(x + i, kFp8Block, codes));
    for (int j = 0; j < kFp8Block; ++j) y[i + j] = kE2m1[codes[j]] * s;
  }
}

// ---------------------------------------------------------------- packed rows
void pack_window_row(const float* x, int d, uint8_t* row) {
  for (int b = 0; b < d / kFp8Block; ++b)
    row[d + b] = quantise_fp8_block(x + b * kFp8Block, kFp8Block, row + b * kFp8Block);
}

void unpack_window_row(const uint8_t* row, int d, float* x) {
  for (int b = 0; b < d / kFp8Block; ++b) {
    const float s = ue8m0_to_f32(row[d + b]);
    for (int i = b * kFp8Block; i < (b + 1) * kFp8Block; ++i) x[i] = kE4m3[row[i]] * s;
  }
}

void pack_main_entry(const float* x, int d, uint8_t* row) {
  uint8_t codes[kMainFp4Block];
  for (int b = 0; b < d / kMainFp4Block; ++b) {
    row[d / 2 + b] = quantise_fp4_e4m3_block(x + b * kMainFp4Block, kMainFp4Block, codes);
    pack_nibbles(codes, kMainFp4Block, row + b * kMainFp4Block / 2);
  }
}

void unpack_main_entry(const uint8_t* row, int d, float* x) {
  for (int b = 0; b < d / kMainFp4Block; ++b) {
    const float s = kE4m3[row[d / 2 + b]];
    const uint8_t* p = row + b * kMainFp4Block / 2;
    for (int i = 0; i < kMainFp4Block / 2; ++i) {
      x[b * kMainFp4Block + 2 * i] = kE2m1[p[i] & 15u] * s;
      x[b * kMainFp4Block + 2 * i + 1] = kE2m1[p[i] >> 4] * s;
    }
  }
}

void pack_index_key(const float* x, int d, uint8_t* row) {
  uint8_t codes[kFp8Block];
  for (int b = 0; b < d / kFp8Block; ++b) {
    row[d / 2 + b] = quantise_fp4_ue8m0_block(x + b * kFp8Block, kFp8Block, codes);
    pack_nibbles(codes, kFp8Block, row + b * kFp8Block / 2);
  }
}

void unpack_index_key(const uint8_t* row, int d, float* x) {
  for (int b = 0; b < d / kFp8Block; ++b) {
    const float s = ue8m0_to_f32(row[d / 2 + b]);
    const uint8_t* p = row + b * kFp8Block / 2;
    for (int i = 0; i < kFp8Block / 2; ++i) {
      x[b * kFp8Block + 2 * i] = kE2m1[p[i] & 15u] * s;
      x[b * kFp8Block + 2 * i + 1] = kE2m1[p[i] >> 4] * s;
    }
  }
}

}  // namespace tensorfold
