// WeightSource: where a rank's weights come from: a model folder (sharded safetensors) or this
// rank's prepared image. Both give the same bytes for the same rank.
//
// open() checks everything that can be checked without reading weight data: every tensor that the
// configuration asks for is there, with the right shape and a known format; unknown ones are
// reported. load() reads one weight's slice. Memory: headers, plus what load() returns.
// Threads: after open(), const methods may be called from any thread (they pread). Does not build
// device layouts and does not cache.
//
// A weight with a NaN or an infinity in it (scales included) is an error of load().
//
// Names are those of the checkpoint without ".weight" or a quantisation suffix, for example
// "embed", "norm", "head", "layers.3.attn.wq_b", "layers.3.attn.attn_sink",
// "layers.3.ffn.gate" (the router), "layers.3.ffn.gate.bias", "layers.3.ffn.experts.7.w1",
// "layers.3.hc_attn_fn", "layers.1.engram.wkv", "mtp.0.main_proj". weight_table() lists them all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/model/config.h"
#include "engine/weights/engram_table.h"
#include "engine/weights/partition.h"
#include "engine/weights/weight.h"

namespace tensorfold {

struct WeightSourceOptions {
  std::string model_path;     // folder; may be empty when prepared_path is given
  std::string engram_path;    // folder with the Engram tables (and bias_vl); empty: model_path
  std::string prepared_path;  // an image or a folder of images; empty: read the model folder
  int rank = 0, world_size = 1;
  int64_t engram_cache_rows = 65536;  // rows kept in memory per table
  bool require_engram = true;         // false: open() does not mind missing Engram tables
};

// One weight of the model, as the checkpoint stores it.
struct WeightInfo {
  std::string name;
  WeightKind kind = WeightKind::kF32;
  int64_t out = 0, in = 0;  // logical, of the whole weight; a vector has in = 1
  int half_bits = 0;        // kExl3
  exl3::Codebook codebook = exl3::Codebook::kMul1;
  int64_t stored_bytes = 0;  // of the whole weight, scales and signs included
  bool optional = false;     // ffn.gate.bias_vl
};

class WeightSource {
 public:
  static Result<std::unique_ptr<WeightSource>> open(const WeightSourceOptions& options);
  virtual ~WeightSource() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const Partition& part() const = 0;
  virtual const std::string& fingerprint() const = 0;  // of the model; folder and image agree
  // Token id -> compressed id for the Engram hash, one per vocabulary entry; empty without Engram.
  virtual std::span<const int32_t> engram_token_map() const = 0;

  virtual std::span<const WeightInfo> weights() const = 0;          // in execution order
  virtual const WeightInfo* find(std::string_view name) const = 0;  // nullptr: not there
  TensorSlice slice(std::string_view name) const;  // of a weight that exists (checked)
  bool holds(std::string_view name) const;         // exists and this rank has a part of it

  // This rank's slice, as stored. A weight that this rank does not hold is an error, and so is
  // attn.wo_a (load_groups).
  virtual Result<Weight> load(std::string_view name) const = 0;

  // attn.wo_a: one weight [o_lora_rank, heads / o_groups * head_dim] for each output group of this
  // rank, in order, however the checkpoint stores them. The model was trained with wo_a in bf16:
  // its input is not quantised even when the weight is fp8.
  virtual Result<std::vector<Weight>> load_groups(std::string_view name) const = 0;

  // load() widened: [out][in] fp32.
  Result<std::vector<float>> load_f32(std::string_view name) const;

  // From now on weights are read in their order by `threads` threads ahead of load(), which one
  // thread calls; 0: no longer, and what was read and not loaded is let go. Costs memory:
  // kReadAheadBytesMax (read_ahead.h). Sources whose reads gain nothing by it ignore it.
  virtual void read_ahead(int threads) const { (void)threads; }

  // Bytes that this rank's slices of all weights take, as stored.
  virtual int64_t rank_bytes() const = 0;

  // The Engram table of EngramConfig::layers[index] (EngramTable::rows() says which rows). One
  // owner thread at a time reads it.
  virtual Result<std::unique_ptr<EngramTable>> open_engram(int index) const = 0;
};

}  // namespace tensorfold
