"""Dimensions and roles of a V4.1 model: config.json (published key names) to plain fields.

tiny() is the embedded model. It is legal at tensor parallel 2: query heads, output groups, expert
intermediate, vocabulary and Engram columns halve into multiples of 128.
"""

import json


def tiny(engram_classes):
    text = {
        "model_type": "deepseek_v41_text", "vocab_size": 2048, "hidden_size": 256,
        "moe_intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 128, "qk_rope_head_dim": 64, "q_lora_rank": 128,
        "o_lora_rank": 128, "o_groups": 2, "hidden_act": "silu", "swiglu_limit": 10.0,
        "rms_norm_eps": 1e-20, "attention_bias": False, "attention_dropout": 0.0,
        "initializer_range": 0.02, "use_cache": True, "tie_word_embeddings": False,
        "max_position_embeddings": 8192, "rope_theta": 10000,
        "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                         "original_max_position_embeddings": 65536},
        "n_routed_experts": 3, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True,
        "routed_scaling_factor": 1.5, "sliding_window": 128,
        # Layer 0 sees the window alone; 1 owns ratio-2 entries and 2 reuses them; 3 begins the
        # decoder half with ratio-1 entries and the candidate pool; 4 selects again inside the
        # pool and 5 reuses its list. Three DSpark stages follow.
        "compress_ratios": [0, 2, 2, 1, 1, 1, 0, 0, 0], "compress_rope_theta": 160000,
        "kv_source_layer_ids": [1, 3], "index_source_layer_ids": [1, 3, 4],
        "index_n_heads": 2, "index_head_dim": 128, "index_topk": 512,
        "candidate_source_layer_id": 3, "candidate_topk_blocks": 128, "candidate_block_size": 8,
        "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06,
        "engram_layer_ids": [1, 2], "engram_num_embeddings": [], "engram_max_ngram_size": 3,
        "engram_vocab_size": 500, "engram_n_heads": 4, "engram_head_dim": 32,
        "engram_pad_token_id": 2, "engram_compressed_vocab_size": engram_classes,
        "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 2028,
        "dspark_target_layer_ids": [3, 4, 5], "dspark_markov_rank": 32,
        "dspark_n_routed_experts": 2, "dspark_num_experts_per_tok": 2,
    }
    whole = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41",
             "dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
             "image_token_id": 2047, "text_config": text}
    config = Config(whole)
    text["engram_num_embeddings"] = [sum(sum(order) for order in layer) for layer in config.primes]
    return whole


def _primes_above(start):
    n = start + 1
    while True:
        if all(n % d for d in range(2, int(n ** 0.5) + 1)):
            yield n
        n += 1


class Config:
    """Fields named as engine/model/config.h names them."""

    def __init__(self, whole):
        t = whole.get("text_config", whole)
        self.vocab, self.hidden, self.layers = t["vocab_size"], t["hidden_size"], t["num_hidden_layers"]
        self.heads, self.head_dim, self.rope_dim = t["num_attention_heads"], t["head_dim"], t["qk_rope_head_dim"]
        self.q_lora, self.o_groups, self.o_lora = t["q_lora_rank"], t["o_groups"], t["o_lora_rank"]
        self.window, self.eps = t["sliding_window"], t["rms_norm_eps"]
        self.theta, self.compress_theta = t["rope_theta"], t["compress_rope_theta"]
        self.yarn = t["rope_scaling"]
        self.experts, self.topk, self.inter = (
            t["n_routed_experts"], t["num_experts_per_tok"], t["moe_intermediate_size"])
        self.route_scale, self.swiglu_limit = t["routed_scaling_factor"], t["swiglu_limit"]
        self.hc, self.sinkhorn, self.hc_eps = t["hc_mult"], t["hc_sinkhorn_iters"], t["hc_eps"]
        self.ratios = t["compress_ratios"][: self.layers]
        self.kv_sources, self.index_sources = t["kv_source_layer_ids"], t["index_source_layer_ids"]
        self.index_heads, self.index_dim, self.index_topk = (
            t["index_n_heads"], t["index_head_dim"], t["index_topk"])
        self.candidate_source = t["candidate_source_layer_id"]
        self.candidate_blocks, self.candidate_size = t["candidate_topk_blocks"], t["candidate_block_size"]
        self.engram_layers, self.max_ngram = t["engram_layer_ids"], t["engram_max_ngram_size"]
        self.engram_heads, self.engram_dim = t["engram_n_heads"], t["engram_head_dim"]
        self.engram_classes = t["engram_compressed_vocab_size"]
        self.pad = t["engram_pad_token_id"]
        self.stages, self.block = t["num_nextn_predict_layers"], t["dspark_block_size"]
        self.noise, self.taps = t["dspark_noise_token_id"], t["dspark_target_layer_ids"]
        self.markov_rank = t["dspark_markov_rank"]
        self.draft_experts, self.draft_topk = t["dspark_n_routed_experts"], t["dspark_num_experts_per_tok"]
        source = _primes_above(t["engram_vocab_size"])
        self.primes = [[[next(source) for _ in range(self.engram_heads)]
                        for _ in range(self.max_ngram - 1)] for _ in self.engram_layers]

    @classmethod
    def load(cls, path):
        with open(path) as file:
            return cls(json.load(file))

    def engram_rows(self, index):
        return sum(sum(order) for order in self.primes[index])

    def engram_columns(self):
        return (self.max_ngram - 1) * self.engram_heads

    def source(self, sources, layer):
        """The most recent source with an id not above the layer's, among the same ratio's."""
        if self.ratios[layer] == 0:
            return -1
        return max(s for s in sources if s <= layer)
