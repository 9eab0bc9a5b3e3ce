// quantize_pack() on a small model of every part: what the pack gives when it is read is, bit for
// bit, what quantize_layer() made; the rest of the folder is as it was; failures leave nothing.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "engine/weights/quantize_moments.h"
#include "engine/weights/quantize_pack.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/weight_source.h"

namespace tensorfold::exl3 {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfig = R"({
 "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
 "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 255,
 "quantization_config": {"quant_method": "none"},
 "text_config": {
  "model_type": "deepseek_v41_text", "vocab_size": 256, "hidden_size": 128,
  "moe_intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2,
  "num_key_value_heads": 1, "head_dim": 128, "qk_rope_head_dim": 32, "q_lora_rank": 128,
  "o_lora_rank": 128, "o_groups": 2, "swiglu_limit": 10.0, "rms_norm_eps": 1e-20,
  "max_position_embeddings": 8192, "rope_theta": 10000,
  "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                   "original_max_position_embeddings": 65536},
  "n_routed_experts": 2, "n_shared_experts": 1, "num_experts_per_tok": 1,
  "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
  "routed_scaling_factor": 1.5, "sliding_window": 128,
  "compress_ratios": [0, 2, 1, 1, 0], "compress_rope_theta": 160000,
  "kv_source_layer_ids": [1, 2], "index_source_layer_ids": [1, 2, 3],
  "index_n_heads": 2, "index_head_dim": 32, "index_topk": 64,
  "candidate_source_layer_id": 2, "candidate_topk_blocks": 8, "candidate_block_size": 8,
  "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06,
  "engram_layer_ids": [1], "engram_num_embeddings": [1060], "engram_max_ngram_size": 3,
  "engram_vocab_size": 257, "engram_n_heads": 2, "engram_head_dim": 32,
  "engram_pad_token_id": 2, "engram_compressed_vocab_size": 200,
  "num_nextn_predict_layers": 1, "dspark_block_size": 5, "dspark_noise_token_id": 254,
  "dspark_target_layer_ids": [1, 2, 3], "dspark_markov_rank": 32,
  "dspark_n_routed_experts": 2, "dspark_num_experts_per_tok": 1}})";

// A folder under the system's temporary one that goes away with the test.
struct Scratch {
  Scratch() {
    std::string name = (fs::temp_directory_path() / "tf-quantize-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  fs::path path;
};

void write_file(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

uint16_t to_bf16(float v) { return fp32_to_bf16(v); }

// Writes a BF16 model of kConfig; `poison` names a weight that gets one infinite value.
void write_model(const fs::path& folder, std::string_view poison = "") {
  fs::create_directories(folder);
  write_file(folder / "config.json", kConfig);
  write_file(folder / "tokenizer.json", "{\"version\": \"1.0\"}");
  write_file(folder / "engram_token_map.i32", std::string(1024, '\0'));
  write_file(folder / ".hidden", "x");
  auto config = load_model_config((folder / "config.json").string());
  BOOST_REQUIRE_MESSAGE(config.ok(), config.status().message());
  std::vector<SafetensorsWriter::Declaration> declared;
  std::vector<std::string> bases;
  for (const WeightSpec& spec : weight_table(*config)) {
    if (spec.optional) continue;
    std::vector<int64_t> shape = {spec.out};
    if (!spec.vector) shape.push_back(spec.in);
    declared.push_back(
        {spec.name + (spec.bare ? "" : ".weight"), spec.bare ? DType::kF32 : DType::kBf16, shape});
    bases.push_back(spec.name);
  }
  declared.push_back({"layers.1.engram.embed.weight", DType::kBf16, {1060, 32}});
  bases.push_back("engram");
  declared.push_back({"vision.norm.weight", DType::kBf16, {64}});
  bases.push_back("vision.norm");
  auto writer = SafetensorsWriter::create((folder / "model.safetensors").string(), declared);
  BOOST_REQUIRE(writer.ok());
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.05f);
  for (size_t i = 0; i < declared.size(); ++i) {
    size_t count = 1;
    for (int64_t n : declared[i].shape) count *= static_cast<size_t>(n);
    std::vector<float> values(count);
    for (float& v : values) v = normal(random);
    if (bases[i] == poison) values[count / 2] = INFINITY;
    if (declared[i].dtype == DType::kF32) {
      BOOST_REQUIRE((*writer)->append(std::as_bytes(std::span(values))).ok());
      continue;
    }
    std::vector<uint16_t> bits(count);
    std::transform(values.begin(), values.end(), bits.begin(), to_bf16);
    BOOST_REQUIRE((*writer)->append(std::as_bytes(std::span(bits))).ok());
  }
  BOOST_REQUIRE((*writer)->commit().ok());
}

// Moments for one weight by name and for one group.
void write_moments(const fs::path& path, int64_t k = 128) {
  auto writer = SafetensorsWriter::create(path.string(),
                                          {{"head.hessian", DType::kF32, {k, k}},
                                           {"head.count", DType::kI64, {}},
                                           {"layers.2.ffn.input.hessian", DType::kF32, {128, 128}},
                                           {"layers.2.ffn.input.count", DType::kF32, {1}}});
  BOOST_REQUIRE(writer.ok());
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 2; ++round) {
    const auto n = static_cast<size_t>(round == 0 ? k : 128);
    std::vector<float> sum(n * n, 0.0f), x(n);
    for (int r = 0; r < 400; ++r) {
      const float common = normal(random);
      for (float& v : x) v = common + normal(random);
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) sum[i * n + j] += x[i] * x[j];
      }
    }
    BOOST_REQUIRE((*writer)->append(std::as_bytes(std::span(sum))).ok());
    const int64_t count = 400;
    const float count_f = 400;
    BOOST_REQUIRE((*writer)
                      ->append(round == 0 ? std::as_bytes(std::span(&count, 1))
                                          : std::as_bytes(std::span(&count_f, 1)))
                      .ok());
  }
  BOOST_REQUIRE((*writer)->commit().ok());
}

