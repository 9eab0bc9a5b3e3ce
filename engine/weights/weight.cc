// Stored formats as values (see weight.h). Scalar and exact; the same bits on every processor.
#include "engine/weights/weight.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "engine/base/check.h"
#include "engine/base/half.h"

namespace tensorfold {
namespace {

constexpr std::string_view kKindNames[kWeightKinds] = {"f32", "f16", "bf16", "fp8", "fp4", "exl3"};

constexpr std::array<float, 8> kE2m1 = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

// e4m3: 1 sign, 4 exponent (bias 7), 3 fraction bits; no infinity, 0x7F is NaN.
float decode_e4m3(uint8_t byte) {
  const int exponent = (byte >> 3) & 15, fraction = byte & 7;
  const float sign = (byte & 0x80) != 0 ? -1.0f : 1.0f;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -9);
  return sign * std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
}

const std::array<float, 256>& e4m3_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> t = {};
    for (size_t i = 0; i < t.size(); ++i) t[i] = decode_e4m3(static_cast<uint8_t>(i));
    return t;
  }();
  return table;
}

template <typename T>
std::span<const T> words(const Weight& w) {
  return {reinterpret_cast<const T*>(w.data.data()), w.data.size() / sizeof(T)};
}

void rows_fp8(const Weight& w, int64_t begin, int64_t end, float* out) {
  const std::array<float, 256>& table = e4m3_table();
  const int64_t blocks = (w.in + kScaleBlock - 1) / kScaleBlock;
  const uint8_t* values = w.u8().data();
  for (int64_t n = begin; n < end; ++n) {
    const uint8_t* row = values + n * w.in;
    const uint8_t* scales = w.scales.data() + n / w.scale_rows * blocks;
    for (int64_t k = 0; k < w.in; ++k) {
      *out++ = table[row[k]] * ue8m0_to_fp32(scales[k / kScaleBlock]);
    }
  }
}

void rows_fp4(const Weight& w, int64_t begin, int64_t end, float* out) {
  const uint8_t* values = w.u8().data();
  for (int64_t n = begin; n < end; ++n) {
    const uint8_t* row = values + n * (w.in / 2);
    const uint8_t* scales = w.scales.data() + n * (w.in / kScaleBlock);
    for (int64_t k = 0; k < w.in; ++k) {
      const uint8_t nibble = static_cast<uint8_t>(row[k / 2] >> (4 * (k & 1)));
      *out++ = fp4_e2m1_to_fp32(nibble) * ue8m0_to_fp32(scales[k / kScaleBlock]);
    }
  }
}

// A padded layer is decoded 128 outputs at a time and trimmed to the logical size.
void rows_exl3(const Weight& w, int64_t begin, int64_t end, float* out) {
  TF_CHECK(begin % exl3::kDimMultiple == 0);
  TF_CHECK(end % exl3::kDimMultiple == 0 || end == w.out);
  const exl3::LayerView view = w.exl3_view();
  std::vector<float> block(static_cast<size_t>(exl3::kDimMultiple * w.padded_in));
  for (int64_t n = begin; n < end; n += exl3::kDimMultiple) {
    exl3::effective_weight(view, n, n + exl3::kDimMultiple, 0, w.padded_in, block.data(),
                           w.padded_in);
    const int64_t rows = std::min<int64_t>(exl3::kDimMultiple, end - n);
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(block.data() + r * w.padded_in, w.in, out + (n - begin + r) * w.in);
    }
  }
}

}  // namespace

std::string_view weight_kind_name(WeightKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::span<const float> Weight::f32() const {
  TF_CHECK(kind == WeightKind::kF32);
  return words<float>(*this);
}

std::span<const uint16_t> Weight::u16() const {
  TF_CHECK(kind == WeightKind::kF16 || kind == WeightKind::kBf16 || kind == WeightKind::kExl3);
  return words<uint16_t>(*this);
}

std::span<const uint8_t> Weight::u8() const {
  TF_CHECK(kind == WeightKind::kFp8 || kind == WeightKind::kFp4);
  return words<uint8_t>(*this);
}

exl3::LayerView Weight::exl3_view() const {
  return {.trellis = u16(),
          .suh = suh,
          .svh = svh,
          .k_in = padded_in,
          .n_out = padded_out,
          .half_bits = half_bits,
          .codebook = codebook};
}

int64_t Weight::bytes() const {
  return static_cast<int64_t>(data.size() + scales.size() +
                              2 * (suh.size() + svh.size() + bias.size()));
}

double bits_per_weight(const Weight& weight) {
  const double values = static_cast<double>(weight.out) * static_cast<double>(weight.in);
  return values > 0 ? 8.0 * static_cast<double>(weight.bytes()) / values : 0;
}

float fp8_e4m3_to_fp32(uint8_t byte) { return e4m3_table()[byte]; }

float ue8m0_to_fp32(uint8_t byte) {
  if (byte == 0xFF) return std::numeric_limits<float>::quiet_NaN();
  // 2^(byte - 127); byte 0 is the subnormal 2^-127.
  return std::bit_cast<float>(byte == 0 ? 0x00400000u : static_cast<uint32_t>(byte) << 23);
}

float fp4_e2m1_to_fp32(uint8_t nibble) {
  const float magnitude = kE2m1[nibble & 7];
  return (nibble & 8) != 0 ? -magnitude : magnitude;
}

uint16_t fp32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

void dequantize_rows(const Weight& w, int64_t begin, int64_t end, std::span<float> out) {
  TF_CHECK(begin >= 0 && begin <= end && end <= w.out);
  TF_CHECK_EQ(static_cast<int64_t>(out.size()), (end - begin) * w.in);
  const size_t first = static_cast<size_t>(begin * w.in), count = out.size();
  switch (w.kind) {
    case WeightKind::kF32:
      std::copy_n(w.f32().data() + first, count, out.data());
      return;
    case WeightKind::kF16:
      for (size_t i = 0; i < count; ++i) out[i] = fp16_to_fp32(w.u16()[first + i]);
      return;
    case WeightKind::kBf16:
      for (size_t i = 0; i < count; ++i) out[i] = bf16_to_fp32(w.u16()[first + i]);
      return;
    case WeightKind::kFp8:
      return rows_fp8(w, begin, end, out.data());
    case WeightKind::kFp4:
      return rows_fp4(w, begin, end, out.data());
    case WeightKind::kExl3:
      return rows_exl3(w, begin, end, out.data());
  }
}

void dequantize(const Weight& weight, std::span<float> out) {
  dequantize_rows(weight, 0, weight.out, out);
}

std::vector<uint16_t> dequantize_bf16(const Weight& weight) {
  std::vector<uint16_t> out(static_cast<size_t>(weight.out * weight.in));
  const int64_t step = exl3::kDimMultiple;
  std::vector<float> rows;
  for (int64_t n = 0; n < weight.out; n += step) {
    const int64_t end = std::min(weight.out, n + step);
    rows.resize(static_cast<size_t>((end - n) * weight.in));
    dequantize_rows(weight, n, end, rows);
    std::transform(rows.begin(), rows.end(), out.begin() + n * weight.in, fp32_to_bf16);
  }
  return out;
}

}  // namespace tensorfold
