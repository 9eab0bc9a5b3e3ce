// Rows of an Engram table, cached (see engram_table.h). The cache is a fixed block of rows with a
// clock hand: a row that was used since the hand last passed gets a second chance.
#include "engine/weights/engram_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "engine/base/half.h"
#include "engine/weights/batch_reader.h"
#include "engine/weights/engram_storage.h"
#include "engine/weights/tensor_table.h"

namespace tensorfold {
namespace {

constexpr std::string_view kScaleSuffixes[] = {".scale", ".weight_scale"};

int value_bytes(WeightKind kind) {
  return kind == WeightKind::kFp8 ? 1 : kind == WeightKind::kF32 ? 4 : 2;
}

class RowCache {
 public:
  RowCache(int64_t rows, int64_t row_bytes)
      : row_bytes_(static_cast<size_t>(row_bytes)), capacity_(static_cast<size_t>(rows)) {}

  // The row's bytes, or nullptr.
  const std::byte* find(int64_t row) {
    const auto it = slot_of_.find(row);
    if (it == slot_of_.end()) return nullptr;
    used_[it->second] = true;
    return bytes_.data() + it->second * row_bytes_;
  }

  void insert(int64_t row, const std::byte* bytes) {
    if (capacity_ == 0) return;
    const size_t slot = take_slot();
    row_of_[slot] = row;
    used_[slot] = false;
    slot_of_[row] = slot;
    std::memcpy(bytes_.data() + slot * row_bytes_, bytes, row_bytes_);
  }

 private:
  size_t take_slot() {
    if (row_of_.size() < capacity_) {  // memory grows with what was read, up to the bound
      row_of_.push_back(-1);
      used_.push_back(false);
      bytes_.resize(bytes_.size() + row_bytes_);
      return row_of_.size() - 1;
    }
    while (used_[hand_]) {
      used_[hand_] = false;
      hand_ = (hand_ + 1) % capacity_;
    }
    const size_t slot = hand_;
    hand_ = (hand_ + 1) % capacity_;
    slot_of_.erase(row_of_[slot]);
    return slot;
  }

  const size_t row_bytes_, capacity_;
  std::vector<std::byte> bytes_;
  std::vector<int64_t> row_of_;
  std::vector<bool> used_;
  std::unordered_map<int64_t, size_t> slot_of_;
  size_t hand_ = 0;
};

class StoredTable final : public EngramTable {
 public:
  StoredTable(EngramStorage storage, int64_t cache_rows, bool use_ring)
      : storage_(std::move(storage)),
        row_bytes_(storage_.row_bytes()),
        cache_(std::clamp<int64_t>(cache_rows, 0, kEngramCacheRowsMax), row_bytes_),
        reader_(use_ring) {}

  Range rows() const override { return storage_.rows; }
  int width() const override { return storage_.width; }
  int64_t row_bytes() const override { return row_bytes_; }
  EngramTableStats stats() const override { return stats_; }

  Status read(std::span<const int64_t> rows, std::span<std::byte> raw) override {
    TF_CHECK_LE(rows.size(), static_cast<size_t>(kEngramBatchRowsMax));
    TF_CHECK_EQ(raw.size(), rows.size() * static_cast<size_t>(row_bytes_));
    for (int64_t row : rows) TF_RETURN_IF_ERROR(check_row(row));
    std::vector<std::pair<int64_t, size_t>> fresh;  // row, place of its first occurrence
    std::unordered_map<int64_t, size_t> first;
    std::vector<std::pair<size_t, size_t>> repeats;  // place, place to copy from
    for (size_t i = 0; i < rows.size(); ++i) {
      if (const std::byte* bytes = cache_.find(rows[i])) {
        std::memcpy(place(raw, i), bytes, static_cast<size_t>(row_bytes_));
        ++stats_.hits;
      } else if (const auto [it, is_new] = first.emplace(rows[i], i); is_new) {
        fresh.emplace_back(rows[i], i);
        ++stats_.misses;
      } else {
        repeats.emplace_back(i, it->second);
        ++stats_.hits;
      }
    }
    TF_RETURN_IF_ERROR(read_fresh(fresh, raw));
    for (const auto& [to, from] : repeats) {
      std::memcpy(place(raw, to), place(raw, from), static_cast<size_t>(row_bytes_));
    }
    return ok_status();
  }

  void decode_row(std::span<const std::byte> raw, std::span<float> values) const override {
    TF_CHECK_EQ(raw.size(), static_cast<size_t>(row_bytes_));
    TF_CHECK_EQ(values.size(), static_cast<size_t>(storage_.width));
    const auto* bytes = reinterpret_cast<const uint8_t*>(raw.data());
    const uint8_t* scales = bytes + values.size();
    for (size_t i = 0; i < values.size(); ++i) {
      switch (storage_.kind) {
        case WeightKind::kFp8:
          values[i] = fp8_e4m3_to_fp32(bytes[i]) * ue8m0_to_fp32(scales[i / kScaleBlock]);
          break;
        case WeightKind::kF32:
          std::memcpy(&values[i], bytes + 4 * i, 4);
          break;
        default: {
          const auto word = static_cast<uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8);
          values[i] = storage_.kind == WeightKind::kBf16 ? bf16_to_fp32(word) : fp16_to_fp32(word);
        }
      }
    }
  }

