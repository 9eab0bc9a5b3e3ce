// Reads config.json into a ModelConfig. Owns nothing; runs once per load, on the loading thread.
//
// Every key is one row of a table with both of its names and its bounds, so a missing, misspelt or
// absurd value is reported by name. What one key says must agree with the others: the lists of
// layers, ratios and tables are cross-checked here and trusted afterwards. Does not look at
// weights.
#include "engine/model/config.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>

namespace tensorfold {
namespace {

constexpr int64_t kConfigFileMax_bytes = 16 << 20;
constexpr int64_t kDimensionMax = int64_t{1} << 24;  // any width or count of a layer
constexpr int64_t kTableRowsMax = int64_t{1} << 40;  // rows of an Engram table
constexpr int64_t kPositionsMax = int64_t{1} << 31;  // positions of a sequence
constexpr int64_t kRopeDimMax = 64;                  // kernels/: angles of one head

// A key under its published and its inference name, looked up in text_config, then at the top.
class Reader {
 public:
  explicit Reader(const Json& root) : root_(root), text_(root.find("text_config")) {
    if (text_ != nullptr && !text_->is_object()) text_ = nullptr;
    rope_ = object("rope_scaling");
    if (rope_ == nullptr) rope_ = object("rope_parameters");
  }

  const Json* rope() const { return rope_; }

  const Json* find(std::string_view key) const {
    for (const Json* level : {text_, &root_}) {
      if (level == nullptr) continue;
      const Json* value = level->find(key);
      if (value != nullptr && !value->is_null()) return value;
    }
    return nullptr;
  }

  // The value under either name; both present must be equal.
  const Json* find_either(std::string_view published, std::string_view inference) {
    const Json* a = find(published);
    const Json* b = inference.empty() ? nullptr : find(inference);
    if (a != nullptr && b != nullptr && !(*a == *b)) {
      fail(std::string(published) + " and " + std::string(inference) + " disagree");
    }
    return a != nullptr ? a : b;
  }

  // `rope_key`: the name inside rope_scaling, which goes first.
  const Json* find_rope(std::string_view rope_key, std::string_view flat) {
    if (rope_ != nullptr) {
      const Json* value = rope_->find(rope_key);
      if (value != nullptr && !value->is_null()) return value;
    }
    return flat.empty() ? nullptr : find(flat);
  }

  template <typename T>
  void integer(std::string_view published, std::string_view inference, int64_t low, int64_t high,
               T& out, bool required = true) {
    take_integer(published, find_either(published, inference), low, high, out, required);
  }

  template <typename T>
  void take_integer(std::string_view name, const Json* value, int64_t low, int64_t high, T& out,
                    bool required) {
    if (value == nullptr) {
      if (required) fail(std::string(name) + " is missing");
      return;
    }
    const std::optional<int64_t> n = whole(*value);
    if (!n.has_value()) return fail(std::string(name) + " is not an integer");
    if (*n < low || *n > high) {
      return fail(std::string(name) + " is " + std::to_string(*n) + ", not in " +
                  std::to_string(low) + ".." + std::to_string(high));
    }
    out = static_cast<T>(*n);
  }

  void real(std::string_view name, const Json* value, double low, double high, double& out,
            bool required) {
    if (value == nullptr) {
      if (required) fail(std::string(name) + " is missing");
      return;
    }
    if (!value->is_number()) return fail(std::string(name) + " is not a number");
    const double v = value->as_double();
    if (!(v >= low && v <= high)) return fail(std::string(name) + " is out of range");
    out = v;
  }

  template <typename T>
  void integers(std::string_view published, std::string_view inference, int64_t low, int64_t high,
                std::vector<T>& out, bool required) {
    const Json* value = find_either(published, inference);
    const std::string name(published);
    if (value == nullptr) {
      if (required) fail(name + " is missing");
      return;
    }
    if (!value->is_array()) return fail(name + " is not a list");
    if (value->as_array().size() > static_cast<size_t>(kLayersMax)) {
      return fail(name + " has more than " + std::to_string(kLayersMax) + " entries");
    }
    for (const Json& item : value->as_array()) {
      T entry = 0;
      take_integer(name + "[" + std::to_string(out.size()) + "]", &item, low, high, entry, true);
      out.push_back(entry);
    }
  }

