#include "tests/engine/weights/weights_support.h"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <fstream>
#include <random>

#include "engine/base/half.h"
#include "engine/weights/engram_constants.h"
#include "engine/weights/token_map.h"

namespace tensorfold::test {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Random bytes of one kind each; the same everywhere for the same seed.
class Source {
 public:
  explicit Source(uint32_t seed) : random_(seed) {}
  uint32_t word() { return static_cast<uint32_t>(random_()); }
  template <typename T>
  std::string values(int64_t count, const std::function<T()>& next) {
    std::string bytes(static_cast<size_t>(count) * sizeof(T), '\0');
    for (int64_t i = 0; i < count; ++i) {
      const T value = next();
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
    }
    return bytes;
  }
  float real() { return (static_cast<float>(word() >> 8) / 8388608.0f - 1.0f) * 0.5f; }
  std::string bf16(int64_t n) {
    return values<uint16_t>(n, [&] { return fp32_to_bf16(real()); });
  }
  std::string f16(int64_t n) {
    return values<uint16_t>(n, [&] { return fp32_to_fp16(real() + (word() & 1 ? 1.0f : -1.0f)); });
  }
  std::string f32(int64_t n) {
    return values<float>(n, [&] { return real(); });
  }
  std::string e4m3(int64_t n) {  // every byte but the NaNs
    return values<uint8_t>(n, [&] {
      const auto byte = static_cast<uint8_t>(word() >> 7);
      return (byte & 0x7F) == 0x7F ? uint8_t{0} : byte;
    });
  }
  std::string scales(int64_t n) {
    return values<uint8_t>(n, [&] { return static_cast<uint8_t>(115 + (word() >> 9) % 12); });
  }
  std::string any(int64_t n) {
    return values<uint8_t>(n, [&] { return static_cast<uint8_t>(word() >> 5); });
  }

 private:
  std::mt19937 random_;
};

std::string one_i32(uint32_t value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

std::vector<Tensor> exl3_tensors(const std::string& name, int64_t out, int64_t in,
                                 const std::string& kind, bool old_signs, Source& source) {
  const size_t dash = kind.find('-', 5);  // "exl3-<half bits>-<codebook>"
  const int half_bits = std::stoi(kind.substr(5, dash - 5));
  const std::string codebook = kind.substr(dash + 1);
  const int64_t pk = round_up(in, 128), pn = round_up(out, 128);
  std::vector<Tensor> list;
  list.push_back({name + ".trellis",
                  DType::kI16,
                  {pk / 16, pn / 16, 8 * half_bits},
                  source.any(pk * pn / 256 * 16 * half_bits)});
  if (old_signs) {
    list.push_back({name + ".su", DType::kI16, {pk / 16}, source.any(pk / 8)});
    list.push_back({name + ".sv", DType::kI16, {pn / 16}, source.any(pn / 8)});
  } else {
    list.push_back({name + ".suh", DType::kF16, {pk}, source.f16(pk)});
    list.push_back({name + ".svh", DType::kF16, {pn}, source.f16(pn)});
  }
  const uint32_t marker = exl3::codebook_marker(*exl3::codebook_by_name(codebook));
  if (marker != 0) list.push_back({name + "." + codebook, DType::kI32, {}, one_i32(marker)});
  return list;
}

}  // namespace

void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  BOOST_REQUIRE(file.good());
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  BOOST_REQUIRE_MESSAGE(file.good(), path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_raw_safetensors(const std::string& path, std::string_view header,
                           std::string_view data) {
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  write_file(path, bytes.append(header).append(data));
}

void write_safetensors(const std::string& path, const std::vector<Tensor>& tensors) {
  std::vector<SafetensorsWriter::Declaration> declarations;
  for (const Tensor& t : tensors) declarations.push_back({t.name, t.dtype, t.shape});
  auto writer = SafetensorsWriter::create(path, declarations);
  BOOST_REQUIRE_MESSAGE(writer.ok(), writer.status().message());
  for (const Tensor& t : tensors) {
    BOOST_REQUIRE((*writer)->append(std::as_bytes(std::span(t.bytes))).ok());
  }
  BOOST_REQUIRE((*writer)->commit().ok());
}

std::string small_config() {
  return R"({"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41",
 "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 498,
 "text_config": {"vocab_size": 500, "hidden_size": 256, "moe_intermediate_size": 256,
 "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 128, "qk_rope_head_dim": 64,
 "q_lora_rank": 128, "o_lora_rank": 128, "o_groups": 2, "swiglu_limit": 10.0,
 "rms_norm_eps": 1e-20, "max_position_embeddings": 4096, "rope_theta": 10000,
 "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                  "original_max_position_embeddings": 256},
 "n_routed_experts": 4, "num_experts_per_tok": 2, "routed_scaling_factor": 1.5,
 "sliding_window": 128, "compress_ratios": [0, 2, 1, 1, 0], "compress_rope_theta": 160000,
 "kv_source_layer_ids": [1, 2], "index_source_layer_ids": [1, 2, 3], "index_n_heads": 2,
 "index_head_dim": 64, "index_topk": 16, "candidate_source_layer_id": 2,
 "candidate_topk_blocks": 4, "candidate_block_size": 8, "engram_layer_ids": [1],
 "engram_num_embeddings": [1248], "engram_max_ngram_size": 3, "engram_vocab_size": 300,
 "engram_n_heads": 2, "engram_head_dim": 64, "engram_pad_token_id": 2,
 "engram_compressed_vocab_size": 400, "num_nextn_predict_layers": 1, "dspark_block_size": 5,
 "dspark_noise_token_id": 499, "dspark_target_layer_ids": [2, 3], "dspark_markov_rank": 32,
 "dspark_n_routed_experts": 2, "dspark_num_experts_per_tok": 1}})";
}

