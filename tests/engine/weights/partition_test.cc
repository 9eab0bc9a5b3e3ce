// Slices of the published model for every legal world size, and why the others are refused.
#include "engine/weights/partition.h"

#include <boost/test/unit_test.hpp>

#include "engine/weights/tensor_table.h"

namespace tensorfold {
namespace {

ModelConfig published() {
  const Result<ModelConfig> config =
      load_model_config(std::string(TF_TEST_DATA) + "/weights/config_published.json");
  BOOST_REQUIRE_MESSAGE(config.ok(), config.status().message());
  return *config;
}

Partition part_of(const ModelConfig& config, int rank, int world_size) {
  const Result<Partition> part = partition(config, rank, world_size);
  BOOST_REQUIRE_MESSAGE(part.ok(), part.status().message());
  return *part;
}

TensorSlice slice(const ModelConfig& config, const Partition& part, const std::string& name) {
  for (const WeightSpec& spec : weight_table(config)) {
    if (spec.name == name) return slice_of(name, config, part, spec.out, spec.in);
  }
  BOOST_REQUIRE_MESSAGE(false, name);
  return {};
}

void expect(const TensorSlice& slice, SliceAxis axis, int64_t begin, int64_t end) {
  BOOST_TEST((slice.axis == axis));
  BOOST_TEST(slice.range.begin == begin);
  BOOST_TEST(slice.range.end == end);
}

BOOST_AUTO_TEST_CASE(two_ranks_of_the_published_model) {
  const ModelConfig c = published();
  const Partition p = part_of(c, 1, 2);
  BOOST_TEST(!p.experts_by_id);
  BOOST_TEST((p.heads == Range{32, 64}));
  BOOST_TEST((p.o_groups == Range{4, 8}));
  BOOST_TEST((p.engram_columns == Range{12, 24}));
  expect(slice(c, p, "layers.3.attn.wq_a"), SliceAxis::kReplicated, 0, 1280);
  expect(slice(c, p, "layers.3.attn.wkv"), SliceAxis::kReplicated, 0, 512);
  expect(slice(c, p, "layers.3.attn.wq_b"), SliceAxis::kOutput, 16384, 32768);
  expect(slice(c, p, "layers.3.attn.attn_sink"), SliceAxis::kOutput, 32, 64);
  expect(slice(c, p, "layers.3.attn.wo_a"), SliceAxis::kOutput, 4096, 8192);
  expect(slice(c, p, "layers.3.attn.wo_b"), SliceAxis::kInput, 4096, 8192);
  expect(slice(c, p, "layers.3.ffn.experts.383.w1"), SliceAxis::kOutput, 1152, 2304);
  expect(slice(c, p, "layers.3.ffn.experts.0.w2"), SliceAxis::kInput, 1152, 2304);
  expect(slice(c, p, "layers.3.ffn.shared_experts.w3"), SliceAxis::kOutput, 1152, 2304);
  expect(slice(c, p, "layers.3.ffn.gate"), SliceAxis::kReplicated, 0, 384);
  expect(slice(c, p, "layers.3.hc_attn_fn"), SliceAxis::kReplicated, 0, 24);
  expect(slice(c, p, "layers.20.attn.indexer.wq_b"), SliceAxis::kReplicated, 0, 4096);
  expect(slice(c, p, "layers.20.attn.compressor.wkv"), SliceAxis::kReplicated, 0, 512);
  expect(slice(c, p, "layers.14.engram.wkv"), SliceAxis::kOutput, 12800, 25600);
  expect(slice(c, p, "embed"), SliceAxis::kReplicated, 0, 129280);
  expect(slice(c, p, "head"), SliceAxis::kOutput, 64640, 129280);
  expect(slice(c, p, "mtp.2.markov_head.head"), SliceAxis::kOutput, 64640, 129280);
  expect(slice(c, p, "mtp.2.markov_head.embed"), SliceAxis::kReplicated, 0, 129280);
  expect(slice(c, p, "mtp.0.main_proj"), SliceAxis::kReplicated, 0, 5120);
  expect(slice(c, p, "mtp.1.ffn.experts.127.w2"), SliceAxis::kInput, 1152, 2304);
}

BOOST_AUTO_TEST_CASE(four_ranks_deal_experts_by_id) {
  const ModelConfig c = published();
  const Partition p = part_of(c, 3, 4);
  BOOST_TEST(p.experts_by_id);
  BOOST_TEST((p.experts == Range{288, 384}));
  BOOST_TEST((p.draft_experts == Range{96, 128}));
  BOOST_TEST((p.intermediate == Range{0, 2304}));
  expect(slice(c, p, "layers.0.ffn.experts.288.w1"), SliceAxis::kExpert, 0, 2304);
  BOOST_TEST((slice(c, p, "layers.0.ffn.experts.287.w1").axis == SliceAxis::kAbsent));
  BOOST_TEST((slice(c, p, "mtp.0.ffn.experts.95.w2").axis == SliceAxis::kAbsent));
  expect(slice(c, p, "mtp.0.ffn.experts.96.w2"), SliceAxis::kExpert, 0, 5120);
  expect(slice(c, p, "layers.0.ffn.shared_experts.w1"), SliceAxis::kReplicated, 0, 2304);
  // 1010 blocks of 128 rows: 253, 253, 253 and 251.
  expect(slice(c, p, "head"), SliceAxis::kOutput, 97152, 129280);
  expect(slice(c, p, "layers.1.engram.wkv"), SliceAxis::kOutput, 19200, 25600);
}

// Whatever the world size: ranges are in multiples of 128 and every element is somewhere, once or
// on every rank.
BOOST_AUTO_TEST_CASE(slices_cover_every_weight_exactly) {
  const ModelConfig c = published();
  for (int world_size : {1, 2, 4, 8}) {
    std::vector<Partition> parts;
    for (int r = 0; r < world_size; ++r) parts.push_back(part_of(c, r, world_size));
    for (const WeightSpec& spec : weight_table(c)) {
      int64_t covered = 0, next = 0;
      int whole = 0;
      for (const Partition& p : parts) {
        const TensorSlice s = slice_of(spec.name, c, p, spec.out, spec.in);
        if (s.axis == SliceAxis::kAbsent) continue;
        if (s.axis == SliceAxis::kReplicated || s.axis == SliceAxis::kExpert) {
          ++whole;
          BOOST_REQUIRE((s.range == Range{0, spec.out}));
          continue;
        }
        const int64_t total = s.axis == SliceAxis::kInput ? spec.in : spec.out;
        BOOST_REQUIRE_EQUAL(s.range.begin, next);
        BOOST_REQUIRE(spec.vector || s.range.begin % kSliceMultiple == 0);
        next = s.range.end;
        covered += s.range.size();
        if (&p == &parts.back()) BOOST_REQUIRE_EQUAL(covered, total);
      }
      BOOST_REQUIRE_MESSAGE(whole == 0 || whole == 1 || whole == world_size, spec.name);
      BOOST_REQUIRE_MESSAGE(whole > 0 || covered > 0, spec.name);
    }
  }
}

struct Illegal {
  int world_size;
  const char* said;
};

BOOST_AUTO_TEST_CASE(world_sizes_that_are_not_possible_say_why) {
  const ModelConfig c = published();
  const Illegal table[] = {
      {0, "must be 1..16"},  {-1, "must be 1..16"},
      {17, "must be 1..16"}, {3, "8 o_groups cannot be dealt evenly"},
      {5, "o_groups"},       {16, "o_groups"},
  };
  for (const Illegal& illegal : table) {
    const Result<Partition> part = partition(c, 0, illegal.world_size);
    BOOST_REQUIRE(!part.ok());
    BOOST_TEST(part.status().message().find(illegal.said) != std::string::npos,
               part.status().message());
  }
  BOOST_TEST(!partition(c, 2, 2).ok());
  BOOST_TEST(!partition(c, -1, 2).ok());
}

BOOST_AUTO_TEST_CASE(each_range_can_forbid_a_world_size) {
  const auto said = [](const ModelConfig& c, int world_size) {
    const Result<Partition> part = partition(c, 0, world_size);
    return part.ok() ? std::string("legal") : part.status().message();
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  ModelConfig c = published();
  c.head_dim = 8;
  BOOST_TEST(has(said(c, 8), "attn.wq_b outputs (heads x head_dim): 512"));
  c = published();
  c.o_lora_rank = 64;
  BOOST_TEST(has(said(c, 8), "attn.wo_b inputs (o_groups x o_lora_rank): 512"));
  c = published();
  c.routed_experts = 382;
  BOOST_TEST(has(said(c, 4), "neither 2304 expert channels"));
  BOOST_TEST(said(c, 2) == "legal");
  c = published();
  c.dspark.routed_experts = 126;
  BOOST_TEST(has(said(c, 4), "the drafter's 126"));
  c = published();
  c.vocab_size = 200;
  BOOST_TEST(has(said(c, 4), "a vocabulary of 200"));
  BOOST_TEST(said(c, 2) == "legal");
  c = published();
  c.engram.heads = 3;
  BOOST_TEST(has(said(c, 2), "9 Engram hash columns"));
}

BOOST_AUTO_TEST_CASE(the_table_of_weights_is_that_of_the_published_checkpoint) {
  const ModelConfig c = published();
  // Counted from the published inventory: 96,085 tensors, of which 4 are tables and their scales.
  int64_t tensors = 0, weights = 0;
  for (const WeightSpec& spec : weight_table(c)) {
    const bool scaled =
        spec.weight_class == WeightClass::kExpert ||
        (spec.weight_class == WeightClass::kMatrix && spec.name != "head" &&
         spec.name.find("compressor") == std::string::npos && !spec.name.ends_with("indexer.wk"));
    tensors += scaled ? 2 : 1;
    weights += spec.out * spec.in;
  }
  constexpr int64_t kVisionTensors = 2 + 32 * 8 + 1 + 4 + 3;
  BOOST_TEST(tensors + 4 + kVisionTensors == 96085);
  constexpr int64_t kBackbone = 551'880'835'184, kDspark = 14'225'362'530;
  BOOST_TEST(weights == kBackbone + kDspark);
}

}  // namespace
}  // namespace tensorfold
