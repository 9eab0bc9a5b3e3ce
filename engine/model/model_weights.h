// ModelWeights: one rank's weights in the layout that the device's operations read, and the loader
// that makes them from a WeightSource. Owned by the model; immutable after loading.
//
// Matrices are held as bf16 (exact for BF16, FP8 and FP4 checkpoints; EXL3 weights are decoded once
// and rounded to bf16, so a pack equals its dequantised twin) or, when stored as F16 or F32, as
// fp32: in panels on the CPU, in rows on a GPU. Vectors are fp32. Tables that are read by row are
// bf16 rows. Where the device's operations read EXL3 weights as they are (Device::reads_exl3) those
// are kept so, in the device's order; which ones is decided weight by weight here, once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/model/config.h"
#include "engine/weights/weight_source.h"
#include "kernels/device.h"
#include "kernels/moe_experts.h"
#include "kernels/weight_view.h"

namespace tensorfold {

struct HcWeights {
  WeightView fn;                 // [(2 + n) n, n H] fp32
  const float* scale = nullptr;  // [3]
  const float* base = nullptr;   // [(2 + n) n]
};

struct AttentionWeights {
  HcWeights hc;
  const float* norm = nullptr;     // [H]
  WeightView wq_a;                 // [q_lora, H]
  const float* q_norm = nullptr;   // [q_lora]
  WeightView wq_b;                 // [heads of this rank * D, q_lora]
  WeightView wkv;                  // [D, H]
  const float* kv_norm = nullptr;  // [D]
  const float* sink = nullptr;     // [heads of this rank]
  std::vector<WeightView> wo_a;    // per group of this rank [o_lora, heads per group * D]
  WeightView wo_b;                 // [H, groups of this rank * o_lora]
};

struct SourceWeights {                // KV sources
  WeightView wkv;                     // [D, H]
  WeightView wgate;                   // [D, H]; ratio 2
  const float* norm = nullptr;        // [D]
  WeightView index_wk;                // [d, D]
  const float* index_norm = nullptr;  // [d]
};

struct IndexerWeights {     // index sources
  WeightView wq_b;          // [index heads * d, q_lora]
  WeightView weights_proj;  // [index heads, H]
};

struct MoeWeights {
  HcWeights hc;
  const float* norm = nullptr;     // [H]
  WeightView gate;                 // [experts, H]
  const float* bias = nullptr;     // [experts]
  const float* bias_vl = nullptr;  // [experts] or nullptr
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;
  // experts, then shared, in device memory where that is not the host's.
  const ExpertWeights* experts_on_device = nullptr;
  const Exl3Expert* exl3_on_device = nullptr;  // the same where all of them are kExl3
};

struct EngramWeights {
  WeightView wkv;                   // [(n + 1) H, columns * width], or this rank's outputs
  bool split = false;               // wkv holds a part of the outputs
  const float* q_weight = nullptr;  // [n, H]
  const float* k_weight = nullptr;  // [n, H]
};

struct BlockWeights {
  AttentionWeights attention;
  SourceWeights source;
  IndexerWeights indexer;
  MoeWeights moe;
  EngramWeights engram;
};

struct DrafterWeights {
  WeightView main_proj;              // [H, taps * H]
  const float* main_norm = nullptr;  // [H]
  std::vector<BlockWeights> stages;
  const float* norm = nullptr;  // [H]
  WeightView markov_embed;      // rows [vocab, rank]
  WeightView markov_head;       // [vocab of this rank, rank]
  WeightView confidence;        // [1, H + rank]
};

struct ModelWeights {
  WeightView embed;             // rows [vocab, H]
  const float* norm = nullptr;  // [H]
  WeightView head;              // [vocab of this rank, H]
  std::vector<BlockWeights> layers;
  DrafterWeights drafter;
  int64_t bytes = 0;
  int exl3_kept = 0;           // EXL3 matrices held as they are
  int exl3_widened = 0;        // and those that became bf16
  std::string exl3_widened_0;  // name of the first of these

  std::vector<DeviceArray<std::byte>> memory;  // what the views point into
};

// In the memory of `device` and the layouts that its operations read.
Result<std::unique_ptr<ModelWeights>> load_model_weights(const WeightSource& source, Device& device,
                                                         Stream& stream);

}  // namespace tensorfold