ModelConfig small_model_config() {
  const Result<Json> json = parse_json(small_config());
  BOOST_REQUIRE(json.ok());
  const Result<ModelConfig> config = parse_model_config(*json);
  BOOST_REQUIRE_MESSAGE(config.ok(), config.status().message());
  return *config;
}

std::vector<Tensor> weight_tensors(const WeightSpec& spec, const std::string& kind,
                                   const StoragePlan& plan, uint32_t seed) {
  Source source(seed);
  const int64_t out = spec.out, in = spec.in;
  const std::string name = spec.name + (spec.bare ? "" : ".weight");
  std::vector<int64_t> shape = {out};
  if (!spec.vector) shape.push_back(in);
  if (kind == "bf16") return {{name, DType::kBf16, shape, source.bf16(out * in)}};
  if (kind == "f16") return {{name, DType::kF16, shape, source.f16(out * in)}};
  if (kind == "f32") return {{name, DType::kF32, shape, source.f32(out * in)}};
  const int64_t scale_in = round_up(in, 32) / 32;
  if (kind == "fp8" || kind == "fp8-rows") {
    const int64_t scale_out = kind == "fp8" ? round_up(out, 32) / 32 : out;
    const DType type = kind == "fp8" ? DType::kF8E8M0 : DType::kU8;
    const std::string suffix = kind == "fp8" ? ".scale" : ".weight_scale";
    return {{name, DType::kF8E4M3, shape, source.e4m3(out * in)},
            {spec.name + suffix, type, {scale_out, scale_in}, source.scales(scale_out * scale_in)}};
  }
  if (kind == "fp4") {
    return {{name, DType::kI8, {out, in / 2}, source.any(out * in / 2)},
            {spec.name + ".scale", DType::kF8E8M0, {out, scale_in}, source.scales(out * scale_in)}};
  }
  BOOST_REQUIRE_MESSAGE(kind.starts_with("exl3-"), kind);
  return exl3_tensors(spec.name, out, in, kind, plan.old_signs, source);
}

