// The three attention operations on a GPU against the CPU's (tests/kernels/cuda_support.h): packed
// cache bytes where their inputs are exact, the exact choice of entries, attention itself.
#include <algorithm>
#include <set>

#include "tests/kernels/cuda_support.h"

namespace tensorfold::test {
namespace {

constexpr int kRounds = 10;
constexpr int kPositions = 256;  // of a pool block

BOOST_TEST_GLOBAL_FIXTURE(GpuOrSkip);

// Values in blocks of 32 whose sizes differ by up to 16: more than the kernel has a short way for,
// and sums of products are still exact in any order, as the CPU's channels one by one need it.
std::vector<float> blocks_apart(std::vector<float> values) {
  int power = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 32 == 0) power = pick(-2, 2);
    values[i] = std::ldexp(values[i], power);
  }
  return values;
}

// Slices at random places of random sequences, with rings, pair rings and pool blocks that hold
// random but well-formed rows.
struct Scene {
  int head_dim, index_dim, rope_dim, window, ratio, rows = 0, staged = 0, ring_rows;
  int64_t entries_max = 0;
  std::vector<AttentionSlice> slices;
  std::vector<int32_t> row_slice;
  std::vector<int64_t> positions;
  std::vector<std::vector<int32_t>> tables;

  Scene(int round, int slice_count, int longest)
      : head_dim(32 * pick(2, round % 3 == 0 ? 16 : 5)),
        index_dim(32 * pick(1, 4)),
        rope_dim(2 * pick(1, 16)),
        window(pick(3, 140)),
        ratio(pick(1, 2)),
        ring_rows(window + kRingSpareRows) {
    for (int i = 0; i < slice_count; ++i) {
      AttentionSlice s;
      s.first_row = rows;
      s.rows = pick(1, i == 0 ? 90 : 20);
      s.first_position = pick(0, longest);
      s.window_floor = coin() ? 0 : pick(0, static_cast<int>(s.first_position));
      s.staged_first = staged;
      s.history = static_cast<int32_t>(s.first_position -
                                       window_first(s.first_position, window, s.window_floor));
      staged += s.history + s.rows;
      for (int k = 0; k < s.rows; ++k) {
        row_slice.push_back(i);
        positions.push_back(s.first_position + k);
      }
      rows += s.rows;
      entries_max = std::max(entries_max, visible_entries(s.first_position + s.rows - 1, ratio));
      std::vector<int32_t> table;
      for (int64_t b = 0; b * kPositions < s.first_position + s.rows; ++b) table.push_back(0);
      tables.push_back(std::move(table));
      slices.push_back(s);
    }
    int32_t next = 0;  // blocks are dealt in another order than they are used in
    for (size_t at = 0; at < 64; ++at)
      for (auto& table : tables)
        if (at < table.size()) table[table.size() - 1 - at] = next++;
    blocks = next;
  }
  int blocks = 0;

  static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
  int64_t main_bytes() const { return aligned(kPositions / ratio * main_entry_bytes(head_dim)); }
  int64_t block_bytes() const {
    return main_bytes() + aligned(kPositions / ratio * index_key_bytes(index_dim));
  }
  EntryPool pool(uint8_t* base) const {
    EntryPool p;
    p.base = base;
    p.block_bytes = block_bytes();
    p.index_offset = main_bytes();
    p.entries_per_block = kPositions / ratio;
    p.ratio = ratio;
    return p;
  }
  // apart: the blocks of every other index key differ in size.
  std::vector<uint8_t> random_pool(bool apart = false) const {
    std::vector<uint8_t> bytes(static_cast<size_t>(blocks * block_bytes()));
    const std::vector<float> values = fresh(4096);
    const std::vector<float> wide = apart ? blocks_apart(values) : values;
    for (int b = 0; b < blocks; ++b)
      for (int e = 0; e < kPositions / ratio; ++e) {
        uint8_t* block = bytes.data() + b * block_bytes();
        pack_main_entry(values.data() + pick(0, 4095 - head_dim), head_dim,
                        block + e * main_entry_bytes(head_dim));
        pack_index_key((e % 2 == 0 ? values : wide).data() + pick(0, 4095 - index_dim), index_dim,
                       block + main_bytes() + e * index_key_bytes(index_dim));
      }
    return bytes;
  }
};