PackRequest request_of(const Scratch& scratch) {
  PackRequest request;
  request.in = (scratch.path / "in").string();
  request.out = (scratch.path / "out").string();
  request.bits.bits = 5;
  request.bits.attention = 6;
  request.threads = 2;
  return request;
}

std::vector<float> source_values(const std::string& folder, const std::string& name) {
  auto source = WeightSource::open({.model_path = folder,
                                    .engram_path = {},
                                    .prepared_path = {},
                                    .rank = 0,
                                    .world_size = 1,
                                    .engram_cache_rows = 16});
  BOOST_REQUIRE_MESSAGE(source.ok(), source.status().message());
  auto values = (*source)->load_f32(name);
  BOOST_REQUIRE_MESSAGE(values.ok(), values.status().message());
  return std::move(values).value();
}

// What is left beside the input: must be nothing after a failure.
size_t entries_of(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), {}));
}

const PackedWeight& weight_of(const PackReport& report, std::string_view name) {
  for (const PackedWeight& w : report.weights) {
    if (w.name == name) return w;
  }
  BOOST_FAIL("the report lacks " << name);
  return report.weights.front();
}

// The stored tensors of `name` against a fresh quantization of the same values.
void check_layer_of_pack(const Safetensors& pack, const std::string& name,
                         const std::vector<float>& values, int64_t out, int64_t in, int half_bits,
                         const InputMoments* moments) {
  QuantizeOptions options;
  options.half_bits = half_bits;
  options.seed = seed_of(name);
  options.threads = 1;
  auto layer = quantize_layer(values, out, in, moments, options);
  BOOST_REQUIRE(layer.ok());
  auto same = [&](const std::string& part, const std::vector<uint16_t>& want) {
    const TensorInfo* t = pack.find(name + part);
    BOOST_REQUIRE_MESSAGE(t != nullptr, name << part);
    std::vector<uint16_t> got(static_cast<size_t>(t->bytes / 2));
    BOOST_REQUIRE(pack.read(*t, 0, std::as_writable_bytes(std::span(got))).ok());
    BOOST_TEST((got == want), name << part);
  };
  same(".trellis", layer->trellis);
  same(".suh", layer->suh);
  same(".svh", layer->svh);
}