 private:
  std::byte* place(std::span<std::byte> raw, size_t index) const {
    return raw.data() + index * static_cast<size_t>(row_bytes_);
  }

  Status check_row(int64_t row) const {
    if (row >= storage_.rows.begin && row < storage_.rows.end) return ok_status();
    return invalid_argument(storage_.segments[0].name + ": row " + std::to_string(row) +
                            " is not in " + std::to_string(storage_.rows.begin) + ".." +
                            std::to_string(storage_.rows.end - 1));
  }

  Status read_fresh(std::span<const std::pair<int64_t, size_t>> fresh, std::span<std::byte> raw) {
    std::vector<ReadRequest> requests;
    requests.reserve(fresh.size() * storage_.segments.size());
    for (const auto& [row, index] : fresh) {
      std::byte* out = place(raw, index);
      for (const EngramStorage::Segment& s : storage_.segments) {
        const auto bytes = static_cast<size_t>(s.bytes);
        requests.push_back(
            {s.file.get(), s.offset + (row - storage_.rows.begin) * s.pitch, {out, bytes}});
        out += bytes;
      }
    }
    const Status status = reader_.read(requests);
    if (!status.ok()) return status.with_context("tensor " + storage_.segments[0].name);
    stats_.bytes_read += fresh.size() * static_cast<size_t>(row_bytes_);
    for (const auto& [row, index] : fresh) {
      TF_RETURN_IF_ERROR(check_values(row, place(raw, index)));
      cache_.insert(row, place(raw, index));
    }
    return ok_status();
  }

  Status check_values(int64_t row, const std::byte* bytes) const {
    std::vector<float> values(static_cast<size_t>(storage_.width));
    decode_row({bytes, static_cast<size_t>(row_bytes_)}, values);
    if (std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
      return ok_status();
    }
    const EngramStorage::Segment& s = storage_.segments.back();
    return data_loss(s.file->path() + ": tensor " + s.name + ": row " + std::to_string(row) +
                     " has a NaN");
  }

  const EngramStorage storage_;
  const int64_t row_bytes_;
  RowCache cache_;
  BatchReader reader_;
  EngramTableStats stats_;
};

Status expect(const Safetensors& files, const TensorInfo& t, bool dtype_fits,
              const std::vector<int64_t>& shape) {
  if (dtype_fits && t.shape == shape) return ok_status();
  return data_loss(files.where(t) + ": is " + std::string(dtype_name(t.dtype)) + " " +
                   shape_text(t.shape) + ", which is not an Engram table of " + shape_text(shape));
}

EngramStorage::Segment segment_of(const Safetensors& files, const TensorInfo& t, int64_t rows) {
  return {.file = files.files()[static_cast<size_t>(t.file)],
          .offset = t.offset,
          .pitch = t.bytes / rows,
          .bytes = t.bytes / rows,
          .name = t.name};
}

}  // namespace

int64_t EngramStorage::row_bytes() const {
  int64_t bytes = 0;
  for (const Segment& s : segments) bytes += s.bytes;
  return bytes;
}

Result<EngramStorage> find_engram(const Safetensors& files, const ModelConfig& config, int index) {
  const std::string name = engram_table_name(config, index);
  const int64_t rows = config.engram.table_rows[static_cast<size_t>(index)];
  const int64_t width = config.engram.row_width;
  const TensorInfo* values = files.find(name + ".weight");
  if (values == nullptr) {
    return Status(StatusCode::kNotFound,
                  files.path() + ": Engram table " + name + ".weight is missing");
  }
  EngramStorage storage;
  storage.rows = {0, rows};
  storage.width = config.engram.row_width;
  const DType type = values->dtype;
  storage.kind = type == DType::kF8E4M3 ? WeightKind::kFp8
                 : type == DType::kF32  ? WeightKind::kF32
                 : type == DType::kF16  ? WeightKind::kF16
                                        : WeightKind::kBf16;
  const bool known = storage.kind != WeightKind::kBf16 || type == DType::kBf16;
  TF_RETURN_IF_ERROR(expect(files, *values, known, {rows, width}));
  storage.segments.push_back(segment_of(files, *values, rows));
  TF_CHECK_EQ(storage.segments[0].bytes, width * value_bytes(storage.kind));
  if (storage.kind != WeightKind::kFp8) return storage;
  const TensorInfo* scale = nullptr;
  for (std::string_view suffix : kScaleSuffixes) {
    if (scale == nullptr) scale = files.find(name + std::string(suffix));
  }
  if (scale == nullptr) {
    return data_loss(files.where(*values) + ": there, but " + name + ".scale is missing");
  }
  const bool scale_type = scale->dtype == DType::kF8E8M0 || scale->dtype == DType::kU8;
  TF_RETURN_IF_ERROR(expect(files, *scale, scale_type, {rows, width / kScaleBlock}));
  storage.segments.push_back(segment_of(files, *scale, rows));
  return storage;
}

std::unique_ptr<EngramTable> make_engram_table(EngramStorage storage, int64_t cache_rows,
                                               bool use_ring) {
  return std::make_unique<StoredTable>(std::move(storage), cache_rows, use_ring);
}

}  // namespace tensorfold
