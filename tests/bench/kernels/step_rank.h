// One of two ranks of DeepSeek-V4.1-Flash on the device, all of it made there: EXL3 weights of
// random codes (mul1), the plain ones of random numbers, caches of random rows. What a step of the
// forward pass reads, so that whole steps can be timed without the model. Its outputs mean nothing.
//
// Widths: attention 5 bits, its first projections and the head 6, shared experts and Engram 5,
// routed experts 3. Memory is taken once and freed with the process.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/model_weights.h"
#include "kernels/attention.h"

namespace tensorfold::bench {

inline constexpr int kLayers = 40, kDecoderStart = 20;
inline constexpr int kHidden = 5120, kHc = 4, kMixes = (2 + kHc) * kHc;
inline constexpr int kHeads = 32, kHeadDim = 512, kRopeDim = 64, kWindow = 128;
inline constexpr int kQLora = 1280, kOLora = 1024, kGroups = 4;
inline constexpr int kIndexHeads = 32, kIndexDim = 128, kTopEntries = 512;
inline constexpr int kCandidateBlocks = 2048, kCandidateSize = 8;
inline constexpr int kExperts = 384, kExpertsPerToken = 6, kInter = 1152;
inline constexpr int kEngramIn = 6144, kEngramOut = (kHc + 1) * kHidden / 2, kVocab = 64640;
inline constexpr int kMaxLayerRows = 4096;  // rows of a step
inline constexpr int kBlock = 256;          // positions of a pool block

struct LayerShape {
  int ratio = 0;         // 0: window only
  int source = -1;       // layer whose entries it reads
  bool owns_kv = false;  // and makes
  bool owns_index = false;
  bool builds_candidates = false, uses_candidates = false;
  bool engram = false;
};
LayerShape layer_shape(int layer);

// The pool of one KV source, blocks in order.
struct SourceCache {
  EntryPool pool;
};

struct StepRank {
  int layers = 0;
  WeightView embed, head;
  const float* norm = nullptr;
  std::vector<BlockWeights> layer;
  std::vector<SourceCache> source;  // [layers], of those that own one
  uint8_t* rings = nullptr;         // all layers' window rings
  int64_t ring_bytes = 0;           // of a layer
  int ring_rows = 0;
  float* pairs = nullptr;  // compressor inputs of all sources
  int32_t* block_table = nullptr;
  int64_t planned_bytes = 0;  // as asked for
};

// layers: 1 .. kLayers from the front. context: positions that the caches hold.
StepRank make_step_rank(int layers, int64_t context);

}  // namespace tensorfold::bench
