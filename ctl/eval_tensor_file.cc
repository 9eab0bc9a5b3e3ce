// Reading of recorded results: bytes (xz undone) -> header -> views. See eval_tensor_file.h.
#include "ctl/eval_tensor_file.h"

#include <lzma.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "engine/base/json.h"

namespace tensorfold::ctl {
namespace {

constexpr size_t kReadStepBytes = size_t{1} << 20;
constexpr unsigned char kXzMagic[6] = {0xFD, '7', 'z', 'X', 'Z', 0x00};

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

Status damaged(const std::string& path, const std::string& what) {
  return data_loss(path + ": " + what);
}

Result<std::vector<std::byte>> read_all(const std::string& path) {
  std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rb"));
  if (!file) return io_error(path, errno);
  std::vector<std::byte> data;
  for (;;) {
    const size_t have = data.size();
    data.resize(have + kReadStepBytes);
    const size_t got = std::fread(data.data() + have, 1, kReadStepBytes, file.get());
    data.resize(have + got);
    if (static_cast<int64_t>(data.size()) > kEvalFileBytesMax) {
      return damaged(path, "larger than " + std::to_string(kEvalFileBytesMax) + " bytes");
    }
    if (got < kReadStepBytes) break;
  }
  if (std::ferror(file.get()) != 0) return io_error(path, errno);
  return data;
}

std::string lzma_error_text(lzma_ret code) {
  switch (code) {
    case LZMA_MEMLIMIT_ERROR:
      return "xz: needs more memory than the decoder may use";
    case LZMA_FORMAT_ERROR:
      return "xz: not in the .xz format";
    case LZMA_OPTIONS_ERROR:
      return "xz: unsupported compression options";
    case LZMA_DATA_ERROR:
      return "xz: damaged data";
    case LZMA_BUF_ERROR:
      return "xz: truncated";
    case LZMA_MEM_ERROR:
      return "xz: out of memory";
    default:
      return "xz: error " + std::to_string(static_cast<int>(code));
  }
}

Result<std::vector<std::byte>> undo_xz(const std::string& path, std::span<const std::byte> in) {
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, static_cast<uint64_t>(kEvalXzMemoryBytesMax),
                          LZMA_CONCATENATED) != LZMA_OK) {
    return internal_error(path + ": xz decoder cannot start");
  }
  std::unique_ptr<lzma_stream, decltype(&lzma_end)> ender(&stream, &lzma_end);
  stream.next_in = reinterpret_cast<const uint8_t*>(in.data());
  stream.avail_in = in.size();
  std::vector<std::byte> out;
  lzma_ret code = LZMA_OK;
  while (code == LZMA_OK) {
    const size_t have = out.size();
    if (static_cast<int64_t>(have) > kEvalFileBytesMax) {
      return damaged(
          path, "more than " + std::to_string(kEvalFileBytesMax) + " bytes after decompression");
    }
    out.resize(have + kReadStepBytes);
    stream.next_out = reinterpret_cast<uint8_t*>(out.data() + have);
    stream.avail_out = kReadStepBytes;
    code = lzma_code(&stream, LZMA_FINISH);
    out.resize(have + kReadStepBytes - stream.avail_out);
  }
  if (code != LZMA_STREAM_END) return damaged(path, lzma_error_text(code));
  return out;
}

struct TypeRow {
  const char* name;
  TensorType type;
  int64_t bytes;
};
constexpr TypeRow kTypes[] = {
    {"F32", TensorType::kF32, 4},       {"BF16", TensorType::kBf16, 2},
    {"I32", TensorType::kI32, 4},       {"I64", TensorType::kI64, 8},
    {"U8", TensorType::kU8, 1},         {"F64", TensorType::kOther, 8},
    {"F16", TensorType::kOther, 2},     {"I16", TensorType::kOther, 2},
    {"I8", TensorType::kOther, 1},      {"BOOL", TensorType::kOther, 1},
    {"F8_E4M3", TensorType::kOther, 1}, {"F8_E8M0", TensorType::kOther, 1},
    {"F8_E5M2", TensorType::kOther, 1},
};

std::optional<std::vector<int64_t>> integer_list(const Json* value) {
  if (value == nullptr || !value->is_array()) return std::nullopt;
  std::vector<int64_t> out;
  for (const Json& item : value->as_array()) {
    const std::optional<int64_t> number = item.is_int() ? item.as_int64() : std::nullopt;
    if (!number || *number < 0) return std::nullopt;
    out.push_back(*number);
  }
  return out;
}

