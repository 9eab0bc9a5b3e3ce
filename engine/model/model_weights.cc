// Loading one rank's weights (engine/model/model_weights.h), in the order of the forward pass.
#include "engine/model/model_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "kernels/formats.h"

namespace tensorfold {
namespace {

enum class Input : unsigned char {
  kAsStored,  // FP8 and FP4 weights quantise their input
  kPlain,     // never: wo_a, the router, the ratio-2 compressor and the head
};

// Whether an operation that reads this matrix takes it as kExl3.
enum class Keep : unsigned char { kWiden, kDense, kExpert };

int round_up_to_block(int64_t n) {
  return static_cast<int>((n + exl3::kDimMultiple - 1) / exl3::kDimMultiple * exl3::kDimMultiple);
}

Exl3Parts parts_of(const Weight& weight) {
  Exl3Parts parts;
  parts.trellis = weight.data.data();
  parts.suh = weight.suh.data();
  parts.svh = weight.svh.data();
  parts.padded_in = static_cast<int>(weight.padded_in);
  parts.padded_out = static_cast<int>(weight.padded_out);
  parts.half_bits = static_cast<unsigned char>(weight.half_bits);
  parts.codebook = static_cast<unsigned char>(weight.codebook);
  return parts;
}

class Loader {
 public:
  Loader(const WeightSource& source, ModelWeights& out, Device& device, Stream& stream)
      : source_(source), out_(out), device_(device), stream_(stream) {}

  Status load() {
    const ModelConfig& c = source_.config();
    TF_RETURN_IF_ERROR(rows("embed", out_.embed));
    out_.layers.resize(static_cast<size_t>(c.layers));
    for (int layer = 0; layer < c.layers; ++layer) TF_RETURN_IF_ERROR(load_layer(layer));
    TF_RETURN_IF_ERROR(vector("norm", out_.norm));
    TF_RETURN_IF_ERROR(matrix("head", out_.head, Input::kPlain, Keep::kDense));
    if (c.dspark.stages > 0) TF_RETURN_IF_ERROR(load_drafter());
    return ok_status();
  }

 private:
  // On the host one block per weight; on a device small ones share chunks.
  std::byte* allocate(int64_t bytes) {
    out_.bytes += bytes;
    if (device_.host_memory() || bytes > kChunkBytes / 4) return allocate_block(bytes);
    const int64_t padded = (bytes + kWeightAlignBytes - 1) / kWeightAlignBytes * kWeightAlignBytes;
    if (chunk_left_ < padded) {
      chunk_ = allocate_block(kChunkBytes);
      chunk_left_ = chunk_ != nullptr ? kChunkBytes : 0;
      if (chunk_ == nullptr) return nullptr;
    }
    std::byte* at = chunk_;
    chunk_ += padded;
    chunk_left_ -= padded;
    return at;
  }
  std::byte* allocate_block(int64_t bytes) {
    out_.memory.push_back(allocate_array<std::byte>(device_, bytes));
    return out_.memory.back().get();
  }
  static Status no_memory(std::string_view name) {
    return unavailable("no memory for the weight " + std::string(name));
  }

  // A stored EXL3 weight as it is, in the device's order: trellis, suh, svh in one piece.
  Status keep_exl3(const std::string& name, const Weight& weight, WeightView& view) {
    view.layout = WeightLayout::kExl3;
    view.out = static_cast<int>(weight.out);
    view.in = static_cast<int>(weight.in);
    view.exl3 = parts_of(weight);
    const int64_t total = view.bytes(), trellis = static_cast<int64_t>(weight.data.size());
    const int64_t suh = 2 * weight.padded_in, svh = 2 * weight.padded_out;
    if (trellis + suh + svh != total || !exl3::check_layer(weight.exl3_view()).ok())
      return data_loss(name + ": its EXL3 parts have " + std::to_string(trellis + suh + svh) +
                       " bytes, not " + std::to_string(total));
    std::byte* data = allocate(total);
    if (data == nullptr) return no_memory(name);
    const bool uploaded = device_.upload_exl3(view.exl3, data, view.exl3.order, stream_);
    const int64_t first = uploaded ? trellis : 0;  // what is still to be brought there
    packed_.resize(static_cast<size_t>(total));
    if (!uploaded) view.exl3.order = device_.pack_exl3(view.exl3, packed_.data());
    std::memcpy(packed_.data() + trellis, weight.suh.data(), static_cast<size_t>(suh));
    std::memcpy(packed_.data() + trellis + suh, weight.svh.data(), static_cast<size_t>(svh));
    device_.upload(data + first, packed_.data() + first, total - first, stream_);
    view.exl3.trellis = data;
    view.exl3.suh = reinterpret_cast<const uint16_t*>(data + trellis);
    view.exl3.svh = reinterpret_cast<const uint16_t*>(data + trellis + suh);
    ++out_.exl3_kept;
    return ok_status();
  }

