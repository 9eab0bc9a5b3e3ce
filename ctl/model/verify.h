// tfctl model verify: every file of a model folder against the hashes that are known of it, several
// at a time. Hashes come from the folder's record or, when asked, from the repository itself;
// prepared images carry their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ctl/model/plan.h"
#include "ctl/model/progress.h"
#include "ctl/model/record.h"

namespace tensorfold::models {

inline constexpr size_t kFolderFilesMax = 16384;  // looked at below one folder

struct VerifyProblem {
  std::string path;  // in the folder
  std::string what;
};

struct VerifyReport {
  size_t files = 0;
  int64_t bytes = 0;
  std::vector<VerifyProblem> problems;  // ascending by path
  std::vector<std::string> unknown;     // model files that nothing is known of
};

// With `plan`, against the repositories' hashes; else by the record, which must be there unless the
// folder holds nothing but prepared images.
Result<VerifyReport> verify_model(const std::string& folder, const Plan* plan, int threads,
                                  Progress& progress);

// Hashes every file of the folder and writes a record that says so ("made here").
Result<Record> record_folder(const std::string& folder, int threads, Progress& progress);

// Regular files below the folder, as paths in it, ascending; without the record and temporary ones.
Result<std::vector<std::string>> folder_files(const std::string& folder);

}  // namespace tensorfold::models
