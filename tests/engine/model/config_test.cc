// config.json: both sets of key names, the roles of layers, and every kind of contradiction by
// name.
#include "engine/model/config.h"

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <iterator>

namespace tensorfold {
namespace {

const std::string kData = std::string(TF_TEST_DATA) + "/";

Json read(const std::string& name) {
  std::ifstream file(kData + name);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const Result<Json> json = parse_json(text);
  BOOST_REQUIRE_MESSAGE(json.ok(), name);
  return *json;
}

ModelConfig published() {
  const Result<ModelConfig> config = parse_model_config(read("weights/config_published.json"));
  BOOST_REQUIRE_MESSAGE(config.ok(), config.status().message());
  return *config;
}

// Who reads whose entries and lists, written out from the model's description.
void check_published_roles(const ModelConfig& c) {
  BOOST_TEST(c.decoder_start == 20);
  BOOST_TEST(c.cone_rows() == 2541);
  BOOST_REQUIRE_EQUAL(c.roles.size(), 40U);
  for (int layer = 0; layer < 40; ++layer) {
    BOOST_TEST_CONTEXT("layer " << layer) {
      const LayerRole& role = c.roles[static_cast<size_t>(layer)];
      BOOST_TEST(role.ratio == (layer < 2 ? 0 : layer < 20 ? 2 : 1));
      BOOST_TEST(role.is_decoder == (layer >= 20));
      const int kv = layer < 2 ? -1 : layer < 8 ? 2 : layer < 14 ? 8 : layer < 20 ? 14 : 20;
      BOOST_TEST(role.kv_source == kv);
      BOOST_TEST(role.index_source == (layer < 24 ? kv : layer / 4 * 4));
      BOOST_TEST(role.owns_kv(layer) == (kv == layer));
      BOOST_TEST(role.builds_candidates == (layer == 20));
      BOOST_TEST(role.uses_candidates == (layer > 20 && layer % 4 == 0));
      BOOST_TEST(role.engram == (layer == 1 ? 0 : layer == 14 ? 1 : -1));
      BOOST_TEST(role.tap == (layer >= 37 ? layer - 37 : -1));
    }
  }
}

void check_published_sizes(const ModelConfig& c) {
  BOOST_TEST(c.hidden == 5120);
  BOOST_TEST(c.heads == 64);
  BOOST_TEST(c.q_lora_rank == 1280);
  BOOST_TEST(c.moe_intermediate == 2304);
  BOOST_TEST(c.routed_experts == 384);
  BOOST_TEST(c.experts_per_token == 6);
  BOOST_TEST(c.norm_eps == 1e-20);
  BOOST_TEST(c.route_scale == 1.5);
  BOOST_TEST(c.gate_temp == 1.0);
  BOOST_TEST(c.max_positions == 1048576);
  BOOST_TEST(c.yarn.factor == 16.0);
  BOOST_TEST(c.yarn.original_positions == 65536);
  BOOST_TEST(c.compress_rope_theta == 160000.0);
  BOOST_TEST(c.engram.columns() == 24);
  BOOST_TEST(c.engram.table_rows[1] == 384016682);
  BOOST_TEST(c.dspark.stages == 3);
  BOOST_TEST(c.dspark.experts_per_token == 3);
  BOOST_TEST(c.dspark.noise_token_id == 128799);
  BOOST_TEST(c.image_token_id == 129264);
}

BOOST_AUTO_TEST_CASE(published_names_nested_under_text_config) {
  check_published_roles(published());
  check_published_sizes(published());
}

BOOST_AUTO_TEST_CASE(inference_names_give_the_same_model) {
  const Result<ModelConfig> config = load_model_config(kData + "weights/config_inference.json");
  BOOST_REQUIRE_MESSAGE(config.ok(), config.status().message());
  check_published_roles(*config);
  check_published_sizes(*config);
}

BOOST_AUTO_TEST_CASE(flat_published_names_give_the_same_model) {
  Json nested = read("weights/config_published.json");
  Json flat = *nested.find("text_config");
  flat.set("image_token_id", Json::integer(129264));
  flat.set("model_type", Json::string("deepseek_v41"));
  const Result<ModelConfig> config = parse_model_config(flat);
  BOOST_REQUIRE_MESSAGE(config.ok(), config.status().message());
  check_published_roles(*config);
  check_published_sizes(*config);
}

BOOST_AUTO_TEST_CASE(the_recorded_small_model) {
  const Result<ModelConfig> config = load_model_config(kData + "golden/mini_native/config.json");
  BOOST_REQUIRE_MESSAGE(config.ok(), config.status().message());
  BOOST_TEST(config->decoder_start == 5);
  BOOST_TEST(config->roles[4].kv_source == 2);
  BOOST_TEST(config->roles[8].kv_source == 5);
  BOOST_TEST(config->roles[8].index_source == 7);
  BOOST_TEST(config->roles[9].uses_candidates);
  BOOST_TEST(config->roles[4].engram == 1);
}

struct Change {
  const char* key;    // in text_config; "" for none
  const char* value;  // JSON; nullptr removes the key
  const char* said;
};

const Change kContradictions[] = {
    {"hidden_size", nullptr, "hidden_size is missing"},
    {"rms_norm_eps", nullptr, "rms_norm_eps is missing"},
    {"compress_ratios", nullptr, "compress_ratios is missing"},
    {"engram_n_heads", nullptr, "engram_n_heads is missing"},
    {"dspark_markov_rank", nullptr, "dspark_markov_rank is missing"},
    {"hidden_size", "\"5120\"", "hidden_size is not an integer"},
    {"hidden_size", "5120.5", "hidden_size is not an integer"},
    {"hidden_size", "-5120", "hidden_size is -5120, not in"},
    {"hidden_size", "1e300", "hidden_size is not an integer"},
    {"dim", "4096", "hidden_size and dim disagree"},
    {"kv_source_layers", "[2, 8]", "kv_source_layer_ids and kv_source_layers disagree"},
    {"num_hidden_layers", "300", "num_hidden_layers is 300"},
    {"num_hidden_layers", "41", "compress_ratios has 43 entries for 41 layers"},
    {"compress_ratios", "[0, 0, 2]", "compress_ratios has 3 entries for 40 layers and 3 drafter"},
    {"compress_ratios", "[4]", "compress_ratios[0] is 4"},
    {"kv_source_layer_ids", "[]", "kv_source_layer_ids is empty"},
    {"kv_source_layer_ids", "[2, 8, 8, 20]", "kv_source_layer_ids is not ascending"},
    {"kv_source_layer_ids", "[1, 8, 14, 20]", "layer 1 has ratio 0 but is a KV or index source"},
    {"kv_source_layer_ids", "[2, 8, 14]", "layer 20 has another ratio than its KV source"},
    {"kv_source_layer_ids", "[3, 8, 14, 20]", "layer 2 has a ratio but no KV or index source"},
    {"index_source_layer_ids", "[2, 8, 14, 24, 28, 32, 36]", "layer 20 would read top-k lists"},
    {"kv_source_layer_ids", "[2, 8, 14, 40]", "kv_source_layer_ids[3] is 40"},
    {"candidate_source_layer_id", "21", "candidate_source_layer_id is not an index source"},
    {"candidate_source_layer_id", "14", "reads another KV source"},
    {"candidate_topk_blocks", nullptr, "candidate_topk_blocks is missing"},
    {"num_attention_heads", "60", "num_attention_heads is not a multiple of o_groups"},
    {"qk_rope_head_dim", "63", "qk_rope_head_dim is odd"},
    {"qk_rope_head_dim", "128", "qk_rope_head_dim is 128"},
    {"head_dim", "32", "qk_rope_head_dim is above head_dim"},
    {"head_dim", "500", "head_dim is not a multiple of 32"},
    {"num_experts_per_tok", "385", "num_experts_per_tok is above n_routed_experts"},
    {"n_shared_experts", "2", "n_shared_experts is 2"},
    {"engram_layer_ids", "[1]", "have different lengths"},
    {"engram_layer_ids", "[14, 1]", "engram_layer_ids is not ascending"},
    {"engram_layer_ids", "[1, 40]", "engram_layer_ids[1] is 40"},
    {"engram_compressed_vocab_size", "129281", "engram_compressed_vocab_size is 129281"},
    {"dspark_target_layer_ids", "[]", "dspark_target_layer_ids is empty"},
    {"dspark_noise_token_id", "129280", "dspark_noise_token_id is 129280"},
    {"dspark_num_experts_per_tok", "129", "dspark_num_experts_per_tok is above"},
    {"scoring_func", "\"sigmoid\"", "scoring_func is \"sigmoid\""},
    {"norm_topk_prob", "false", "norm_topk_prob is false"},
    {"tie_word_embeddings", "true", "tie_word_embeddings is true"},
    {"num_key_value_heads", "8", "num_key_value_heads is 8"},
    {"rope_scaling", "{\"rope_type\": \"linear\"}", "only yarn"},
    {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 0.5}", "rope_scaling.factor"},
    {"swiglu_limit", "\"10\"", "swiglu_limit is not a number"},
    {"architectures", "[\"DeepseekV4ForCausalLM\"]", "architectures names DeepseekV4ForCausalLM"},
};

BOOST_AUTO_TEST_CASE(contradictions_are_named) {
  for (const Change& change : kContradictions) {
    BOOST_TEST_CONTEXT(change.key << " = " << (change.value ? change.value : "(removed)")) {
      Json config = read("weights/config_published.json");
      Json text = *config.find("text_config");
      if (change.value != nullptr) {
        text.set(change.key, *parse_json(change.value));
      } else {
        std::erase_if(text.as_object(),
                      [&](const Json::Member& member) { return member.first == change.key; });
      }
      config.set("text_config", text);
      const Result<ModelConfig> parsed = parse_model_config(config);
      BOOST_REQUIRE(!parsed.ok());
      BOOST_TEST(parsed.status().message().find(change.said) != std::string::npos,
                 parsed.status().message());
    }
  }
}

BOOST_AUTO_TEST_CASE(values_that_may_be_written_otherwise) {
  Json config = read("weights/config_published.json");
  config.set("eos_token_id", *parse_json("[7, 1]"));
  config.set("future_key", *parse_json("{\"x\": [1]}"));
  Json text = *config.find("text_config");
  text.set("hidden_size", *parse_json("5120.0"));
  text.set("image_token_id", Json::null());
  text.set("gate_temp", *parse_json("2"));
  config.set("text_config", text);
  const Result<ModelConfig> parsed = parse_model_config(config);
  BOOST_REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
  BOOST_TEST(parsed->eos_token_id == 7);
  BOOST_TEST(parsed->hidden == 5120);
  BOOST_TEST(parsed->image_token_id == 129264);
  BOOST_TEST(parsed->gate_temp == 2.0);
}

BOOST_AUTO_TEST_CASE(errors_name_the_file) {
  const Result<ModelConfig> none = load_model_config("/nonexistent/config.json");
  BOOST_REQUIRE(!none.ok());
  BOOST_TEST(none.status().message().find("/nonexistent/config.json") != std::string::npos);
  const Result<ModelConfig> text = load_model_config(kData + "golden/README.md");
  BOOST_REQUIRE(!text.ok());
  BOOST_TEST(text.status().message().find("README.md") != std::string::npos);
  BOOST_TEST(!parse_model_config(Json::array({})).ok());
  BOOST_TEST(!parse_model_config(*parse_json("{\"text_config\": 3}")).ok());
}

}  // namespace
}  // namespace tensorfold