// Widths, methods, what is kept. Returns how many weights were quantized.
size_t check_report(const PackReport& report) {
  size_t quantized = 0;
  for (const PackedWeight& w : report.weights) {
    if (w.half_bits == 0) continue;
    ++quantized;
    BOOST_TEST(
        w.half_bits == (w.name == "head" || w.name.find(".attn.") != std::string::npos ? 12 : 10),
        w.name);
    BOOST_TEST(w.nmse < (w.half_bits == 12 ? 0.0006 : 0.0025), w.name);
    BOOST_TEST(w.used_moments == (w.name == "head" || (w.name.starts_with("layers.2.ffn.") &&
                                                       !w.name.ends_with(".w2"))),
               w.name);
  }
  BOOST_TEST(weight_of(report, "layers.1.attn.indexer.wk").half_bits == 0);  // 32 rows
  BOOST_TEST(weight_of(report, "layers.1.attn.indexer.wk").bits_per_weight == 16.0);
  return quantized;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_pack_reads_back_as_what_was_quantized) {
  Scratch scratch;
  write_model(scratch.path / "in");
  write_moments(scratch.path / "moments.safetensors");
  PackRequest request = request_of(scratch);
  request.moments_path = (scratch.path / "moments.safetensors").string();
  request.shard_bytes_max = 300'000;
  size_t progressed = 0;
  auto report = quantize_pack(request, [&](const PackedWeight&) { ++progressed; });
  BOOST_REQUIRE_MESSAGE(report.ok(), report.status().message());
  BOOST_TEST(report->files > 2);
  BOOST_TEST(report->converted_tables == 1);
  BOOST_TEST(fs::exists(scratch.path / "out" / "model.safetensors.index.json"));

  const size_t quantized = check_report(*report);
  BOOST_TEST(progressed == quantized);

  // Tensor for tensor against a fresh quantization.
  auto pack = Safetensors::open(request.out);
  BOOST_REQUIRE(pack.ok());
  auto moments = MomentsFile::open(request.moments_path);
  BOOST_REQUIRE(moments.ok());
  auto head_moments = moments->find("head", 128);
  BOOST_REQUIRE(head_moments.ok());
  BOOST_REQUIRE(head_moments->has_value());
  check_layer_of_pack(*pack, "head", source_values(request.in, "head"), 256, 128, 12,
                      &**head_moments);
  check_layer_of_pack(*pack, "layers.0.ffn.experts.1.w2",
                      source_values(request.in, "layers.0.ffn.experts.1.w2"), 128, 128, 10,
                      nullptr);
  const TensorInfo* marker = pack->find("head.mul1");
  BOOST_REQUIRE(marker != nullptr);
  uint32_t value = 0;
  BOOST_REQUIRE(pack->read(*marker, 0, std::as_writable_bytes(std::span(&value, 1))).ok());
  BOOST_TEST(value == kMul1Multiplier);
  BOOST_TEST(pack->find("head.weight") == nullptr);
  BOOST_TEST(pack->find("layers.0.attn.wo_a.slice.1.trellis") != nullptr);
  BOOST_TEST(pack->find("layers.0.attn.wo_a.weight") == nullptr);
  BOOST_TEST(pack->find("vision.norm.weight") != nullptr);

  // Through the loader: every weight is there, and near its source.
  auto source = WeightSource::open({.model_path = request.out,
                                    .engram_path = {},
                                    .prepared_path = {},
                                    .rank = 0,
                                    .world_size = 1,
                                    .engram_cache_rows = 16});
  BOOST_REQUIRE_MESSAGE(source.ok(), source.status().message());
  auto loaded = (*source)->load("head");
  BOOST_REQUIRE(loaded.ok());
  BOOST_TEST((loaded->kind == WeightKind::kExl3));
  std::vector<float> back(256 * 128);
  dequantize(*loaded, back);
  const auto head = source_values(request.in, "head");
  double error = 0, energy = 0;
  for (size_t i = 0; i < head.size(); ++i) {
    const double d = static_cast<double>(back[i]) - static_cast<double>(head[i]);
    error += d * d;
    energy += static_cast<double>(head[i]) * static_cast<double>(head[i]);
  }
  BOOST_TEST(error / energy == weight_of(*report, "head").nmse);
  BOOST_TEST((source_values(request.in, "layers.1.attn.indexer.wk") ==
              source_values(request.out, "layers.1.attn.indexer.wk")));
  BOOST_TEST((source_values(request.in, "embed") == source_values(request.out, "embed")));
}

