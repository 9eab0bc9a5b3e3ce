// safetensors files: what is in a checkpoint, learned from headers alone, and reads of parts of
// tensors. Format: 8-byte little-endian header length N, N bytes of JSON, then the data buffer;
// {"name": {"dtype", "shape", "data_offsets": [begin, end)}} with offsets into the buffer.
//
// Every claim of a header is checked against the file before anything of its size is allocated:
// lengths, types, shapes, ranges, that tensors neither overlap nor leave holes, that no name comes
// twice (in a file or across shards), that the index and the shards agree. Errors name file and
// tensor. Holds headers and open files only; reads may come from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/weights/file.h"

namespace tensorfold {

inline constexpr int64_t kSafetensorsHeaderBytesMax = 100'000'000;
inline constexpr int64_t kSafetensorsIndexBytesMax = 256 << 20;
inline constexpr int kTensorNameBytesMax = 1024;
inline constexpr int kTensorRankMax = 8;     // dimensions
inline constexpr int kTensorsMax = 1 << 20;  // in one checkpoint
inline constexpr int kShardsMax = 4096;      // files of one checkpoint

enum class DType : unsigned char {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
};

std::string_view dtype_name(DType dtype);  // "F8_E4M3", as in a header
int dtype_bytes(DType dtype);

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int file = 0;        // index into Safetensors::files()
  int64_t offset = 0;  // in the file
  int64_t bytes = 0;
  int64_t elements() const { return bytes / dtype_bytes(dtype); }
};

std::string shape_text(std::span<const int64_t> shape);  // "[384, 5120]"

class Safetensors {
 public:
  // One file, or a folder: the files of model.safetensors.index.json when there is one, else every
  // model*.safetensors. `partial`: shards of the index that are not there are left out (a folder
  // that holds only some shards of a published model).
  static Result<Safetensors> open(const std::string& path, bool partial = false);

  const std::string& path() const { return path_; }
  std::span<const TensorInfo> tensors() const { return tensors_; }  // ascending by name
  const TensorInfo* find(std::string_view name) const;
  std::span<const std::shared_ptr<const ReadFile>> files() const { return files_; }
  const std::string& file_path(const TensorInfo& t) const {
    return files_[static_cast<size_t>(t.file)]->path();
  }
  // "FILE: tensor NAME": how messages begin.
  std::string where(const TensorInfo& t) const;
  // __metadata__ of the file that holds the tensors (of all files: the first value of a key).
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }

  // Bytes [offset, offset + out.size()) of the tensor (checked against its size).
  Status read(const TensorInfo& t, int64_t offset, std::span<std::byte> out) const;
  // Rows [begin, end) of a matrix of `pitch` bytes a row, `width` bytes from `column` of each.
  Status read_block(const TensorInfo& t, int64_t pitch, int64_t begin, int64_t end, int64_t column,
                    int64_t width, std::span<std::byte> out) const;

  // SHA-256 over names, types, shapes and evenly spaced samples of every file's data: tells models
  // apart without reading them whole. Does not depend on how tensors are dealt to shards, except
  // for the samples.
  Result<std::string> sampled_digest() const;

 private:
  Status add_file(const std::string& path);
  Status open_folder(bool partial);
  Status open_indexed(const std::string& index_path, bool partial);
  Status finish();

  std::string path_;
  std::vector<std::shared_ptr<const ReadFile>> files_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

// Parses one header: `text` is the JSON, `data_offset` where the buffer begins, `file_bytes` the
// size of the file. Appends to `tensors` with file = `file`. For open() and the fuzzer.
Status parse_safetensors_header(std::string_view text, int64_t data_offset, int64_t file_bytes,
                                int file, std::vector<TensorInfo>& tensors,
                                std::map<std::string, std::string, std::less<>>& metadata);

// Writes one safetensors file: declare every tensor in order, then give their bytes in order.
class SafetensorsWriter {
 public:
  struct Declaration {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
  };
  static Result<std::unique_ptr<SafetensorsWriter>> create(
      const std::string& path, std::vector<Declaration> tensors,
      const std::vector<std::pair<std::string, std::string>>& metadata = {});
  // Bytes of the next tensor, or a part of them.
  Status append(std::span<const std::byte> bytes);
  Status commit();  // every declared byte was given (checked)

 private:
  explicit SafetensorsWriter(std::unique_ptr<AtomicFile> file) : file_(std::move(file)) {}
  std::unique_ptr<AtomicFile> file_;
  int64_t missing_bytes_ = 0;
};

}  // namespace tensorfold