// The slices on both sides, pointing to their own memories.
struct BothSlices {
  std::vector<Both<int32_t>> tables;
  std::vector<Both<uint8_t>> rings;
  std::vector<Both<float>> pairs;
  std::vector<AttentionSlice> cpu;
  std::vector<Both<AttentionSlice>> gpu;
  Both<int32_t> row_slice;

  explicit BothSlices(const Scene& scene) : cpu(scene.slices), row_slice(scene.row_slice) {
    std::vector<AttentionSlice> device = scene.slices;
    const int d = scene.head_dim;
    for (size_t i = 0; i < cpu.size(); ++i) {
      tables.emplace_back(scene.tables[i]);
      std::vector<uint8_t> ring(static_cast<size_t>(2 * scene.ring_rows * window_row_bytes(d)));
      for (int r = 0; r < 2 * scene.ring_rows; ++r)
        pack_window_row(fresh(d).data(), d, ring.data() + r * window_row_bytes(d));
      rings.emplace_back(std::move(ring));
      pairs.emplace_back(fresh(int64_t{kPairRingRows} * 2 * d * 2));
      cpu[i].block_table = tables[i].cpu();
      cpu[i].rings = rings[i].cpu();
      cpu[i].pair_rings = pairs[i].cpu();
      device[i].block_table = tables[i].gpu();
      device[i].rings = rings[i].gpu();
      device[i].pair_rings = pairs[i].gpu();
    }
    gpu.emplace_back(device);
  }
};

WorkspaceShape shape_of(const Scene& scene, int heads) {
  WorkspaceShape s;
  s.rows = scene.rows;
  s.head_dim = scene.head_dim;
  s.index_dim = scene.index_dim;
  s.heads = s.index_heads = heads;
  s.entries = scene.entries_max;
  s.candidate_block_size = 4;
  return s;
}

// Table of cosines and sines for positions, the CPU's on both sides.
std::vector<float> rope_for(const std::vector<int64_t>& positions, int rope_dim) {
  const auto stream = make_stream(1);
  const std::vector<float> freqs = rope_frequencies(10000, rope_dim, nullptr);
  std::vector<float> table(positions.size() * static_cast<size_t>(rope_dim));
  RopeTableParams p;
  p.rows = static_cast<int>(positions.size());
  p.pairs = rope_dim / 2;
  p.positions = positions.data();
  p.freqs = freqs.data();
  p.table = table.data();
  cpu::rope_table(p, *stream);
  return table;
}

double differing_bytes(const Both<uint8_t>& b) {
  const std::vector<uint8_t> got = b.fetch();
  size_t differing = 0;
  for (size_t i = 0; i < got.size(); ++i) differing += got[i] != b.host[i] ? 1 : 0;
  return static_cast<double>(differing) / static_cast<double>(got.size());
}

// What index_select left behind.
struct Lists {
  std::vector<float> scores;
  std::vector<int32_t> selected, counts, blocks, block_counts;
};

// How many of row r's two lists are not the best of its own scores, found by sorting.
int wrong_lists(const IndexSelectParams& p, const Lists& l, int64_t r, int64_t visible) {
  const auto row = static_cast<size_t>(r);
  const float* s = l.scores.data() + r * p.scores_stride;
  const int32_t* row_blocks = l.blocks.data() + r * p.candidate_blocks;
  int wrong = 0;
  if (p.builds_candidates) {
    std::vector<int32_t> want(static_cast<size_t>(p.candidate_blocks));
    const int kept = select_candidate_blocks(s, visible, p.candidate_block_size, p.candidate_blocks,
                                             want.data());
    const bool same =
        kept == l.block_counts[row] && std::equal(want.begin(), want.begin() + kept, row_blocks);
    wrong += same ? 0 : 1;
  }
  std::set<int64_t> open;
  for (int i = 0; i < l.block_counts[row]; ++i) open.insert(row_blocks[i]);
  std::vector<std::pair<float, int32_t>> order;  // best first, then the lower entry
  for (int64_t j = 0; j < visible; ++j) {
    const bool closed = p.uses_candidates && open.count(j / p.candidate_block_size) == 0;
    order.emplace_back(closed ? INFINITY : 0.0f - s[j], j);
  }
  std::sort(order.begin(), order.end());
  std::vector<int32_t> want;
  for (int64_t i = 0; i < std::min<int64_t>(p.topk, visible); ++i)
    want.push_back(order[static_cast<size_t>(i)].second);
  std::sort(want.begin(), want.end());
  const auto taken = static_cast<int32_t>(want.size());
  want.resize(static_cast<size_t>(p.topk), -1);
  const bool same = l.counts[row] == taken &&
                    std::equal(want.begin(), want.end(), l.selected.data() + r * p.topk);
  return wrong + (same ? 0 : 1);
}