  bool keeps(const Weight& weight, Keep keep) const {
    if (weight.kind != WeightKind::kExl3 || keep == Keep::kWiden || !weight.bias.empty())
      return false;
    return device_.reads_exl3(parts_of(weight),
                              keep == Keep::kExpert ? Exl3Use::kExpert : Exl3Use::kDense);
  }

  // Whether all experts of a layer, the shared one included, can be kept: they share a kernel.
  // Experts dealt by id are called in two parts, which the kernels of EXL3 experts don't know.
  bool keeps_experts(const std::string& p, int experts) const {
    if (source_.part().experts_by_id) return false;
    for (int e = 0; e <= experts; ++e) {
      const std::string name =
          e < experts ? p + "ffn.experts." + std::to_string(e) + "." : p + "ffn.shared_experts.";
      for (const char* part : {"w1", "w3", "w2"}) {
        const WeightInfo* info = source_.find(name + part);
        if (info == nullptr || info->kind != WeightKind::kExl3) return false;
        Exl3Parts parts;
        parts.padded_in = round_up_to_block(info->in);
        parts.padded_out = round_up_to_block(info->out);
        parts.half_bits = static_cast<unsigned char>(info->half_bits);
        parts.codebook = static_cast<unsigned char>(info->codebook);
        if (!device_.reads_exl3(parts, Exl3Use::kExpert)) return false;
      }
    }
    return true;
  }

  // A stored weight as the device wants it; wide: as fp32 if it isn't kept.
  Status place(const std::string& name, const Weight& weight, Input input, Keep keep, bool wide,
               WeightView& view) {
    if (keeps(weight, keep)) return keep_exl3(name, weight, view);
    if (weight.kind == WeightKind::kExl3 && out_.exl3_widened++ == 0) out_.exl3_widened_0 = name;
    return pack(name, weight, input, wide, view);
  }

  // The layout of a stored weight that the device wants. Rows are widened a panel's worth at a
  // time, EXL3's in blocks of 128.
  Status pack(const std::string& name, const Weight& weight, Input input, bool wide_layout,
              WeightView& view) {
    const WeightLayout layout = device_.dense_layout(wide_layout);
    if (weight.in % 32 != 0)
      return unsupported(name + ": " + std::to_string(weight.in) +
                         " inputs are not a multiple of 32");
    if (!weight.bias.empty()) return unsupported(name + ": a projection with a bias");
    view.layout = layout;
    view.out = static_cast<int>(weight.out);
    view.in = static_cast<int>(weight.in);
    view.quantise_input = input == Input::kAsStored && weight.wants_fp8_input();
    std::byte* data = allocate(view.bytes());
    if (data == nullptr) return no_memory(name);
    view.data = data;
    constexpr int64_t kRowsAtOnce = 128;
    const int64_t element = wide_layout ? 4 : 2;
    std::vector<float> wide(static_cast<size_t>(kRowsAtOnce * weight.in));
    for (int64_t begin = 0; begin < weight.out; begin += kRowsAtOnce) {
      const int64_t end = std::min(weight.out, begin + kRowsAtOnce);
      const std::span<float> part(wide.data(), static_cast<size_t>((end - begin) * weight.in));
      dequantize_rows(weight, begin, end, part);
      for (const float v : part)
        if (!std::isfinite(v)) return data_loss(name + ": a value is not finite");
      std::byte* to = data + begin * weight.in * element;
      const auto rows = static_cast<int>(end - begin);
      if (device_.host_memory()) {
        pack_panels(part.data(), rows, view.in, layout, to);
        continue;
      }
      WeightView piece = view;
      piece.out = rows;
      const int64_t bytes = piece.bytes();
      packed_.resize(static_cast<size_t>(bytes));
      pack_panels(part.data(), rows, view.in, layout, packed_.data());
      device_.upload(to, packed_.data(), bytes, stream_);
    }
    return ok_status();
  }

  // bf16, unless the checkpoint holds more than bf16 can or the weight is kept as it is.
  Status matrix(const std::string& name, WeightView& view, Input input = Input::kAsStored,
                Keep keep = Keep::kWiden) {
    TF_ASSIGN_OR_RETURN(const Weight weight, source_.load(name));
    const bool wide = weight.kind == WeightKind::kF32 || weight.kind == WeightKind::kF16;
    return place(name, weight, input, keep, wide, view);
  }
  // What project() reads.
  Status projection(const std::string& name, WeightView& view, Input input = Input::kAsStored) {
    return matrix(name, view, input, Keep::kDense);
  }

