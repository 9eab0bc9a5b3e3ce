// index_select: against a plain evaluation of its formula: scores, candidate pool, ties, the fill
// with entries outside the pool, and groups of rows.
#include "kernels/index_select.h"

#include <algorithm>
#include <set>

#include "kernels/cpu/row_ops.h"
#include "tests/kernels/ops_support.h"

namespace tensorfold::test {
namespace {

constexpr int kHeads = 2, kDim = 32, kRope = 32, kBlockEntries = 64;

struct Setup {
  int entries, rows, topk, pool_blocks, block_size;
  std::vector<uint8_t> pool;
  std::vector<int32_t> table;
  std::vector<uint16_t> iq, iw;
  std::vector<float> rope;
  AttentionSlice slice;
  std::vector<int32_t> row_slice;

  Setup(int entries_, int rows_, int topk_, int pool_blocks_, int block_size_)
      : entries(entries_),
        rows(rows_),
        topk(topk_),
        pool_blocks(pool_blocks_),
        block_size(block_size_) {
    const int blocks = (entries + kBlockEntries - 1) / kBlockEntries;
    const int64_t block_bytes = kBlockEntries * index_key_bytes(kDim);
    pool.resize(static_cast<size_t>(blocks * block_bytes));
    for (int b = 0; b < blocks; ++b) table.push_back(blocks - 1 - b);  // not in order
    for (int j = 0; j < entries; ++j) {
      // Few distinct keys, so that scores tie often.
      const std::vector<float> key = numbers(static_cast<uint64_t>(j % 23), kDim);
      pack_index_key(key.data(), kDim, key_at(j));
    }
    iq = bf16(numbers(77, int64_t{rows} * kHeads * kDim));
    iw = bf16(numbers(78, int64_t{rows} * kHeads));
    for (int i = 0; i < rows * kRope / 2; ++i) {
      rope.push_back(std::cos(0.1f * static_cast<float>(i)));
      rope.push_back(std::sin(0.1f * static_cast<float>(i)));
    }
    slice.rows = rows;
    slice.first_position = entries - rows;
    slice.block_table = table.data();
    row_slice.assign(static_cast<size_t>(rows), 0);
  }
  uint8_t* key_at(int j) {
    return pool.data() + (int64_t{table[static_cast<size_t>(j / kBlockEntries)]} * kBlockEntries +
                          j % kBlockEntries) *
                             index_key_bytes(kDim);
  }