// Candidates as an earlier layer may leave them: every third block of 4 entries that a row sees.
void every_third_block(const Scene& scene, int most, std::vector<int32_t>& blocks,
                       std::vector<int32_t>& counts) {
  for (int r = 0; r < scene.rows; ++r) {
    const int64_t visible = visible_entries(scene.positions[static_cast<size_t>(r)], scene.ratio);
    int32_t count = 0;
    for (int64_t b = 0; b * 4 < visible && count < most; b += 3, ++count)
      blocks.push_back(static_cast<int32_t>(b));
    blocks.resize(static_cast<size_t>((r + 1) * most), -1);
    counts.push_back(count);
  }
}

IndexSelectParams random_select(const Scene& scene, int round) {
  IndexSelectParams p;
  p.rows = scene.rows;
  p.heads = pick(1, 9);
  p.dim = scene.index_dim;
  p.rope_dim = std::min(scene.rope_dim, scene.index_dim);
  p.weight_scale = 0.125f;
  p.topk = round % 5 == 3 ? 512 : pick(1, 60);
  p.bf16_scores = round % 3 == 0;  // exact ties are common then
  p.builds_candidates = round % 4 < 2;
  p.uses_candidates = round % 4 == 2;
  p.candidate_blocks = pick(2, 40);
  p.candidate_block_size = 4;
  p.entries_max = scene.entries_max;
  p.scores_stride = std::max<int64_t>(scene.entries_max, 1);
  return p;
}

}  // namespace

BOOST_AUTO_TEST_CASE(appended_rows) {
  const auto stream = make_stream(2);
  Gpu& gpu = Gpu::get();
  for (int round = 0; round < kRounds; ++round) {
    const Scene scene(round, pick(1, 4), 700);
    BothSlices slices(scene);
    const int d = scene.head_dim;
    const int64_t n = scene.rows;
    // Rows of all sizes, and some values that test the formats' ends.
    std::vector<float> kv_values = fresh(n * d, std::pow(10.0f, static_cast<float>(pick(-6, 6))));
    if (round % 2 == 0) std::fill_n(kv_values.begin(), d, 0.0f);
    Both<uint16_t> kv(bf16(kv_values));
    Both<float> kv_norm(fresh(d)), rope(rope_for(scene.positions, scene.rope_dim)),
        latent_norm(fresh(d)), index_norm(fresh(scene.index_dim)), a32(fresh(n * d)),
        g(fresh(n * d, 4));
    Both<uint16_t> a16(bf16(fresh(n * d)));
    const int q_width = 32 * pick(1, 40);
    Both<uint16_t> qr(bf16(fresh(n * q_width)));
    Both<float> q_norm(fresh(q_width));
    BothWeight wk(scene.index_dim, d, WeightLayout::kPanelBf16, coin());
    auto staged = Both<uint16_t>::out(int64_t{scene.staged} * d);
    Both<uint8_t> pool(scene.random_pool());
    BothWorkspace workspace(shape_of(scene, 1), *stream);
    AttentionAppendParams p;
    p.rows = scene.rows;
    p.slices = static_cast<int>(scene.slices.size());
    p.head_dim = d;
    p.rope_dim = scene.rope_dim;
    p.norm_eps = 1e-20f;
    p.ring_rows = scene.ring_rows;
    p.ring_offset = scene.ring_rows * window_row_bytes(d);
    p.pair_offset = int64_t{kPairRingRows} * 2 * d;
    p.stage_only = round % 4 == 3;
    p.index_dim = scene.index_dim;
    const auto run = [&](bool on_gpu) {
      const auto side = [on_gpu](auto& both) { return on_gpu ? both.gpu() : both.cpu(); };
      p.slice = on_gpu ? slices.gpu[0].gpu() : slices.cpu.data();
      p.row_slice = side(slices.row_slice);
      p.kv = side(kv);
      p.kv_norm = side(kv_norm);
      p.rope = p.entry_rope = side(rope);
      p.staged = side(staged);
      p.qr = side(qr);
      p.q_norm = side(q_norm);
      p.q_width = q_width;
      p.warms = 1;  // nothing but time may come of it
      p.warm[0] = {side(pool), static_cast<int64_t>(pool.host.size())};
      p.a = scene.ratio == 2 ? static_cast<const void*>(side(a32)) : side(a16);
      p.g = side(g);
      p.latent_norm = side(latent_norm);
      p.index_wk = on_gpu ? &wk.gpu : &wk.cpu;
      p.index_norm = side(index_norm);
      p.pool = scene.pool(side(pool));
      p.workspace = on_gpu ? workspace.gpu() : workspace.cpu();
      on_gpu ? gpu.ops().attention_append(p, gpu.stream()) : cpu::attention_append(p, *stream);
    };
    run(false);
    run(true);
    check_same(staged, "staged window rows");
    check_same(qr, "query latents");
    for (size_t i = 0; i < slices.rings.size(); ++i) {
      check_same(slices.rings[i], "window ring");
      check_same(slices.pairs[i], "pair ring");
    }
    // A sum of products that falls to the other side of a rounding moves a code; with ratio 2 an
    // exponential does as well.
    BOOST_CHECK_LE(differing_bytes(pool), 2e-3);
  }
}

