// The last positions of a sequence of 1,048,576: operations over a pool whose blocks lie past 4 GiB
// (sparse: untouched pages cost nothing) give the same bits as over the same entries near the
// start, choose entries anywhere, and rotate by angles of a million radians.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/attention_append.h"
#include "kernels/attention_core.h"
#include "kernels/index_select.h"
#include "kernels/rope.h"
#include "tests/kernels/ops_support.h"

namespace tensorfold::test {
namespace {

constexpr int64_t kPositions = int64_t{1} << 20;
constexpr int64_t kLast = kPositions - 1;
constexpr int kBlockPositions = 256;
constexpr int64_t kBlockBytes = 3 << 19;  // 1.5 MiB: 4,096 blocks are 6 GiB
constexpr int kHeads = 2, kDim = 64, kIndexDim = 32, kRope = 32;
constexpr int64_t kIndexOffset = 256 * 1024;

class FarPool {
 public:
  explicit FarPool(int64_t blocks) : bytes_(static_cast<size_t>(blocks * kBlockBytes)) {
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    BOOST_REQUIRE(p != MAP_FAILED);
    base_ = static_cast<uint8_t*>(p);
    table_.resize(static_cast<size_t>(blocks));
    std::iota(table_.begin(), table_.end(), 0);
  }
  ~FarPool() { munmap(base_, bytes_); }
  FarPool(const FarPool&) = delete;
  FarPool& operator=(const FarPool&) = delete;

  EntryPool pool(int ratio) const {
    EntryPool p;
    p.base = base_;
    p.block_bytes = kBlockBytes;
    p.index_offset = kIndexOffset;
    p.entries_per_block = kBlockPositions / ratio;
    p.ratio = ratio;
    return p;
  }
  const int32_t* table() const { return table_.data(); }
  uint8_t* base() const { return base_; }

