// The MoE of generated rows and of prompt rows on a GPU, against fp64 with the operation's own
// roundings, for mixed widths, absent experts and a shared one; bits of a row whatever rows share
// its call.
#include "kernels/cuda/exl3_prefill.h"
#include "kernels/cuda/moe_decode.h"
#include "tests/kernels/cuda_exl3_support.h"

namespace tensorfold::test {
namespace {

using exl3::Codebook;

BOOST_GLOBAL_FIXTURE(NeedsGpu);

// g, u and z are rounded to bf16: where the product's own error flips a rounding, an ulp follows.
constexpr double kBound = 4e-3;

struct Expert {
  RandomLayer w1, w3, w2;
  ExactLayer e1, e3, e2;
  Expert(int h, int n, int bits, uint32_t seed)
      : w1(h, n, 2 * (2 + bits % 5), Codebook::kMul1, seed, 0.03),
        w3(h, n, 2 * (2 + (bits + 1) % 5), Codebook::kMul1, seed + 3, 0.03),
        w2(n, h, 2 * (2 + (bits + 2) % 5), Codebook::kMul1, seed + 6, 0.03),
        e1(w1),
        e3(w3),
        e2(w2) {}
};

struct Moe {
  int h, n, experts, topk;
  float limit = 10;
  std::vector<std::unique_ptr<Expert>> expert;  // null: absent; the last is the shared one