  Status rows(const std::string& name, WeightView& view) {
    TF_ASSIGN_OR_RETURN(const Weight weight, source_.load(name));
    const std::vector<uint16_t> values = dequantize_bf16(weight);
    view.layout = WeightLayout::kRowsBf16;
    view.out = static_cast<int>(weight.out);
    view.in = static_cast<int>(weight.in);
    std::byte* data = allocate(view.bytes());
    if (data == nullptr) return no_memory(name);
    view.data = data;
    device_.upload(data, values.data(), static_cast<int64_t>(values.size()) * 2, stream_);
    return ok_status();
  }

  Status vector(const std::string& name, const float*& values) {
    TF_ASSIGN_OR_RETURN(const std::vector<float> loaded, source_.load_f32(name));
    std::byte* data = allocate(static_cast<int64_t>(loaded.size()) * 4);
    if (data == nullptr) return no_memory(name);
    device_.upload(data, loaded.data(), static_cast<int64_t>(loaded.size()) * 4, stream_);
    values = reinterpret_cast<const float*>(data);
    return ok_status();
  }

  Status load_hc(const std::string& prefix, HcWeights& hc) {
    TF_RETURN_IF_ERROR(matrix(prefix + "_fn", hc.fn));
    TF_RETURN_IF_ERROR(vector(prefix + "_scale", hc.scale));
    return vector(prefix + "_base", hc.base);
  }

  Status load_attention(const std::string& p, AttentionWeights& a) {
    TF_RETURN_IF_ERROR(load_hc(p + "hc_attn", a.hc));
    TF_RETURN_IF_ERROR(vector(p + "attn_norm", a.norm));
    TF_RETURN_IF_ERROR(projection(p + "attn.wq_a", a.wq_a));
    TF_RETURN_IF_ERROR(vector(p + "attn.q_norm", a.q_norm));
    TF_RETURN_IF_ERROR(projection(p + "attn.wq_b", a.wq_b));
    TF_RETURN_IF_ERROR(projection(p + "attn.wkv", a.wkv));
    TF_RETURN_IF_ERROR(vector(p + "attn.kv_norm", a.kv_norm));
    TF_RETURN_IF_ERROR(vector(p + "attn.attn_sink", a.sink));
    TF_ASSIGN_OR_RETURN(const std::vector<Weight> groups, source_.load_groups(p + "attn.wo_a"));
    a.wo_a.resize(groups.size());
    for (size_t g = 0; g < groups.size(); ++g)
      TF_RETURN_IF_ERROR(
          place(p + "attn.wo_a", groups[g], Input::kPlain, Keep::kDense, false, a.wo_a[g]));
    return projection(p + "attn.wo_b", a.wo_b);
  }

  Status load_expert(const std::string& p, Keep keep, ExpertWeights& e) {
    TF_RETURN_IF_ERROR(matrix(p + "w1", e.w1, Input::kAsStored, keep));
    TF_RETURN_IF_ERROR(matrix(p + "w3", e.w3, Input::kAsStored, keep));
    if (e.w1.quantise_input != e.w3.quantise_input)
      return unsupported(p + "w1 and w3 are stored in formats that quantise differently");
    return matrix(p + "w2", e.w2, Input::kAsStored, keep);
  }

  // A table in device memory.
  template <typename T>
  Status table(const std::string& name, const std::vector<T>& values, const T*& at) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    std::byte* data = allocate(bytes);
    if (data == nullptr) return no_memory(name);
    device_.upload(data, values.data(), bytes, stream_);
    at = reinterpret_cast<const T*>(data);
    return ok_status();
  }

  Status load_moe(const std::string& p, int experts, MoeWeights& m) {
    TF_RETURN_IF_ERROR(load_hc(p + "hc_ffn", m.hc));
    TF_RETURN_IF_ERROR(vector(p + "ffn_norm", m.norm));
    TF_RETURN_IF_ERROR(matrix(p + "ffn.gate", m.gate, Input::kPlain));
    TF_RETURN_IF_ERROR(vector(p + "ffn.gate.bias", m.bias));
    if (source_.holds(p + "ffn.gate.bias_vl"))
      TF_RETURN_IF_ERROR(vector(p + "ffn.gate.bias_vl", m.bias_vl));
    m.experts.resize(static_cast<size_t>(experts));
    const Keep keep = keeps_experts(p, experts) ? Keep::kExpert : Keep::kWiden;
    for (int e = 0; e < experts; ++e) {
      const std::string name = p + "ffn.experts." + std::to_string(e) + ".";
      if (source_.holds(name + "w1"))
        TF_RETURN_IF_ERROR(load_expert(name, keep, m.experts[static_cast<size_t>(e)]));
    }
    TF_RETURN_IF_ERROR(load_expert(p + "ffn.shared_experts.", keep, m.shared));
    if (device_.host_memory()) return ok_status();
    std::vector<ExpertWeights> all = m.experts;
    all.push_back(m.shared);
    if (keep == Keep::kWiden) return table(p + "ffn.experts", all, m.experts_on_device);
    std::vector<Exl3Expert> parts;
    parts.reserve(all.size());
    for (const ExpertWeights& e : all) parts.push_back({e.w1.exl3, e.w3.exl3, e.w2.exl3});
    return table(p + "ffn.experts", parts, m.exl3_on_device);
  }

