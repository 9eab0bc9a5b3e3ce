// Expert choice and the experts on a GPU against the CPU's (tests/kernels/cuda_support.h).
#include <algorithm>

#include "tests/kernels/cuda_support.h"

namespace tensorfold::test {
namespace {

BOOST_TEST_GLOBAL_FIXTURE(GpuOrSkip);

// [experts + 1] experts, the shared one last, as each side reads them.
struct Experts {
  std::vector<std::unique_ptr<BothWeight>> weights;
  std::vector<ExpertWeights> cpu, gpu;
  std::vector<Both<ExpertWeights>> table;

  Experts(int experts, int hidden, int intermediate, bool some_absent) {
    cpu.resize(static_cast<size_t>(experts) + 1);
    gpu.resize(cpu.size());
    for (size_t e = 0; e < cpu.size(); ++e) {
      if (some_absent && e % 3 == 1) continue;
      const bool quantise = coin();
      const auto add = [&](WeightView& c, WeightView& g, int out, int in, bool q) {
        weights.push_back(std::make_unique<BothWeight>(out, in, WeightLayout::kPanelBf16, q));
        c = weights.back()->cpu;
        g = weights.back()->gpu;
      };
      add(cpu[e].w1, gpu[e].w1, intermediate, hidden, quantise);
      add(cpu[e].w3, gpu[e].w3, intermediate, hidden, quantise);
      add(cpu[e].w2, gpu[e].w2, hidden, intermediate, coin());
    }
    table.emplace_back(gpu);
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(chosen_experts_and_weights) {
  const auto stream = make_stream(2);
  Gpu& gpu = Gpu::get();
  int64_t rows = 0, differing = 0;
  for (int round = 0; round < 12; ++round) {
    MoeRouteParams p;
    p.rows = pick(1, 90);
    p.hidden = 32 * pick(1, round % 3 == 0 ? 160 : 12);
    p.experts = pick(2, 400);
    p.topk = std::min(p.experts, pick(1, 8));
    p.scale = 1.5f;
    p.temperature = coin() ? 1.0f : 0.7f;
    p.prompt_rows = coin() ? 0 : pick(0, p.rows);
    const int64_t n = p.rows;
    BothWeight gate(p.experts, p.hidden,
                    coin() ? WeightLayout::kPanelBf16 : WeightLayout::kPanelF32);
    Both<uint16_t> x(bf16(fresh(n * p.hidden, 3)));
    Both<float> bias(fresh(p.experts)), bias_vl(fresh(p.experts));
    std::vector<uint8_t> is_image;
    for (int64_t r = 0; r < n; ++r) is_image.push_back(static_cast<uint8_t>(pick(0, 1)));
    Both<uint8_t> image(is_image);
    auto scores = Both<float>::out(n * p.experts), weights = Both<float>::out(n * p.topk);
    auto ids = Both<int32_t>::out(n * p.topk);
    WorkspaceShape shape;
    shape.rows = p.rows;
    shape.widest_input = p.hidden;
    BothWorkspace workspace(shape, *stream);
    const auto run = [&](bool on_gpu) {
      const auto side = [on_gpu](auto& both) { return on_gpu ? both.gpu() : both.cpu(); };
      p.x = side(x);
      p.gate = on_gpu ? &gate.gpu : &gate.cpu;
      p.bias = side(bias);
      p.bias_vl = round % 4 == 0 ? nullptr : side(bias_vl);
      p.image = round % 4 == 1 ? nullptr : side(image);
      p.scores = side(scores);
      p.ids = side(ids);
      p.weights = side(weights);
      p.workspace = on_gpu ? workspace.gpu() : workspace.cpu();
      on_gpu ? gpu.ops().moe_route(p, gpu.stream()) : cpu::moe_route(p, *stream);
    };
    run(false);
    run(true);
    check_near(scores, 3e-6, "scores");
    const std::vector<int32_t> got = ids.fetch();
    const std::vector<float> got_weights = weights.fetch();
    for (int64_t r = 0; r < n; ++r) {
      const int64_t at = r * p.topk;
      const bool same =
          std::equal(got.begin() + at, got.begin() + at + p.topk, ids.host.begin() + at);
      rows += 1;
      differing += same ? 0 : 1;
      for (int i = 0; same && i < p.topk; ++i) {
        const auto k = static_cast<size_t>(at + i);
        BOOST_CHECK_LE(std::fabs(got_weights[k] - weights.host[k]), 1e-5f);
      }
    }
  }
  BOOST_CHECK_LE(differing, rows / 200);  // two scores nearer to each other than fp32 sums
}

BOOST_AUTO_TEST_CASE(expert_sums) {
  const auto stream = make_stream(2);
  Gpu& gpu = Gpu::get();
  for (int round = 0; round < 16; ++round) {
    MoeExpertsParams p;
    p.rows = round == 5 ? 600 : pick(1, 90);  // 600: more than one group of rows
    p.hidden = 32 * pick(1, round % 4 == 0 ? 80 : 8);
    p.intermediate = 32 * pick(1, 10);
    p.experts = pick(1, 14);
    p.topk = std::min(p.experts, pick(1, 6));
    p.swiglu_limit = coin() ? 10.0f : 0.5f;
    p.round_outputs = coin();
    const int64_t n = p.rows;
    Experts experts(p.experts, p.hidden, p.intermediate, round % 3 == 0);
    Both<uint16_t> x(bf16(fresh(n * p.hidden, 2)));
    std::vector<int32_t> picked;
    std::vector<int32_t> all(static_cast<size_t>(p.experts));
    for (int e = 0; e < p.experts; ++e) all[static_cast<size_t>(e)] = e;
    for (int64_t r = 0; r < n; ++r) {
      std::shuffle(all.begin(), all.end(), Gpu::get().random_);
      picked.insert(picked.end(), all.begin(), all.begin() + p.topk);
    }
    Both<int32_t> ids(picked);
    Both<float> weights(fresh(n * p.topk));
    auto y = Both<float>::out(n * p.hidden);
    WorkspaceShape shape;
    shape.rows = p.rows;
    shape.hidden = p.hidden;
    shape.intermediate = p.intermediate;
    shape.experts = p.experts;
    shape.topk = p.topk;
    BothWorkspace workspace(shape, *stream);
    const bool shared = round % 4 != 1;
    const auto run = [&](bool on_gpu) {
      const auto side = [on_gpu](auto& both) { return on_gpu ? both.gpu() : both.cpu(); };
      const std::vector<ExpertWeights>& own = on_gpu ? experts.gpu : experts.cpu;
      p.x = side(x);
      p.ids = side(ids);
      p.weights = side(weights);
      p.expert = own.data();
      p.shared = shared ? &own.back() : nullptr;
      p.expert_on_device = on_gpu ? experts.table[0].gpu() : nullptr;
      p.y = side(y);
      p.workspace = on_gpu ? workspace.gpu() : workspace.cpu();
      on_gpu ? gpu.ops().moe_experts(p, gpu.stream()) : cpu::moe_experts(p, *stream);
    };
    run(false);
    run(true);
    check_near(y, 6e-3, "experts, rows " + std::to_string(p.rows));
  }
}

}  // namespace tensorfold::test