  Moe(int h_, int n_, int experts_, int topk_, bool shared)
      : h(h_), n(n_), experts(experts_), topk(topk_) {
    for (int e = 0; e <= experts; ++e) {
      const bool present = e == experts ? shared : e % 5 != 3;
      expert.push_back(
          present ? std::make_unique<Expert>(h, n, e, 100u + 10u * static_cast<uint32_t>(e))
                  : nullptr);
    }
  }
  std::vector<double> exact(const uint16_t* x, const int32_t* ids, const float* weights) const {
    std::vector<double> row, sum(static_cast<size_t>(h), 0.0);
    for (int k = 0; k < h; ++k) row.push_back(static_cast<double>(bf16_to_f32(x[k])));
    for (int i = 0; i <= topk; ++i) {
      const auto& e = expert[static_cast<size_t>(i == topk ? experts : ids[i])];
      if (e == nullptr) continue;
      const std::vector<double> g = e->e1.times(row), u = e->e3.times(row);
      std::vector<double> z;
      for (size_t j = 0; j < static_cast<size_t>(n); ++j) {
        const float gv = std::min(round_bf16(static_cast<float>(g[j])), limit);
        const float uv = std::max(std::min(round_bf16(static_cast<float>(u[j])), limit), -limit);
        const float silu = gv / (1.0f + std::exp(-gv));
        z.push_back(static_cast<double>(round_bf16(silu * uv * (i == topk ? 1.0f : weights[i]))));
      }
      const std::vector<double> y = e->e2.times(z);
      for (size_t k = 0; k < sum.size(); ++k) sum[k] += y[k];
    }
    return sum;
  }
  DeviceArray<cuda::MoeExpertExl3> table() {
    std::vector<cuda::MoeExpertExl3> t;
    for (const auto& e : expert) {
      cuda::MoeExpertExl3 m = {};
      if (e != nullptr)
        m = {e->w1.parts(Exl3Order::kLanes), e->w3.parts(Exl3Order::kLanes),
             e->w2.parts(Exl3Order::kLanes)};
      t.push_back(m);
    }
    return DeviceArray<cuda::MoeExpertExl3>(t);
  }
};

struct Rows {
  std::vector<uint16_t> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  Rows(const Moe& m, int rows, uint32_t seed) : x(random_bf16(int64_t{rows} * m.h, seed)) {
    std::mt19937 random(seed);
    for (int r = 0; r < rows; ++r) {
      std::vector<int32_t> all;
      for (int e = 0; e < m.experts; ++e) all.push_back(e);
      std::shuffle(all.begin(), all.end(), random);
      for (int i = 0; i < m.topk; ++i) {
        ids.push_back(all[static_cast<size_t>(i)]);
        weights.push_back(0.1f + 0.3f * static_cast<float>(i));
      }
    }
  }
};

struct Form {
  decltype(&cuda::moe_decode) run;
  decltype(&cuda::moe_decode_workspace_bytes) workspace_bytes;
};
constexpr Form kGenerated{&cuda::moe_decode, &cuda::moe_decode_workspace_bytes};
constexpr Form kPrompt{&cuda::moe_prefill, &cuda::moe_prefill_workspace_bytes};

std::vector<float> run(const Form& form, Moe& m, DeviceArray<cuda::MoeExpertExl3>& table,
                       const Rows& all, int first, int rows) {
  DeviceArray<uint16_t> x(all.x);
  DeviceArray<int32_t> ids(all.ids);
  DeviceArray<float> weights(all.weights);
  DeviceArray<float> y(static_cast<size_t>(rows) * static_cast<size_t>(m.h));
  const int64_t bytes = form.workspace_bytes(rows, m.h, m.n, m.topk);
  DeviceArray<std::byte> workspace(static_cast<size_t>(bytes));
  cuda::MoeDecodeParams p;
  p.rows = rows;
  p.hidden = m.h;
  p.intermediate = m.n;
  p.experts = m.experts;
  p.topk = m.topk;
  p.swiglu_limit = m.limit;
  p.x = x.get() + int64_t{first} * m.h;
  p.x_stride = m.h;
  p.ids = ids.get() + first * m.topk;
  p.weights = weights.get() + first * m.topk;
  p.expert = table.get();
  p.y = y.get();
  p.workspace = workspace.get();
  p.workspace_bytes = bytes;
  TF_CUDA(form.run(p, nullptr, nullptr));
  TF_CUDA(cudaDeviceSynchronize());
  return y.host();
}

void check(const Form& form, int h, int n, int experts, int topk, bool shared, int rows,
           std::initializer_list<int> parts) {
  BOOST_TEST_CONTEXT("H " << h << " I " << n << " experts " << experts << " rows " << rows) {
    Moe m(h, n, experts, topk, shared);
    DeviceArray<cuda::MoeExpertExl3> table = m.table();
    const Rows all(m, rows, 17);
    const std::vector<float> y = run(form, m, table, all, 0, rows);
    RelativeNorm norm;
    for (int r = 0; r < rows; ++r) {
      const std::vector<double> exact = m.exact(
          all.x.data() + int64_t{r} * h, all.ids.data() + r * topk, all.weights.data() + r * topk);
      for (size_t k = 0; k < exact.size(); ++k)
        norm.add(static_cast<double>(y[static_cast<size_t>(r) * exact.size() + k]), exact[k]);
    }
    BOOST_TEST_MESSAGE("relative norm " << norm.value());
    BOOST_CHECK(kFaulty || norm.value() <= kBound);
    SameRows same(form.run == kGenerated.run ? "class D" : "class P");
    for (const int some : parts)
      for (const int first : {0, rows - some}) {
        if (first < 0) continue;
        const std::vector<float> part = run(form, m, table, all, first, some);
        same.compare(part.data(), y.data() + int64_t{first} * h, part.size());
      }
    same.check();
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(generated_rows_of_many_shapes) {
  const auto parts = {1, 2, 4, 5, 9};
  check(kGenerated, 640, 384, 12, 3, true, 21, parts);  // entries of 8 rows, of 4 and of fewer
  check(kGenerated, 2176, 128, 6, 2, true, 9, parts);   // ragged chunks of the inputs
  check(kGenerated, 256, 640, 40, 6, false, 12, parts);
  // More inputs than shared memory holds of four rows, and of eight.
  check(kGenerated, 10368, 128, 3, 2, true, 11, {1, 4, 9});
  check(kGenerated, 128, 1408, 3, 2, true, 11, {1, 4, 9});
  // So many entries that chunks stay whole, and single rows whose leaves do not.
  check(kGenerated, 1408, 128, 90, 6, false, 60, {1, 5, 20});
  check(kGenerated, 128, 512, 90, 6, false, 60, {1, 5, 20});
}

// Entries of 32 to 160 rows of an expert give a row the same bits; more entries than thread blocks,
// several of an expert.
BOOST_AUTO_TEST_CASE(prompt_rows_of_many_shapes) {
  check(kPrompt, 640, 384, 12, 3, true, 70, {1, 5, 33, 64});
  check(kPrompt, 256, 128, 6, 2, true, 290, {1, 9, 90, 120, 150, 280});
  check(kPrompt, 384, 640, 40, 6, false, 20, {1, 7});
  check(kPrompt, 256, 256, 4, 2, true, 400, {5, 31, 100, 170});
}

}  // namespace tensorfold::test
