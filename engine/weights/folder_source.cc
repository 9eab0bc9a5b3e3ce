// WeightSource over a model folder (see weight_source.h).
#include <utility>

#include "engine/weights/checkpoint.h"
#include "engine/weights/source_makers.h"
#include "engine/weights/token_map.h"

namespace tensorfold {
namespace {

class FolderSource final : public WeightSource {
 public:
  FolderSource(std::unique_ptr<Checkpoint> checkpoint, Partition part, std::vector<int32_t> map,
               std::string fingerprint, int64_t cache_rows)
      : checkpoint_(std::move(checkpoint)),
        part_(part),
        token_map_(std::move(map)),
        fingerprint_(std::move(fingerprint)),
        cache_rows_(cache_rows) {
    for (const Checkpoint::Entry& entry : checkpoint_->entries()) infos_.push_back(entry.info);
  }

  const ModelConfig& config() const override { return checkpoint_->config(); }
  const Partition& part() const override { return part_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  std::span<const int32_t> engram_token_map() const override { return token_map_; }
  std::span<const WeightInfo> weights() const override { return infos_; }

  const WeightInfo* find(std::string_view name) const override {
    const Checkpoint::Entry* entry = checkpoint_->find(name);
    return entry == nullptr ? nullptr : &entry->info;
  }

  int64_t rank_bytes() const override {
    int64_t bytes = 0;
    for (const Checkpoint::Entry& entry : checkpoint_->entries()) {
      bytes += slice_bytes(entry, config(), part_);
    }
    return bytes;
  }

  Result<Weight> load(std::string_view name) const override {
    TF_ASSIGN_OR_RETURN(const Checkpoint::Entry* entry, held(name));
    if (entry->spec.group_rows != 0) {
      return invalid_argument(std::string(name) + ": is loaded by output group");
    }
    return load_slice(*entry, config(), part_);
  }

  Result<std::vector<Weight>> load_groups(std::string_view name) const override {
    TF_ASSIGN_OR_RETURN(const Checkpoint::Entry* entry, held(name));
    if (entry->spec.group_rows == 0) {
      return invalid_argument(std::string(name) + ": has no output groups");
    }
    return load_group_slices(*entry, part_);
  }

  Result<std::unique_ptr<EngramTable>> open_engram(int index) const override {
    const auto& tables = checkpoint_->engram();
    if (index < 0 || static_cast<size_t>(index) >= tables.size()) {
      return invalid_argument("Engram table " + std::to_string(index) + ": the model has " +
                              std::to_string(tables.size()));
    }
    const std::optional<EngramStorage>& storage = tables[static_cast<size_t>(index)];
    if (!storage.has_value()) return checkpoint_->complete(/*with_engram=*/true);
    return make_engram_table(*storage, cache_rows_);
  }

 private:
  Result<const Checkpoint::Entry*> held(std::string_view name) const {
    const Checkpoint::Entry* entry = checkpoint_->find(name);
    if (entry == nullptr) {
      return Status(StatusCode::kNotFound,
                    checkpoint_->path() + ": weight " + std::string(name) + " is not there");
    }
    if (!holds(name)) {
      return invalid_argument("weight " + std::string(name) + ": rank " +
                              std::to_string(part_.rank) + " holds no part of it");
    }
    return entry;
  }

  const std::unique_ptr<Checkpoint> checkpoint_;
  const Partition part_;
  const std::vector<int32_t> token_map_;
  const std::string fingerprint_;
  const int64_t cache_rows_;
  std::vector<WeightInfo> infos_;
};

}  // namespace

Result<Weight> load_slice(const Checkpoint::Entry& entry, const ModelConfig& config,
                          const Partition& part) {
  const WeightSpec& spec = entry.spec;
  const TensorSlice slice = slice_of(spec.name, config, part, spec.out, spec.in);
  const bool by_input = slice.axis == SliceAxis::kInput;
  const Range rows = by_input ? Range{0, spec.out} : slice.range;
  const Range columns = by_input ? slice.range : Range{0, spec.in};
  TF_ASSIGN_OR_RETURN(Weight weight,
                      read_stored(*entry.stored.files, entry.stored.parts[0], rows, columns));
  // A bias is added once: partial sums carry it on the first rank only.
  if (by_input && part.rank > 0) weight.bias.clear();
  return weight;
}

Result<std::vector<Weight>> load_group_slices(const Checkpoint::Entry& entry,
                                              const Partition& part) {
  const WeightSpec& spec = entry.spec;
  const std::vector<StoredPart>& parts = entry.stored.parts;
  std::vector<Weight> groups;
  for (int64_t g = part.o_groups.begin; g < part.o_groups.end; ++g) {
    const bool sliced = parts.size() > 1 || spec.out == spec.group_rows;
    const StoredPart& stored = parts[sliced ? static_cast<size_t>(g) : 0];
    const int64_t begin = sliced ? 0 : g * spec.group_rows;
    TF_ASSIGN_OR_RETURN(Weight weight, read_stored(*entry.stored.files, stored,
                                                   {begin, begin + spec.group_rows}, {0, spec.in}));
    groups.push_back(std::move(weight));
  }
  return groups;
}

Result<std::unique_ptr<WeightSource>> open_folder_source(const WeightSourceOptions& options) {
  TF_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                      Checkpoint::open(options.model_path, options.engram_path));
  TF_RETURN_IF_ERROR(checkpoint->complete(options.require_engram));
  TF_ASSIGN_OR_RETURN(const Partition part,
                      partition(checkpoint->config(), options.rank, options.world_size));
  TF_ASSIGN_OR_RETURN(std::vector<int32_t> map,
                      load_token_map(checkpoint->config(), options.model_path));
  TF_ASSIGN_OR_RETURN(const std::string digest, checkpoint->model_digest());
  std::vector<std::string> tables;
  for (const std::optional<EngramStorage>& storage : checkpoint->engram()) {
    if (!storage.has_value()) continue;
    TF_ASSIGN_OR_RETURN(std::string table, engram_digest(*storage));
    tables.push_back(std::move(table));
  }
  std::string fingerprint = model_fingerprint(digest, map, tables);
  return std::unique_ptr<WeightSource>(new FolderSource(std::move(checkpoint), part, std::move(map),
                                                        std::move(fingerprint),
                                                        options.engram_cache_rows));
}

}  // namespace tensorfold