BOOST_AUTO_TEST_CASE(chosen_entries_are_the_best_of_the_scores) {
  const auto stream = make_stream(2);
  Gpu& gpu = Gpu::get();
  for (int round = 0; round < 2 * kRounds; ++round) {
    const Scene scene(round, pick(1, 3), round % 2 == 0 ? 300 : 9000);
    BothSlices slices(scene);
    IndexSelectParams p = random_select(scene, round);
    const int64_t n = scene.rows;
    // Block scales of queries or of keys lie apart.
    const std::vector<float> queries = fresh(n * p.heads * p.dim);
    Both<uint16_t> iq(bf16(round % 4 == 1 ? blocks_apart(queries) : queries)),
        iw(bf16(fresh(n * p.heads)));
    Both<float> rope(rope_for(scene.positions, p.rope_dim));
    Both<uint8_t> pool(scene.random_pool(round % 4 == 3));
    std::vector<int32_t> given, given_count;
    every_third_block(scene, p.candidate_blocks, given, given_count);
    Both<int32_t> candidates(given), candidate_count(given_count);
    auto selected = Both<int32_t>::out(n * p.topk), count = Both<int32_t>::out(n);
    auto scores = Both<float>::out(n * p.scores_stride);
    BothWorkspace workspace(shape_of(scene, p.heads), *stream);
    const auto run = [&](bool on_gpu, bool with_scores) {
      const auto side = [on_gpu](auto& both) { return on_gpu ? both.gpu() : both.cpu(); };
      p.slice = on_gpu ? slices.gpu[0].gpu() : slices.cpu.data();
      p.row_slice = side(slices.row_slice);
      p.iq = side(iq);
      p.iw = side(iw);
      p.rope = side(rope);
      p.pool = scene.pool(side(pool));
      p.candidates = side(candidates);
      p.candidate_count = side(candidate_count);
      p.selected = side(selected);
      p.selected_count = side(count);
      p.scores = with_scores ? side(scores) : nullptr;
      p.workspace = on_gpu ? workspace.gpu() : workspace.cpu();
      on_gpu ? gpu.ops().index_select(p, gpu.stream()) : cpu::index_select(p, *stream);
    };
    run(false, true);
    run(true, true);
    const Lists lists{scores.fetch(), selected.fetch(), count.fetch(), candidates.fetch(),
                      candidate_count.fetch()};
    double worst = 0;
    int wrong = 0;
    for (int64_t r = 0; r < n; ++r) {
      const int64_t visible = visible_entries(scene.positions[static_cast<size_t>(r)], scene.ratio);
      for (int64_t j = 0; j < visible; ++j) {
        const auto at = static_cast<size_t>(r * p.scores_stride + j);
        worst = std::max(worst, std::fabs(double{lists.scores[at]} - double{scores.host[at]}));
      }
      wrong += wrong_lists(p, lists, r, visible);
    }
    BOOST_CHECK_EQUAL(wrong, 0);
    BOOST_CHECK_EQUAL(worst, 0);  // products of FP4 values are exact, sums have one order
    check_same(selected, "selected entries");
    // Without asking for scores the lists are the same.
    std::memset(selected.host.data(), 0xFF, selected.host.size() * 4);
    selected.push();
    run(true, false);
    BOOST_CHECK(selected.fetch() == lists.selected);
  }
}

