// Writing model folders (see model_writer.h).
#include "engine/weights/model_writer.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "engine/base/json.h"
#include "engine/weights/file.h"
#include "engine/weights/token_map.h"

namespace tensorfold {
namespace {

constexpr int64_t kCopyBytesMax = 16 << 20;       // read and written at once
constexpr int64_t kSideFileBytesMax = 256 << 20;  // a tokenizer.json is about 8 MB

bool exists(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0;
}

std::string path_in(const std::string& folder, const std::string& name) {
  return folder + "/" + name;
}

std::string shard_name(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  std::array<char, 64> name = {};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name.data();
}

Status write_text(const std::string& path, std::string_view text) {
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file, AtomicFile::create(path));
  TF_RETURN_IF_ERROR(file->append(text));
  return file->commit();
}

Status copy_file(const std::string& from, const std::string& to) {
  TF_ASSIGN_OR_RETURN(const std::string text, read_text_file(from, kSideFileBytesMax));
  return write_text(to, text);
}

Status write_shard(const std::string& path, std::span<const OutTensor> tensors) {
  std::vector<SafetensorsWriter::Declaration> declarations;
  for (const OutTensor& t : tensors) declarations.push_back(t.declaration);
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                      SafetensorsWriter::create(path, std::move(declarations), {{"format", "pt"}}));
  for (const OutTensor& t : tensors) TF_RETURN_IF_ERROR(t.write(*writer));
  return writer->commit();
}

std::vector<std::span<const OutTensor>> deal(std::span<const OutTensor> tensors, int64_t most) {
  std::vector<std::span<const OutTensor>> shards;
  size_t begin = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i > begin && bytes + tensors[i].bytes() > most) {
      shards.push_back(tensors.subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += tensors[i].bytes();
  }
  shards.push_back(tensors.subspan(begin));
  return shards;
}

}  // namespace

int64_t OutTensor::bytes() const {
  int64_t n = dtype_bytes(declaration.dtype);
  for (int64_t dim : declaration.shape) n *= dim;
  return n;
}

Status prepare_model_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) return io_error(folder, errno);
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) return io_error(folder, errno);
  std::string found;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string_view name = entry->d_name;
    if (name.ends_with(".safetensors") || name == "config.json") found = name;
  }
  ::closedir(dir);
  if (found.empty()) return ok_status();
  return invalid_argument(folder + ": holds a model already (" + found + ")");
}

Status write_model_files(const std::string& folder, const std::vector<OutTensor>& tensors,
                         int64_t shard_bytes_max,
                         const std::function<void(std::string_view)>& progress) {
  const std::vector<std::span<const OutTensor>> shards = deal(tensors, shard_bytes_max);
  Json::Object map;
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    TF_RETURN_IF_ERROR(write_shard(path_in(folder, name), shards[i]));
    for (const OutTensor& t : shards[i]) {
      map.emplace_back(t.declaration.name, Json::string(name));
      total += t.bytes();
    }
    if (progress) progress(name);
  }
  if (shards.size() == 1) return ok_status();
  const Json index =
      Json::object({{"metadata", Json::object({{"total_size", Json::integer(total)}})},
                    {"weight_map", Json::object(std::move(map))}});
  return write_text(folder + "/model.safetensors.index.json", dump_json_compact(index) + "\n");
}

Status copy_side_files(const std::string& from, const std::string& to) {
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "generation_config.json", kTokenMapFileName}) {
    const std::string path = from + "/" + name;
    if (exists(path)) TF_RETURN_IF_ERROR(copy_file(path, to + "/" + name));
  }
  return ok_status();
}

Status write_config(const std::string& from, const std::string& to,
                    const std::string& quantization) {
  TF_ASSIGN_OR_RETURN(const std::string text,
                      read_text_file(from + "/config.json", kSideFileBytesMax));
  Result<Json> config = parse_json(text, JsonDialect::kPython);
  if (!config.ok()) return config.status().with_context(from + "/config.json");
  if (!config->is_object()) return data_loss(from + "/config.json: not a JSON object");
  constexpr std::string_view kKey = "quantization_config";
  const auto drop = [&](Json& object) {
    std::erase_if(object.as_object(), [&](const Json::Member& m) { return m.first == kKey; });
  };
  drop(*config);
  for (Json::Member& member : config->as_object()) {
    if (member.first == "text_config" && member.second.is_object()) drop(member.second);
  }
  if (!quantization.empty()) {
    TF_ASSIGN_OR_RETURN(Json block, parse_json(quantization));
    config->set(std::string(kKey), std::move(block));
  }
  return write_text(to + "/config.json", dump_json_python(*config) + "\n");
}

OutTensor copy_tensor(const Safetensors& files, const TensorInfo& t) {
  const auto write = [&files, &t](SafetensorsWriter& writer) -> Status {
    std::vector<std::byte> piece;
    for (int64_t at = 0; at < t.bytes; at += kCopyBytesMax) {
      piece.resize(static_cast<size_t>(std::min(kCopyBytesMax, t.bytes - at)));
      TF_RETURN_IF_ERROR(files.read(t, at, piece));
      TF_RETURN_IF_ERROR(writer.append(piece));
    }
    return ok_status();
  };
  return {{t.name, t.dtype, t.shape}, write};
}

}  // namespace tensorfold