 private:
  size_t bytes_;
  uint8_t* base_ = nullptr;
  std::vector<int32_t> table_;
};

std::vector<float> no_rotation(int rows) {
  std::vector<float> rope;
  for (int i = 0; i < rows * kRope / 2; ++i) {
    rope.push_back(1);
    rope.push_back(0);
  }
  return rope;
}

struct Chosen {
  std::vector<int32_t> selected, candidates;
};

// Two rows at the last two positions; keys are zero but for `planted` entries, which score.
std::vector<Chosen> choose(int ratio, const std::vector<int64_t>& planted) {
  constexpr int kTopk = 8, kCandidateBlocks = 8, kBlockSize = 64;
  FarPool far(kPositions / kBlockPositions);
  const EntryPool pool = far.pool(ratio);
  const std::vector<float> liked = numbers(5, kIndexDim);
  for (const int64_t j : planted)
    pack_index_key(liked.data(), kIndexDim, pool.index(far.table(), j, index_key_bytes(kIndexDim)));
  const auto stream = make_stream(2);
  std::vector<uint16_t> iq;
  for (int i = 0; i < 2 * kHeads; ++i) {
    const auto row = bf16(liked);
    iq.insert(iq.end(), row.begin(), row.end());
  }
  const std::vector<uint16_t> iw = bf16(std::vector<float>(2 * kHeads, 1.0f));
  const std::vector<float> rope = no_rotation(2);
  AttentionSlice slice;
  slice.rows = 2;
  slice.first_position = kLast - 1;
  slice.block_table = far.table();
  const std::vector<int32_t> row_slice = {0, 0};
  std::vector<int32_t> candidates(2 * kCandidateBlocks), count(2), selected(2 * kTopk), n(2);
  TestWorkspace workspace(index_select_workspace_bytes(kHeads, kIndexDim, kPositions / ratio, 2));
  IndexSelectParams p;
  p.rows = 2;
  p.slice = &slice;
  p.row_slice = row_slice.data();
  p.heads = kHeads;
  p.dim = kIndexDim;
  p.rope_dim = kRope;
  p.iq = iq.data();
  p.iw = iw.data();
  p.weight_scale = 0.125f;
  p.rope = rope.data();
  p.pool = pool;
  p.topk = kTopk;
  p.builds_candidates = true;
  p.candidate_blocks = kCandidateBlocks;
  p.candidate_block_size = kBlockSize;
  p.candidates = candidates.data();
  p.candidate_count = count.data();
  p.selected = selected.data();
  p.selected_count = n.data();
  p.entries_max = kPositions / ratio;
  p.workspace = workspace.get();
  cpu::index_select(p, *stream);
  std::vector<Chosen> rows(2);
  for (size_t r = 0; r < 2; ++r) {
    BOOST_TEST(n[r] == kTopk);
    const auto s = selected.begin() + static_cast<ptrdiff_t>(r * kTopk);
    rows[r].selected.assign(s, s + n[r]);
    const auto c = candidates.begin() + static_cast<ptrdiff_t>(r * kCandidateBlocks);
    rows[r].candidates.assign(c, c + count[r]);
  }
  return rows;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_best_entries_are_found_anywhere_among_a_million) {
  const auto rows = choose(1, {0, 257, 524'288, 1'048'319, kLast - 1, kLast});
  // Ties of what scores nothing go to the lower entry. The first row does not see the last entry.
  BOOST_TEST(
      (rows[0].selected == std::vector<int32_t>{0, 1, 2, 3, 257, 524'288, 1'048'319, kLast - 1}));
  BOOST_TEST((rows[1].selected ==
              std::vector<int32_t>{0, 1, 2, 257, 524'288, 1'048'319, kLast - 1, kLast}));
  BOOST_TEST((rows[1].candidates == std::vector<int32_t>{0, 1, 2, 3, 4, 8192, 16'379, 16'383}));
  // Of pairs there are half as many; the row before the last completes none.
  const auto pairs = choose(2, {5, 300'000, 524'286, 524'287});
  BOOST_TEST((pairs[0].selected == std::vector<int32_t>{0, 1, 2, 3, 4, 5, 300'000, 524'286}));
  BOOST_TEST((pairs[1].selected == std::vector<int32_t>{0, 1, 2, 3, 5, 300'000, 524'286, 524'287}));
}

BOOST_AUTO_TEST_CASE(attention_over_far_entries_gives_the_bits_of_near_ones) {
  constexpr int kWindow = 16, kTopk = 4;
  FarPool far(kPositions / kBlockPositions);
  FarPool near(1);
  const std::vector<int32_t> at_far = {3, 524'288, 1'048'000, static_cast<int32_t>(kLast)};
  const std::vector<int32_t> at_near = {3, 40, 41, 255};
  const EntryPool far_pool = far.pool(1);
  const EntryPool near_pool = near.pool(1);
  for (size_t i = 0; i < at_far.size(); ++i) {
    const std::vector<float> entry = numbers(20 + i, kDim);
    for (const auto& [pool, table, j] : {std::tuple(far_pool, far.table(), at_far[i]),
                                         std::tuple(near_pool, near.table(), at_near[i])})
      pack_main_entry(entry.data(), kDim, pool.main(table, j, main_entry_bytes(kDim)));
  }
  const auto stream = make_stream(2);
  const std::vector<uint16_t> q = bf16(numbers(1, kHeads * kDim));
  const std::vector<uint16_t> staged = bf16(numbers(2, kWindow * kDim));
  const std::vector<float> sink = {0.1f, -0.3f};
  const std::vector<float> rope = no_rotation(1);
  const int32_t row_slice = 0;
  const int32_t count = kTopk;
  const auto run = [&](int64_t position, const FarPool& pool, const std::vector<int32_t>& chosen) {
    AttentionSlice slice;
    slice.rows = 1;
    slice.first_position = position;
    slice.history = kWindow - 1;
    slice.block_table = pool.table();
    TestWorkspace workspace(attention_core_workspace_bytes(kHeads, kDim, 2));
    std::vector<uint16_t> out(kHeads * kDim);
    AttentionCoreParams p;
    p.rows = 1;
    p.slice = &slice;
    p.row_slice = &row_slice;
    p.heads = kHeads;
    p.head_dim = kDim;
    p.rope_dim = kRope;
    p.window = kWindow;
    p.q = q.data();
    p.rope = rope.data();
    p.sink = sink.data();
    p.staged = staged.data();
    p.selected = chosen.data();
    p.selected_count = &count;
    p.topk = kTopk;
    p.pool = pool.pool(1);
    p.out = out.data();
    p.workspace = workspace.get();
    cpu::attention_core(p, *stream);
    return out;
  };
  BOOST_TEST((run(kLast, far, at_far) == run(255, near, at_near)));
  BOOST_TEST((run(kLast, far, at_far) != run(255, near, {3, 40, 42, 255})));
}

BOOST_AUTO_TEST_CASE(rows_enter_the_cache_at_the_last_positions_as_at_the_first) {
  // Positions that are equal modulo block, ring and pair ring: 250 and 1,048,570.
  constexpr int kRows = 6, kHistory = 3, kRingRows = 144;
  constexpr int64_t kFar = kPositions - kRows, kNear = kFar % (2304);
  static_assert(kNear == 250);
  const std::vector<uint16_t> kv = bf16(numbers(1, kRows * kDim));
  const std::vector<float> ones(kDim, 1.0f), rope = no_rotation(kRows);
  const std::vector<float> a = numbers(2, kRows * kDim), g = numbers(3, kRows * kDim);
  const std::vector<uint16_t> a16 = bf16(a);
  const TestWeight wk(kIndexDim, kDim, 9);
  const auto stream = make_stream(2);
  const std::vector<int32_t> row_slice(kRows, 0);
  struct Out {
    std::vector<uint8_t> rings, block;
    std::vector<float> pairs;
    std::vector<uint16_t> staged;
  };
  const auto run = [&](int ratio, int64_t first, const FarPool& memory) {
    Out out;
    out.rings.resize(static_cast<size_t>(kRingRows * window_row_bytes(kDim)));
    for (size_t i = 0; i < out.rings.size(); ++i) out.rings[i] = static_cast<uint8_t>(i % 100);
    out.pairs = numbers(4, kPairRingRows * 2 * kDim);
    out.staged.resize((kRows + kHistory) * kDim);
    AttentionSlice slice;
    slice.rows = kRows;
    slice.first_position = first;
    slice.history = kHistory;
    slice.rings = out.rings.data();
    slice.pair_rings = out.pairs.data();
    slice.block_table = memory.table();
    TestWorkspace workspace(attention_append_workspace_bytes(kRows, kDim, kIndexDim));
    AttentionAppendParams p;
    p.rows = kRows;
    p.slices = 1;
    p.slice = &slice;
    p.row_slice = row_slice.data();
    p.head_dim = kDim;
    p.rope_dim = kRope;
    p.norm_eps = 1e-6f;
    p.kv = kv.data();
    p.kv_norm = p.latent_norm = p.index_norm = ones.data();
    p.rope = p.entry_rope = rope.data();
    p.ring_rows = kRingRows;
    p.staged = out.staged.data();
    p.a = ratio == 1 ? static_cast<const void*>(a16.data()) : a.data();
    p.g = g.data();
    p.index_wk = &wk.view;
    p.index_dim = kIndexDim;
    p.pool = memory.pool(ratio);
    p.workspace = workspace.get();
    cpu::attention_append(p, *stream);
    const uint8_t* block = memory.base() + memory.table()[first / kBlockPositions] * kBlockBytes;
    out.block.assign(block, block + kBlockBytes);
    return out;
  };
  for (const int ratio : {1, 2}) {
    FarPool far(kPositions / kBlockPositions);
    FarPool near(1);
    const Out x = run(ratio, kFar, far);
    const Out y = run(ratio, kNear, near);
    BOOST_TEST((x.rings == y.rings));
    BOOST_TEST((x.pairs == y.pairs));
    BOOST_TEST((x.staged == y.staged));
    BOOST_TEST((x.block == y.block));
    BOOST_TEST(std::any_of(x.block.begin(), x.block.end(), [](uint8_t b) { return b != 0; }));
    // And nowhere else: the first block of the far pool is as it was.
    BOOST_TEST(std::all_of(far.base(), far.base() + kBlockBytes, [](uint8_t b) { return b == 0; }));
  }
}

BOOST_AUTO_TEST_CASE(angles_of_a_million_positions) {
  const RopeYarn yarn;
  for (const RopeYarn* scaling : {static_cast<const RopeYarn*>(nullptr), &yarn}) {
    const std::vector<float> freqs = rope_frequencies(scaling ? 160'000 : 10'000, 64, scaling);
    std::vector<int64_t> positions = {0, 1, 65'535, 65'536, 524'287, kLast - 1, kLast};
    for (int64_t p = 7; p < kPositions; p += 104'729) positions.push_back(p);
    std::vector<float> table(positions.size() * freqs.size() * 2);
    RopeTableParams p;
    p.rows = static_cast<int>(positions.size());
    p.pairs = static_cast<int>(freqs.size());
    p.positions = positions.data();
    p.freqs = freqs.data();
    p.table = table.data();
    const auto stream = make_stream(1);
    cpu::rope_table(p, *stream);
    double worst = 0;
    for (size_t r = 0; r < positions.size(); ++r) {
      for (size_t k = 0; k < freqs.size(); ++k) {
        const auto angle = static_cast<double>(static_cast<float>(positions[r]) * freqs[k]);
        const float* at = table.data() + (r * freqs.size() + k) * 2;
        worst = std::max(worst, std::abs(static_cast<double>(at[0]) - std::cos(angle)));
        worst = std::max(worst, std::abs(static_cast<double>(at[1]) - std::sin(angle)));
      }
    }
    BOOST_TEST(worst < 1e-7);
  }
}

}  // namespace tensorfold::test