std::vector<Tensor> model_tensors(const std::string& config, const StoragePlan& plan) {
  const Result<ModelConfig> model = parse_model_config(*parse_json(config));
  BOOST_REQUIRE_MESSAGE(model.ok(), model.status().message());
  std::vector<Tensor> tensors;
  uint32_t seed = plan.seed * 7919;
  const auto add = [&](std::vector<Tensor> more) {
    for (Tensor& t : more) tensors.push_back(std::move(t));
  };
  for (const WeightSpec& spec : weight_table(*model)) {
    const bool plain = spec.weight_class == WeightClass::kPlain;
    const std::string kind = plain ? (spec.bare ? "f32" : "bf16")
                             : spec.weight_class == WeightClass::kExpert ? plan.expert
                                                                         : plan.matrix;
    ++seed;
    if (spec.group_rows == 0 || !plan.wo_a_slices) {
      add(weight_tensors(spec, kind, plan, seed));
      continue;
    }
    for (int64_t g = 0; g < spec.out / spec.group_rows; ++g) {
      WeightSpec slice = spec;
      slice.name += ".slice." + std::to_string(g);
      slice.out = spec.group_rows;
      add(weight_tensors(slice, kind, plan, seed + 1000 + static_cast<uint32_t>(g)));
    }
  }
  for (size_t i = 0; i < model->engram.layers.size(); ++i) {
    WeightSpec table;
    table.name = engram_table_name(*model, static_cast<int>(i));
    table.out = model->engram.table_rows[i];
    table.in = model->engram.row_width;
    std::vector<Tensor> rows =
        weight_tensors(table, plan.tables_fp8 ? "fp8-rows" : "bf16", plan, ++seed);
    if (rows.size() == 2) {
      rows[1].name = table.name + ".scale";
      rows[1].dtype = DType::kF8E8M0;
    }
    add(std::move(rows));
  }
  return tensors;
}

namespace {

void write_side_files(const std::string& folder, const std::string& config) {
  std::filesystem::create_directories(folder);
  write_file(folder + "/config.json", config);
  const ModelConfig model = *parse_model_config(*parse_json(config));
  if (model.engram.layers.empty()) return;
  std::string map;
  for (int32_t token = 0; token < model.vocab_size; ++token) {
    map += one_i32(static_cast<uint32_t>(token % model.engram.compressed_vocab_size));
  }
  write_file(folder + "/" + kTokenMapFileName, map);
}

}  // namespace

void write_model(const std::string& folder, const std::string& config,
                 const std::vector<Tensor>& tensors) {
  write_side_files(folder, config);
  write_safetensors(folder + "/model.safetensors", tensors);
}

void write_sharded_model(const std::string& folder, const std::string& config,
                         const std::vector<Tensor>& tensors, size_t shards) {
  write_side_files(folder, config);
  std::string map;
  for (size_t s = 0; s < shards; ++s) {
    const std::string name =
        "model-0000" + std::to_string(s + 1) + "-of-0000" + std::to_string(shards) + ".safetensors";
    std::vector<Tensor> part;
    for (size_t i = s; i < tensors.size(); i += shards) {
      part.push_back(tensors[i]);
      map += (map.empty() ? "\"" : ", \"") + tensors[i].name + "\": \"" + name + "\"";
    }
    write_safetensors(folder + "/" + name, part);
  }
  write_file(folder + "/model.safetensors.index.json",
             "{\"metadata\": {}, \"weight_map\": {" + map + "}}");
}

Tensor& tensor_named(std::vector<Tensor>& tensors, std::string_view name) {
  for (Tensor& t : tensors) {
    if (t.name == name) return t;
  }
  BOOST_REQUIRE_MESSAGE(false, "no tensor " << name);
  return tensors.front();
}

}  // namespace tensorfold::test