BOOST_AUTO_TEST_CASE(tables_configuration_and_side_files_of_a_pack) {
  Scratch scratch;
  write_model(scratch.path / "in");
  PackRequest request = request_of(scratch);
  request.out += "/";  // a trailing slash names the same folder
  request.bits.codebook = Codebook::k3inst;
  request.bits.bits = 8;
  request.bits.attention = 8;
  request.bits.head = 16;
  auto report = quantize_pack(request);
  BOOST_REQUIRE_MESSAGE(report.ok(), report.status().message());
  BOOST_TEST(report->files == 1);
  BOOST_TEST(report->average_bits == 8.0);

  auto before = Safetensors::open(request.in), after = Safetensors::open(request.out);
  BOOST_REQUIRE(before.ok());
  BOOST_REQUIRE(after.ok());
  BOOST_TEST(after->find("head.weight") != nullptr);
  BOOST_TEST(after->find("layers.0.attn.wq_a.trellis") != nullptr);
  for (const TensorInfo& t : after->tensors()) {
    BOOST_TEST(!t.name.ends_with(".mul1"));
    BOOST_TEST(!t.name.ends_with(".mcg"));
  }
  // The table: e4m3 rows within half a step of the values.
  const std::string name = "layers.1.engram.embed";
  const TensorInfo* table = after->find(name + ".weight");
  const TensorInfo* scale = after->find(name + ".scale");
  BOOST_REQUIRE(table != nullptr);
  BOOST_REQUIRE(scale != nullptr);
  BOOST_TEST((table->dtype == DType::kF8E4M3));
  BOOST_TEST((scale->dtype == DType::kF8E8M0));
  BOOST_TEST(scale->bytes == 1060);
  std::vector<uint8_t> codes(1060 * 32), scales(1060);
  std::vector<uint16_t> values(1060 * 32);
  BOOST_REQUIRE(after->read(*table, 0, std::as_writable_bytes(std::span(codes))).ok());
  BOOST_REQUIRE(after->read(*scale, 0, std::as_writable_bytes(std::span(scales))).ok());
  BOOST_REQUIRE(
      before->read(*before->find(name + ".weight"), 0, std::as_writable_bytes(std::span(values)))
          .ok());
  double error = 0, energy = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double v = static_cast<double>(bf16_to_fp32(values[i]));
    const double q = static_cast<double>(fp8_e4m3_to_fp32(codes[i])) *
                     static_cast<double>(ue8m0_to_fp32(scales[i / 32]));
    BOOST_REQUIRE(std::abs(q - v) <=
                  std::abs(v) / 16 + static_cast<double>(ue8m0_to_fp32(scales[i / 32])) / 1024);
    error += (q - v) * (q - v);
    energy += v * v;
  }
  BOOST_TEST(error / energy < 0.0015);

  auto config = parse_json(read_file(fs::path(request.out) / "config.json"));
  BOOST_REQUIRE(config.ok());
  const Json* q = config->find("quantization_config");
  BOOST_REQUIRE(q != nullptr);
  BOOST_TEST(q->find("quant_method")->as_string() == "exl3");
  BOOST_TEST(q->find("codebook")->as_string() == "3inst");
  BOOST_TEST(q->find("bits")->as_double() == 8.0);
  BOOST_TEST(*q->find("head_bits")->as_int64() == 16);
  BOOST_TEST(q->find("original_quantization_config")->find("quant_method")->as_string() == "none");
  BOOST_TEST(config->find("text_config")->find("hidden_size") != nullptr);
  for (const char* file : {"tokenizer.json", "engram_token_map.i32"}) {
    BOOST_TEST(read_file(fs::path(request.in) / file) == read_file(fs::path(request.out) / file));
  }
  BOOST_TEST(!fs::exists(fs::path(request.out) / ".hidden"));
  BOOST_TEST(entries_of(scratch.path) == 2u);
}

BOOST_AUTO_TEST_CASE(failures_name_the_cause_and_leave_nothing) {
  Scratch scratch;
  write_model(scratch.path / "in", "layers.0.attn.wq_b");
  PackRequest request = request_of(scratch);
  request.bits.bits = 8;
  request.bits.attention = 8;
  auto message = [](const PackRequest& r) {
    auto report = quantize_pack(r);
    BOOST_REQUIRE(!report.ok());
    return report.status().message();
  };
  const std::string poisoned = message(request);
  BOOST_TEST(poisoned.find("layers.0.attn.wq_b") != std::string::npos);
  BOOST_TEST(poisoned.find("model.safetensors") != std::string::npos);
  BOOST_TEST(entries_of(scratch.path) == 1u);

  PackRequest other = request;
  other.out = request.in;
  BOOST_TEST(message(other).find("exists already") != std::string::npos);
  other = request;
  other.bits.attention = 9;
  BOOST_TEST(message(other).find("attention bits = 9") != std::string::npos);
  other = request;
  other.threads = 0;
  BOOST_TEST(message(other).find("threads") != std::string::npos);
  other = request;
  other.in = (scratch.path / "nowhere").string();
  BOOST_TEST(message(other).find("nowhere") != std::string::npos);
  // Moments of the wrong size are found before any work is done.
  write_moments(scratch.path / "moments.safetensors", 64);
  other = request;
  other.moments_path = (scratch.path / "moments.safetensors").string();
  BOOST_TEST(message(other).find("head.hessian") != std::string::npos);
  BOOST_TEST(entries_of(scratch.path) == 2u);
}

}  // namespace tensorfold::exl3