  Status load_layer(int layer) {
    const ModelConfig& c = source_.config();
    const LayerRole& role = c.roles[static_cast<size_t>(layer)];
    const std::string p = "layers." + std::to_string(layer) + ".";
    BlockWeights& w = out_.layers[static_cast<size_t>(layer)];
    if (role.engram >= 0) {
      TF_RETURN_IF_ERROR(projection(p + "engram.wkv", w.engram.wkv));
      w.engram.split = source_.slice(p + "engram.wkv").axis == SliceAxis::kOutput;
      TF_RETURN_IF_ERROR(vector(p + "engram.q_weight", w.engram.q_weight));
      TF_RETURN_IF_ERROR(vector(p + "engram.k_weight", w.engram.k_weight));
    }
    TF_RETURN_IF_ERROR(load_attention(p, w.attention));
    if (role.owns_kv(layer)) {
      const Input input = role.ratio == 2 ? Input::kPlain : Input::kAsStored;
      TF_RETURN_IF_ERROR(projection(p + "attn.compressor.wkv", w.source.wkv, input));
      if (role.ratio == 2)
        TF_RETURN_IF_ERROR(projection(p + "attn.compressor.wgate", w.source.wgate, input));
      TF_RETURN_IF_ERROR(vector(p + "attn.compressor.norm", w.source.norm));
      TF_RETURN_IF_ERROR(matrix(p + "attn.indexer.wk", w.source.index_wk));
      TF_RETURN_IF_ERROR(vector(p + "attn.indexer.k_norm", w.source.index_norm));
    }
    if (role.owns_index(layer)) {
      TF_RETURN_IF_ERROR(projection(p + "attn.indexer.wq_b", w.indexer.wq_b));
      TF_RETURN_IF_ERROR(projection(p + "attn.indexer.weights_proj", w.indexer.weights_proj));
    }
    return load_moe(p, c.routed_experts, w.moe);
  }

  Status load_drafter() {
    const ModelConfig& c = source_.config();
    DrafterWeights& d = out_.drafter;
    TF_RETURN_IF_ERROR(projection("mtp.0.main_proj", d.main_proj));
    TF_RETURN_IF_ERROR(vector("mtp.0.main_norm", d.main_norm));
    d.stages.resize(static_cast<size_t>(c.dspark.stages));
    for (int s = 0; s < c.dspark.stages; ++s) {
      const std::string p = "mtp." + std::to_string(s) + ".";
      BlockWeights& w = d.stages[static_cast<size_t>(s)];
      TF_RETURN_IF_ERROR(load_attention(p, w.attention));
      TF_RETURN_IF_ERROR(load_moe(p, c.dspark.routed_experts, w.moe));
    }
    const std::string last = "mtp." + std::to_string(c.dspark.stages - 1) + ".";
    TF_RETURN_IF_ERROR(vector(last + "norm", d.norm));
    TF_RETURN_IF_ERROR(rows(last + "markov_head.embed", d.markov_embed));
    TF_RETURN_IF_ERROR(matrix(last + "markov_head.head", d.markov_head));
    return matrix(last + "confidence_head.proj", d.confidence);
  }

  static constexpr int64_t kChunkBytes = int64_t{64} << 20;
  static constexpr int64_t kWeightAlignBytes = 256;

  const WeightSource& source_;
  ModelWeights& out_;
  Device& device_;
  Stream& stream_;
  std::vector<std::byte> packed_;  // rows on their way to the device
  std::byte* chunk_ = nullptr;
  int64_t chunk_left_ = 0;
};

}  // namespace

Result<std::unique_ptr<ModelWeights>> load_model_weights(const WeightSource& source, Device& device,
                                                         Stream& stream) {
  auto weights = std::make_unique<ModelWeights>();
  source.read_ahead(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  const Status loaded = Loader(source, *weights, device, stream).load();
  source.read_ahead(0);
  TF_RETURN_IF_ERROR(loaded);
  TF_RETURN_IF_ERROR(device.synchronise(stream));
  return weights;
}

}  // namespace tensorfold