  // A key that, when present, must say what this program computes.
  void must_be(std::string_view published, std::string_view inference, const Json& expected) {
    const Json* value = find_either(published, inference);
    if (value == nullptr || *value == expected) return;
    if (value->is_number() && expected.is_number() && value->as_double() == expected.as_double()) {
      return;
    }
    fail(std::string(published) + " is " + dump_json_compact(*value) + "; only " +
         dump_json_compact(expected) + " is supported");
  }

  void fail(std::string message) {
    if (first_error_.empty()) first_error_ = std::move(message);
  }
  void check(bool holds, std::string_view message) {
    if (!holds) fail(std::string(message));
  }
  bool failed() const { return !first_error_.empty(); }
  Status status() const {
    return first_error_.empty() ? ok_status() : invalid_argument("config: " + first_error_);
  }

 private:
  static std::optional<int64_t> whole(const Json& value) {
    if (value.is_int()) return value.as_int64();
    if (!value.is_number()) return std::nullopt;
    const double v = value.as_double();
    if (!(std::abs(v) < 9e15) || v != std::floor(v)) return std::nullopt;
    return static_cast<int64_t>(v);
  }
  const Json* object(std::string_view key) const {
    const Json* value = find(key);
    return value != nullptr && value->is_object() ? value : nullptr;
  }

