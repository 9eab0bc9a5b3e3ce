// Converts Engram tables (see quantize_engram.h), a band of rows at a time.
#include "engine/weights/quantize_engram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/half.h"
#include "engine/weights/weight.h"
#include "kernels/formats.h"

namespace tensorfold::exl3 {
namespace {

constexpr int64_t kBandRows = 4096;
constexpr float kE4m3Max = 448;
constexpr float kAmaxFloor = 0x1p-100f;  // keeps the scale byte well inside its range

float value_at(const TensorInfo& table, const std::byte* raw, int64_t index) {
  if (table.dtype == DType::kF32) {
    float v;
    std::memcpy(&v, raw + 4 * index, sizeof(v));
    return v;
  }
  uint16_t bits;
  std::memcpy(&bits, raw + 2 * index, sizeof(bits));
  return table.dtype == DType::kF16 ? fp16_to_fp32(bits) : bf16_to_fp32(bits);
}

struct Block {
  uint8_t scale;
  uint8_t codes[kScaleBlock];
};

Block convert(const float* values) {
  float amax = kAmaxFloor;
  for (int i = 0; i < kScaleBlock; ++i) amax = std::max(amax, std::abs(values[i]));
  Block block{ue8m0_scale(amax, kE4m3Max), {}};
  const float scale = ue8m0_to_f32(block.scale);
  for (int i = 0; i < kScaleBlock; ++i) block.codes[i] = f32_to_e4m3(values[i] / scale);
  return block;
}

// Calls take(block) for every block of 32 values, row after row; flushes after each band.
template <typename Take, typename Flush>
Status for_each_block(const Safetensors& files, const TensorInfo& table, Take take, Flush flush) {
  const int64_t rows = table.shape[0], width = table.shape[1];
  const int64_t row_bytes = width * dtype_bytes(table.dtype);
  std::vector<std::byte> raw;
  for (int64_t r0 = 0; r0 < rows; r0 += kBandRows) {
    const int64_t count = std::min(kBandRows, rows - r0);
    raw.resize(static_cast<size_t>(count * row_bytes));
    TF_RETURN_IF_ERROR(files.read(table, r0 * row_bytes, raw));
    float values[kScaleBlock];
    for (int64_t at = 0; at < count * width; at += kScaleBlock) {
      for (int i = 0; i < kScaleBlock; ++i) {
        values[i] = value_at(table, raw.data(), at + i);
        if (!std::isfinite(values[i])) {
          return data_loss(files.where(table) + ": row " + std::to_string(r0 + at / width) +
                           " holds a value that is not finite");
        }
      }
      take(convert(values));
    }
    TF_RETURN_IF_ERROR(flush());
  }
  return ok_status();
}

}  // namespace

bool engram_convertible(const TensorInfo& table) {
  return table.shape.size() == 2 && table.shape[1] % kScaleBlock == 0 &&
         (table.dtype == DType::kF32 || table.dtype == DType::kF16 || table.dtype == DType::kBf16);
}

Status append_engram_values(const Safetensors& files, const TensorInfo& table,
                            SafetensorsWriter& writer) {
  std::vector<uint8_t> out;
  return for_each_block(
      files, table, [&](const Block& b) { out.insert(out.end(), b.codes, b.codes + kScaleBlock); },
      [&] {
        const Status status = writer.append(std::as_bytes(std::span(out)));
        out.clear();
        return status;
      });
}

Status append_engram_scales(const Safetensors& files, const TensorInfo& table,
                            SafetensorsWriter& writer) {
  std::vector<uint8_t> out;
  return for_each_block(
      files, table, [&](const Block& b) { out.push_back(b.scale); },
      [&] {
        const Status status = writer.append(std::as_bytes(std::span(out)));
        out.clear();
        return status;
      });
}

}  // namespace tensorfold::exl3
