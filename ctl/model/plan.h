// Which files of which repositories make a model folder.
//
// A repository by itself: all of its files. The published model (no repository named): the EXL3
// pack, and of the original, which the pack lacks or has for another purpose: config.json and
// tokenizer.json, the shards that hold an Engram table (by the index, into engram/), and the
// bias_vl tensors as engram/model-bias-vl.safetensors.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/model/remote_tensors.h"
#include "ctl/model/repository.h"

namespace tensorfold::models {

inline constexpr std::string_view kPublishedWeights =
    "LibertAIDAI/DeepSeek-V4.1-Flash-1017-EXL3-2.9bpw";
inline constexpr std::string_view kPublishedWeightsRevision = "afc7aa0a";
inline constexpr std::string_view kPublishedOriginal = "deepseek-ai/DeepSeek-V4.1-Flash-1017";
inline constexpr std::string_view kPublishedOriginalRevision = "1bae0e10";
inline constexpr std::string_view kEngramFolder = "engram";
inline constexpr std::string_view kBiasFile = "engram/model-bias-vl.safetensors";
inline constexpr int64_t kIndexBytesMax = int64_t{256} << 20;

struct WantedFile {
  RemoteFile remote;
  size_t repository = 0;  // into Plan::repositories
  std::string path;       // in the model folder
};

struct Plan {
  std::vector<Repository> repositories;
  std::vector<WantedFile> files;      // no path twice
  std::vector<RemoteTensor> tensors;  // for kBiasFile, of repository `tensors_from`
  size_t tensors_from = 0;
};

// Both empty: the published model.
Result<Plan> make_plan(const HttpOptions& http, const std::string& repository,
                       const std::string& revision);

}  // namespace tensorfold::models
