#include "ctl/model/plan.h"

#include <algorithm>
#include <set>

#include "ctl/model/record.h"
#include "engine/base/json.h"

namespace tensorfold::models {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kOfTheOriginal[] = {"config.json", "tokenizer.json"};

bool of_the_original(std::string_view path) {
  return std::find(std::begin(kOfTheOriginal), std::end(kOfTheOriginal), path) !=
         std::end(kOfTheOriginal);
}

const RemoteFile* find_file(const std::vector<RemoteFile>& files, std::string_view path) {
  const auto it =
      std::find_if(files.begin(), files.end(), [&](const RemoteFile& f) { return f.path == path; });
  return it == files.end() ? nullptr : &*it;
}

Status missing(const Repository& repository, std::string_view path) {
  return data_loss(repository.name() + " has no " + std::string(path));
}

// The shards with Engram tables, and where each bias_vl is, by the index of the original.
Status plan_original(const HttpOptions& http, const std::vector<RemoteFile>& files, Plan& plan) {
  const Repository& repository = plan.repositories.back();
  const size_t from = plan.repositories.size() - 1;
  const RemoteFile* index_file = find_file(files, kIndexName);
  if (index_file == nullptr) return missing(repository, kIndexName);
  const std::string url = repository.file_url(index_file->path);
  TF_ASSIGN_OR_RETURN(const HttpText text, http_get(http, url, kIndexBytesMax));
  const auto index = parse_json(text.body);
  if (!index.ok()) return index.status().with_context(url);
  const Json* map = index->find("weight_map");
  if (map == nullptr || !map->is_object()) return data_loss(url + ": no weight_map");
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map->as_object()) {
    const bool table = tensor.find(".engram.embed.") != std::string::npos;
    const bool bias = tensor.ends_with(".ffn.gate.bias_vl");
    if (!table && !bias) continue;
    const RemoteFile* file = shard.is_string() ? find_file(files, shard.as_string()) : nullptr;
    if (file == nullptr) {
      return data_loss(url + ": tensor " + tensor + " is in no file of the repository");
    }
    if (table) shards.insert(file->path);
    if (bias) plan.tensors.push_back({tensor, *file});
  }
  if (shards.empty()) return data_loss(url + ": names no Engram table");
  plan.tensors_from = from;
  for (const std::string& shard : shards) {
    plan.files.push_back(
        {*find_file(files, shard), from, std::string(kEngramFolder) + "/" + shard});
  }
  for (const std::string_view name : kOfTheOriginal) {
    const RemoteFile* file = find_file(files, name);
    if (file == nullptr) return missing(repository, name);
    plan.files.push_back({*file, from, file->path});
  }
  return ok_status();
}

Result<Plan> plan_published(const HttpOptions& http) {
  Plan plan;
  TF_ASSIGN_OR_RETURN(Repository weights, Repository::open(http, std::string(kPublishedWeights),
                                                           std::string(kPublishedWeightsRevision)));
  TF_ASSIGN_OR_RETURN(std::vector<RemoteFile> files, weights.list());
  plan.repositories.push_back(std::move(weights));
  for (RemoteFile& file : files) {
    if (of_the_original(file.path)) continue;
    std::string path = file.path;
    plan.files.push_back({std::move(file), 0, std::move(path)});
  }
  TF_ASSIGN_OR_RETURN(Repository original,
                      Repository::open(http, std::string(kPublishedOriginal),
                                       std::string(kPublishedOriginalRevision)));
  TF_ASSIGN_OR_RETURN(const std::vector<RemoteFile> others, original.list());
  plan.repositories.push_back(std::move(original));
  TF_RETURN_IF_ERROR(plan_original(http, others, plan));
  return plan;
}

Result<Plan> plan_repository(const HttpOptions& http, const std::string& name,
                             const std::string& revision) {
  Plan plan;
  TF_ASSIGN_OR_RETURN(Repository repository, Repository::open(http, name, revision));
  TF_ASSIGN_OR_RETURN(std::vector<RemoteFile> files, repository.list());
  plan.repositories.push_back(std::move(repository));
  for (RemoteFile& file : files) {
    if (file.path == kRecordName) continue;
    std::string path = file.path;
    plan.files.push_back({std::move(file), 0, std::move(path)});
  }
  return plan;
}

}  // namespace

Result<Plan> make_plan(const HttpOptions& http, const std::string& repository,
                       const std::string& revision) {
  auto plan = repository.empty()
                  ? plan_published(http)
                  : plan_repository(http, repository, revision.empty() ? "main" : revision);
  if (!plan.ok()) return plan;
  std::set<std::string_view> paths;
  for (const WantedFile& file : plan->files) {
    if (!paths.insert(file.path).second) return data_loss("two files would be " + file.path);
  }
  return plan;
}

}  // namespace tensorfold::models
