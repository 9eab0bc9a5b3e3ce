// EXL3 weights held as they are on a device: what the loader keeps and what it widens, the order
// that it puts trellises in, and the forward pass over them. The device is a library without a GPU
// (exl3_host_device.cc); the model is the embedded one.
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/cluster/collective.h"
#include "engine/model/model.h"
#include "engine/model/model_weights.h"
#include "kernels/cuda/exl3_layout.h"
#include "tests/log_lines.h"

namespace tensorfold::test {
namespace {

const std::string kModel = std::string(TF_SOURCE_DIR) + "/packaging/tiny-model/model";
constexpr int64_t kContext = 512;

struct HostDevice {
  HostDevice() { setenv("TENSORFOLD_CUDA_LIBRARY", TF_HOST_DEVICE_LIBRARY, 1); }
};
BOOST_TEST_GLOBAL_FIXTURE(HostDevice);

std::unique_ptr<WeightSource> open_source() {
  WeightSourceOptions options;
  options.model_path = kModel;
  Result<std::unique_ptr<WeightSource>> source = WeightSource::open(options);
  BOOST_REQUIRE_MESSAGE(source.ok(), source.status().message());
  return std::move(*source);
}

struct Loaded {
  std::unique_ptr<WeightSource> source = open_source();
  std::shared_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<ModelWeights> weights;

  Loaded() {
    Result<std::shared_ptr<Device>> opened = open_device("cuda");
    BOOST_REQUIRE_MESSAGE(opened.ok(), opened.status().message());
    device = *opened;
    stream = std::move(*device->make_stream(1));
    Result<std::unique_ptr<ModelWeights>> loaded = load_model_weights(*source, *device, *stream);
    BOOST_REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
    weights = std::move(*loaded);
  }
};

// A kept weight holds the stored one: the words come back, and tiles that are read in the order
// "lanes" decode to the codec's bits.
void check_kept(const Weight& stored, const WeightView& view, const std::string& name) {
  BOOST_TEST_CONTEXT(name) {
    BOOST_REQUIRE(view.layout == WeightLayout::kExl3);
    const Exl3Parts& p = view.exl3;
    BOOST_REQUIRE(p.order == Exl3Order::kLanes);
    BOOST_REQUIRE_EQUAL(p.padded_in, stored.padded_in);
    BOOST_REQUIRE_EQUAL(p.padded_out, stored.padded_out);
    BOOST_REQUIRE_EQUAL(p.half_bits, stored.half_bits);
    BOOST_REQUIRE_EQUAL(view.in, stored.in);
    BOOST_REQUIRE_EQUAL(view.out, stored.out);
    BOOST_CHECK(std::memcmp(p.suh, stored.suh.data(), stored.suh.size() * 2) == 0);
    BOOST_CHECK(std::memcmp(p.svh, stored.svh.data(), stored.svh.size() * 2) == 0);
    for (const void* at : {p.trellis, static_cast<const void*>(p.suh)})
      BOOST_CHECK_EQUAL(reinterpret_cast<uintptr_t>(at) % 16, 0);
    const int bits = p.half_bits / 2, tile_columns = p.padded_out / 16;
    const auto* words = static_cast<const uint32_t*>(p.trellis);
    const auto words16 = static_cast<size_t>(exl3::tile_words(p.half_bits));
    std::vector<uint16_t> tile(words16);
    std::array<uint16_t, exl3::kTileValues> ours, codec;
    int64_t differing = 0;
    for (int kt = 0; kt < p.padded_in / 16; ++kt)
      for (int nt = 0; nt < tile_columns; ++nt) {
        for (int w = 0; w < 8 * bits; ++w) {
          const uint32_t word = words[cuda::exl3_lane_word(p.padded_in, bits, kt, nt, w)];
          tile[static_cast<size_t>(2 * w)] = static_cast<uint16_t>(word);
          tile[static_cast<size_t>(2 * w + 1)] = static_cast<uint16_t>(word >> 16);
        }
        exl3::decode_tile_bits(tile, p.half_bits, stored.codebook, ours);
        exl3::decode_tile_bits(
            stored.u16().subspan(static_cast<size_t>(kt * tile_columns + nt) * words16, words16),
            p.half_bits, stored.codebook, codec);
        differing += ours == codec ? 0 : 1;
      }
    BOOST_CHECK_EQUAL(differing, 0);
  }
}

struct Run {
  std::unique_ptr<Collective> collective = make_single_collective();
  LogLines log;
  std::unique_ptr<Model> model;

