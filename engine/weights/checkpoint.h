// Checkpoint: a model folder understood: its configuration, how every weight of the table is
// stored, and what is missing or unknown. Reads headers only.
//
// open() fails on damage and contradictions; a missing or unknown tensor is only listed, so that
// `tfctl model inspect` can show it. complete() turns the lists into an error. The Engram tables
// and the optional bias_vl may be in a second folder, which may hold only some of its shards.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/status.h"
#include "engine/model/config.h"
#include "engine/weights/engram_storage.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/stored_weight.h"
#include "engine/weights/tensor_table.h"
#include "engine/weights/weight_source.h"

namespace tensorfold {

class Checkpoint {
 public:
  struct Entry {
    WeightSpec spec;
    StoredWeight stored;
    WeightInfo info;
  };

  Checkpoint() = default;
  // What small reads have left of the files in the page cache goes with it.
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  static Result<std::unique_ptr<Checkpoint>> open(const std::string& model_path,
                                                  const std::string& engram_path);

  const std::string& path() const { return path_; }
  const ModelConfig& config() const { return config_; }
  const std::string& config_text() const { return config_text_; }
  const std::vector<Entry>& entries() const { return entries_; }  // in the order of the table
  const Entry* find(std::string_view name) const;
  const Safetensors& files() const { return *files_; }

  const std::vector<std::string>& missing() const { return missing_; }  // weights, by name
  const std::vector<std::string>& unknown() const { return unknown_; }  // tensors, by name
  int vision_tensors() const { return vision_tensors_; }
  // One for each Engram layer; nullopt: the table is not there.
  const std::vector<std::optional<EngramStorage>>& engram() const { return engram_; }

  // An error that names what is missing or unknown. Tables count when `with_engram`.
  Status complete(bool with_engram) const;

  // Identifies configuration and weights (not the tables): a prepared image carries it.
  Result<std::string> model_digest() const;

 private:
  Status find_weights();
  Status find_tables();
  void find_unknown();

  std::string path_, config_text_;
  ModelConfig config_;
  std::unique_ptr<Safetensors> files_, extra_;  // extra_: the Engram folder, if it is another
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> by_name_;
  std::vector<std::string> missing_, unknown_;
  std::vector<std::optional<EngramStorage>> engram_;
  int vision_tensors_ = 0;
};

// SHA-256 over evenly spaced rows of a whole table: tells tables apart without reading them.
Result<std::string> engram_digest(const EngramStorage& whole_table);

// What tells one served model from another: the model digest, the token map and the digests of the
// Engram tables (none for a table that is not there). The same for a folder and an image of it.
std::string model_fingerprint(const std::string& model_digest, std::span<const int32_t> token_map,
                              std::span<const std::string> engram_digests);

}  // namespace tensorfold
