// The table of slices. Pure functions of the configuration; allocates nothing that lasts.
//
// How the ranges are chosen:
//  - o_groups are dealt evenly, and with them query heads, wo_b's inputs and wo_a's outputs.
//  - Expert intermediate channels are dealt evenly when each share is a multiple of 128; otherwise
//    whole experts are dealt by id, and the shared expert is then computed by every rank.
//  - The vocabulary is cut into equal chunks of a multiple of 128 rows; the last may be shorter.
//  - engram.wkv is cut along its outputs: every output is still computed whole by one rank, so the
//    result has the same bits for every world size, and a rank streams 1/N of its bytes. (Cutting
//    the inputs would send twice the bytes per token and change the sum's order.)
#include "engine/weights/partition.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "engine/cluster/collective.h"

namespace tensorfold {
namespace {

Status illegal(int world_size, const std::string& why) {
  return invalid_argument("world size " + std::to_string(world_size) + " is not possible: " + why);
}

Range share(int64_t total, int rank, int world_size) {
  const int64_t each = total / world_size;
  return {each * rank, each * (rank + 1)};
}

bool in_multiples(int64_t total, int world_size) {
  return total % (int64_t{world_size} * kSliceMultiple) == 0;
}

Status check_attention(const ModelConfig& c, int world_size) {
  if (c.o_groups % world_size != 0) {
    return illegal(world_size, std::to_string(c.o_groups) + " o_groups cannot be dealt evenly");
  }
  struct Row {
    const char* what;
    int64_t total;
  };
  const Row rows[] = {
      {"attn.wq_b outputs (heads x head_dim)", int64_t{c.heads} * c.head_dim},
      {"attn.wo_b inputs (o_groups x o_lora_rank)", int64_t{c.o_groups} * c.o_lora_rank}};
  for (const Row& row : rows) {
    if (world_size > 1 && !in_multiples(row.total, world_size)) {
      return illegal(world_size, std::string(row.what) + ": " + std::to_string(row.total) +
                                     " cannot be cut into ranges of a multiple of 128");
    }
  }
  return ok_status();
}

Status check_experts(const ModelConfig& c, int world_size) {
  if (c.routed_experts % world_size != 0) {
    return illegal(world_size, "neither " + std::to_string(c.moe_intermediate) +
                                   " expert channels (in multiples of 128) nor " +
                                   std::to_string(c.routed_experts) +
                                   " experts can be dealt evenly");
  }
  if (c.dspark.stages > 0 && c.dspark.routed_experts % world_size != 0) {
    return illegal(world_size, "experts are dealt by id and the drafter's " +
                                   std::to_string(c.dspark.routed_experts) +
                                   " cannot be dealt evenly");
  }
  return ok_status();
}

struct Name {
  std::string_view layer_kind;  // "layers", "mtp" or empty
  std::string_view rest;        // after "layers.3."
};

Name split(std::string_view name) {
  for (std::string_view kind : {std::string_view("layers"), std::string_view("mtp")}) {
    if (!name.starts_with(kind) || name.size() <= kind.size() || name[kind.size()] != '.') continue;
    const size_t dot = name.find('.', kind.size() + 1);
    if (dot != std::string_view::npos) return {kind, name.substr(dot + 1)};
  }
  return {{}, name};
}

TensorSlice whole(int64_t out) { return {SliceAxis::kReplicated, {0, out}}; }

TensorSlice expert_matrix(std::string_view matrix, const Range& channels, int64_t out) {
  if (matrix == "w1" || matrix == "w3") return {SliceAxis::kOutput, channels};
  if (matrix == "w2") return {SliceAxis::kInput, channels};
  return whole(out);
}

// `rest` is what follows "ffn.experts.": "17.w1".
TensorSlice routed_expert(std::string_view rest, bool drafter, const Partition& part, int64_t out) {
  int64_t id = -1;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), id);
  const size_t digits = static_cast<size_t>(end - rest.data());
  if (error != std::errc() || digits + 1 >= rest.size() || rest[digits] != '.') return whole(out);
  const Range& ids = drafter ? part.draft_experts : part.experts;
  if (part.experts_by_id) {
    if (id < ids.begin || id >= ids.end) return {SliceAxis::kAbsent, {}};
    return {SliceAxis::kExpert, {0, out}};
  }
  const Range& channels = drafter ? part.draft_intermediate : part.intermediate;
  return expert_matrix(rest.substr(digits + 1), channels, out);
}

}  // namespace

