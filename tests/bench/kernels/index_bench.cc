// Benchmark of the choice of global entries with the shapes of DeepSeek-V4.1-Flash: 32 index heads
// of 128 channels, the 512 best of up to a million keys. usage: index_bench [--json FILE] [--commit
// ID] A row's choice is held against the host's of the same scores; the tests hold scores and
// choices against the CPU's, bit for bit.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/cuda/index_scores.h"
#include "kernels/formats.h"
#include "tests/bench/kernels/bench_ceilings.h"

namespace tensorfold::bench {
namespace {

constexpr int kHeads = 32, kDim = 128, kRope = 64, kTopk = 512, kEntriesPerBlock = 256;
constexpr double kByteOperationsPerUs = 2 * kMatrixOperationsPerUs;  // matrix units, int8

struct Case {
  int rows;
  int64_t keys;
  bool bf16;
  double score_goal_tflops, choose_goal_us;
};
const Case kCases[] = {{128, 131072, false, 250, 400}, {128, 131072, true, 0, 0},
                       {128, 1 << 20, false, 0, 0},    {2048, 131072, false, 0, 0},
                       {6, 131072, false, 0, 0},       {1, 131072, false, 0, 0}};

// Keys of random codes with scales of 1/4, 1/2 and 1, of several sequences: more bytes than an L2.
struct Pool {
  EntryPool pool;
  std::vector<int32_t*> tables;
  Pool(int64_t keys, int sequences) {
    const int64_t blocks = keys / kEntriesPerBlock;
    pool.block_bytes = int64_t{kEntriesPerBlock} * index_key_bytes(kDim);
    pool.entries_per_block = kEntriesPerBlock;
    std::vector<uint8_t> bytes(static_cast<size_t>(pool.block_bytes * blocks));
    uint32_t random = 1;
    for (size_t i = 0; i < bytes.size(); ++i) {
      random = random * 1664525u + 1013904223u;
      const bool scale = i % static_cast<size_t>(index_key_bytes(kDim)) >= kDim / 2;
      bytes[i] = static_cast<uint8_t>(scale ? 125 + (random >> 24) % 3 : random >> 24);
    }
    pool.base = device_memory<uint8_t>(static_cast<int64_t>(bytes.size()) * sequences);
    for (int i = 0; i < sequences; ++i) {
      TF_BENCH_CUDA(cudaMemcpy(pool.base + static_cast<int64_t>(bytes.size()) * i, bytes.data(),
                               bytes.size(), cudaMemcpyHostToDevice));
      std::vector<int32_t> table(static_cast<size_t>(blocks));
      std::iota(table.begin(), table.end(), static_cast<int32_t>(i * blocks));
      tables.push_back(to_device(table));
    }
  }
  ~Pool() {
    for (int32_t* t : tables) cudaFree(t);
    cudaFree(pool.base);
  }
};

Sample time_graph(cuda::CudaStream& s, int calls, const std::function<void(int)>& enqueue) {
  const Sample sample = time_calls_on(s.handle(), calls, enqueue, 15);
  if (!s.error().empty()) {
    std::fprintf(stderr, "index_bench: %s\n", s.error().c_str());
    std::exit(1);
  }
  return sample;
}

// Share of a row's choice that differs from the host's.
double choice_error(const std::vector<float>& scores, const std::vector<int32_t>& chosen) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + kTopk, order.end(), [&](int32_t a, int32_t b) {
    const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::sort(order.begin(), order.begin() + kTopk);
  int wrong = 0;
  for (size_t i = 0; i < kTopk; ++i) wrong += order[i] != chosen[i] ? 1 : 0;
  return static_cast<double>(wrong) / kTopk;
}

constexpr int kCalls = 4;  // each over another sequence

// What the calls of a case work on.
struct Setup {
  Pool pool;
  int32_t* selected;
  Workspace workspace;
  std::vector<void*> owned;
  std::vector<IndexSelectParams> calls;

