// Reads a slice of a stored weight (see stored_weight.h). Small parts first: scales and signs are
// read and checked before memory for the data is taken.
#include <algorithm>
#include <cmath>

#include "engine/base/half.h"
#include "engine/weights/stored_weight.h"

namespace tensorfold {
namespace {

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

template <typename T>
std::span<std::byte> writable(std::vector<T>& values) {
  return std::as_writable_bytes(std::span<T>(values));
}

template <typename T>
std::span<const T> values_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

bool finite16(uint16_t bits, uint16_t exponent_mask) {
  return (bits & exponent_mask) != exponent_mask;
}

// One slice of one part.
class Reader {
 public:
  Reader(const Safetensors& files, const StoredPart& part, Range rows, Range columns)
      : files_(files), part_(part), rows_(rows), columns_(columns) {}

  Result<Weight> read() {
    weight_.kind = part_.kind;
    weight_.out = rows_.size();
    weight_.in = columns_.size();
    Status status;
    switch (part_.kind) {
      case WeightKind::kF32:
        status = plain(4);
        break;
      case WeightKind::kF16:
      case WeightKind::kBf16:
        status = plain(2);
        break;
      case WeightKind::kFp8:
        status = fp8();
        break;
      case WeightKind::kFp4:
        status = fp4();
        break;
      case WeightKind::kExl3:
        status = exl3();
        break;
    }
    if (!status.ok()) return status;
    return std::move(weight_);
  }

 private:
  Status damaged(const TensorInfo& t, const std::string& what) const {
    return data_loss(files_.where(t) + ": " + what);
  }

  Status data_block(int64_t pitch, Range rows, int64_t column, int64_t width) {
    weight_.data.resize(static_cast<size_t>(rows.size() * width));
    return files_.read_block(*part_.data, pitch, rows.begin, rows.end, column, width, weight_.data);
  }

  Status plain(int64_t size) {
    TF_RETURN_IF_ERROR(
        data_block(part_.in * size, rows_, columns_.begin * size, columns_.size() * size));
    bool finite = true;
    if (part_.kind == WeightKind::kF32) {
      for (float v : weight_.f32()) finite = finite && std::isfinite(v);
    } else {
      const uint16_t mask = part_.kind == WeightKind::kF16 ? 0x7C00 : 0x7F80;
      for (uint16_t v : weight_.u16()) finite = finite && finite16(v, mask);
    }
    return finite ? ok_status() : damaged(*part_.data, "a value is not finite");
  }

  Status scales(int64_t pitch, Range rows, Range columns) {
    weight_.scales.resize(static_cast<size_t>(rows.size() * columns.size()));
    TF_RETURN_IF_ERROR(files_.read_block(*part_.scale, pitch, rows.begin, rows.end, columns.begin,
                                         columns.size(), writable(weight_.scales)));
    const auto nan = std::find(weight_.scales.begin(), weight_.scales.end(), uint8_t{0xFF});
    return nan == weight_.scales.end() ? ok_status() : damaged(*part_.scale, "a scale is NaN");
  }

  Range scale_columns() const {
    return {columns_.begin / kScaleBlock, round_up(columns_.end, kScaleBlock) / kScaleBlock};
  }

  Status fp8() {
    const int64_t block = part_.scale_rows;
    TF_CHECK(columns_.begin % kScaleBlock == 0 && rows_.begin % block == 0);
    weight_.scale_rows = part_.scale_rows;
    const int64_t pitch = round_up(part_.in, kScaleBlock) / kScaleBlock;
    TF_RETURN_IF_ERROR(
        scales(pitch, {rows_.begin / block, round_up(rows_.end, block) / block}, scale_columns()));
    TF_RETURN_IF_ERROR(data_block(part_.in, rows_, columns_.begin, columns_.size()));
    const bool nan = std::any_of(weight_.data.begin(), weight_.data.end(), [](std::byte b) {
      return (std::to_integer<int>(b) & 0x7F) == 0x7F;
    });
    return nan ? damaged(*part_.data, "a value is NaN") : ok_status();
  }

