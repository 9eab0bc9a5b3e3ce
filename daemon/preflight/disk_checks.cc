// Disk: room for the weights, what kind of file system, how fast, and whether the files are whole.
// Contents are not hashed here.
#include <algorithm>
#include <set>

#include "daemon/preflight/checks.h"
#include "daemon/preflight/text.h"
#include "engine/base/json.h"

namespace tensorfold::preflight {
namespace {

constexpr int64_t kGb = 1'000'000'000;
constexpr int64_t kWeightsBytes = 385 * kGb;  // weights and Engram tables, as published
constexpr int64_t kImageBytes = 110 * kGb;    // one rank's prepared image
constexpr double kReadRateLeast = 1.0e9;      // bytes per second
constexpr int64_t kHeaderBytesMax = int64_t{256} << 20;
constexpr const char* kStateDirectory = "/var/lib/tensorfoldd";
constexpr std::string_view kNetworkKinds[] = {
    "nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph", "fuse.glusterfs", "lustre"};

std::vector<std::string> shards(const Machine& machine, const std::string& folder) {
  std::vector<std::string> out;
  for (const std::string& name : machine.list(folder))
    if (name.ends_with(".safetensors")) out.push_back(name);
  return out;
}

bool has_image(const Machine& machine, const std::string& folder) {
  return !folder.empty() && !machine.list(folder).empty();
}

std::string model_folder(const Context& context) {
  return context.settings.model_path.empty() ? kStateDirectory : context.settings.model_path;
}

uint64_t little_endian(const std::string& head) {
  uint64_t value = 0;
  for (size_t i = 8; i-- > 0;) value = value << 8 | static_cast<unsigned char>(head[i]);
  return value;
}

// What is wrong with one safetensors file, or nothing. Its header says how long it is.
std::string shard_problem(const Machine& machine, const std::string& path) {
  const auto size = machine.file_bytes(path);
  const auto head = machine.read_head(path, 8);
  if (!size || !head) return "cannot be read";
  if (starts_with(machine.read_head(path, 64).value_or(""), "version https://git-lfs")) {
    return "is a pointer of Git LFS, not the file";
  }
  if (head->size() < 8) return "is too short";
  const uint64_t header = little_endian(*head);
  if (header == 0 || header > static_cast<uint64_t>(kHeaderBytesMax) ||
      static_cast<int64_t>(header) + 8 > *size) {
    return "has a header of " + std::to_string(header) + " bytes in a file of " +
           std::to_string(*size);
  }
  const int64_t data_at = 8 + static_cast<int64_t>(header);
  const auto json = parse_json(machine.read_head(path, data_at).value_or("").substr(8));
  if (!json.ok() || !json->is_object()) return "has a damaged header";
  int64_t data_end = 0;
  for (const auto& [name, tensor] : json->as_object()) {
    if (name == "__metadata__") continue;
    const Json* offsets = tensor.find("data_offsets");
    const bool pair = offsets != nullptr && offsets->is_array() &&
                      offsets->as_array().size() == 2 && offsets->as_array()[1].is_int();
    if (!pair) return "has no data_offsets for " + name;
    data_end = std::max(data_end, offsets->as_array()[1].as_int64().value_or(-1));
  }
  if (data_at + data_end == *size) return "";
  return "has " + std::to_string(*size) + " bytes, its header says " +
         std::to_string(data_at + data_end);
}

std::vector<std::string> missing_shards(const Machine& machine, const std::string& folder) {
  std::set<std::string> missing;
  const auto text = machine.read(folder + "/model.safetensors.index.json");
  const auto index = text ? parse_json(*text) : Result<Json>(Json());
  const Json* map = index.ok() ? index->find("weight_map") : nullptr;
  if (map == nullptr || !map->is_object()) return {};
  for (const auto& [tensor, file] : map->as_object()) {
    if (file.is_string() && !machine.exists(folder + "/" + file.as_string())) {
      missing.insert(file.as_string());
    }
  }
  return {missing.begin(), missing.end()};
}

}  // namespace

Finding check_disk_space(const Context& context) {
  if (!context.published) return not_applicable("the embedded model needs none");
  const std::string folder = model_folder(context);
  const auto disk = context.machine.disk(folder);
  if (!disk) return unread(true, "the file system of " + folder + " cannot be read");
  const bool weights = !shards(context.machine, folder).empty();
  const bool image = has_image(context.machine, context.settings.prepared_path);
  const int64_t needed = (weights ? 0 : kWeightsBytes) + (image ? 0 : kImageBytes);
  const std::string read = bytes_text(disk->free_bytes) + " free at " + folder + ", " +
                           (needed == 0 ? "weights and image are there"
                                        : std::to_string(needed / kGb) + " GB needed for " +
                                              (weights ? "the image"
                                               : image ? "the weights"
                                                       : "weights and image"));
  if (disk->free_bytes >= needed) return ok(read);
  return fail(read, "Free space, or set model.path and model.prepared_path to a larger disk.");
}

Finding check_disk_kind(const Context& context) {
  if (!context.published) return not_applicable("the embedded model is in memory");
  std::string best, kind;
  const std::string folder =
      context.settings.engram_path.empty() ? model_folder(context) : context.settings.engram_path;
  for (const std::string& row : lines(context.machine.read("/proc/mounts").value_or(""))) {
    const auto fields = words(row);
    if (fields.size() < 3) continue;
    const std::string& mount = fields[1];
    const bool above = mount == "/" || folder == mount || starts_with(folder, mount + "/");
    if (above && mount.size() >= best.size()) best = mount, kind = fields[2];
  }
  if (best.empty()) return unread(true, "/proc/mounts does not show " + folder);
  const std::string read = folder + " is on " + kind + " (" + best + ")";
  if (std::find(std::begin(kNetworkKinds), std::end(kNetworkKinds), kind) ==
      std::end(kNetworkKinds))
    return ok(read);
  return warn(read, "Keep the Engram tables on a local NVMe disk: rows are read one by one.");
}

Finding check_disk_rate(const Context& context) {
  const std::string& folder = context.settings.model_path;
  if (folder.empty()) return not_applicable("no model folder is set");
  std::string largest;
  int64_t size = 0;
  for (const std::string& name : shards(context.machine, folder)) {
    const int64_t bytes = context.machine.file_bytes(concat({folder, "/", name})).value_or(0);
    if (bytes > size) size = bytes, largest = name;
  }
  if (size < kReadSampleBytes) return not_applicable("no file is large enough to measure");
  const auto rate = context.machine.read_bytes_per_second(folder + "/" + largest);
  if (!rate) return unread(true, largest + " cannot be read past the page cache");
  const std::string read = bytes_text(static_cast<int64_t>(*rate)) + "/s from " + largest;
  if (*rate >= kReadRateLeast) return ok(read);
  return warn(read, "A start reads 100 GB and more: look for another user of the disk.");
}

Finding check_model_files(const Context& context) {
  const std::string& folder = context.settings.model_path;
  if (folder.empty()) return not_applicable("no model folder is set");
  std::vector<std::string> problems;
  for (const char* name : {"config.json", "tokenizer.json"})
    if (!context.machine.exists(folder + "/" + name))
      problems.push_back(std::string(name) + " is missing");
  const auto files = shards(context.machine, folder);
  if (files.empty()) problems.emplace_back("there is no safetensors file");
  for (const std::string& name : missing_shards(context.machine, folder))
    problems.push_back(name + " is missing, and the index names it");
  for (const std::string& name : files) {
    const std::string problem = shard_problem(context.machine, concat({folder, "/", name}));
    if (!problem.empty()) problems.push_back(concat({name, " ", problem}));
  }
  if (problems.empty()) return ok(std::to_string(files.size()) + " files, each as long as it says");
  return fail(folder + ": " + join(problems, "; "), "Fetch these files again.");
}

// The tables may be in the model folder, in one of their own, or in the prepared image.
Finding check_engram_files(const Context& context) {
  const Settings& settings = context.settings;
  if (settings.model_path.empty()) return not_applicable("no model folder is set");
  if (settings.engram_path.empty() || settings.engram_path == settings.model_path) {
    return not_applicable("model.engram_path names no folder of its own");
  }
  const std::string& folder = settings.engram_path;
  const auto files = shards(context.machine, folder);
  if (files.empty()) {
    return fail(folder + ": there is no safetensors file", "Fetch the Engram tables.",
                {"tfctl model fetch"});
  }
  std::vector<std::string> problems;
  bool table = false;
  for (const std::string& name : files) {
    const std::string path = concat({folder, "/", name});
    const std::string problem = shard_problem(context.machine, path);
    if (!problem.empty()) {
      problems.push_back(concat({name, " ", problem}));
      continue;
    }
    const uint64_t header = little_endian(context.machine.read_head(path, 8).value_or("")) + 8;
    table = table ||
            contains(context.machine.read_head(path, static_cast<int64_t>(header)).value_or(""),
                     ".engram.embed.");
  }
  if (problems.empty() && !table) problems.emplace_back("no file holds an Engram table");
  if (problems.empty()) return ok(std::to_string(files.size()) + " files, with the tables");
  return fail(folder + ": " + join(problems, "; "), "Fetch these files again.",
              {"tfctl model fetch"});
}

}  // namespace tensorfold::preflight
