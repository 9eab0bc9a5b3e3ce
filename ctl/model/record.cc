#include "ctl/model/record.h"

#include <sys/stat.h>

#include <algorithm>

#include "ctl/model/path_rules.h"
#include "engine/base/json.h"
#include "engine/weights/file.h"

namespace tensorfold::models {
namespace {

constexpr size_t kSha256Digits = 64;

std::string record_path(const std::string& folder) {
  return folder + "/" + std::string(kRecordName);
}

Result<RecordFile> read_file_row(const Json& row, size_t sources) {
  RecordFile out;
  const auto text = [&](std::string_view name) {
    const Json* value = row.find(name);
    return value != nullptr && value->is_string() ? value->as_string() : std::string();
  };
  const auto whole = [&](std::string_view name) {
    const Json* value = row.find(name);
    return value != nullptr && value->is_int() ? value->as_int64() : std::nullopt;
  };
  out.path = text("path");
  out.sha256 = text("sha256");
  TF_RETURN_IF_ERROR(check_remote_path(out.path));
  const auto bytes = whole("bytes"), source = whole("source");
  if (!bytes || *bytes < 0) return data_loss(out.path + ": bytes is not a size");
  if (!source || *source < -1 || *source >= static_cast<int64_t>(sources)) {
    return data_loss(out.path + ": source is none of the sources");
  }
  if (out.sha256.size() != kSha256Digits || !is_hex(out.sha256)) {
    return data_loss(out.path + ": sha256 is no SHA-256");
  }
  out.bytes = *bytes;
  out.source = static_cast<int>(*source);
  out.mtime_ns = whole("mtime_ns").value_or(0);
  return out;
}

Status read_sources(const Json& list, Record& record) {
  for (const Json& row : list.as_array()) {
    const Json *repository = row.find("repository"), *revision = row.find("revision");
    if (repository == nullptr || !repository->is_string() || revision == nullptr ||
        !revision->is_string()) {
      return data_loss("a source has no repository and revision");
    }
    record.sources.push_back({repository->as_string(), revision->as_string()});
  }
  return ok_status();
}

}  // namespace

const RecordFile* Record::find(std::string_view path) const {
  const auto it =
      std::lower_bound(files.begin(), files.end(), path,
                       [](const RecordFile& f, std::string_view p) { return f.path < p; });
  return it != files.end() && it->path == path ? &*it : nullptr;
}

void Record::put(RecordFile file) {
  const auto it =
      std::lower_bound(files.begin(), files.end(), file,
                       [](const RecordFile& a, const RecordFile& b) { return a.path < b.path; });
  if (it != files.end() && it->path == file.path) {
    *it = std::move(file);
  } else {
    files.insert(it, std::move(file));
  }
}

int Record::source_index(const RecordSource& source) {
  const auto it = std::find(sources.begin(), sources.end(), source);
  if (it != sources.end()) return static_cast<int>(it - sources.begin());
  sources.push_back(source);
  return static_cast<int>(sources.size()) - 1;
}

bool has_record(const std::string& folder) { return file_state(record_path(folder)).bytes >= 0; }

Result<Record> load_record(const std::string& folder) {
  const std::string path = record_path(folder);
  TF_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kRecordBytesMax));
  auto record = parse_record(text);
  if (!record.ok()) return record.status().with_context(path);
  return record;
}

Result<Record> parse_record(std::string_view text) {
  TF_ASSIGN_OR_RETURN(const Json json, parse_json(text));
  const Json *version = json.find("schema_version"), *files = json.find("files"),
             *sources = json.find("sources");
  if (version == nullptr || !version->is_int() || version->as_int64() != kRecordSchemaVersion) {
    return data_loss("schema_version is not " + std::to_string(kRecordSchemaVersion));
  }
  if (files == nullptr || !files->is_array() || sources == nullptr || !sources->is_array()) {
    return data_loss("files and sources must be lists");
  }
  if (files->as_array().size() > kRecordFilesMax) {
    return data_loss("more than " + std::to_string(kRecordFilesMax) + " files");
  }
  Record out;
  TF_RETURN_IF_ERROR(read_sources(*sources, out));
  for (const Json& row : files->as_array()) {
    TF_ASSIGN_OR_RETURN(RecordFile file, read_file_row(row, out.sources.size()));
    if (out.find(file.path) != nullptr) return data_loss(file.path + " comes twice");
    out.put(std::move(file));
  }
  return out;
}

Status save_record(const std::string& folder, const Record& record) {
  Json::Array sources, files;
  for (const RecordSource& source : record.sources) {
    sources.push_back(Json::object({{"repository", Json::string(source.repository)},
                                    {"revision", Json::string(source.revision)}}));
  }
  for (const RecordFile& file : record.files) {
    files.push_back(Json::object({{"path", Json::string(file.path)},
                                  {"bytes", Json::integer(file.bytes)},
                                  {"sha256", Json::string(file.sha256)},
                                  {"source", Json::integer(file.source)},
                                  {"mtime_ns", Json::integer(file.mtime_ns)}}));
  }
  std::string text = "{\"schema_version\": " + std::to_string(kRecordSchemaVersion) +
                     ",\n \"sources\": " + dump_json_python(Json::array(std::move(sources))) +
                     ",\n \"files\": [";
  for (size_t i = 0; i < files.size(); ++i) {
    text += (i == 0 ? "\n  " : ",\n  ") + dump_json_python(files[i]);
  }
  text += "\n ]}\n";
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file,
                      AtomicFile::create(record_path(folder)));
  TF_RETURN_IF_ERROR(file->append(text));
  return file->commit();
}

FileState file_state(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  return {info.st_size, int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

}  // namespace tensorfold::models
