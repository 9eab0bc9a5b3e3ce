// Weights from a model folder: every kind of storage, whole and by rank, bit for bit.
#include "engine/weights/weight_source.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>

#include "engine/base/half.h"
#include "engine/weights/checkpoint.h"
#include "tests/engine/weights/weights_support.h"

namespace tensorfold {
namespace {

using tensorfold::TempFolder;
using test::StoragePlan;
using test::Tensor;

std::unique_ptr<WeightSource> open_rank(const std::string& folder, int rank, int world_size) {
  WeightSourceOptions options;
  options.model_path = folder;
  options.rank = rank;
  options.world_size = world_size;
  Result<std::unique_ptr<WeightSource>> source = WeightSource::open(options);
  BOOST_REQUIRE_MESSAGE(source.ok(), source.status().message());
  return std::move(*source);
}

// The rank's part of a weight as fp32; groups of attn.wo_a one after the other.
std::vector<float> values_of(const WeightSource& source, std::string_view name) {
  if (!name.ends_with(".attn.wo_a")) {
    Result<std::vector<float>> values = source.load_f32(name);
    BOOST_REQUIRE_MESSAGE(values.ok(), values.status().message());
    return std::move(*values);
  }
  Result<std::vector<Weight>> groups = source.load_groups(name);
  BOOST_REQUIRE_MESSAGE(groups.ok(), groups.status().message());
  std::vector<float> all;
  for (const Weight& group : *groups) {
    std::vector<float> values(static_cast<size_t>(group.out * group.in));
    dequantize(group, values);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<float> cut(const std::vector<float>& whole, const WeightInfo& info, TensorSlice slice) {
  const Range rows = slice.axis == SliceAxis::kInput ? Range{0, info.out} : slice.range;
  const Range columns = slice.axis == SliceAxis::kInput ? slice.range : Range{0, info.in};
  std::vector<float> part;
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    for (int64_t k = columns.begin; k < columns.end; ++k) {
      part.push_back(whole[static_cast<size_t>(n * info.in + k)]);
    }
  }
  return part;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Each rank's slices are those of the whole, and together they are all of it.
void check_slices(const std::string& folder, int world_size) {
  const std::unique_ptr<WeightSource> whole = open_rank(folder, 0, 1);
  std::vector<std::unique_ptr<WeightSource>> ranks;
  for (int r = 0; r < world_size; ++r) ranks.push_back(open_rank(folder, r, world_size));
  for (const WeightInfo& info : whole->weights()) {
    const std::vector<float> all = values_of(*whole, info.name);
    BOOST_TEST(static_cast<int64_t>(all.size()) == info.out * info.in);
    size_t held = 0;
    bool replicated = false;
    for (const std::unique_ptr<WeightSource>& rank : ranks) {
      if (!rank->holds(info.name)) {
        BOOST_TEST(!rank->load(info.name).ok());
        continue;
      }
      const TensorSlice slice = rank->slice(info.name);
      const std::vector<float> part = values_of(*rank, info.name);
      BOOST_TEST(same_bits(part, cut(all, info, slice)), info.name);
      replicated = replicated || slice.axis == SliceAxis::kReplicated;
      held += part.size();
    }
    BOOST_TEST(held == all.size() * (replicated ? static_cast<size_t>(world_size) : 1), info.name);
  }
}

std::vector<StoragePlan> plans() {
  std::vector<StoragePlan> list = {
      {.matrix = "bf16", .expert = "bf16"},
      {.matrix = "f16", .expert = "f32"},
      {.matrix = "fp8", .expert = "fp4"},
      {.matrix = "fp8-rows", .expert = "fp8", .tables_fp8 = false},
      {.matrix = "fp8", .expert = "exl3-4-mcg"},
      {.matrix = "exl3-10-mul1", .expert = "exl3-6-mul1", .wo_a_slices = true},
      {.matrix = "exl3-12-3inst", .expert = "fp4", .old_signs = true},
      {.matrix = "exl3-3-mul1", .expert = "exl3-5-mul1"},
      {.matrix = "exl3-7-mul1", .expert = "exl3-2-3inst", .wo_a_slices = true},
  };
  return list;
}

BOOST_AUTO_TEST_CASE(every_rank_gets_its_part_of_every_kind) {
  for (const StoragePlan& plan : plans()) {
    BOOST_TEST_CONTEXT(plan.matrix << " and " << plan.expert) {
      const TempFolder folder;
      test::write_sharded_model(folder.path(), test::small_config(),
                                test::model_tensors(test::small_config(), plan), 3);
      check_slices(folder.path(), 2);
    }
  }
}

BOOST_AUTO_TEST_CASE(experts_are_dealt_by_id_when_their_channels_cannot_be_cut) {
  std::string config = test::small_config();
  const std::string wide = "\"moe_intermediate_size\": 256";
  config.replace(config.find(wide), wide.size(), "\"moe_intermediate_size\": 128");
  const TempFolder folder;
  test::write_model(folder.path(), config,
                    test::model_tensors(config, {.matrix = "exl3-8-mul1", .expert = "fp4"}));
  check_slices(folder.path(), 2);
  const std::unique_ptr<WeightSource> second = open_rank(folder.path(), 1, 2);
  BOOST_TEST(second->part().experts_by_id);
  BOOST_TEST(!second->holds("layers.0.ffn.experts.1.w1"));
  BOOST_TEST(second->holds("layers.0.ffn.experts.2.w1"));
  BOOST_TEST((second->slice("layers.0.ffn.shared_experts.w1").axis == SliceAxis::kReplicated));
}

// Values against the raw bytes of the file, by formulas written out here.
BOOST_AUTO_TEST_CASE(plain_and_block_scaled_values_are_exact) {
  const TempFolder folder;
  std::vector<Tensor> tensors =
      test::model_tensors(test::small_config(), {.matrix = "fp8", .expert = "fp4"});
  test::write_model(folder.path(), test::small_config(), tensors);
  const std::unique_ptr<WeightSource> source = open_rank(folder.path(), 0, 1);

  const std::string name = "layers.2.attn.wq_a";
  const std::string& bytes = test::tensor_named(tensors, name + ".weight").bytes;
  const std::string& scales = test::tensor_named(tensors, name + ".scale").bytes;
  const std::vector<float> fp8 = values_of(*source, name);
  for (size_t n = 0; n < 128; ++n) {
    for (size_t k = 0; k < 256; ++k) {
      const auto byte = static_cast<uint8_t>(bytes[n * 256 + k]);
      const int exponent = (byte >> 3) & 15;
      const double magnitude =
          exponent == 0 ? (byte & 7) / 512.0 : (1 + (byte & 7) / 8.0) * std::exp2(exponent - 7);
      const auto scale = static_cast<uint8_t>(scales[n / 32 * 8 + k / 32]);
      const double value = (byte & 0x80 ? -1 : 1) * magnitude * std::exp2(scale - 127);
      BOOST_REQUIRE_EQUAL(static_cast<double>(fp8[n * 256 + k]), value);
    }
  }

  const std::string expert = "layers.1.ffn.experts.3.w2";
  const std::string& nibbles = test::tensor_named(tensors, expert + ".weight").bytes;
  const std::string& expert_scales = test::tensor_named(tensors, expert + ".scale").bytes;
  const std::vector<float> fp4 = values_of(*source, expert);
  const double grid[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (size_t n = 0; n < 256; ++n) {
    for (size_t k = 0; k < 256; ++k) {
      const auto byte = static_cast<uint8_t>(nibbles[n * 128 + k / 2]);
      const int nibble = k % 2 == 0 ? byte & 15 : byte >> 4;
      const auto scale = static_cast<uint8_t>(expert_scales[n * 8 + k / 32]);
      const double value = (nibble & 8 ? -1 : 1) * grid[nibble & 7] * std::exp2(scale - 127);
      BOOST_REQUIRE_EQUAL(static_cast<double>(fp4[n * 256 + k]), value);
    }
  }
}

std::vector<uint16_t> words_of(const Tensor& t) {
  std::vector<uint16_t> words(t.bytes.size() / 2);
  std::memcpy(words.data(), t.bytes.data(), t.bytes.size());
  return words;
}

// The head of 500 rows is stored as 512: what comes out is the first 500 of the padded weight.
BOOST_AUTO_TEST_CASE(padded_layers_are_trimmed_and_each_matrix_has_its_own_width) {
  std::vector<Tensor> tensors =
      test::model_tensors(test::small_config(), {.matrix = "exl3-12-mul1"});
  const auto replace = [&](const WeightSpec& spec, const std::string& kind) {
    std::erase_if(tensors, [&](const Tensor& t) { return t.name.starts_with(spec.name + "."); });
    for (Tensor& t : test::weight_tensors(spec, kind, {}, 77)) tensors.push_back(std::move(t));
  };
  std::vector<WeightSpec> table = weight_table(test::small_model_config());
  int half_bits = 1;
  std::vector<std::string> names, kinds;
  for (const WeightSpec& spec : table) {  // 1, 1.5, .. 8 bits, one layer each
    if (spec.weight_class != WeightClass::kMatrix || spec.group_rows != 0 || half_bits == 16) {
      continue;
    }
    ++half_bits;
    if (half_bits > 7 && half_bits % 2 == 1) ++half_bits;
    names.push_back(spec.name);
    kinds.push_back("exl3-" + std::to_string(half_bits) +
                    (half_bits % 2 != 0   ? "-mul1"
                     : half_bits % 4 == 0 ? "-mcg"
                                          : "-3inst"));
    replace(spec, kinds.back());
  }
  BOOST_TEST(half_bits == 16);
  const TempFolder folder;
  test::write_model(folder.path(), test::small_config(), tensors);
  const std::unique_ptr<WeightSource> source = open_rank(folder.path(), 0, 1);
  for (size_t i = 0; i < names.size(); ++i) {
    const WeightInfo& info = *source->find(names[i]);
    const std::vector<uint16_t> trellis =
        words_of(test::tensor_named(tensors, info.name + ".trellis"));
    const std::vector<uint16_t> suh = words_of(test::tensor_named(tensors, info.name + ".suh"));
    const std::vector<uint16_t> svh = words_of(test::tensor_named(tensors, info.name + ".svh"));
    const exl3::LayerView view = {trellis,
                                  suh,
                                  svh,
                                  static_cast<int64_t>(suh.size()),
                                  static_cast<int64_t>(svh.size()),
                                  info.half_bits,
                                  info.codebook};
    BOOST_TEST(("exl3-" + std::to_string(info.half_bits) + "-" +
                std::string(exl3::codebook_name(info.codebook))) == kinds[i]);
    std::vector<float> padded(suh.size() * svh.size());
    exl3::effective_weight(view, 0, view.n_out, 0, view.k_in, padded.data(), view.k_in);
    std::vector<float> trimmed;
    for (int64_t n = 0; n < info.out; ++n) {
      const auto row = padded.begin() + n * view.k_in;
      trimmed.insert(trimmed.end(), row, row + info.in);
    }
    BOOST_TEST(same_bits(values_of(*source, info.name), trimmed), info.name);
  }
  const Result<Weight> head = source->load("head");
  BOOST_REQUIRE(head.ok());
  BOOST_TEST(head->out == 500);
  BOOST_TEST(head->padded_out == 512);
}

BOOST_AUTO_TEST_CASE(a_bias_comes_with_its_slice_and_once_per_sum) {
  std::vector<Tensor> tensors =
      test::model_tensors(test::small_config(), {.matrix = "exl3-8-mul1"});
  std::string bias;  // fp32 in the file, fp16 in memory
  for (int i = 0; i < 256; ++i) {
    const float value = static_cast<float>(i) / 16.0f;
    bias.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  tensors.push_back({"layers.0.attn.wo_b.bias", DType::kF32, {256}, bias});
  tensors.push_back({"layers.0.ffn.shared_experts.w1.bias", DType::kF32, {256}, bias});
  const TempFolder folder;
  test::write_model(folder.path(), test::small_config(), tensors);
  for (int rank = 0; rank < 2; ++rank) {
    const std::unique_ptr<WeightSource> source = open_rank(folder.path(), rank, 2);
    BOOST_TEST(source->load("layers.0.attn.wo_b")->bias.size() == (rank == 0 ? 256U : 0U));
    const std::vector<uint16_t> part = source->load("layers.0.ffn.shared_experts.w1")->bias;
    BOOST_REQUIRE_EQUAL(part.size(), 128U);
    BOOST_TEST(fp16_to_fp32(part[5]) == static_cast<float>(128 * rank + 5) / 16.0f);
  }
}

BOOST_AUTO_TEST_CASE(lm_head_is_the_head_and_an_engram_folder_gives_bias_vl) {
  std::vector<Tensor> tensors =
      test::model_tensors(test::small_config(), {.matrix = "fp8-rows", .expert = "exl3-4-mcg"});
  std::vector<Tensor> original;  // what the pack lacks
  for (const Tensor& t : tensors) {
    if (t.name.ends_with("bias_vl") || t.name.find("engram.embed") != std::string::npos) {
      original.push_back(t);
    }
  }
  std::erase_if(tensors, [&](const Tensor& t) {
    return t.name.ends_with("bias_vl") || t.name.find("engram.embed") != std::string::npos;
  });
  test::tensor_named(tensors, "head.weight").name = "lm_head.weight";
  test::tensor_named(tensors, "head.weight_scale").name = "lm_head.weight_scale";
  const TempFolder folder;
  test::write_model(folder.path("pack"), test::small_config(), tensors);
  test::write_model(folder.path("original"), test::small_config(), original);
  WeightSourceOptions options;
  options.model_path = folder.path("pack");
  const Result<std::unique_ptr<WeightSource>> without = WeightSource::open(options);
  BOOST_REQUIRE(!without.ok());
  BOOST_TEST(without.status().message().find("missing Engram table layers.1.engram.embed") !=
             std::string::npos);
  options.engram_path = folder.path("original");
  const Result<std::unique_ptr<WeightSource>> source = WeightSource::open(options);
  BOOST_REQUIRE_MESSAGE(source.ok(), source.status().message());
  BOOST_TEST((*source)->holds("layers.0.ffn.gate.bias_vl"));
  BOOST_TEST((*source)->holds("head"));
  BOOST_TEST((*source)->open_engram(0).ok());
  BOOST_TEST((*source)->load("head")->scale_rows == 1);
}

BOOST_AUTO_TEST_CASE(what_a_rank_holds_is_what_it_is_said_to_weigh) {
  const TempFolder folder;
  test::write_model(
      folder.path(), test::small_config(),
      test::model_tensors(test::small_config(),
                          {.matrix = "exl3-10-mul1", .expert = "fp4", .wo_a_slices = true}));
  for (int rank = 0; rank < 2; ++rank) {
    const std::unique_ptr<WeightSource> source = open_rank(folder.path(), rank, 2);
    int64_t bytes = 0;
    for (const WeightInfo& info : source->weights()) {
      if (info.name.ends_with(".attn.wo_a")) {
        const Result<std::vector<Weight>> groups = source->load_groups(info.name);
        for (const Weight& group : *groups) bytes += group.bytes();
      } else if (source->holds(info.name)) {
        bytes += source->load(info.name)->bytes();
      }
    }
    BOOST_TEST(bytes == source->rank_bytes());
  }
}

}  // namespace
}  // namespace tensorfold
