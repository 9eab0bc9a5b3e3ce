// partition(): the one table that says which part of every weight a rank holds.
//
// Heads, o_groups, wo_b inputs, expert intermediate and vocabulary are cut by ranges in multiples
// of 128 (EXL3's Hadamard block); the rest is replicated. Each rank reads its own Engram hash
// columns. A world size is legal when every range is; otherwise the Status says which is not.
//
// When the expert channels cannot be cut (multiples of 128), whole experts are dealt by id; the
// shared expert is then replicated: every rank computes it and adds it after the sum over ranks.
// engram.wkv is cut along its outputs (gathered). Uneven: only the vocabulary's last chunk.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/status.h"
#include "engine/model/config.h"

namespace tensorfold {

inline constexpr int kSliceMultiple = 128;

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

enum class SliceAxis : unsigned char {
  kReplicated,  // every rank holds all of it
  kOutput,      // rows of y = W x: results are concatenated
  kInput,       // columns: results are partial sums
  kExpert,      // whole experts by id; range is {0, out}
  kAbsent,      // this rank holds none of it
};

struct TensorSlice {
  SliceAxis axis = SliceAxis::kReplicated;
  Range range;  // along the axis, in elements of the logical weight [out, in]
};

struct Partition {
  int rank = 0, world_size = 1;
  Range heads;         // query heads
  Range o_groups;      // output groups: wo_a
  Range wo_b_inputs;   // inputs of wo_b: o_groups x o_lora_rank
  Range intermediate;  // of the routed and shared experts
  Range experts;       // ids held; all of them unless experts are split by id
  Range draft_experts;
  Range draft_intermediate;
  Range vocab;           // rows of the head and of the Markov head
  Range engram_columns;  // hash columns read by this rank
  bool experts_by_id = false;
};

Result<Partition> partition(const ModelConfig& config, int rank, int world_size);

// Rows of the head and the Markov head: rank r has [r * chunk, (r + 1) * chunk), cut at the
// vocabulary's end; chunk is a multiple of 128 and the same for every rank.
Range vocab_range(const ModelConfig& config, int rank, int world_size);

// The slice of a named tensor ("layers.3.attn.wq_b", without ".weight" or an EXL3 suffix).
// out, in: the logical shape of the whole weight.
TensorSlice slice_of(std::string_view name, const ModelConfig& config, const Partition& part,
                     int64_t out, int64_t in);

}  // namespace tensorfold