  template <typename T>
  T* take(int64_t count) {
    T* p = device_memory<T>(count);
    owned.push_back(p);
    return p;
  }
  explicit Setup(const Case& c) : pool(c.keys, kCalls) {
    const int64_t rows = c.rows;
    auto* iq = take<uint16_t>(rows * kHeads * kDim);
    auto* iw = take<uint16_t>(rows * kHeads);
    auto* rope = take<float>(rows * kRope);
    auto* row_slice = take<int32_t>(rows);
    selected = take<int32_t>(rows * kTopk);
    TF_BENCH_CUDA(fill_normal(iq, rows * kHeads * kDim, 5, nullptr));
    TF_BENCH_CUDA(fill_normal(iw, rows * kHeads, 6, nullptr));
    TF_BENCH_CUDA(fill_f32(rope, rows * kRope, 0, 0.7f, 7, nullptr));
    TF_BENCH_CUDA(cudaMemset(row_slice, 0, static_cast<size_t>(rows) * 4));
    WorkspaceShape shape;
    shape.rows = c.rows;
    shape.index_heads = kHeads;
    shape.index_dim = kDim;
    shape.entries = c.keys;
    workspace.bytes = cuda::index_select_bytes(shape);
    workspace.data = take<std::byte>(workspace.bytes);
    IndexSelectParams p;
    p.rows = c.rows;
    p.row_slice = row_slice;
    p.heads = kHeads;
    p.dim = kDim;
    p.rope_dim = kRope;
    p.iq = iq;
    p.iw = iw;
    p.weight_scale = 1 / 64.0f;
    p.rope = rope;
    p.pool = pool.pool;
    p.topk = kTopk;
    p.bf16_scores = c.bf16;
    p.selected = selected;
    p.selected_count = take<int32_t>(rows);
    p.entries_max = c.keys;
    p.workspace = workspace;
    for (const int32_t* table : pool.tables) {
      AttentionSlice slice;
      slice.rows = c.rows;
      slice.first_position = c.keys - rows;
      slice.block_table = table;
      p.slice = to_device(std::vector<AttentionSlice>{slice});
      owned.push_back(const_cast<AttentionSlice*>(p.slice));
      calls.push_back(p);
    }
  }
  ~Setup() {
    for (void* p : owned) cudaFree(p);
  }
  const IndexSelectParams& call(int i) const { return calls[static_cast<size_t>(i)]; }
};

void run_case(const Case& c, cuda::CudaStream& s, std::vector<Row>& table) {
  const Setup setup(c);
  const std::string name = std::to_string(c.rows) + (c.rows == 1 ? " row, " : " rows, ") +
                           std::to_string(c.keys >> 10) + "K keys" + (c.bf16 ? ", bf16" : "");
  const double pairs = static_cast<double>(c.rows) * static_cast<double>(c.keys);
  Row scores;
  scores.name = "index scores, " + name;
  scores.bytes = static_cast<double>(c.keys) * index_key_bytes(kDim) + pairs * 4;
  scores.operations = pairs * kHeads * kDim * 2;
  scores.matrix_rate = kByteOperationsPerUs;
  if (c.score_goal_tflops > 0) scores.goal_us = scores.operations / c.score_goal_tflops / 1e6;
  Row choose;
  choose.name = "top 512, " + name;
  choose.bytes = pairs * 4;
  choose.operations = pairs;
  choose.goal_us = c.choose_goal_us;
  // Scores of the rows that fit, as index_select takes them at a time.
  cuda::Pieces pieces(setup.workspace);
  const cuda::IndexQueries queries = cuda::take_queries(pieces, c.rows, kHeads, kDim);
  const int group = static_cast<int>(std::min<int64_t>(c.rows, (int64_t{256} << 20) / 4 / c.keys));
  auto* out = pieces.take<float>(group * c.keys);
  cuda::index_queries(setup.call(0), queries, s);
  const double part = static_cast<double>(c.rows) / group;  // of the rows
  scores.time = time_graph(s, kCalls, [&](int i) {
    cuda::index_scores(setup.call(i), queries, 0, group, out, c.keys, s);
  });
  choose.time = time_graph(
      s, kCalls, [&](int i) { cuda::index_choose(setup.call(i), 0, group, out, c.keys, s); });
  const int64_t visible = c.keys - c.rows + 1;
  choose.error = choice_error(to_host(out, visible), to_host(setup.selected, kTopk));
  for (Sample* t : {&scores.time, &choose.time})
    *t = {t->median_us * part, t->p10_us * part, t->p90_us * part};
  Row whole = scores;
  whole.name = "index select, " + name;
  whole.goal_us = 0;
  whole.launches = 2 + 2 * ((c.rows + group - 1) / group);
  whole.time = time_graph(s, kCalls, [&](int i) { cuda::index_select(setup.call(i), s); });
  for (const Row& r : {scores, choose, whole}) table.push_back(r);
}

int run(int argc, char** argv) {
  std::string json, commit = "unknown";
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
    if (std::strcmp(argv[i], "--commit") == 0) commit = argv[i + 1];
  }
  const Ceilings ceilings = measure_ceilings();
  cuda::CudaStream stream;
  if (!stream.create()) {
    std::fprintf(stderr, "index_bench: %s\n", stream.error().c_str());
    return 1;
  }
  std::vector<Row> rows;
  for (const Case& c : kCases) run_case(c, stream, rows);
  print_table(rows, ceilings);
  if (!json.empty()) write_json(json, rows, ceilings, commit);
  return 0;
}

}  // namespace
}  // namespace tensorfold::bench

int main(int argc, char** argv) { return tensorfold::bench::run(argc, argv); }
