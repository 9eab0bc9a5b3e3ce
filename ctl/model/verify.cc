#include "ctl/model/verify.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "ctl/model/file_hash.h"
#include "ctl/model/path_rules.h"
#include "ctl/model/verify_image.h"

namespace tensorfold::models {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLookMs = 200;

// What is known of a file. An image has no hash here: it carries its own.
struct Known {
  std::string path;
  int64_t bytes = 0;
  std::string sha256, git_sha1;
};

bool temporary(std::string_view name) {
  return name.find(".part-") != name.npos || name.find(".tmp-") != name.npos || name.front() == '.';
}

bool is_image(std::string_view path) { return path.ends_with(".tfimage"); }

std::vector<Known> known_of(const Record& record) {
  std::vector<Known> out;
  for (const RecordFile& file : record.files)
    out.push_back({file.path, file.bytes, file.sha256, ""});
  return out;
}

std::vector<Known> known_of(const Plan& plan) {
  std::vector<Known> out;
  for (const WantedFile& file : plan.files) {
    out.push_back({file.path, file.remote.bytes, file.remote.sha256, file.remote.git_sha1});
  }
  return out;
}

class Verify {
 public:
  Verify(const std::string& folder, int threads, Progress& progress)
      : folder_(folder), threads_(threads), progress_(progress) {}

  VerifyReport run(const std::vector<Known>& known, const std::vector<std::string>& there) {
    std::set<std::string_view> names;
    for (const Known& file : known) names.insert(file.path);
    std::vector<std::string> images;
    for (const std::string& path : there) {
      if (names.contains(path)) continue;
      if (is_image(path)) {
        images.push_back(path);
      } else if (path.ends_with(".safetensors")) {
        report_.unknown.push_back(path);
      }
    }
    hash(known);
    check_images(images);
    std::sort(report_.problems.begin(), report_.problems.end(),
              [](const VerifyProblem& a, const VerifyProblem& b) { return a.path < b.path; });
    return std::move(report_);
  }

 private:
  void hash(const std::vector<Known>& known) {
    std::vector<HashJob> jobs;
    std::vector<const Known*> asked;
    int64_t bytes = 0;
    for (const Known& file : known) {
      ++report_.files;
      const FileState state = file_state(folder_ + "/" + file.path);
      if (state.bytes < 0) {
        wrong(file.path, "is missing");
      } else if (state.bytes != file.bytes) {
        wrong(file.path,
              "has " + std::to_string(state.bytes) + " bytes, not " + std::to_string(file.bytes));
      } else {
        jobs.push_back({folder_ + "/" + file.path});
        asked.push_back(&file);
        bytes += state.bytes;
      }
    }
    if (jobs.empty()) return;
    progress_.start(bytes, 0, static_cast<int>(jobs.size()));
    hash_files(jobs, threads_, kLookMs, [&](int64_t read) { progress_.look(read, 0); });
    progress_.look(bytes, static_cast<int>(jobs.size()));
    progress_.end();
    report_.bytes += bytes;
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (!jobs[i].hashes.ok()) {
        wrong(asked[i]->path, jobs[i].hashes.status().message());
        continue;
      }
      const bool large = !asked[i]->sha256.empty();
      const std::string& wanted = large ? asked[i]->sha256 : asked[i]->git_sha1;
      const std::string& found = large ? jobs[i].hashes->sha256 : jobs[i].hashes->git_sha1;
      if (wanted != found) {
        wrong(asked[i]->path, std::string("has the ") + (large ? "SHA-256 " : "git SHA-1 ") +
                                  found + ", not " + wanted);
      }
    }
  }

  // One after the other: a rank's image is one large file, and a disk reads it at its own rate.
  void check_images(const std::vector<std::string>& images) {
    for (const std::string& path : images) {
      ++report_.files;
      report_.bytes += std::max<int64_t>(0, file_state(folder_ + "/" + path).bytes);
      progress_.note(folder_ + "/" + path + ": its sections are checked");
      const Status status = verify_image(folder_ + "/" + path, nullptr);
      if (!status.ok()) wrong(path, status.message());
    }
  }

  void wrong(const std::string& path, const std::string& what) {
    report_.problems.push_back({path, what});
  }

  const std::string& folder_;
  const int threads_;
  Progress& progress_;
  VerifyReport report_;
};

}  // namespace

Result<std::vector<std::string>> folder_files(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error), end;
  if (error) return io_error(folder, error.value());
  for (; it != end; it.increment(error)) {
    if (error) return io_error(folder, error.value());
    const std::string name = it->path().filename().string();
    if (temporary(name)) {
      if (it->is_directory(error)) it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file(error)) continue;
    std::string path = fs::relative(it->path(), folder, error).string();
    if (path == kRecordName) continue;
    TF_RETURN_IF_ERROR(check_remote_path(path));
    if (out.size() >= kFolderFilesMax) {
      return unsupported(folder + ": more than " + std::to_string(kFolderFilesMax) + " files");
    }
    out.push_back(std::move(path));
  }
  std::sort(out.begin(), out.end());
  return out;
}

Result<VerifyReport> verify_model(const std::string& folder, const Plan* plan, int threads,
                                  Progress& progress) {
  TF_ASSIGN_OR_RETURN(const std::vector<std::string> there, folder_files(folder));
  std::vector<Known> known;
  if (plan != nullptr) {
    known = known_of(*plan);
  } else if (has_record(folder)) {
    TF_ASSIGN_OR_RETURN(const Record record, load_record(folder));
    known = known_of(record);
  } else if (!std::any_of(there.begin(), there.end(),
                          [](const std::string& path) { return is_image(path); })) {
    return invalid_argument(folder + ": nothing says what its files should be: no " +
                            std::string(kRecordName) +
                            "; name the repository (--repo), or make the record of what is there "
                            "(--record)");
  }
  return Verify(folder, threads, progress).run(known, there);
}

Result<Record> record_folder(const std::string& folder, int threads, Progress& progress) {
  TF_ASSIGN_OR_RETURN(const std::vector<std::string> there, folder_files(folder));
  if (there.empty()) return invalid_argument(folder + ": there is no file in it");
  std::vector<HashJob> jobs;
  int64_t bytes = 0;
  for (const std::string& path : there) {
    jobs.push_back({folder + "/" + path});
    bytes += std::max<int64_t>(0, file_state(jobs.back().path).bytes);
  }
  progress.start(bytes, 0, static_cast<int>(jobs.size()));
  hash_files(jobs, threads, kLookMs, [&](int64_t read) { progress.look(read, 0); });
  progress.look(bytes, static_cast<int>(jobs.size()));
  progress.end();
  Record record;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (!jobs[i].hashes.ok()) return jobs[i].hashes.status();
    const FileState state = file_state(jobs[i].path);
    record.put({there[i], state.bytes, jobs[i].hashes->sha256, -1, state.mtime_ns});
  }
  TF_RETURN_IF_ERROR(save_record(folder, record));
  return record;
}

}  // namespace tensorfold::models
