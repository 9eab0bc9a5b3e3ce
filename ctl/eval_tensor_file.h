// TensorFile: a whole safetensors file in memory, plain or compressed with xz, for
// `tfctl model eval`: recorded results are small and read once. Model weights are not read with
// this (engine/weights reads those in place).
//
// Owned by the thread of the verb. Everything is checked while reading: lengths, offsets, types,
// and the size after decompression, so that the accessors can trust the views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold::ctl {

inline constexpr int64_t kEvalFileBytesMax = int64_t{512} << 20;      // after decompression
inline constexpr int64_t kEvalHeaderBytesMax = int64_t{16} << 20;     // JSON header
inline constexpr int64_t kEvalXzMemoryBytesMax = int64_t{256} << 20;  // of the xz decoder
inline constexpr int kEvalTensorDimsMax = 8;

enum class TensorType : unsigned char { kF32, kBf16, kI32, kI64, kU8, kOther };

struct StoredTensor {
  std::string name;
  TensorType type = TensorType::kOther;
  std::string type_name;  // as written: "F32"
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;

  int64_t count() const;  // elements
  int64_t dim(size_t i) const { return i < shape.size() ? shape[i] : 1; }
  bool is_float() const { return type == TensorType::kF32 || type == TensorType::kBf16; }
  bool is_integer() const {
    return type == TensorType::kI32 || type == TensorType::kI64 || type == TensorType::kU8;
  }
  float f32(int64_t i) const;             // kF32 or kBf16 (widened)
  int64_t i64(int64_t i) const;           // kI32, kI64 or kU8
  std::vector<float> floats() const;      // all elements; is_float()
  std::vector<int64_t> integers() const;  // all elements; is_integer()
  std::string shape_text() const;         // "F32 [10, 4]"
};

class TensorFile {
 public:
  // Errors name the file, and the tensor where there is one.
  static Result<TensorFile> read(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // by place in the file
  const StoredTensor* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The tensor, or an error that names it; `shape` -1 matches any length.
  Result<const StoredTensor*> need(std::string_view name, std::vector<int64_t> shape = {}) const;

 private:
  Status parse();

  std::string path_;
  std::vector<std::byte> data_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace tensorfold::ctl