// One header entry -> a view into `payload`. Errors are texts without the file name.
Result<StoredTensor> parse_entry(const std::string& name, const Json& entry,
                                 std::span<const std::byte> payload) {
  const auto bad = [&](const std::string& what) {
    return data_loss("tensor '" + name + "': " + what);
  };
  const Json* dtype = entry.find("dtype");
  if (dtype == nullptr || !dtype->is_string()) return bad("no dtype");
  const TypeRow* row = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](const TypeRow& t) { return dtype->as_string() == t.name; });
  if (row == std::end(kTypes)) return bad("unknown dtype '" + dtype->as_string() + "'");
  const auto shape = integer_list(entry.find("shape"));
  if (!shape || shape->size() > static_cast<size_t>(kEvalTensorDimsMax)) return bad("bad shape");
  const auto offsets = integer_list(entry.find("data_offsets"));
  if (!offsets || offsets->size() != 2) return bad("bad data_offsets");
  int64_t size = row->bytes;
  for (const int64_t dim : *shape) {
    if (__builtin_mul_overflow(size, dim, &size)) return bad("shape overflows");
  }
  const int64_t begin = (*offsets)[0], end = (*offsets)[1];
  if (end < begin || end > static_cast<int64_t>(payload.size())) {
    return bad("data_offsets outside of the file");
  }
  if (end - begin != size) return bad("data_offsets do not fit its shape");
  StoredTensor out;
  out.name = name;
  out.type = row->type;
  out.type_name = row->name;
  out.shape = *shape;
  out.bytes = payload.subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
  return out;
}

template <typename T>
T load_at(std::span<const std::byte> bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

int64_t StoredTensor::count() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

float StoredTensor::f32(int64_t i) const {
  if (type == TensorType::kF32) return load_at<float>(bytes, i);
  TF_CHECK(type == TensorType::kBf16);
  return std::bit_cast<float>(static_cast<uint32_t>(load_at<uint16_t>(bytes, i)) << 16);
}

int64_t StoredTensor::i64(int64_t i) const {
  if (type == TensorType::kI32) return load_at<int32_t>(bytes, i);
  if (type == TensorType::kI64) return load_at<int64_t>(bytes, i);
  TF_CHECK(type == TensorType::kU8);
  return load_at<uint8_t>(bytes, i);
}

std::vector<float> StoredTensor::floats() const {
  std::vector<float> out(static_cast<size_t>(count()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = f32(static_cast<int64_t>(i));
  return out;
}

std::vector<int64_t> StoredTensor::integers() const {
  std::vector<int64_t> out(static_cast<size_t>(count()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = i64(static_cast<int64_t>(i));
  return out;
}

std::string StoredTensor::shape_text() const {
  std::string out = type_name + " [";
  for (size_t i = 0; i < shape.size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return out + "]";
}

Result<TensorFile> TensorFile::read(const std::string& path) {
  TF_ASSIGN_OR_RETURN(std::vector<std::byte> data, read_all(path));
  if (data.size() >= sizeof(kXzMagic) &&
      std::memcmp(data.data(), kXzMagic, sizeof(kXzMagic)) == 0) {
    TF_ASSIGN_OR_RETURN(data, undo_xz(path, data));
  }
  TensorFile file;
  file.path_ = path;
  file.data_ = std::move(data);
  TF_RETURN_IF_ERROR(file.parse());
  return file;
}

Status TensorFile::parse() {
  uint64_t header = 0;
  if (data_.size() < sizeof(header)) return damaged(path_, "too short for a safetensors file");
  std::memcpy(&header, data_.data(), sizeof(header));
  if (header > static_cast<uint64_t>(kEvalHeaderBytesMax) ||
      header > data_.size() - sizeof(header)) {
    return damaged(path_, "header of " + std::to_string(header) +
                              " bytes does not fit: not a safetensors file");
  }
  const std::string_view text(reinterpret_cast<const char*>(data_.data()) + sizeof(header),
                              static_cast<size_t>(header));
  Result<Json> json = parse_json(text);
  if (!json.ok()) return json.status().with_context(path_ + ": header");
  if (!json->is_object()) return damaged(path_, "header is no JSON object");
  const std::span<const std::byte> payload =
      std::span<const std::byte>(data_).subspan(sizeof(header) + static_cast<size_t>(header));
  for (const auto& [name, entry] : json->as_object()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) return damaged(path_, "__metadata__ is no object");
      for (const auto& [key, value] : entry.as_object()) {
        if (value.is_string()) metadata_[key] = value.as_string();
      }
      continue;
    }
    Result<StoredTensor> tensor = parse_entry(name, entry, payload);
    if (!tensor.ok()) return tensor.status().with_context(path_);
    tensors_.push_back(std::move(tensor).value());
  }
  std::stable_sort(
      tensors_.begin(), tensors_.end(),
      [](const StoredTensor& a, const StoredTensor& b) { return a.bytes.data() < b.bytes.data(); });
  for (size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
  return ok_status();
}

const StoredTensor* TensorFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

Result<const StoredTensor*> TensorFile::need(std::string_view name,
                                             std::vector<int64_t> shape) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) return data_loss(path_ + ": no tensor '" + std::string(name) + "'");
  bool fits = shape.empty() || shape.size() == tensor->shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    fits = shape[i] < 0 || shape[i] == tensor->shape[i];
  }
  if (!fits) {
    return data_loss(path_ + ": tensor '" + std::string(name) + "' has the unexpected shape " +
                     tensor->shape_text());
  }
  return tensor;
}

}  // namespace tensorfold::ctl