  std::vector<float> scores_of(int row) {
    const int visible = entries - rows + row + 1;
    std::vector<float> scores(static_cast<size_t>(visible), 0.0f);
    for (int h = 0; h < kHeads; ++h) {
      float q[kDim], key[kDim];
      const auto at = static_cast<size_t>(row * kHeads + h);
      cpu::widen_bf16(iq.data() + at * kDim, kDim, q);
      cpu::rotate(q, kDim, kRope, rope.data() + row * kRope, false);
      fake_quantise_fp4_ue8m0(q, kDim, q);
      const float w = round_bf16(bf16_to_f32(iw[at]) * 0.125f);
      for (int j = 0; j < visible; ++j) {
        unpack_index_key(key_at(j), kDim, key);
        float dot = 0;
        for (int c = 0; c < kDim; ++c) dot += key[c] * q[c];
        scores[static_cast<size_t>(j)] += (dot < 0 ? 0.0f : dot) * w;
      }
    }
    return scores;
  }
};

// The best blocks, the newest one pinned.
std::set<int> pool_of(const std::vector<float>& scores, int blocks_max, int size) {
  const auto visible = static_cast<int>(scores.size());
  std::vector<std::pair<float, int>> best;
  for (int b = 0; b * size < visible; ++b) {
    float m = -INFINITY;
    for (int j = b * size; j < std::min(visible, (b + 1) * size); ++j)
      m = std::max(m, scores[static_cast<size_t>(j)]);
    best.push_back({b == (visible - 1) / size ? -INFINITY : -m, b});
  }
  std::sort(best.begin(), best.end());
  std::set<int> kept;
  for (size_t i = 0; i < best.size() && i < static_cast<size_t>(blocks_max); ++i)
    kept.insert(best[i].second);
  return kept;
}

void check(Setup s, bool by_pool) {
  const auto stream = make_stream(2);
  std::vector<int32_t> candidates(static_cast<size_t>(s.rows * s.pool_blocks)),
      count(static_cast<size_t>(s.rows)), selected(static_cast<size_t>(s.rows * s.topk)),
      selected_count(static_cast<size_t>(s.rows));
  std::vector<float> scores(static_cast<size_t>(s.rows * s.entries));
  TestWorkspace workspace(index_select_workspace_bytes(kHeads, kDim, s.entries, 2));
  IndexSelectParams p;
  p.rows = s.rows;
  p.slice = &s.slice;
  p.row_slice = s.row_slice.data();
  p.heads = kHeads;
  p.dim = kDim;
  p.rope_dim = kRope;
  p.iq = s.iq.data();
  p.iw = s.iw.data();
  p.weight_scale = 0.125f;
  p.rope = s.rope.data();
  p.pool.base = s.pool.data();
  p.pool.block_bytes = kBlockEntries * index_key_bytes(kDim);
  p.pool.entries_per_block = kBlockEntries;
  p.topk = s.topk;
  p.builds_candidates = true;
  p.candidate_blocks = s.pool_blocks;
  p.candidate_block_size = s.block_size;
  p.candidates = candidates.data();
  p.candidate_count = count.data();
  p.selected = selected.data();
  p.selected_count = selected_count.data();
  p.scores = scores.data();
  p.scores_stride = s.entries;
  p.entries_max = s.entries;
  p.workspace = workspace.get();
  cpu::index_select(p, *stream);
  if (by_pool) {
    p.builds_candidates = false;
    p.uses_candidates = true;
    cpu::index_select(p, *stream);
  }
  for (int r = 0; r < s.rows; ++r) {
    std::vector<float> want = s.scores_of(r);
    const auto visible = static_cast<int>(want.size());
    for (int j = 0; j < visible; ++j)
      BOOST_REQUIRE_CLOSE(1.0f + want[static_cast<size_t>(j)],
                          1.0f + scores[static_cast<size_t>(r * s.entries + j)], 1e-3);
    want.assign(scores.begin() + r * s.entries, scores.begin() + r * s.entries + visible);
    const std::set<int> pool = pool_of(want, s.pool_blocks, s.block_size);
    const std::set<int> got(candidates.begin() + r * s.pool_blocks,
                            candidates.begin() + r * s.pool_blocks + count[static_cast<size_t>(r)]);
    BOOST_CHECK(pool == got);
    if (by_pool)
      for (int j = 0; j < visible; ++j)
        if (pool.count(j / s.block_size) == 0) want[static_cast<size_t>(j)] = -INFINITY;
    std::vector<int> order(static_cast<size_t>(visible));
    for (int j = 0; j < visible; ++j) order[static_cast<size_t>(j)] = j;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return want[static_cast<size_t>(a)] > want[static_cast<size_t>(b)];
    });
    order.resize(static_cast<size_t>(std::min(s.topk, visible)));
    std::sort(order.begin(), order.end());
    BOOST_REQUIRE_EQUAL(selected_count[static_cast<size_t>(r)], static_cast<int>(order.size()));
    for (size_t i = 0; i < order.size(); ++i)
      BOOST_REQUIRE_EQUAL(selected[static_cast<size_t>(r * s.topk) + i], order[i]);
    for (size_t i = order.size(); i < static_cast<size_t>(s.topk); ++i)
      BOOST_REQUIRE_EQUAL(selected[static_cast<size_t>(r * s.topk) + i], -1);
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(best_entries) { check(Setup(150, 40, 16, 8, 4), false); }
BOOST_AUTO_TEST_CASE(best_entries_of_the_pool) { check(Setup(150, 40, 16, 8, 4), true); }
BOOST_AUTO_TEST_CASE(a_pool_smaller_than_the_choice) { check(Setup(130, 20, 32, 3, 4), true); }
BOOST_AUTO_TEST_CASE(first_rows_see_few_entries) { check(Setup(30, 30, 16, 2, 8), true); }

}  // namespace tensorfold::test
