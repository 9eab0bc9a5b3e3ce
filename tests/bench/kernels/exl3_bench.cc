// Benchmark of the EXL3 kernels with the shapes of one of two ranks of DeepSeek-V4.1-Flash.
// usage: exl3_bench [--json FILE] [--commit ID] [--only dense|cuts|moe|prefill]
// Every call uses other weights than the last (more bytes than any L2); errors are relative norms
// against the run-time decoder's fp32 products, which the tests hold against fp64.
#include <cstring>
#include <random>

#include "kernels/cuda/exl3_dense.h"
#include "kernels/cuda/exl3_plan.h"
#include "kernels/cuda/exl3_prefill.h"
#include "kernels/cuda/moe_decode.h"
#include "kernels/formats.h"
#include "tests/bench/kernels/bench_ceilings.h"
#include "tests/bench/kernels/bench_weights.h"

namespace tensorfold::bench {
namespace {

constexpr double kRotateBytes = 400e6;

struct Shape {
  int in, out, bits;
};

struct DenseCase {
  const char* name;
  std::vector<std::vector<Shape>> calls;  // one after the other; the weights of one: one input
  int rows;
  double goal_us;
};

const std::vector<Shape> kWqb = {{1280, 16384, 5}}, kWob = {{4096, 5120, 5}},
                         kHead = {{5120, 64640, 6}}, kShared = {{5120, 1152, 5}, {5120, 1152, 5}},
                         kWqa = {{5120, 1280, 6}, {5120, 512, 6}},
                         kWoa = {
                             {4096, 1024, 5}, {4096, 1024, 5}, {4096, 1024, 5}, {4096, 1024, 5}};

const DenseCase kDense[] = {
    {"wq_b 1280->16384 5b, 1 row", {kWqb}, 1, 7},
    {"wo_b 4096->5120 5b, 1 row", {kWob}, 1, 7},
    {"shared w1+w3 5b, 1 row", {kShared}, 1, 5},
    {"head 5120->64640 6b, 1 row", {kHead}, 1, 72},
    {"head 5120->64640 6b, 6 rows", {kHead}, 6, 0},
    {"wq_a+wkv 6b, 6 rows", {kWqa}, 6, 0},
    {"wq_b 5b, 6 rows", {kWqb}, 6, 0},
    {"wo_a x4 5b, 6 rows", {kWoa}, 6, 0},
    {"wo_b 5b, 6 rows", {kWob}, 6, 0},
    {"attention of a layer, 6 rows", {kWqa, kWqb, kWoa, kWob}, 6, 20},
    {"attention of a layer, 1 row", {kWqa, kWqb, kWoa, kWob}, 1, 0},
    {"attention of a layer, 24 rows", {kWqa, kWqb, kWoa, kWob}, 24, 0},
    {"wq_b 5b, 24 rows", {kWqb}, 24, 0},
    {"wo_b 5b, 24 rows", {kWob}, 24, 0},
    {"head 5120->64640 6b, 24 rows", {kHead}, 24, 0},
    {"wq_b 5b, 128 rows", {kWqb}, 128, 0},
    {"wo_b 5b, 128 rows", {kWob}, 128, 0},
    {"wq_b 5b, 384 rows", {kWqb}, 384, 0},
};

double dense_error(const cuda::Exl3DenseJob& job, int rows) {
  const int checked = std::min(rows, 8);
  const int64_t count = int64_t{checked} * job.out;
  float* exact = device_memory<float>(count);
  cuda::Exl3DenseJob any = job;
  any.y = exact;
  any.y_stride = job.out;
  any.type = ValueType::kF32;
  TF_BENCH_CUDA(cuda::exl3_any(any, checked, nullptr));
  TF_BENCH_CUDA(cudaDeviceSynchronize());
  const double error =
      relative_norm(to_host(static_cast<const float*>(job.y), count), to_host(exact, count));
  TF_BENCH_CUDA(cudaFree(exact));
  return error;
}

// The calls of a case, as often as fills more than any L2, each with memory of its own.
struct DenseCalls {
  std::vector<std::vector<cuda::Exl3DenseParams>> copies;
  std::vector<void*> owned;
  Row row;