  const Json& root_;
  const Json* text_;
  const Json* rope_ = nullptr;
  std::string first_error_;
};

void read_architecture(Reader& in, ModelConfig& c) {
  c.architecture = "DeepseekV41ForCausalLM";
  if (const Json* list = in.find("architectures"); list != nullptr) {
    const bool one =
        list->is_array() && list->as_array().size() == 1 && list->as_array()[0].is_string();
    if (!one) return in.fail("architectures is not a list of one name");
    if (list->as_array()[0].as_string() != c.architecture) {
      return in.fail("architectures names " + list->as_array()[0].as_string() + "; only " +
                     c.architecture + " is supported");
    }
  } else if (const Json* type = in.find("model_type"); type != nullptr) {
    const std::string name = type->is_string() ? type->as_string() : dump_json_compact(*type);
    if (name != "deepseek_v41" && name != "deepseek_v41_text") {
      in.fail("model_type is " + name + "; only deepseek_v41 is supported");
    }
  }
}

void read_fixed_choices(Reader& in) {
  in.must_be("scoring_func", "score_func", Json::string("sqrtsoftplus"));
  in.must_be("topk_method", "", Json::string("noaux_tc"));
  in.must_be("norm_topk_prob", "", Json::boolean(true));
  in.must_be("hidden_act", "", Json::string("silu"));
  in.must_be("tie_word_embeddings", "", Json::boolean(false));
  in.must_be("attention_bias", "", Json::boolean(false));
  in.must_be("num_key_value_heads", "", Json::integer(1));
  const Json* type = in.find_rope("rope_type", "");
  if (type == nullptr) type = in.find_rope("type", "");
  if (type != nullptr && !(*type == Json::string("yarn"))) {
    in.fail("rope_scaling.rope_type is " + dump_json_compact(*type) + "; only yarn is supported");
  }
}

void read_dimensions(Reader& in, ModelConfig& c) {
  in.integer("vocab_size", "", 1, kDimensionMax, c.vocab_size);
  in.integer("hidden_size", "dim", 32, kDimensionMax, c.hidden);
  in.integer("num_hidden_layers", "n_layers", 1, kLayersMax, c.layers);
  in.integer("num_attention_heads", "n_heads", 1, kDimensionMax, c.heads);
  in.integer("head_dim", "", 2, kDimensionMax, c.head_dim);
  in.integer("qk_rope_head_dim", "rope_head_dim", 2, kRopeDimMax, c.rope_dim);
  in.integer("q_lora_rank", "", 1, kDimensionMax, c.q_lora_rank);
  in.integer("o_groups", "", 1, kDimensionMax, c.o_groups);
  in.integer("o_lora_rank", "", 1, kDimensionMax, c.o_lora_rank);
  in.integer("sliding_window", "window_size", 1, kDimensionMax, c.window);
  in.integer("index_n_heads", "", 1, kDimensionMax, c.index_heads);
  in.integer("index_head_dim", "", 1, kDimensionMax, c.index_head_dim);
  in.integer("index_topk", "", 1, kDimensionMax, c.index_topk);
  in.integer("n_routed_experts", "", 1, kDimensionMax, c.routed_experts);
  in.integer("num_experts_per_tok", "n_activated_experts", 1, kDimensionMax, c.experts_per_token);
  in.integer("n_shared_experts", "", 1, 1, c.shared_experts, false);
  in.integer("moe_intermediate_size", "moe_inter_dim", 1, kDimensionMax, c.moe_intermediate);
  in.integer("hc_mult", "", 1, 16, c.hc_mult, false);
  in.integer("hc_sinkhorn_iters", "", 1, 1000, c.hc_sinkhorn_iters, false);
}

void read_numbers(Reader& in, ModelConfig& c) {
  constexpr double kHuge = 1e30;
  in.real("rms_norm_eps", in.find_either("rms_norm_eps", "norm_eps"), 0, 1, c.norm_eps, true);
  in.real("hc_eps", in.find("hc_eps"), 0, 1, c.hc_eps, false);
  in.real("routed_scaling_factor", in.find_either("routed_scaling_factor", "route_scale"), 0, kHuge,
          c.route_scale, false);
  in.real("gate_temp", in.find("gate_temp"), 1e-6, kHuge, c.gate_temp, false);
  in.real("swiglu_limit", in.find("swiglu_limit"), 0, kHuge, c.swiglu_limit, false);
  in.real("rope_theta", in.find_rope("rope_theta", "rope_theta"), 1, kHuge, c.rope_theta, false);
  in.real("compress_rope_theta", in.find_rope("compress_rope_theta", "compress_rope_theta"), 1,
          kHuge, c.compress_rope_theta, false);
  in.real("rope_scaling.factor", in.find_rope("factor", "rope_factor"), 1, kHuge, c.yarn.factor,
          false);
  in.real("rope_scaling.beta_fast", in.find_rope("beta_fast", "beta_fast"), 0, kHuge,
          c.yarn.beta_fast, false);
  in.real("rope_scaling.beta_slow", in.find_rope("beta_slow", "beta_slow"), 0, kHuge,
          c.yarn.beta_slow, false);
  in.take_integer("rope_scaling.original_max_position_embeddings",
                  in.find_rope("original_max_position_embeddings", "original_seq_len"), 1,
                  kPositionsMax, c.yarn.original_positions, false);
  // The inference config has no maximum: what YaRN stretches to is one.
  c.max_positions =
      static_cast<int64_t>(static_cast<double>(c.yarn.original_positions) * c.yarn.factor);
  in.integer("max_position_embeddings", "max_seq_len", 1, kPositionsMax, c.max_positions, false);
}

void read_token_ids(Reader& in, ModelConfig& c) {
  const int64_t last = c.vocab_size - 1;
  in.integer("bos_token_id", "", 0, last, c.bos_token_id, false);
  const Json* eos = in.find("eos_token_id");
  if (eos != nullptr && eos->is_array()) {
    if (eos->as_array().empty()) return in.fail("eos_token_id is an empty list");
    eos = &eos->as_array()[0];
  }
  in.take_integer("eos_token_id", eos, 0, last, c.eos_token_id, false);
  in.integer("pad_token_id", "", 0, last, c.pad_token_id, false);
  in.integer("image_token_id", "", -1, last, c.image_token_id, false);
  in.check(c.eos_token_id <= last && c.pad_token_id <= last, "vocab_size is below eos or pad");
}

bool ascending(const std::vector<int>& ids) {
  return std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
}

void read_engram(Reader& in, ModelConfig& c) {
  EngramConfig& e = c.engram;
  in.integers("engram_layer_ids", "", 0, c.layers - 1, e.layers, false);
  if (e.layers.empty()) return;
  in.check(ascending(e.layers), "engram_layer_ids is not ascending");
  in.integers("engram_num_embeddings", "", 1, kTableRowsMax, e.table_rows, true);
  in.check(e.table_rows.size() == e.layers.size(),
           "engram_num_embeddings and engram_layer_ids have different lengths");
  in.integer("engram_max_ngram_size", "", 2, 16, e.max_ngram, true);
  in.integer("engram_n_heads", "", 1, 256, e.heads, true);
  in.integer("engram_head_dim", "", 1, kDimensionMax, e.row_width, true);
  in.integer("engram_vocab_size", "", 2, int64_t{1} << 32, e.vocab_size, true);
  in.integer("engram_pad_token_id", "engram_pad_id", 0, c.vocab_size - 1, e.pad_token_id, false);
  in.integer("engram_compressed_vocab_size", "", 1, c.vocab_size, e.compressed_vocab_size, true);
  in.check(e.row_width % 32 == 0, "engram_head_dim is not a multiple of 32");
}

void read_dspark(Reader& in, ModelConfig& c) {
  DsparkConfig& d = c.dspark;
  in.integer("num_nextn_predict_layers", "n_mtp_layers", 0, kLayersMax, d.stages, false);
  if (d.stages == 0) return;
  in.integer("dspark_block_size", "", 1, 64, d.block_size, true);
  in.integer("dspark_noise_token_id", "", 0, c.vocab_size - 1, d.noise_token_id, true);
  in.integers("dspark_target_layer_ids", "", 0, c.layers - 1, d.target_layers, true);
  in.check(!d.target_layers.empty(), "dspark_target_layer_ids is empty");
  in.check(ascending(d.target_layers), "dspark_target_layer_ids is not ascending");
  in.integer("dspark_markov_rank", "", 1, kDimensionMax, d.markov_rank, true);
  in.integer("dspark_n_routed_experts", "", 1, kDimensionMax, d.routed_experts, true);
  in.integer("dspark_num_experts_per_tok", "dspark_n_activated_experts", 1, kDimensionMax,
             d.experts_per_token, true);
  in.check(d.experts_per_token <= d.routed_experts,
           "dspark_num_experts_per_tok is above dspark_n_routed_experts");
}

// The most recent source with id <= layer, or -1.
int source_of(const std::vector<int>& sources, int layer) {
  const auto after = std::upper_bound(sources.begin(), sources.end(), layer);
  return after == sources.begin() ? -1 : *(after - 1);
}

int position_of(const std::vector<int>& ids, int layer) {
  const auto it = std::find(ids.begin(), ids.end(), layer);
  return it == ids.end() ? -1 : static_cast<int>(it - ids.begin());
}

struct LayerLists {
  std::vector<int> ratios, kv_sources, index_sources;
  int candidate_source = -1;
};

void read_lists(Reader& in, ModelConfig& c, LayerLists& lists) {
  in.integers("compress_ratios", "", 0, 2, lists.ratios, true);
  in.integers("kv_source_layer_ids", "kv_source_layers", 0, c.layers - 1, lists.kv_sources, true);
  in.integers("index_source_layer_ids", "index_source_layers", 0, c.layers - 1, lists.index_sources,
              true);
  in.integer("candidate_source_layer_id", "candidate_source_layer", -1, c.layers - 1,
             lists.candidate_source, false);
  if (lists.candidate_source >= 0) {
    in.integer("candidate_topk_blocks", "", 1, kDimensionMax, c.candidate_blocks);
    in.integer("candidate_block_size", "", 1, kDimensionMax, c.candidate_block_size);
  }
  const size_t layers = static_cast<size_t>(c.layers);
  const size_t with_drafter = layers + static_cast<size_t>(c.dspark.stages);
  // A drafter that is switched off may have left its entries.
  const bool drafter_off = c.dspark.stages == 0 && lists.ratios.size() > layers;
  if (lists.ratios.size() != layers && lists.ratios.size() != with_drafter && !drafter_off) {
    in.fail("compress_ratios has " + std::to_string(lists.ratios.size()) + " entries for " +
            std::to_string(c.layers) + " layers and " + std::to_string(c.dspark.stages) +
            " drafter stages");
  }
  for (size_t i = layers; i < lists.ratios.size(); ++i) {
    in.check(lists.ratios[i] == 0, "compress_ratios of a drafter stage is not 0");
  }
  in.check(!lists.kv_sources.empty(), "kv_source_layer_ids is empty");
  in.check(ascending(lists.kv_sources), "kv_source_layer_ids is not ascending");
  in.check(ascending(lists.index_sources), "index_source_layer_ids is not ascending");
}

void derive_role(Reader& in, const ModelConfig& c, const LayerLists& lists, int layer,
                 LayerRole& role) {
  const std::string name = "layer " + std::to_string(layer);
  role.ratio = lists.ratios[static_cast<size_t>(layer)];
  role.is_decoder = layer >= c.decoder_start;
  role.engram = position_of(c.engram.layers, layer);
  role.tap = position_of(c.dspark.target_layers, layer);
  const bool is_kv = position_of(lists.kv_sources, layer) >= 0;
  const bool is_index = position_of(lists.index_sources, layer) >= 0;
  if (role.ratio == 0) {
    in.check(!is_kv && !is_index, name + " has ratio 0 but is a KV or index source");
    return;
  }
  role.kv_source = source_of(lists.kv_sources, layer);
  role.index_source = source_of(lists.index_sources, layer);
  if (role.kv_source < 0 || role.index_source < 0) {
    return in.fail(name + " has a ratio but no KV or index source before it");
  }
  if (role.index_source < role.kv_source) {
    return in.fail(name + " would read top-k lists of layer " + std::to_string(role.index_source) +
                   " over entries of layer " + std::to_string(role.kv_source));
  }
  if (lists.ratios[static_cast<size_t>(role.kv_source)] != role.ratio) {
    return in.fail(name + " has another ratio than its KV source, layer " +
                   std::to_string(role.kv_source));
  }
  role.builds_candidates = layer == lists.candidate_source;
  role.uses_candidates = is_index && lists.candidate_source >= 0 && layer > lists.candidate_source;
}

void derive_roles(Reader& in, ModelConfig& c, const LayerLists& lists) {
  c.decoder_start = lists.kv_sources.back();
  c.roles.assign(static_cast<size_t>(c.layers), LayerRole{});
  for (int layer = 0; layer < c.layers; ++layer) {
    derive_role(in, c, lists, layer, c.roles[static_cast<size_t>(layer)]);
  }
  if (lists.candidate_source < 0 || in.failed()) return;
  const int kv = c.roles[static_cast<size_t>(lists.candidate_source)].kv_source;
  in.check(position_of(lists.index_sources, lists.candidate_source) >= 0,
           "candidate_source_layer_id is not an index source");
  for (const LayerRole& role : c.roles) {
    in.check(!role.uses_candidates || role.kv_source == kv,
             "an index source after candidate_source_layer_id reads another KV source");
  }
}

void check_dimensions(Reader& in, const ModelConfig& c) {
  in.check(c.rope_dim % 2 == 0, "qk_rope_head_dim is odd");
  in.check(c.rope_dim <= c.head_dim, "qk_rope_head_dim is above head_dim");
  in.check(c.rope_dim <= c.index_head_dim, "qk_rope_head_dim is above index_head_dim");
  in.check(c.heads % c.o_groups == 0, "num_attention_heads is not a multiple of o_groups");
  in.check(c.experts_per_token <= c.routed_experts,
           "num_experts_per_tok is above n_routed_experts");
  in.check(c.hidden % 32 == 0, "hidden_size is not a multiple of 32");
  in.check(c.head_dim % 32 == 0, "head_dim is not a multiple of 32");
  in.check(c.index_head_dim % 32 == 0, "index_head_dim is not a multiple of 32");
  in.check(c.moe_intermediate % 32 == 0, "moe_intermediate_size is not a multiple of 32");
}

Result<std::string> read_config_file(const std::string& path) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                       &std::fclose);
  if (file == nullptr) return io_error(path, errno);
  std::string text;
  char block[16384];
  size_t n = 0;
  while ((n = std::fread(block, 1, sizeof block, file.get())) > 0) {
    text.append(block, n);
    if (static_cast<int64_t>(text.size()) > kConfigFileMax_bytes) {
      return invalid_argument(path + ": larger than " + std::to_string(kConfigFileMax_bytes) +
                              " bytes");
    }
  }
  if (std::ferror(file.get()) != 0) return io_error(path, errno);
  return text;
}

}  // namespace

Result<ModelConfig> parse_model_config(const Json& config) {
  if (!config.is_object()) return invalid_argument("config: not a JSON object");
  const Json* text = config.find("text_config");
  if (text != nullptr && !text->is_object()) {
    return invalid_argument("config: text_config is not an object");
  }
  Reader in(config);
  ModelConfig c;
  read_architecture(in, c);
  read_fixed_choices(in);
  read_dimensions(in, c);
  read_numbers(in, c);
  if (in.failed()) return in.status();
  read_token_ids(in, c);
  read_engram(in, c);
  read_dspark(in, c);
  LayerLists lists;
  read_lists(in, c, lists);
  check_dimensions(in, c);
  if (in.failed()) return in.status();
  derive_roles(in, c, lists);
  if (in.failed()) return in.status();
  return c;
}

Result<ModelConfig> load_model_config(const std::string& path) {
  TF_ASSIGN_OR_RETURN(const std::string text, read_config_file(path));
  Result<Json> json = parse_json(text, JsonDialect::kPython);
  if (!json.ok()) return json.status().with_context(path);
  Result<ModelConfig> config = parse_model_config(*json);
  if (!config.ok()) return config.status().with_context(path);
  return config;
}

}  // namespace tensorfold
