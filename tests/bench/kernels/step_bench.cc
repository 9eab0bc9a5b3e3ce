// Benchmark of whole steps of one of two ranks of DeepSeek-V4.1-Flash (step_rank.h): the operations
// of engine/model's forward pass in its order, over EXL3 weights as stored, in one CUDA graph.
//
// usage: step_bench [--json FILE] [--commit ID] [--layers N] [--context TOKENS] [--only CASE]
//
// For every case: the whole step, and each class of operations by itself (the step's launches of
// that class in a graph of their own). Bytes: weights of the step and its distinct experts once,
// rows, and the cache rows that are read; limit: bench_timing.h. Left out: the exchange between
// ranks, Engram's reads, sampling, the drafter. A prompt step runs the encoder's layers and the
// entries of the decoder's source, as all chunks of a prompt but the last do.
#include <algorithm>
#include <cstring>
#include <memory>

#include "tests/bench/kernels/bench_ceilings.h"
#include "tests/bench/kernels/step_launches.h"

namespace tensorfold::bench {
namespace {

constexpr int64_t kMemoryMaxBytes = int64_t{120} << 30;
constexpr int kReplaysOfStep = 15;
constexpr int64_t kStepContextTokens = 2048;

constexpr Case kCases[] = {{"1 row", 1, 1, false, false},
                           {"6 rows", 1, 6, false, false},
                           {"6 rows, uniform experts", 1, 6, false, true},
                           {"24 rows", 4, 6, false, false},
                           {"24 rows, uniform experts", 4, 6, false, true},
                           {"prompt of 512", 1, 512, true, true},
                           {"prompt of 2048", 1, 2048, true, true},
                           {"prompt of 4096", 1, 4096, true, true}};

void check_stream(cuda::CudaStream& s) {
  if (s.error().empty()) return;
  std::fprintf(stderr, "step_bench: %s\n", s.error().c_str());
  std::exit(1);
}

// Replays of the launches in `mask`; nodes: kernels of the graph.
Sample time_step(Step& step, unsigned mask, cuda::CudaStream& s, int* nodes) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  TF_BENCH_CUDA(cudaStreamBeginCapture(s.handle(), cudaStreamCaptureModeThreadLocal));
  step.enqueue(mask);
  TF_BENCH_CUDA(cudaStreamEndCapture(s.handle(), &graph));
  check_stream(s);
  size_t count = 0;
  TF_BENCH_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  *nodes = static_cast<int>(count);
  Sample sample;
  if (count > 0) {
    TF_BENCH_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin, end;
    TF_BENCH_CUDA(cudaEventCreate(&begin));
    TF_BENCH_CUDA(cudaEventCreate(&end));
    std::vector<double> us;
    for (int r = 0; r < kReplaysOfStep + 2; ++r) {
      TF_BENCH_CUDA(cudaEventRecord(begin, s.handle()));
      TF_BENCH_CUDA(cudaGraphLaunch(exec, s.handle()));
      TF_BENCH_CUDA(cudaEventRecord(end, s.handle()));
      TF_BENCH_CUDA(cudaEventSynchronize(end));
      float ms = 0;
      TF_BENCH_CUDA(cudaEventElapsedTime(&ms, begin, end));
      if (r >= 2) us.push_back(static_cast<double>(ms) * 1e3);
    }
    std::sort(us.begin(), us.end());
    sample = {us[us.size() / 2], us[us.size() / 10], us[us.size() * 9 / 10]};
    TF_BENCH_CUDA(cudaEventDestroy(begin));
    TF_BENCH_CUDA(cudaEventDestroy(end));
    TF_BENCH_CUDA(cudaGraphExecDestroy(exec));
  }
  TF_BENCH_CUDA(cudaGraphDestroy(graph));
  return sample;
}

void run_case(const Case& c, StepRank& rank, Buffers& b, cuda::CudaStream& s, int64_t context,
              std::vector<Row>& rows) {
  Step step(c, rank, b, s, context);
  step.enqueue(kAll);  // loads the kernels outside the capture, and adds up the costs
  s.wait();
  check_stream(s);
  Row whole;
  for (int k = 0; k < kClasses; ++k) {
    Row row;
    row.name = std::string(c.name) + ": " + kClassNames[k];
    row.time = time_step(step, 1u << k, s, &row.launches);
    if (row.launches == 0) continue;
    row.bytes = static_cast<double>(step.cost(k).bytes);
    row.weights = step.weights_decoded(k);
    row.operations = static_cast<double>(step.cost(k).operations);
    row.matrix_rate = c.prompt ? kMatrixOperationsPerUs : 0;
    whole.bytes += row.bytes;
    whole.weights += row.weights;
    whole.operations += row.operations;
    rows.push_back(row);
  }
  whole.name = std::string(c.name) + ": whole step";
  whole.matrix_rate = c.prompt ? kMatrixOperationsPerUs : 0;
  whole.time = time_step(step, kAll, s, &whole.launches);
  whole.goal_us = std::strcmp(c.name, "1 row") == 0    ? 2600
                  : std::strcmp(c.name, "6 rows") == 0 ? 4500
                                                       : 0;
  rows.push_back(whole);
  // Streams and logits must be numbers, or kernels were timed on NaN.
  bool finite = true;
  for (const uint16_t v : to_host(b.streams, int64_t{c.slices} * c.rows * kHc * kHidden))
    finite = finite && (v & 0x7f80u) != 0x7f80u;
  std::printf("%s: %.1f distinct experts a layer, %d launches, %s\n", c.name, step.mean_distinct,
              whole.launches, finite ? "all values finite" : "VALUES THAT ARE NO NUMBERS");
  std::fflush(stdout);
}

WorkspaceShape shape_of(int64_t context) {
  WorkspaceShape s;
  s.rows = kMaxLayerRows;
  s.widest_input = kEngramIn;
  s.hidden = kHidden;
  s.hc = kHc;
  s.heads = kHeads;
  s.head_dim = kHeadDim;
  s.index_heads = kIndexHeads;
  s.index_dim = kIndexDim;
  s.entries = context + kMaxLayerRows;
  s.candidate_block_size = kCandidateSize;
  s.intermediate = kInter;
  s.experts = kExperts;
  s.topk = kExpertsPerToken;
  s.markov_rank = 256;
  s.exl3 = true;
  return s;
}

int64_t free_memory() {
  size_t free = 0, total = 0;
  TF_BENCH_CUDA(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

int run(int argc, char** argv) {
  std::string json, commit = "unknown", only;
  int layers = kLayers;
  int64_t context = kStepContextTokens;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
    if (std::strcmp(argv[i], "--commit") == 0) commit = argv[i + 1];
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
    if (std::strcmp(argv[i], "--layers") == 0) layers = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--context") == 0) context = std::atoll(argv[i + 1]);
  }
  if (layers < 1 || layers > kLayers || context < 0 || context > int64_t{1} << 20) {
    std::fprintf(stderr, "step_bench: --layers 1..%d, --context 0..1048576\n", kLayers);
    return 64;
  }
  std::string problem;
  const std::unique_ptr<Device> device(cuda::open_gpu(kDeviceAbiVersion, 0, problem));
  if (device == nullptr) {
    std::printf("skipped: %s\n", problem.c_str());
    return 77;
  }
  const Ceilings ceilings = measure_ceilings();
  std::unique_ptr<Stream> stream = std::move(*device->make_stream(0));
  const int64_t before = free_memory();
  // 2.6 GB a layer, 2 GB beside the layers, activations and workspace 3 GB, generously.
  const int64_t wanted = int64_t{layers} * 2'620'000'000 + 5'000'000'000;
  if (wanted > kMemoryMaxBytes || wanted > before) {
    std::fprintf(stderr, "step_bench: about %lld GB are needed, %lld are free\n",
                 static_cast<long long>(wanted / 1'000'000'000),
                 static_cast<long long>(before / 1'000'000'000));
    return 1;
  }
  StepRank rank = make_step_rank(layers, context);
  const int64_t taken = before - free_memory();
  std::printf("%d layers, context %lld: planned %.3f GB, the device gave %.3f GB (%.2f%% more)\n",
              layers, static_cast<long long>(context),
              static_cast<double>(rank.planned_bytes) / 1e9, static_cast<double>(taken) / 1e9,
              100.0 * static_cast<double>(taken - rank.planned_bytes) /
                  static_cast<double>(rank.planned_bytes));
  Buffers buffers(kMaxLayerRows, *device, shape_of(context), *stream);
  std::printf("with activations and workspace %.3f GB\n",
              static_cast<double>(before - free_memory()) / 1e9);
  std::vector<Row> rows;
  for (const Case& c : kCases)
    if (only.empty() || only == c.name)
      run_case(c, rank, buffers, cuda::cuda_stream(*stream), context, rows);
  print_table(rows, ceilings);
  if (!json.empty()) write_json(json, rows, ceilings, commit);
  return 0;
}

}  // namespace
}  // namespace tensorfold::bench

int main(int argc, char** argv) { return tensorfold::bench::run(argc, argv); }
