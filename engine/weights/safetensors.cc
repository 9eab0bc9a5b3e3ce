// Opening checkpoints: which files belong to one, and what each header says (see safetensors.h).
// Nothing is trusted: a header is read only after its length was compared with the file, and a
// tensor is accepted only when its type, shape and range agree and fit.
#include "engine/weights/safetensors.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>

#include "engine/weights/safetensors_header.h"

namespace tensorfold {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr int64_t kLengthBytes = 8;
constexpr int kSamplesPerFile = 64;
constexpr int64_t kSampleBytes = 4096;
constexpr int64_t kBlockReadBytesMax = 4 << 20;
constexpr int64_t kDropReadBytesLeast = 1 << 20;  // smaller pieces share pages with others

bool is_folder(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool exists(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0;
}

Result<std::vector<std::string>> model_files(const std::string& folder) {
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) return io_error(folder, errno);
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string_view name = entry->d_name;
    if (name.starts_with("model") && name.ends_with(".safetensors")) names.emplace_back(name);
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

// "model-00003-of-00043.safetensors" -> 43; 0 for other names.
int shard_total(std::string_view name) {
  const size_t of = name.rfind("-of-");
  if (of == std::string_view::npos) return 0;
  int total = 0;
  for (char ch : name.substr(of + 4)) {
    if (ch < '0' || ch > '9') break;
    total = std::min(total * 10 + (ch - '0'), kShardsMax + 1);
  }
  return total;
}

Status check_complete(const std::string& folder, const std::vector<std::string>& names) {
  if (names.empty()) {
    return Status(StatusCode::kNotFound, folder + ": no model*.safetensors in it");
  }
  const int total = shard_total(names.front());
  if (total != 0 && static_cast<size_t>(total) != names.size()) {
    return data_loss(folder + ": " + names.front() + " says there are " + std::to_string(total) +
                     " shards, but " + std::to_string(names.size()) +
                     " are there, and no index names the missing ones");
  }
  return ok_status();
}

Status index_error(const std::string& file, const std::string& tensor, const std::string& what) {
  return data_loss(file + ": tensor " + tensor + ": " + what);
}

bool plain_file_name(std::string_view name) {
  return !name.empty() && name.find('/') == std::string_view::npos && name != "." && name != ".." &&
         name.find('\0') == std::string_view::npos;
}

// The JSON of the header, its length checked against the file first.
Result<std::string> read_header(const ReadFile& file) {
  std::array<std::byte, kLengthBytes> head = {};
  const auto got = static_cast<size_t>(std::min(file.size(), kLengthBytes));
  TF_RETURN_IF_ERROR(file.read(0, std::span(head).first(got)));
  const std::string_view seen(reinterpret_cast<const char*>(head.data()), got);
  if (seen.starts_with("version ")) {
    return data_loss(file.path() +
                     ": a Git LFS pointer, not the file itself (fetch it with git lfs pull)");
  }
  if (file.size() < kLengthBytes) {
    return data_loss(file.path() + ": truncated: " + std::to_string(file.size()) +
                     " bytes, no header length");
  }
  uint64_t length = 0;
  for (size_t i = 0; i < head.size(); ++i) {
    length |= std::to_integer<uint64_t>(head[i]) << (8 * i);
  }
  if (length > static_cast<uint64_t>(kSafetensorsHeaderBytesMax)) {
    return data_loss(file.path() + ": the header claims " + std::to_string(length) +
                     " bytes; at most " + std::to_string(kSafetensorsHeaderBytesMax) +
                     " are allowed");
  }
  if (static_cast<int64_t>(length) > file.size() - kLengthBytes) {
    return data_loss(file.path() + ": truncated: the header claims " + std::to_string(length) +
                     " bytes, the file has " + std::to_string(file.size()));
  }
  std::string text(static_cast<size_t>(length), '\0');
  TF_RETURN_IF_ERROR(file.read(kLengthBytes, std::as_writable_bytes(std::span<char>(text))));
  return text;
}

}  // namespace

Status Safetensors::add_file(const std::string& path) {
  TF_ASSIGN_OR_RETURN(std::shared_ptr<const ReadFile> file, ReadFile::open(path));
  TF_ASSIGN_OR_RETURN(const std::string header, read_header(*file));
  const int64_t data = kLengthBytes + static_cast<int64_t>(header.size());
  const Status parsed = parse_safetensors_header(
      header, data, file->size(), static_cast<int>(files_.size()), tensors_, metadata_);
  if (!parsed.ok()) return parsed.with_context(path);
  files_.push_back(std::move(file));
  return ok_status();
}

Status Safetensors::open_indexed(const std::string& index_path, bool partial) {
  TF_ASSIGN_OR_RETURN(const std::string text,
                      read_text_file(index_path, kSafetensorsIndexBytesMax));
  IndexMap index;
  const Status parsed = parse_safetensors_index(text, index);
  if (!parsed.ok()) return parsed.with_context(index_path);
  std::set<std::string, std::less<>> shards;
  for (const auto& [tensor, shard] : index) {
    if (!plain_file_name(shard)) {
      return index_error(index_path, tensor, "\"" + shard + "\" is not a file name");
    }
    shards.insert(shard);
  }
  if (shards.size() > static_cast<size_t>(kShardsMax)) {
    return data_loss(index_path + ": more than " + std::to_string(kShardsMax) + " shards");
  }
  std::set<std::string, std::less<>> opened;
  for (const std::string& shard : shards) {
    const std::string file = path_ + "/" + shard;
    if (partial && !exists(file)) continue;
    TF_RETURN_IF_ERROR(add_file(file));
    opened.insert(shard);
  }
  TF_RETURN_IF_ERROR(finish());
  for (const auto& [tensor, shard] : index) {
    if (!opened.contains(shard)) continue;
    const TensorInfo* found = find(tensor);
    const std::string file = path_ + "/" + shard;
    if (found == nullptr || file_path(*found) != file) {
      return index_error(file, tensor, "missing, although the index says it is in this file");
    }
  }
  return ok_status();
}

Status Safetensors::open_folder(bool partial) {
  const std::string index = path_ + "/" + std::string(kIndexName);
  if (exists(index)) return open_indexed(index, partial);
  TF_ASSIGN_OR_RETURN(const std::vector<std::string> names, model_files(path_));
  if (!partial || names.empty()) TF_RETURN_IF_ERROR(check_complete(path_, names));
  if (names.size() > static_cast<size_t>(kShardsMax)) {
    return data_loss(path_ + ": more than " + std::to_string(kShardsMax) + " shards");
  }
  for (const std::string& name : names) TF_RETURN_IF_ERROR(add_file(path_ + "/" + name));
  return finish();
}

Status Safetensors::finish() {
  if (tensors_.size() > static_cast<size_t>(kTensorsMax)) {
    return data_loss(path_ + ": more than " + std::to_string(kTensorsMax) + " tensors");
  }
  std::stable_sort(tensors_.begin(), tensors_.end(),
                   [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  for (size_t i = 1; i < tensors_.size(); ++i) {
    if (tensors_[i].name == tensors_[i - 1].name) {
      return data_loss(where(tensors_[i]) + ": duplicate, it is also in " +
                       file_path(tensors_[i - 1]));
    }
  }
  return ok_status();
}

Result<Safetensors> Safetensors::open(const std::string& path, bool partial) {
  Safetensors all;
  all.path_ = path;
  if (is_folder(path)) {
    TF_RETURN_IF_ERROR(all.open_folder(partial));
  } else {
    TF_RETURN_IF_ERROR(all.add_file(path));
    TF_RETURN_IF_ERROR(all.finish());
  }
  return all;
}

const TensorInfo* Safetensors::find(std::string_view name) const {
  const auto it =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorInfo& t, std::string_view n) { return t.name < n; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

std::string Safetensors::where(const TensorInfo& t) const {
  return file_path(t) + ": tensor " + t.name;
}

Status Safetensors::read(const TensorInfo& t, int64_t offset, std::span<std::byte> out) const {
  TF_CHECK(offset >= 0 && offset <= t.bytes &&
           static_cast<int64_t>(out.size()) <= t.bytes - offset);
  const ReadFile& file = *files_[static_cast<size_t>(t.file)];
  const Status status = file.read(t.offset + offset, out);
  if (!status.ok()) return status.with_context("tensor " + t.name);
  // Weights are read once, and their pages would take memory that they need themselves.
  const auto bytes = static_cast<int64_t>(out.size());
  if (bytes >= kDropReadBytesLeast) file.drop_pages(t.offset + offset, bytes);
  return status;
}

Status Safetensors::read_block(const TensorInfo& t, int64_t pitch, int64_t begin, int64_t end,
                               int64_t column, int64_t width, std::span<std::byte> out) const {
  TF_CHECK(column >= 0 && width >= 0 && column + width <= pitch && begin <= end);
  TF_CHECK_EQ(static_cast<int64_t>(out.size()), (end - begin) * width);
  if (width == pitch) return read(t, begin * pitch, out);
  // Whole rows at a time, in a bounded buffer: one large read costs less than many small ones.
  // Not for narrow columns, where most of the rows would be read for nothing.
  const bool narrow = width < pitch / 4;
  const int64_t rows_max = narrow ? 1 : std::max<int64_t>(1, kBlockReadBytesMax / pitch);
  std::vector<std::byte> staged;
  for (int64_t row = begin; row < end; row += rows_max) {
    const int64_t rows = std::min(rows_max, end - row);
    staged.resize(static_cast<size_t>((rows - 1) * pitch + width));
    TF_RETURN_IF_ERROR(read(t, row * pitch + column, staged));
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(staged.begin() + r * pitch, width, out.begin() + (row - begin + r) * width);
    }
  }
  return ok_status();
}

Result<std::string> Safetensors::sampled_digest() const {
  Sha256 hash;
  for (const TensorInfo& t : tensors_) {
    hash.update(t.name);
    hash.update(std::string_view("\0", 1));
    hash.update(dtype_name(t.dtype));
    for (int64_t n : t.shape) hash.update_u64(static_cast<uint64_t>(n));
  }
  std::vector<std::byte> sample;
  for (const std::shared_ptr<const ReadFile>& file : files_) {
    hash.update_u64(static_cast<uint64_t>(file->size()));
    const int64_t step = std::max(file->size() / kSamplesPerFile, kSampleBytes);
    for (int64_t at = 0; at < file->size(); at += step) {
      sample.resize(static_cast<size_t>(std::min(kSampleBytes, file->size() - at)));
      TF_RETURN_IF_ERROR(file->read(at, sample));
      hash.update(sample);
    }
  }
  return hash.hex();
}

}  // namespace tensorfold