Result<Partition> partition(const ModelConfig& config, int rank, int world_size) {
  if (world_size < 1 || world_size > kRanksMax) {
    return illegal(world_size, "it must be 1.." + std::to_string(kRanksMax));
  }
  if (rank < 0 || rank >= world_size) {
    return invalid_argument("rank " + std::to_string(rank) + " is not below the world size " +
                            std::to_string(world_size));
  }
  TF_RETURN_IF_ERROR(check_attention(config, world_size));
  Partition p;
  p.rank = rank;
  p.world_size = world_size;
  p.o_groups = share(config.o_groups, rank, world_size);
  p.heads = share(config.heads, rank, world_size);
  p.wo_b_inputs = share(int64_t{config.o_groups} * config.o_lora_rank, rank, world_size);
  p.experts_by_id = world_size > 1 && !in_multiples(config.moe_intermediate, world_size);
  p.intermediate = p.draft_intermediate = {0, config.moe_intermediate};
  p.experts = {0, config.routed_experts};
  p.draft_experts = {0, config.dspark.routed_experts};
  if (p.experts_by_id) {
    TF_RETURN_IF_ERROR(check_experts(config, world_size));
    p.experts = share(config.routed_experts, rank, world_size);
    p.draft_experts = share(config.dspark.routed_experts, rank, world_size);
  } else {
    p.intermediate = share(config.moe_intermediate, rank, world_size);
    p.draft_intermediate = p.intermediate;
  }
  p.vocab = vocab_range(config, rank, world_size);
  if (vocab_range(config, world_size - 1, world_size).size() <= 0) {
    return illegal(world_size, "a vocabulary of " + std::to_string(config.vocab_size) +
                                   " leaves a rank without rows");
  }
  const int columns = config.engram.layers.empty() ? 0 : config.engram.columns();
  if (columns % world_size != 0) {
    return illegal(world_size,
                   std::to_string(columns) + " Engram hash columns cannot be dealt evenly");
  }
  p.engram_columns = share(columns, rank, world_size);
  return p;
}

Range vocab_range(const ModelConfig& config, int rank, int world_size) {
  if (world_size == 1) return {0, config.vocab_size};
  const int64_t unit = int64_t{world_size} * kSliceMultiple;
  const int64_t chunk = (config.vocab_size + unit - 1) / unit * kSliceMultiple;
  const int64_t vocab = config.vocab_size;
  return {std::min(vocab, chunk * rank), std::min(vocab, chunk * (rank + 1))};
}

TensorSlice slice_of(std::string_view name, const ModelConfig& config, const Partition& part,
                     int64_t out, int64_t in) {
  (void)in;
  if (part.world_size == 1) return whole(out);
  const auto [kind, rest] = split(name);
  const bool drafter = kind == "mtp";
  if (rest == "head" || (drafter && rest == "markov_head.head")) {
    return {SliceAxis::kOutput, part.vocab};
  }
  if (kind.empty()) return whole(out);
  if (rest == "attn.attn_sink") return {SliceAxis::kOutput, part.heads};
  if (rest == "attn.wq_b") {
    return {SliceAxis::kOutput,
            {part.heads.begin * config.head_dim, part.heads.end * config.head_dim}};
  }
  if (rest == "attn.wo_a") return {SliceAxis::kOutput, part.wo_b_inputs};
  if (rest == "attn.wo_b") return {SliceAxis::kInput, part.wo_b_inputs};
  if (rest == "engram.wkv" && in_multiples(out, part.world_size)) {
    return {SliceAxis::kOutput, share(out, part.rank, part.world_size)};
  }
  constexpr std::string_view kExperts = "ffn.experts.", kShared = "ffn.shared_experts.";
  if (rest.starts_with(kExperts)) {
    return routed_expert(rest.substr(kExperts.size()), drafter, part, out);
  }
  if (rest.starts_with(kShared) && !part.experts_by_id) {
    return expert_matrix(rest.substr(kShared.size()),
                         drafter ? part.draft_intermediate : part.intermediate, out);
  }
  return whole(out);
}

}  // namespace tensorfold