  explicit DenseCalls(const DenseCase& c) {
    row.name = c.name;
    row.goal_us = c.goal_us;
    row.launches = static_cast<int>(c.calls.size()) * (c.rows > cuda::kExl3FewRows ? 2 : 1);
    for (const auto& group : c.calls)
      for (const Shape& s : group) {
        row.bytes += static_cast<double>(s.in) * s.out * s.bits / 8 + 2.0 * (s.in + s.out) +
                     c.rows * (2.0 * s.in + 4.0 * s.out);
        row.weights += static_cast<double>(s.in) * s.out;
      }
    row.operations = 2 * row.weights * c.rows;
    const int count = static_cast<int>(std::max(2.0, std::ceil(kRotateBytes / row.bytes)));
    int64_t bytes = 0;
    for (const auto& group : c.calls)
      bytes = std::max(bytes, cuda::exl3_dense_workspace_bytes(c.rows, group[0].in,
                                                               static_cast<int>(group.size())));
    auto* workspace = device_memory<std::byte>(bytes + 1);
    owned.push_back(workspace);
    uint32_t seed = 1;
    for (int i = 0; i < count; ++i) {
      copies.emplace_back();
      for (const auto& group : c.calls)
        copies.back().push_back(call(group, c.rows, workspace, bytes, seed));
    }
  }
  ~DenseCalls() {
    for (void* p : owned) TF_BENCH_CUDA(cudaFree(p));
  }
  DenseCalls(const DenseCalls&) = delete;
  DenseCalls& operator=(const DenseCalls&) = delete;

