#include "ctl/model/remote_tensors.h"

#include <algorithm>
#include <map>

#include "engine/weights/safetensors.h"

namespace tensorfold::models {
namespace {

struct Read {
  SafetensorsWriter::Declaration declaration;
  std::string bytes;
};

// The tensors of one file, by its header.
Result<std::vector<TensorInfo>> remote_header(const HttpOptions& http, const std::string& url,
                                              int64_t file_bytes) {
  if (file_bytes < 8) return data_loss(url + ": too short for safetensors");
  const int64_t first = std::min(file_bytes, kHeaderGuessBytes);
  TF_ASSIGN_OR_RETURN(std::string head, http_get_range(http, url, 0, first - 1));
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(head[i]);
  if (length == 0 || length > static_cast<uint64_t>(kSafetensorsHeaderBytesMax) ||
      static_cast<int64_t>(length) > file_bytes - 8) {
    return data_loss(url + ": a header of " + std::to_string(length) + " bytes in a file of " +
                     std::to_string(file_bytes));
  }
  const int64_t data = 8 + static_cast<int64_t>(length);
  if (data > first) {
    TF_ASSIGN_OR_RETURN(const std::string rest, http_get_range(http, url, first, data - 1));
    head += rest;
  }
  std::vector<TensorInfo> out;
  std::map<std::string, std::string, std::less<>> metadata;
  const Status status = parse_safetensors_header(std::string_view(head).substr(8, length), data,
                                                 file_bytes, 0, out, metadata);
  if (!status.ok()) return status.with_context(url);
  return out;
}

Status read_from(const Repository& repository, const HttpOptions& http, const RemoteFile& file,
                 const std::vector<std::string>& names, std::vector<Read>& out) {
  const std::string url = repository.file_url(file.path);
  TF_ASSIGN_OR_RETURN(const std::vector<TensorInfo> header, remote_header(http, url, file.bytes));
  for (const std::string& name : names) {
    const auto it = std::find_if(header.begin(), header.end(),
                                 [&](const TensorInfo& t) { return t.name == name; });
    if (it == header.end()) {
      return data_loss(url + ": tensor " + name + " is not in it, although the index says so");
    }
    if (it->bytes <= 0 || it->bytes > kRemoteTensorBytesMax) {
      return data_loss(url + ": tensor " + name + " has " + std::to_string(it->bytes) + " bytes");
    }
    Read read{{name, it->dtype, it->shape}, {}};
    TF_ASSIGN_OR_RETURN(read.bytes,
                        http_get_range(http, url, it->offset, it->offset + it->bytes - 1));
    out.push_back(std::move(read));
  }
  return ok_status();
}

}  // namespace

Status fetch_tensors(const Repository& repository, const HttpOptions& http,
                     const std::vector<RemoteTensor>& tensors, const std::string& target,
                     const std::function<void(std::string_view)>& note) {
  if (tensors.size() > kRemoteTensorsMax) return data_loss("too many tensors to read by range");
  std::map<std::string, std::vector<std::string>> by_file;
  std::map<std::string, RemoteFile> files;
  for (const RemoteTensor& one : tensors) {
    by_file[one.file.path].push_back(one.name);
    files[one.file.path] = one.file;
  }
  std::vector<Read> reads;
  for (const auto& [path, names] : by_file) {
    if (note) note("reading " + std::to_string(names.size()) + " small tensors of " + path);
    TF_RETURN_IF_ERROR(read_from(repository, http, files[path], names, reads));
  }
  std::sort(reads.begin(), reads.end(),
            [](const Read& a, const Read& b) { return a.declaration.name < b.declaration.name; });
  std::vector<SafetensorsWriter::Declaration> declarations;
  for (const Read& read : reads) declarations.push_back(read.declaration);
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                      SafetensorsWriter::create(target, std::move(declarations)));
  for (const Read& read : reads) {
    TF_RETURN_IF_ERROR(
        writer->append(std::as_bytes(std::span<const char>(read.bytes.data(), read.bytes.size()))));
  }
  return writer->commit();
}

}  // namespace tensorfold::models