BOOST_AUTO_TEST_CASE(attention) {
  const auto stream = make_stream(2);
  Gpu& gpu = Gpu::get();
  for (int round = 0; round < 2 * kRounds; ++round) {
    const Scene scene(round, pick(1, 4), 900);
    BothSlices slices(scene);
    const int d = scene.head_dim;
    const int64_t n = scene.rows;
    AttentionCoreParams p;
    p.rows = scene.rows;
    p.heads = pick(1, 35);
    p.head_dim = d;
    p.rope_dim = scene.rope_dim;
    p.window = scene.window;
    p.topk = pick(1, 90);
    p.whole_slice = round % 5 == 4;
    const int mode = round % 3;  // window; window and entries; listed window rows
    Both<uint16_t> q(bf16(fresh(n * p.heads * d, 2))),
        staged(bf16(fresh(int64_t{scene.staged} * d)));
    Both<float> rope(rope_for(scene.positions, scene.rope_dim)), sink(fresh(p.heads, 3));
    Both<uint8_t> pool(scene.random_pool());
    std::vector<int32_t> entries, counts, listed;
    for (int64_t r = 0; r < n; ++r) {
      const int64_t visible = visible_entries(scene.positions[static_cast<size_t>(r)], scene.ratio);
      int32_t taken = 0;
      for (int64_t j = pick(0, 3); j < visible && taken < p.topk; j += pick(1, 9), ++taken)
        entries.push_back(static_cast<int32_t>(j));
      entries.resize(static_cast<size_t>((r + 1) * p.topk), -1);
      counts.push_back(taken);
      for (int i = 0; i < p.window; ++i)
        listed.push_back(pick(0, 3) == 0 ? -1 : pick(0, scene.staged - 1));
    }
    if (mode == 2 && n > 1) std::fill_n(listed.begin(), p.window, -1);  // a row without keys
    Both<int32_t> selected(entries), selected_count(counts), list(listed);
    auto out = Both<uint16_t>::out(n * p.heads * d);
    BothWorkspace workspace(shape_of(scene, p.heads), *stream);
    const auto run = [&](bool on_gpu) {
      const auto side = [on_gpu](auto& both) { return on_gpu ? both.gpu() : both.cpu(); };
      p.slice = on_gpu ? slices.gpu[0].gpu() : slices.cpu.data();
      p.row_slice = side(slices.row_slice);
      p.q = side(q);
      p.rope = round % 7 == 6 ? nullptr : side(rope);
      p.sink = side(sink);
      p.staged = side(staged);
      p.window_list = mode == 2 ? side(list) : nullptr;
      p.selected = mode == 1 ? side(selected) : nullptr;
      p.selected_count = mode == 1 ? side(selected_count) : nullptr;
      p.pool = scene.pool(side(pool));
      p.out = side(out);
      p.workspace = on_gpu ? workspace.gpu() : workspace.cpu();
      on_gpu ? gpu.ops().attention_core(p, gpu.stream()) : cpu::attention_core(p, *stream);
    };
    run(false);
    run(true);
    check_near(out, 3e-3, "attention, D " + std::to_string(d) + ", mode " + std::to_string(mode));
    // Few rows are shared by clusters and many are not; a row's bits are the same.
    const std::vector<uint16_t> together = out.fetch();
    std::fill(out.host.begin(), out.host.end(), uint16_t{0xFFFF});
    out.push();
    p.rows = static_cast<int>(std::min<int64_t>(n, 40));
    run(true);
    const std::vector<uint16_t> fewer = out.fetch();
    const auto values = static_cast<std::ptrdiff_t>(p.rows) * p.heads * d;
    BOOST_CHECK(std::equal(fewer.begin(), fewer.begin() + values, together.begin()));
  }
}

}  // namespace tensorfold::test