  cuda::Exl3DenseParams call(const std::vector<Shape>& group, int rows, void* workspace,
                             int64_t bytes, uint32_t& seed) {
    cuda::Exl3DenseParams p;
    p.rows = rows;
    p.workspace = workspace;
    p.workspace_bytes = bytes;
    for (const Shape& s : group) {
      auto* x = device_memory<uint16_t>(int64_t{rows} * s.in);
      auto* y = device_memory<float>(int64_t{rows} * s.out);
      TF_BENCH_CUDA(fill_normal(x, int64_t{rows} * s.in, seed += 3, nullptr));
      TF_BENCH_CUDA(
          cudaMemset(y, 0xFF, static_cast<size_t>(rows) * static_cast<size_t>(s.out) * 4));
      const Exl3Parts w = random_matrix(s.in, s.out, s.bits, seed += 3);
      p.job[p.jobs++] = {w, s.in, s.out, x, s.in, y, s.out, ValueType::kF32};
      for (const void* q : {static_cast<const void*>(x), static_cast<const void*>(y), w.trellis,
                            static_cast<const void*>(w.suh), static_cast<const void*>(w.svh)})
        owned.push_back(const_cast<void*>(q));
    }
    return p;
  }
  void time(const cuda::Exl3DenseParams& how = {}, int replays = kReplays) {
    row.time = time_calls(
        static_cast<int>(copies.size()),
        [&](int i, cudaStream_t stream) {
          for (cuda::Exl3DenseParams p : copies[static_cast<size_t>(i)]) {
            p.cluster = how.cluster;
            p.warps = how.warps;
            p.kernels = how.kernels;
            TF_BENCH_CUDA(cuda::exl3_dense(p, stream));
          }
        },
        replays);
  }
};

Row bench_dense(const DenseCase& c) {
  DenseCalls calls(c);
  calls.time();
  calls.row.error = 0;
  for (const cuda::Exl3DenseParams& p : calls.copies[1])
    for (int i = 0; i < p.jobs; ++i)
      calls.row.error = std::max(calls.row.error, dense_error(p.job[i], c.rows));
  return calls.row;
}

// Microseconds of every case by the kernels and the size of the cluster (0: as chosen).
void print_cuts() {
  using Kernels = cuda::Exl3DenseKernels;
  const struct {
    const char* name;
    Kernels kernels;
    int warps;
  } kinds[] = {{"warps", Kernels::kWarps, 0},
               {"groups 24", Kernels::kGroups, 24},
               {"groups 20", Kernels::kGroups, 20},
               {"groups 12", Kernels::kGroups, 12},
               {"many", Kernels::kMany, 0}};
  for (const DenseCase& c : kDense) {
    DenseCalls calls(c);
    for (const auto& kind : kinds) {
      if (c.rows > cuda::kExl3FewRows && kind.kernels != Kernels::kMany) continue;
      std::printf("%-34s %-10s", c.name, kind.name);
      for (int cluster = 0; cluster <= cuda::kExl3ClusterMax; ++cluster) {
        if (cluster > 0 && c.calls.size() > 1) break;
        cuda::Exl3DenseParams how;
        how.cluster = cluster;
        how.warps = kind.warps;
        how.kernels = kind.kernels;
        calls.time(how, 10);
        std::printf(" %7.2f", calls.row.time.median_us);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

// type: what the model wants of this product.
Row bench_dense_prefill(const char* name, const Shape& s, int rows, ValueType type,
                        double goal_us) {
  Row row;
  row.name = name;
  row.goal_us = goal_us;
  row.launches = 2;
  row.weights = static_cast<double>(s.in) * s.out;
  row.bytes = row.weights * s.bits / 8 +
              rows * (2.0 * s.in + (type == ValueType::kF32 ? 4.0 : 2.0) * s.out);
  row.operations = 2 * row.weights * rows;
  row.matrix_rate = kMatrixOperationsPerUs;
  constexpr int kCopies = 4;
  std::vector<cuda::Exl3DenseJob> jobs;
  const int64_t bytes = cuda::exl3_prefill_workspace_bytes(rows, s.in);
  auto* workspace = device_memory<std::byte>(bytes);
  for (uint32_t i = 0; i < kCopies; ++i) {
    auto* x = device_memory<uint16_t>(int64_t{rows} * s.in);
    auto* y = device_memory<float>(int64_t{rows} * s.out);
    TF_BENCH_CUDA(fill_normal(x, int64_t{rows} * s.in, 7 + i, nullptr));
    jobs.push_back(
        {random_matrix(s.in, s.out, s.bits, 50 + 10 * i), s.in, s.out, x, s.in, y, s.out, type});
  }
  row.time = time_calls(kCopies, [&](int i, cudaStream_t stream) {
    TF_BENCH_CUDA(cuda::exl3_prefill(jobs[static_cast<size_t>(i)], rows, workspace, bytes, stream));
  });
  jobs[1].type = ValueType::kF32;  // the error without the output's own rounding
  TF_BENCH_CUDA(cuda::exl3_prefill(jobs[1], rows, workspace, bytes, nullptr));
  row.error = dense_error(jobs[1], rows);
  for (const cuda::Exl3DenseJob& j : jobs)
    for (const void* q :
         {static_cast<const void*>(j.x), static_cast<const void*>(j.y), j.weight.trellis,
          static_cast<const void*>(j.weight.suh), static_cast<const void*>(j.weight.svh)})
      TF_BENCH_CUDA(cudaFree(const_cast<void*>(q)));
  TF_BENCH_CUDA(cudaFree(workspace));
  return row;
}

constexpr int kHidden = 5120, kInter = 1152, kTopk = 6, kPool = 384;

// Rows of top-6 experts that touch exactly `distinct` of [first, first + distinct).
std::vector<int32_t> routing(int rows, int distinct, int first, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> slots;
  for (int i = 0; i < rows * kTopk; ++i)
    slots.push_back(
        first + (i < distinct ? i : static_cast<int>(random() % static_cast<uint32_t>(distinct))));
  const auto twice = [&](size_t at) {
    const size_t row = at / kTopk * kTopk;
    for (size_t i = row; i < row + kTopk; ++i)
      if (i != at && slots[i] == slots[at]) return true;
    return false;
  };
  std::shuffle(slots.begin(), slots.end(), random);
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; i < slots.size(); ++i)
      if (twice(i)) {
        std::swap(slots[i], slots[random() % slots.size()]);
        again = true;
      }
  }
  return slots;
}

struct MoeWeights {
  std::vector<cuda::MoeExpertExl3> host;
  cuda::MoeExpertExl3* device = nullptr;
  explicit MoeWeights(int bits) {
    for (uint32_t e = 0; e < kPool; ++e)
      host.push_back({random_matrix(kHidden, kInter, bits, 1000 + 10 * e, 0.01f),
                      random_matrix(kHidden, kInter, bits, 1003 + 10 * e, 0.01f),
                      random_matrix(kInter, kHidden, bits, 1006 + 10 * e, 0.01f)});
    host.push_back({});
    device = to_device(host);
  }
};

// The row's output from the run-time decoder's products, fp32 and double on the host.
std::vector<float> moe_row(const MoeWeights& w, const uint16_t* x, const int32_t* ids,
                           const float* weights) {
  std::vector<double> sum(kHidden, 0.0);
  std::vector<int32_t> order(ids, ids + kTopk);
  float* g = device_memory<float>(kInter);
  float* u = device_memory<float>(kInter);
  float* y = device_memory<float>(kHidden);
  for (int i = 0; i < kTopk; ++i) {
    const cuda::MoeExpertExl3& e = w.host[static_cast<size_t>(order[static_cast<size_t>(i)])];
    TF_BENCH_CUDA(cuda::exl3_any({e.w1, kHidden, kInter, x, kHidden, g, kInter, ValueType::kF32}, 1,
                                 nullptr));
    TF_BENCH_CUDA(cuda::exl3_any({e.w3, kHidden, kInter, x, kHidden, u, kInter, ValueType::kF32}, 1,
                                 nullptr));
    const std::vector<float> gh = to_host(g, kInter), uh = to_host(u, kInter);
    std::vector<uint16_t> z;
    for (size_t k = 0; k < kInter; ++k) {
      const float gv = std::min(round_bf16(gh[k]), 10.0f);
      const float uv = std::max(std::min(round_bf16(uh[k]), 10.0f), -10.0f);
      z.push_back(f32_to_bf16(gv / (1.0f + std::exp(-gv)) * uv * weights[i]));
    }
    uint16_t* zd = to_device(z);
    TF_BENCH_CUDA(cuda::exl3_any({e.w2, kInter, kHidden, zd, kInter, y, kHidden, ValueType::kF32},
                                 1, nullptr));
    const std::vector<float> yh = to_host(y, kHidden);
    for (size_t k = 0; k < kHidden; ++k) sum[k] += static_cast<double>(yh[k]);
    TF_BENCH_CUDA(cudaFree(zd));
  }
  TF_BENCH_CUDA(cudaFree(g));
  TF_BENCH_CUDA(cudaFree(u));
  TF_BENCH_CUDA(cudaFree(y));
  return {sum.begin(), sum.end()};
}

Row bench_moe_decode(const MoeWeights& w, int rows, int distinct, double goal_us) {
  const int copies = std::max(1, kPool / distinct), calls = std::max(copies, 8 / copies * copies);
  Row row;
  row.name = "MoE 3b, " + std::to_string(rows) + " rows, " + std::to_string(distinct) + " experts";
  row.goal_us = goal_us;
  row.launches = 3;
  const double each = 3.0 * kHidden * kInter;
  row.weights = distinct * each;
  row.bytes = row.weights * 3 / 8 + rows * 6.0 * kHidden;
  row.operations = 2 * each * rows * kTopk;
  auto* x = device_memory<uint16_t>(int64_t{rows} * kHidden);
  TF_BENCH_CUDA(fill_normal(x, int64_t{rows} * kHidden, 5, nullptr));
  std::vector<float> weights(static_cast<size_t>(rows * kTopk), 0.4f);
  std::vector<std::vector<int32_t>> ids;
  std::vector<cuda::MoeDecodeParams> params;
  const int64_t bytes = cuda::moe_decode_workspace_bytes(rows, kHidden, kInter, kTopk);
  auto* workspace = device_memory<std::byte>(bytes);
  for (int i = 0; i < copies; ++i) {
    ids.push_back(routing(rows, distinct, i * distinct, static_cast<uint32_t>(i)));
    cuda::MoeDecodeParams p;
    p.rows = rows;
    p.hidden = kHidden;
    p.intermediate = kInter;
    p.experts = kPool;
    p.topk = kTopk;
    p.swiglu_limit = 10;
    p.x = x;
    p.x_stride = kHidden;
    p.ids = to_device(ids.back());
    p.weights = to_device(weights);
    p.expert = w.device;
    p.y = device_memory<float>(int64_t{rows} * kHidden);
    p.workspace = workspace;
    p.workspace_bytes = bytes;
    params.push_back(p);
  }
  row.time = time_calls(calls, [&](int i, cudaStream_t stream) {
    TF_BENCH_CUDA(cuda::moe_decode(params[static_cast<size_t>(i % copies)], stream));
  });
  row.error = 0;
  for (const int r : {0, rows - 1})
    row.error = std::max(
        row.error, relative_norm(to_host(params[0].y + int64_t{r} * kHidden, kHidden),
                                 moe_row(w, x + int64_t{r} * kHidden, ids[0].data() + r * kTopk,
                                         weights.data() + r * kTopk)));
  return row;
}

Row bench_moe_prefill(const MoeWeights& w, int rows, int experts, double goal_us) {
  constexpr int kCopies = 3;
  Row row;
  row.name = "MoE 3b, " + std::to_string(rows) + " rows, " + std::to_string(experts) + " uniform";
  row.goal_us = goal_us;
  row.launches = 4;
  const double each = 3.0 * kHidden * kInter;
  row.weights = experts * each;
  row.bytes = row.weights * 3 / 8 + rows * 6.0 * kHidden;
  row.operations = 2 * each * rows * kTopk;
  row.matrix_rate = kMatrixOperationsPerUs;
  cuda::MoeDecodeParams p;
  p.rows = rows;
  p.hidden = kHidden;
  p.intermediate = kInter;
  p.experts = experts;
  p.topk = kTopk;
  p.swiglu_limit = 10;
  p.x_stride = kHidden;
  const std::vector<float> weights(static_cast<size_t>(rows * kTopk), 0.4f);
  p.weights = to_device(weights);
  p.workspace_bytes = cuda::moe_prefill_workspace_bytes(rows, kHidden, kInter, kTopk);
  p.workspace = device_memory<std::byte>(p.workspace_bytes);
  auto* x = device_memory<uint16_t>(int64_t{rows} * kHidden);
  TF_BENCH_CUDA(fill_normal(x, int64_t{rows} * kHidden, 5, nullptr));
  p.x = x;
  p.y = device_memory<float>(int64_t{rows} * kHidden);
  std::mt19937 random(3);
  std::vector<std::vector<int32_t>> ids(kCopies);
  std::vector<cuda::MoeDecodeParams> params;
  for (int i = 0; i < kCopies; ++i) {
    for (int r = 0; r < rows; ++r) {
      std::vector<int32_t> row_ids;
      while (row_ids.size() < kTopk) {
        const auto e = static_cast<int32_t>(random() % static_cast<uint32_t>(experts));
        if (std::find(row_ids.begin(), row_ids.end(), e) == row_ids.end()) row_ids.push_back(e);
      }
      ids[static_cast<size_t>(i)].insert(ids[static_cast<size_t>(i)].end(), row_ids.begin(),
                                         row_ids.end());
    }
    // Other experts every time where the pool has them; the shared one stays absent.
    std::vector<cuda::MoeExpertExl3> table;
    for (int e = 0; e < experts; ++e)
      table.push_back(w.host[static_cast<size_t>((e + i * experts) % kPool)]);
    table.push_back({});
    p.expert = to_device(table);
    p.ids = to_device(ids[static_cast<size_t>(i)]);
    params.push_back(p);
  }
  row.time = time_calls(
      kCopies,
      [&](int i, cudaStream_t stream) {
        TF_BENCH_CUDA(cuda::moe_prefill(params[static_cast<size_t>(i)], stream));
      },
      15);
  TF_BENCH_CUDA(cuda::moe_prefill(params[0], nullptr));
  row.error = 0;
  for (const int r : {0, rows - 1})
    row.error =
        std::max(row.error, relative_norm(to_host(p.y + int64_t{r} * kHidden, kHidden),
                                          moe_row(w, x + int64_t{r} * kHidden,
                                                  ids[0].data() + r * kTopk, weights.data())));
  TF_BENCH_CUDA(cudaFree(p.workspace));
  return row;
}

int run(int argc, char** argv) {
  std::string json, commit = "unknown", only;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
    if (std::strcmp(argv[i], "--commit") == 0) commit = argv[i + 1];
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
  }
  const Ceilings ceilings = measure_ceilings();
  std::vector<Row> rows;
  if (only.empty() || only == "dense")
    for (const DenseCase& c : kDense) rows.push_back(bench_dense(c));
  if (only == "cuts") print_cuts();
  if (only.empty() || only == "moe") {
    const MoeWeights weights(3);
    rows.push_back(bench_moe_decode(weights, 1, 6, 26));
    rows.push_back(bench_moe_decode(weights, 6, 22, 70));
    rows.push_back(bench_moe_decode(weights, 24, 81, 245));
  }
  if (only.empty() || only == "prefill") {
    const auto bf16 = ValueType::kBf16, f32 = ValueType::kF32;
    rows.push_back(bench_dense_prefill("wq_b 5b, 2048 rows", {1280, 16384, 5}, 2048, bf16, 150));
    rows.push_back(bench_dense_prefill("wo_b 5b, 2048 rows", {4096, 5120, 5}, 2048, f32, 150));
    rows.push_back(bench_dense_prefill("wq_b 5b, 512 rows", {1280, 16384, 5}, 512, bf16, 0));
    rows.push_back(bench_dense_prefill("wq_b 5b, 8192 rows", {1280, 16384, 5}, 8192, bf16, 0));
    rows.push_back(bench_dense_prefill("wo_b 5b, 8192 rows", {4096, 5120, 5}, 8192, f32, 0));
    const MoeWeights weights(3);
    rows.push_back(bench_moe_prefill(weights, 512, 128, 600));
    rows.push_back(bench_moe_prefill(weights, 2048, 128, 1900));
    // 260 and 330 TFLOP/s of 2 x 3 x 5120 x 1152 x 6 operations a row.
    rows.push_back(bench_moe_prefill(weights, 4096, 384, 3345));
    rows.push_back(bench_moe_prefill(weights, 8192, 384, 5271));
  }
  print_table(rows, ceilings);
  if (!json.empty()) write_json(json, rows, ceilings, commit);
  return 0;
}

}  // namespace
}  // namespace tensorfold::bench

int main(int argc, char** argv) { return tensorfold::bench::run(argc, argv); }
