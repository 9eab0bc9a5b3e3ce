// tensorfold-files.json: which files a model folder has, where they came from and their SHA-256.
// `tfctl model fetch` writes it, `model verify` and `model sync` read it; the engine ignores it.
//
//   {"schema_version": 1,
//    "sources": [{"repository", "revision"}],        (the full revision)
//    "files": [{"path", "bytes", "sha256", "source", "mtime_ns"}]}
//
// `source` is an index into sources, or -1: made here. `mtime_ns` is of the file when its hash was
// last seen to be right, so that a later fetch need not read it again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold::models {

inline constexpr std::string_view kRecordName = "tensorfold-files.json";
inline constexpr int64_t kRecordBytesMax = int64_t{16} << 20;
inline constexpr size_t kRecordFilesMax = 8192;
inline constexpr int kRecordSchemaVersion = 1;

struct RecordSource {
  std::string repository, revision;
  bool operator==(const RecordSource&) const = default;
};

struct RecordFile {
  std::string path;  // in the folder
  int64_t bytes = 0;
  std::string sha256;  // 64 lower-case digits
  int source = -1;
  int64_t mtime_ns = 0;
};

struct Record {
  std::vector<RecordSource> sources;
  std::vector<RecordFile> files;  // ascending by path

  const RecordFile* find(std::string_view path) const;
  void put(RecordFile file);                     // replaces the one with that path
  int source_index(const RecordSource& source);  // adds it when it is new
};

bool has_record(const std::string& folder);
Result<Record> load_record(const std::string& folder);
Result<Record> parse_record(std::string_view text);
Status save_record(const std::string& folder, const Record& record);  // whole or not at all

// Bytes and time of a regular file; -1 bytes: there is none.
struct FileState {
  int64_t bytes = -1, mtime_ns = 0;
};
FileState file_state(const std::string& path);

}  // namespace tensorfold::models
