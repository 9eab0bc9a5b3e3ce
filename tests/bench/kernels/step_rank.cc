// See step_rank.h.
#include "tests/bench/kernels/step_rank.h"

#include "kernels/formats.h"
#include "tests/bench/kernels/bench_weights.h"

namespace tensorfold::bench {
namespace {

constexpr int kPinnedLayers[] = {2, 8, 14, 20};

class Maker {
 public:
  explicit Maker(StepRank& rank) : rank_(rank) {}

  // From slabs: the device rounds each piece of memory up to 2 MiB.
  template <typename T>
  T* memory(int64_t count) {
    const int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    rank_.planned_bytes += bytes;
    if (bytes > kSlabBytes / 8) return reinterpret_cast<T*>(device_memory<std::byte>(bytes));
    if (slab_left_ < bytes) {
      slab_ = device_memory<std::byte>(kSlabBytes);
      slab_left_ = kSlabBytes;
    }
    auto* at = reinterpret_cast<T*>(slab_);
    slab_ += bytes;
    slab_left_ -= bytes;
    return at;
  }
  WeightView exl3(int out, int in, int bits) {
    WeightView v;
    v.layout = WeightLayout::kExl3;
    v.out = out;
    v.in = in;
    Exl3Parts& w = v.exl3;
    w.padded_in = (in + 127) / 128 * 128;
    w.padded_out = (out + 127) / 128 * 128;
    w.half_bits = static_cast<unsigned char>(2 * bits);
    w.codebook = 2;
    w.order = Exl3Order::kLanes;
    const int64_t words = int64_t{w.padded_in} * w.padded_out * bits / 32;
    auto* trellis = memory<uint32_t>(words);
    auto* suh = memory<uint16_t>(w.padded_in);
    auto* svh = memory<uint16_t>(w.padded_out);
    // A product of inputs of about 1 comes out at about 1.
    const float scale = 0.8f / std::sqrt(static_cast<float>(in));
    TF_BENCH_CUDA(fill_words(trellis, words, seed_ += 5, nullptr));
    TF_BENCH_CUDA(fill_scales(suh, w.padded_in, scale, seed_ + 1, nullptr));
    TF_BENCH_CUDA(fill_scales(svh, w.padded_out, 1, seed_ + 2, nullptr));
    w.trellis = trellis;
    w.suh = suh;
    w.svh = svh;
    return v;
  }
  WeightView bf16(int out, int in) {
    WeightView v;
    v.layout = WeightLayout::kRowsBf16;
    v.out = out;
    v.in = in;
    auto* at = memory<uint16_t>(int64_t{out} * in);
    TF_BENCH_CUDA(fill_normal(at, int64_t{out} * in, seed_ += 5, nullptr,
                              1.0f / std::sqrt(static_cast<float>(in))));
    v.data = at;
    return v;
  }
  WeightView f32(int out, int in) {
    WeightView v;
    v.layout = WeightLayout::kRowsF32;
    v.out = out;
    v.in = in;
    v.data = values(int64_t{out} * in, 0, 2.0f / std::sqrt(static_cast<float>(in)));
    return v;
  }
  const float* values(int64_t count, float center, float spread) {
    auto* at = memory<float>(count);
    TF_BENCH_CUDA(fill_f32(at, count, center, spread, seed_ += 5, nullptr));
    return at;
  }
  HcWeights hc() {
    HcWeights w;
    w.fn = f32(kMixes, kHc * kHidden);
    w.scale = values(3, 1, 0.1f);
    w.base = values(kMixes, 0, 0.5f);
    return w;
  }
  template <typename T>
  const T* table(const std::vector<T>& host) {
    T* at = memory<T>(static_cast<int64_t>(host.size()));
    TF_BENCH_CUDA(cudaMemcpy(at, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return at;
  }

 private:
  static constexpr int64_t kSlabBytes = int64_t{256} << 20;

  StepRank& rank_;
  std::byte* slab_ = nullptr;
  int64_t slab_left_ = 0;
  uint32_t seed_ = 1;
};

void make_attention(Maker& make, AttentionWeights& w) {
  w.hc = make.hc();
  w.norm = make.values(kHidden, 1, 0.1f);
  w.wq_a = make.exl3(kQLora, kHidden, 6);
  w.q_norm = make.values(kQLora, 1, 0.1f);
  w.wq_b = make.exl3(kHeads * kHeadDim, kQLora, 5);
  w.wkv = make.exl3(kHeadDim, kHidden, 6);
  w.kv_norm = make.values(kHeadDim, 1, 0.1f);
  w.sink = make.values(kHeads, 0, 1);
  for (int g = 0; g < kGroups; ++g)
    w.wo_a.push_back(make.exl3(kOLora, kHeads / kGroups * kHeadDim, 5));
  w.wo_b = make.exl3(kHidden, kGroups * kOLora, 5);
}

void make_moe(Maker& make, MoeWeights& w) {
  w.hc = make.hc();
  w.norm = make.values(kHidden, 1, 0.1f);
  w.gate = make.f32(kExperts, kHidden);
  w.bias = make.values(kExperts, 0, 0.1f);
  std::vector<Exl3Expert> parts;
  for (int e = 0; e <= kExperts; ++e) {
    const int bits = e < kExperts ? 3 : 5;
    ExpertWeights one;
    one.w1 = make.exl3(kInter, kHidden, bits);
    one.w3 = make.exl3(kInter, kHidden, bits);
    one.w2 = make.exl3(kHidden, kInter, bits);
    parts.push_back({one.w1.exl3, one.w3.exl3, one.w2.exl3});
    if (e < kExperts)
      w.experts.push_back(one);
    else
      w.shared = one;
  }
  w.exl3_on_device = make.table(parts);
}

void make_source(Maker& make, const LayerShape& shape, SourceWeights& w) {
  w.wkv = make.exl3(kHeadDim, kHidden, 6);
  if (shape.ratio == 2) w.wgate = make.exl3(kHeadDim, kHidden, 6);
  w.norm = make.values(kHeadDim, 1, 0.1f);
  w.index_wk = make.bf16(kIndexDim, kHeadDim);
  w.index_norm = make.values(kIndexDim, 1, 0.1f);
}

void make_caches(Maker& make, StepRank& rank, int64_t context) {
  const int64_t blocks = (context + kBlock - 1) / kBlock + kMaxLayerRows / kBlock + 1;
  std::vector<int32_t> table;
  for (int64_t b = 0; b < blocks; ++b) table.push_back(static_cast<int32_t>(b));
  rank.block_table = const_cast<int32_t*>(make.table(table));
  for (int l = 0; l < rank.layers; ++l) {
    const LayerShape shape = layer_shape(l);
    if (!shape.owns_kv) continue;
    EntryPool& pool = rank.source[static_cast<size_t>(l)].pool;
    pool.ratio = shape.ratio;
    pool.entries_per_block = kBlock / shape.ratio;
    pool.index_offset = pool.entries_per_block * main_entry_bytes(kHeadDim);
    pool.block_bytes = pool.index_offset + pool.entries_per_block * index_key_bytes(kIndexDim);
    pool.base = make.memory<uint8_t>(blocks * pool.block_bytes);
    TF_BENCH_CUDA(fill_cache(pool.base, blocks * pool.block_bytes / 4,
                             900u + static_cast<uint32_t>(l), nullptr));
  }
  rank.ring_rows = kWindow + kRingSpareRows;
  rank.ring_bytes = rank.ring_rows * window_row_bytes(kHeadDim);
  rank.rings = make.memory<uint8_t>(rank.ring_bytes * rank.layers);
  TF_BENCH_CUDA(fill_cache(rank.rings, rank.ring_bytes * rank.layers / 4, 990, nullptr));
  const int64_t pairs = int64_t{4} * kPairRingRows * 2 * kHeadDim;
  rank.pairs = const_cast<float*>(make.values(pairs, 0, 1));
}

}  // namespace

LayerShape layer_shape(int layer) {
  LayerShape s;
  s.engram = layer == 1 || layer == 14;
  if (layer < 2) return s;
  s.ratio = layer < kDecoderStart ? 2 : 1;
  for (const int source : kPinnedLayers)
    if (source <= layer) s.source = source;
  s.owns_kv = s.source == layer;
  s.builds_candidates = layer == kDecoderStart;
  s.uses_candidates = layer > kDecoderStart && layer % 4 == 0;
  s.owns_index = s.owns_kv || s.uses_candidates;
  return s;
}

StepRank make_step_rank(int layers, int64_t context) {
  StepRank rank;
  rank.layers = layers;
  Maker make(rank);
  rank.embed = make.bf16(2 * kVocab, kHidden);
  rank.layer.resize(static_cast<size_t>(layers));
  rank.source.resize(static_cast<size_t>(layers));
  for (int l = 0; l < layers; ++l) {
    BlockWeights& w = rank.layer[static_cast<size_t>(l)];
    const LayerShape shape = layer_shape(l);
    make_attention(make, w.attention);
    make_moe(make, w.moe);
    if (shape.owns_kv) make_source(make, shape, w.source);
    if (shape.owns_index) {
      w.indexer.wq_b = make.exl3(kIndexHeads * kIndexDim, kQLora, 5);
      w.indexer.weights_proj = make.bf16(kIndexHeads, kHidden);
    }
    if (!shape.engram) continue;
    w.engram.wkv = make.exl3(kEngramOut, kEngramIn, 5);
    w.engram.q_weight = make.values(kHc * kHidden, 1, 0.1f);
    w.engram.k_weight = make.values(kHc * kHidden, 1, 0.1f);
  }
  rank.norm = make.values(kHidden, 1, 0.1f);
  rank.head = make.exl3(kVocab, kHidden, 6);
  make_caches(make, rank, context);
  TF_BENCH_CUDA(cudaDeviceSynchronize());
  return rank;
}

}  // namespace tensorfold::bench
