// Understands a model folder (see checkpoint.h): one pass over the table of weights, then one over
// the tensors that the pass did not use.
#include "engine/weights/checkpoint.h"

#include <algorithm>

#include "engine/weights/engram_constants.h"

namespace tensorfold {
namespace {

constexpr int64_t kConfigBytesMax = 16 << 20;
constexpr size_t kNamesShownMax = 5;
constexpr int64_t kTableSamples = 64;

WeightInfo describe(const WeightSpec& spec, const StoredWeight& stored) {
  WeightInfo info;
  info.name = spec.name;
  info.kind = stored.kind();
  info.out = spec.out;
  info.in = spec.in;
  info.half_bits = stored.parts.front().half_bits;
  info.codebook = stored.parts.front().codebook;
  info.stored_bytes = stored.stored_bytes();
  info.optional = spec.optional;
  return info;
}

std::string some_names(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamesShownMax); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kNamesShownMax) {
    text += " and " + std::to_string(names.size() - kNamesShownMax) + " more";
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& model_path,
                                                     const std::string& engram_path) {
  std::unique_ptr<Checkpoint> c(new Checkpoint);
  c->path_ = model_path;
  const std::string config_path = model_path + "/config.json";
  TF_ASSIGN_OR_RETURN(c->config_text_, read_text_file(config_path, kConfigBytesMax));
  TF_ASSIGN_OR_RETURN(c->config_, load_model_config(config_path));
  const Status constants = engram_constants(c->config_.engram).status();
  if (!constants.ok()) return constants.with_context(config_path);
  TF_ASSIGN_OR_RETURN(Safetensors files, Safetensors::open(model_path));
  c->files_ = std::make_unique<Safetensors>(std::move(files));
  if (!engram_path.empty() && engram_path != model_path) {
    TF_ASSIGN_OR_RETURN(Safetensors extra, Safetensors::open(engram_path, /*partial=*/true));
    c->extra_ = std::make_unique<Safetensors>(std::move(extra));
  }
  TF_RETURN_IF_ERROR(c->find_weights());
  TF_RETURN_IF_ERROR(c->find_tables());
  c->find_unknown();
  return c;
}

Status Checkpoint::find_weights() {
  for (WeightSpec& spec : weight_table(config_)) {
    TF_ASSIGN_OR_RETURN(std::optional<StoredWeight> stored, find_stored(*files_, spec));
    if (!stored.has_value() && spec.optional && extra_ != nullptr) {
      TF_ASSIGN_OR_RETURN(stored, find_stored(*extra_, spec));
    }
    if (stored.has_value()) {
      WeightInfo info = describe(spec, *stored);
      entries_.push_back({std::move(spec), std::move(*stored), std::move(info)});
    } else if (!spec.optional) {
      missing_.push_back(spec.name);
    }
  }
  for (size_t i = 0; i < entries_.size(); ++i) by_name_.emplace(entries_[i].spec.name, i);
  return ok_status();
}

Status Checkpoint::find_tables() {
  const Safetensors& files = extra_ != nullptr ? *extra_ : *files_;
  for (size_t i = 0; i < config_.engram.layers.size(); ++i) {
    Result<EngramStorage> storage = find_engram(files, config_, static_cast<int>(i));
    if (!storage.ok() && storage.status().code() != StatusCode::kNotFound) return storage.status();
    engram_.push_back(storage.ok() ? std::optional(std::move(*storage)) : std::nullopt);
  }
  return ok_status();
}

void Checkpoint::find_unknown() {
  const std::span<const TensorInfo> tensors = files_->tensors();
  std::vector<bool> used(tensors.size(), false);
  for (const Entry& entry : entries_) {
    if (entry.stored.files != files_.get()) continue;
    for (const TensorInfo* t : entry.stored.tensors()) {
      used[static_cast<size_t>(t - tensors.data())] = true;
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = tensors[i].name;
    if (used[i]) continue;
    bool expected = config_.dspark.stages == 0 && name.starts_with("mtp.");
    for (size_t table = 0; table < config_.engram.layers.size(); ++table) {
      const std::string prefix = engram_table_name(config_, static_cast<int>(table)) + ".";
      expected = expected || name.starts_with(prefix);
    }
    if (is_vision_tensor(name)) {
      ++vision_tensors_;
    } else if (!expected) {
      unknown_.push_back(name);
    }
  }
}

const Checkpoint::Entry* Checkpoint::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &entries_[it->second];
}

Checkpoint::~Checkpoint() {
  if (files_ == nullptr) return;
  for (const auto& file : files_->files()) file->drop_pages(0, file->size());
}

Status Checkpoint::complete(bool with_engram) const {
  if (!missing_.empty()) {
    return data_loss(path_ + ": missing tensors: " + some_names(missing_));
  }
  if (!unknown_.empty()) {
    return unsupported(path_ + ": unknown tensors: " + some_names(unknown_) +
                       "; serving the model without them could change its answers");
  }
  for (size_t i = 0; with_engram && i < engram_.size(); ++i) {
    if (engram_[i].has_value()) continue;
    return data_loss(path_ + ": missing Engram table " +
                     engram_table_name(config_, static_cast<int>(i)) +
                     " (model.engram_path may name another folder that has it)");
  }
  return ok_status();
}

Result<std::string> Checkpoint::model_digest() const {
  TF_ASSIGN_OR_RETURN(const std::string weights, files_->sampled_digest());
  Sha256 hash;
  hash.update(config_text_);
  hash.update(weights);
  return hash.hex();
}

Result<std::string> engram_digest(const EngramStorage& whole_table) {
  Sha256 hash;
  hash.update_u64(static_cast<uint64_t>(whole_table.rows.end));
  hash.update_u64(static_cast<uint64_t>(whole_table.kind));
  std::vector<std::byte> piece;
  const int64_t step = std::max<int64_t>(1, whole_table.rows.size() / kTableSamples);
  for (int64_t row = 0; row < whole_table.rows.size(); row += step) {
    for (const EngramStorage::Segment& s : whole_table.segments) {
      piece.resize(static_cast<size_t>(s.bytes));
      const Status status = s.file->read(s.offset + row * s.pitch, piece);
      if (!status.ok()) return status.with_context("tensor " + s.name);
      hash.update(piece);
    }
  }
  return hash.hex();
}

std::string model_fingerprint(const std::string& model_digest, std::span<const int32_t> token_map,
                              std::span<const std::string> engram_digests) {
  Sha256 hash;
  hash.update(model_digest);
  for (int32_t id : token_map) hash.update_u64(static_cast<uint64_t>(id));
  for (const std::string& digest : engram_digests) hash.update(digest);
  return hash.hex();
}

}  // namespace tensorfold
