// Unit vectors of number formats, gate, Engram and attention. See eval_units_runner.h.
#include <algorithm>

#include "ctl/eval_constants.h"
#include "ctl/eval_units_runner.h"
#include "engine/weights/engram_constants.h"
#include "kernels/attention_core.h"
#include "kernels/engram_gate.h"
#include "kernels/formats.h"
#include "kernels/moe_route.h"
#include "kernels/project.h"

namespace tensorfold::ctl {
namespace {

// V4.1's constants (its config.json); unit files do not carry them.
constexpr float kNormEps = 1e-20f;
constexpr float kRouteScale = 1.5f;
constexpr int32_t kPadCompressedId = 2;

EngramConfig published_engram() {
  EngramConfig config;
  config.layers = {1, 14};
  config.table_rows = {384006168, 384016682};
  config.max_ngram = 4;
  config.heads = 8;
  config.row_width = 256;
  config.vocab_size = 16000000;
  config.pad_token_id = 2;
  config.compressed_vocab_size = 99092;
  return config;
}

int to_int(int64_t v) { return static_cast<int>(v); }

// One kind of quantisation over a tensor: what the vectors hold of it.
struct Quantised {
  std::vector<float> q, scale, dequantised;
  std::vector<int64_t> codes, scale_bytes;
};

template <typename Block, typename Value, typename Scale>
Quantised quantise(std::span<const float> x, int block, const Block& quantise_block,
                   const Value& value, const Scale& scale_of) {
  Quantised out;
  std::vector<uint8_t> codes(static_cast<size_t>(block));
  for (size_t at = 0; at + codes.size() <= x.size(); at += codes.size()) {
    const uint8_t byte = quantise_block(x.data() + at, block, codes.data());
    const float scale = scale_of(byte);
    out.scale_bytes.push_back(byte);
    out.scale.push_back(scale);
    for (const uint8_t code : codes) {
      out.codes.push_back(code);
      out.q.push_back(value(code));
      out.dequantised.push_back(round_bf16(value(code) * scale));
    }
  }
  return out;
}

}  // namespace

Status UnitRunner::quantisation() {
  if (!has("quant.x")) return ok_status();
  TF_ASSIGN_OR_RETURN(const StoredTensor* stored, take("quant.x", {-1, kFp8Block}));
  const std::vector<float> x = stored->floats();
  const Quantised kinds[] = {
      quantise(x, kFp8Block, quantise_fp8_block, e4m3_to_f32, ue8m0_to_f32),
      quantise(x, kFp8Block, quantise_fp4_ue8m0_block, e2m1_to_f32, ue8m0_to_f32),
      quantise(x, kMainFp4Block, quantise_fp4_e4m3_block, e2m1_to_f32, e4m3_to_f32),
  };
  const char* names[] = {"quant.fp8.", "quant.fp4_ue8m0.", "quant.fp4_e4m3."};
  const bool exact = bounds_.is_exact("quant");
  const std::optional<double> bound = exact ? std::optional<double>(0) : std::nullopt;
  for (size_t i = 0; i < std::size(kinds); ++i) {
    const std::string prefix = names[i];
    TF_RETURN_IF_ERROR(compare(prefix + "q", kinds[i].q, "differing", bound));
    TF_RETURN_IF_ERROR(compare(prefix + "scale", kinds[i].scale, "differing", bound));
    TF_RETURN_IF_ERROR(compare(prefix + "deq", kinds[i].dequantised, "differing", bound));
    TF_RETURN_IF_ERROR(compare_exact(prefix + "bytes", kinds[i].codes, exact));
    TF_RETURN_IF_ERROR(compare_exact(prefix + "codes", kinds[i].codes, exact));
    TF_RETURN_IF_ERROR(compare_exact(prefix + "scale_byte", kinds[i].scale_bytes, exact));
  }
  return ok_status();
}

Status UnitRunner::gate() {
  if (!has("gate.x")) return ok_status();
  TF_ASSIGN_OR_RETURN(const StoredTensor* x, take("gate.x", {-1, -1}));
  TF_ASSIGN_OR_RETURN(const StoredTensor* ids, take("gate.ids", {x->dim(0), -1}));
  TF_ASSIGN_OR_RETURN(const StoredTensor* weight, take("gate.weight", {-1, x->dim(1)}));
  const int64_t rows = x->dim(0), experts = weight->dim(0), topk = ids->dim(1);
  TF_ASSIGN_OR_RETURN(const std::vector<float> bias, input("gate.bias", {experts}));
  TF_ASSIGN_OR_RETURN(const std::vector<float> bias_vl, input("gate.bias_vl", {experts}));
  TF_ASSIGN_OR_RETURN(const StoredTensor* mask, take("gate.image_mask", {rows}));
  if (topk > experts || x->dim(1) % 32 != 0) {
    return data_loss(file_.path() + ": tensor 'gate.x' or 'gate.ids' has an impossible shape");
  }
  std::vector<uint8_t> image;
  for (const int64_t v : mask->integers()) image.push_back(v != 0);
  const UnitMatrix matrix =
      make_panels(weight->floats(), to_int(experts), to_int(x->dim(1)), WeightLayout::kPanelBf16);
  const std::vector<uint16_t> bits = to_bf16(x->floats());
  std::vector<float> scores(static_cast<size_t>(rows * experts));
  std::vector<float> weights(static_cast<size_t>(rows * topk));
  std::vector<int32_t> chosen(weights.size());
  MoeRouteParams p;
  p.rows = to_int(rows);
  p.hidden = to_int(x->dim(1));
  p.experts = to_int(experts);
  p.topk = to_int(topk);
  p.scale = kRouteScale;
  p.x = bits.data();
  p.gate = &matrix.view;
  p.bias = bias.data();
  p.bias_vl = bias_vl.data();
  p.image = image.data();
  p.scores = scores.data();
  p.ids = chosen.data();
  p.weights = weights.data();
  p.workspace.bytes = project_workspace_bytes(p.rows, p.hidden);
  p.workspace.data = workspace(p.workspace.bytes);
  cpu::moe_route(p, stream_);
  const std::optional<double> bound = bounds_.number("gate_rel");
  TF_RETURN_IF_ERROR(compare("gate.scores", scores, "rel", bound));
  TF_RETURN_IF_ERROR(compare_exact("gate.ids", std::vector<int64_t>(chosen.begin(), chosen.end()),
                                   bounds_.is_exact("gate_ids")));
  return compare("gate.weights", weights, "rel", bound);
}

Status UnitRunner::engram_rows() {
  if (!has("engram.primes")) return ok_status();
  TF_ASSIGN_OR_RETURN(const EngramConstants constants, engram_constants(published_engram()));
  const bool exact = bounds_.is_exact("engram_rows");
  TF_RETURN_IF_ERROR(compare_exact("engram.primes", all_primes(constants), exact));
  TF_RETURN_IF_ERROR(compare_exact("engram.multipliers", all_multipliers(constants), exact));
  TF_RETURN_IF_ERROR(compare_exact("engram.offsets", all_offsets(constants), exact));
  const size_t columns = constants.layers[0].primes.size();
  for (const StoredTensor& tensor : file_.tensors()) {
    const bool is_ids = tensor.name.starts_with("engram.seq") && tensor.name.ends_with(".ids");
    if (!is_ids) continue;
    TF_ASSIGN_OR_RETURN(const StoredTensor* stored, take(tensor.name, {-1}));
    const std::vector<int64_t> ids = stored->integers();
    std::vector<int64_t> rows, one(columns);
    for (int64_t p = 0; p < stored->count(); ++p) {
      // A dead token (-1) blocks its own slot and every one behind it.
      std::vector<int32_t> look_back(static_cast<size_t>(constants.max_ngram), kPadCompressedId);
      for (int64_t k = 0; k < constants.max_ngram && p - k >= 0; ++k) {
        const int64_t id = ids[static_cast<size_t>(p - k)];
        if (id < 0) break;
        look_back[static_cast<size_t>(k)] = static_cast<int32_t>(id);
      }
      for (size_t layer = 0; layer < constants.layers.size(); ++layer) {
        constants.hash(to_int(static_cast<int64_t>(layer)), look_back, one);
        rows.insert(rows.end(), one.begin(), one.end());
      }
    }
    const std::string name = tensor.name.substr(0, tensor.name.size() - 4) + ".rows";
    TF_RETURN_IF_ERROR(compare_exact(name, rows, exact));
  }
  return ok_status();
}

Status UnitRunner::engram_gate() {
  if (!has("engram_gate.X")) return ok_status();
  TF_ASSIGN_OR_RETURN(const StoredTensor* x, take("engram_gate.X", {-1, -1, -1}));
  const int64_t rows = x->dim(0), n = x->dim(1), hidden = x->dim(2);
  TF_ASSIGN_OR_RETURN(const std::vector<float> kv,
                      input("engram_gate.kv", {rows, (n + 1) * hidden}));
  TF_ASSIGN_OR_RETURN(const std::vector<float> q, input("engram_gate.q_weight", {n, hidden}));
  TF_ASSIGN_OR_RETURN(const std::vector<float> k, input("engram_gate.k_weight", {n, hidden}));
  TF_ASSIGN_OR_RETURN(const StoredTensor* mask, take("engram_gate.token_mask", {rows}));
  std::vector<uint8_t> dead;
  for (const int64_t live : mask->integers()) dead.push_back(live == 0);
  std::vector<uint16_t> streams = to_bf16(x->floats());
  const std::vector<uint16_t> kv_bits = to_bf16(kv);
  EngramGateParams p;
  p.rows = to_int(rows);
  p.hidden = to_int(hidden);
  p.hc = to_int(n);
  p.eps = kNormEps;
  p.kv = kv_bits.data();
  p.q_weight = q.data();
  p.k_weight = k.data();
  p.dead = dead.data();
  p.streams = streams.data();
  cpu::engram_gate(p, stream_);
  return compare("engram_gate.out", from_bf16(streams), "rel", bounds_.number("engram_gate_rel"));
}

Status UnitRunner::attention() {
  for (const StoredTensor& tensor : file_.tensors()) {
    if (!tensor.name.starts_with("attn") || !tensor.name.ends_with(".q")) continue;
    TF_RETURN_IF_ERROR(attention_case(tensor.name.substr(0, tensor.name.size() - 2)));
  }
  return ok_status();
}

Status UnitRunner::attention_case(const std::string& name) {
  TF_ASSIGN_OR_RETURN(const StoredTensor* q, take(name + ".q", {-1, -1, -1}));
  const int64_t rows = q->dim(0), heads = q->dim(1), d = q->dim(2);
  TF_ASSIGN_OR_RETURN(const StoredTensor* kv, take(name + ".kv", {-1, d}));
  TF_ASSIGN_OR_RETURN(const std::vector<float> sink, input(name + ".sink", {heads}));
  TF_ASSIGN_OR_RETURN(const StoredTensor* idx, take(name + ".idx", {rows, -1}));
  std::vector<int32_t> slots;
  for (const int64_t key : idx->integers()) {
    if (key >= kv->dim(0)) {
      return data_loss(file_.path() + ": tensor '" + name + ".idx' names key " +
                       std::to_string(key));
    }
    slots.push_back(static_cast<int32_t>(std::max<int64_t>(key, -1)));
  }
  if (d % 32 != 0) return data_loss(file_.path() + ": tensor '" + name + ".q': odd head width");
  const std::vector<uint16_t> q_bits = to_bf16(q->floats()), keys = to_bf16(kv->floats());
  const std::vector<int32_t> row_slice(static_cast<size_t>(rows), 0);
  std::vector<uint16_t> out(q_bits.size());
  AttentionSlice slice;
  slice.rows = to_int(rows);
  AttentionCoreParams p;
  p.rows = to_int(rows);
  p.slice = &slice;
  p.row_slice = row_slice.data();
  p.heads = to_int(heads);
  p.head_dim = to_int(d);
  p.window = to_int(idx->dim(1));
  p.q = q_bits.data();
  p.sink = sink.data();
  p.staged = keys.data();
  p.window_list = slots.data();
  p.out = out.data();
  p.workspace.bytes = attention_core_workspace_bytes(p.heads, p.head_dim, stream_.lanes());
  p.workspace.data = workspace(p.workspace.bytes);
  cpu::attention_core(p, stream_);
  const std::vector<float> ours = from_bf16(out);
  TF_RETURN_IF_ERROR(
      compare(name + ".out", ours, "max_abs", bounds_.number("attn_out_vs_bf16P_abs")));
  return compare(name + ".out_fp32P", ours, "rel", bounds_.number("attn_out_fp32P_rel"));
}

}  // namespace tensorfold::ctl
