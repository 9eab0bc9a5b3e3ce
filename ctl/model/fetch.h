// tfctl model fetch: brings a model folder to the state that a plan asks for. What is there and
// right stays, what is there in part goes on, what is missing or wrong comes anew; the record says
// what was verified. One fetch works on a folder at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ctl/model/download.h"
#include "ctl/model/plan.h"
#include "ctl/model/progress.h"
#include "ctl/model/record.h"

namespace tensorfold::models {

struct FetchOptions {
  std::string folder;
  std::string repository, revision;  // empty: the published model
  DownloadOptions download;
};

struct FetchReport {
  std::vector<RecordSource> sources;  // full revisions
  size_t files = 0, fetched_files = 0;
  int64_t bytes = 0, fetched_bytes = 0;
  bool engram = false;  // the Engram tables are in a folder of their own
};

Result<FetchReport> fetch_model(const FetchOptions& options, const Clock& clock,
                                Progress& progress);

}  // namespace tensorfold::models