  Status fp4() {
    TF_CHECK(columns_.begin % kScaleBlock == 0 && columns_.end % kScaleBlock == 0);
    TF_RETURN_IF_ERROR(scales(part_.in / kScaleBlock, rows_, scale_columns()));
    return data_block(part_.in / 2, rows_, columns_.begin / 2, columns_.size() / 2);
  }

  Status half_vector(const TensorInfo& t, Range range, std::vector<uint16_t>& out) {
    const bool old_signs = t.dtype == DType::kI16 || t.dtype == DType::kU16;
    if (old_signs) {
      std::vector<uint16_t> words(static_cast<size_t>(range.size() / 16));
      TF_RETURN_IF_ERROR(files_.read(t, range.begin / 16 * 2, writable(words)));
      out = exl3::expand_signs(words);
      return ok_status();
    }
    out.resize(static_cast<size_t>(range.size()));
    if (t.dtype == DType::kF32) {
      std::vector<float> values(out.size());
      TF_RETURN_IF_ERROR(files_.read(t, range.begin * 4, writable(values)));
      std::transform(values.begin(), values.end(), out.begin(), fp32_to_fp16);
    } else {
      TF_RETURN_IF_ERROR(files_.read(t, range.begin * 2, writable(out)));
    }
    const bool finite =
        std::all_of(out.begin(), out.end(), [](uint16_t v) { return finite16(v, 0x7C00); });
    return finite ? ok_status() : damaged(t, "a scale is not finite");
  }

  Status marker() {
    if (part_.marker == nullptr) return ok_status();
    std::vector<uint32_t> value(1);
    TF_RETURN_IF_ERROR(files_.read(*part_.marker, 0, writable(value)));
    if (value[0] == exl3::codebook_marker(part_.codebook)) return ok_status();
    return damaged(*part_.marker, "its value is not the multiplier of the " +
                                      std::string(exl3::codebook_name(part_.codebook)) +
                                      " codebook");
  }

  Status exl3() {
    const Range outs = {rows_.begin, round_up(rows_.end, exl3::kDimMultiple)};
    const Range ins = {columns_.begin, round_up(columns_.end, exl3::kDimMultiple)};
    TF_CHECK(outs.begin % exl3::kDimMultiple == 0 && ins.begin % exl3::kDimMultiple == 0);
    TF_CHECK(rows_.end == outs.end || rows_.end == part_.out);
    TF_CHECK(columns_.end == ins.end || columns_.end == part_.in);
    weight_.padded_out = outs.size();
    weight_.padded_in = ins.size();
    weight_.half_bits = part_.half_bits;
    weight_.codebook = part_.codebook;
    TF_RETURN_IF_ERROR(marker());
    TF_RETURN_IF_ERROR(half_vector(*part_.suh, ins, weight_.suh));
    TF_RETURN_IF_ERROR(half_vector(*part_.svh, outs, weight_.svh));
    if (part_.bias != nullptr) TF_RETURN_IF_ERROR(half_vector(*part_.bias, outs, weight_.bias));
    const int64_t tile = exl3::tile_bytes(part_.half_bits);
    return data_block(part_.padded_out / exl3::kTileSide * tile,
                      {ins.begin / exl3::kTileSide, ins.end / exl3::kTileSide},
                      outs.begin / exl3::kTileSide * tile, outs.size() / exl3::kTileSide * tile);
  }

  const Safetensors& files_;
  const StoredPart& part_;
  const Range rows_, columns_;
  Weight weight_;
};

}  // namespace

Result<Weight> read_stored(const Safetensors& files, const StoredPart& part, Range rows,
                           Range columns) {
  TF_CHECK(rows.begin >= 0 && rows.begin <= rows.end && rows.end <= part.out);
  TF_CHECK(columns.begin >= 0 && columns.begin <= columns.end && columns.end <= part.in);
  return Reader(files, part, rows, columns).read();
}

}  // namespace tensorfold