  explicit Run(const std::string& device) {
    ModelOptions options;
    options.model_path = kModel;
    options.slots = 1;
    options.context = kContext;
    options.rows_max = kContext;
    options.threads = 2;
    options.device = device;
    options.log = &log;
    Result<std::unique_ptr<Model>> loaded = Model::load(options, *collective);
    BOOST_REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
    model = std::move(*loaded);
  }
  std::vector<float> rows(const std::vector<int32_t>& ids, int64_t first, RowClass row_class) {
    StepPlan plan;
    if (first == 0) {
      plan.commands.push_back({CacheCommand::Kind::kOpenSlot, 0, 0, 0});
      for (int b = 0; b < kContext / kBlockPositions; ++b)
        plan.commands.push_back({CacheCommand::Kind::kAppendBlock, 0, b, 0});
    }
    Slice s;
    s.first_position = first;
    s.row_class = row_class;
    s.rows = s.decoder_rows = static_cast<int32_t>(ids.size());
    s.logits_rows = s.rows;
    plan.tokens = ids;
    plan.slices.push_back(s);
    StepLogits logits;
    const Status status = model->forward(plan, {}, logits);
    BOOST_REQUIRE_MESSAGE(status.ok(), status.message());
    return logits.values;
  }
};

// "memory taken: weights 23.6 MiB, cache ..., activations ..., workspace ..., exchanges 0.0 MiB".
void check_memory_line(const std::string& line) {
  double weights = 0, cache = 0, activations = 0, workspace = 0, exchanges = -1;
  BOOST_CHECK_EQUAL(
      std::sscanf(line.c_str(),
                  "memory taken: weights %lf MiB, cache %lf MiB, activations %lf MiB, workspace "
                  "%lf MiB, exchanges %lf MiB",
                  &weights, &cache, &activations, &workspace, &exchanges),
      5);
  BOOST_CHECK(weights > 1 && cache > 0.1 && activations > 0.1 && workspace > 0);
  BOOST_CHECK_EQUAL(exchanges, 0);
}

}  // namespace

BOOST_AUTO_TEST_CASE(kept_weights_hold_what_is_stored) {
  const Loaded l;
  int kept = 0;
  const auto check = [&](const std::string& name, const WeightView& view) {
    const Result<Weight> stored = l.source->load(name);
    BOOST_REQUIRE_MESSAGE(stored.ok(), stored.status().message());
    check_kept(*stored, view, name);
    ++kept;
  };
  const auto check_block = [&](const std::string& p, const BlockWeights& w) {
    check(p + "attn.wq_a", w.attention.wq_a);
    check(p + "attn.wkv", w.attention.wkv);
    check(p + "attn.wo_b", w.attention.wo_b);
    BOOST_CHECK(w.attention.wq_b.layout == WeightLayout::kPanelBf16);  // refused by the device
    const Result<std::vector<Weight>> groups = l.source->load_groups(p + "attn.wo_a");
    BOOST_REQUIRE(groups.ok());
    for (size_t g = 0; g < groups->size(); ++g, ++kept)
      check_kept((*groups)[g], w.attention.wo_a[g], p + "attn.wo_a");
    BOOST_REQUIRE(w.moe.exl3_on_device != nullptr);
    BOOST_CHECK(w.moe.experts_on_device == nullptr);
    for (size_t e = 0; e <= w.moe.experts.size(); ++e) {
      const bool shared = e == w.moe.experts.size();
      const std::string name =
          p + (shared ? "ffn.shared_experts." : "ffn.experts." + std::to_string(e) + ".");
      const ExpertWeights& views = shared ? w.moe.shared : w.moe.experts[e];
      check(name + "w1", views.w1);
      check(name + "w3", views.w3);
      check(name + "w2", views.w2);
      BOOST_CHECK(w.moe.exl3_on_device[e].w1.trellis == views.w1.exl3.trellis);
      BOOST_CHECK(w.moe.exl3_on_device[e].w3.suh == views.w3.exl3.suh);
      BOOST_CHECK(w.moe.exl3_on_device[e].w2.svh == views.w2.exl3.svh);
    }
  };
  for (size_t i = 0; i < l.weights->layers.size(); ++i)
    check_block("layers." + std::to_string(i) + ".", l.weights->layers[i]);
  for (size_t i = 0; i < l.weights->drafter.stages.size(); ++i)
    check_block("mtp." + std::to_string(i) + ".", l.weights->drafter.stages[i]);
  check("head", l.weights->head);
  check("layers.1.engram.wkv", l.weights->layers[1].engram.wkv);
  check("layers.1.attn.compressor.wgate", l.weights->layers[1].source.wgate);
  check("layers.3.attn.indexer.wq_b", l.weights->layers[3].indexer.wq_b);
  check("mtp.0.main_proj", l.weights->drafter.main_proj);
  BOOST_CHECK(l.weights->layers[1].source.index_wk.layout == WeightLayout::kPanelBf16);
  BOOST_CHECK_GT(kept, 140);
  BOOST_CHECK_GE(l.weights->exl3_kept, kept);
  // wq_b of nine blocks and two index projections inside the cache's operation.
  BOOST_CHECK_EQUAL(l.weights->exl3_widened, 11);
}

// Widening each weight where it is used gives what widening it when loading gives.
BOOST_AUTO_TEST_CASE(the_forward_pass_over_kept_weights_is_the_cpus) {
  Run cpu("cpu"), kept("cuda");
  BOOST_REQUIRE_EQUAL(kept.log.lines.size(), 2);
  BOOST_CHECK(kept.log.lines[0].starts_with("EXL3 weights: "));
  BOOST_CHECK(kept.log.lines[0].find(" 11 widened to bf16 (the first: layers.0.attn.wq_b)") !=
              std::string::npos);
  BOOST_REQUIRE_EQUAL(cpu.log.lines.size(), 1);
  for (const std::string& line : {kept.log.lines[1], cpu.log.lines[0]}) check_memory_line(line);
  BOOST_CHECK_LT(2 * kept.model->weight_bytes(), cpu.model->weight_bytes());
  std::vector<int32_t> prompt;
  for (int i = 0; i < 150; ++i) prompt.push_back(3 + (i * 37) % 2000);
  const std::vector<float> a = cpu.rows(prompt, 0, RowClass::kPrompt);
  const std::vector<float> b = kept.rows(prompt, 0, RowClass::kPrompt);
  BOOST_REQUIRE_EQUAL(a.size(), b.size());
  BOOST_CHECK(std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
  for (int i = 0; i < 3; ++i) {
    const std::vector<int32_t> ids(static_cast<size_t>(1 + 2 * i), 11 + i);
    const int64_t at = cpu.model->length(0);
    BOOST_CHECK(cpu.rows(ids, at, RowClass::kGenerated) ==
                kept.rows(ids, at, RowClass::kGenerated));
  }
  for (Run* run : {&cpu, &kept}) BOOST_REQUIRE(run->model->accept(0, run->model->length(0)).ok());
  const DraftRequest request{0, cpu.model->length(0) - 1, 9, 5};
  std::vector<DraftResult> one, other;
  BOOST_REQUIRE(cpu.model->draft(std::span(&request, 1), one).ok());
  BOOST_REQUIRE(kept.model->draft(std::span(&request, 1), other).ok());
  BOOST_CHECK(one[0].tokens == other[0].tokens);
  BOOST_CHECK(one[0].confidence == other[0].confidence);
}

}  // namespace tensorfold::test
