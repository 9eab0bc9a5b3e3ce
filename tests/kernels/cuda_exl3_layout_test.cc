// The order "lanes" and the cuts of EXL3 products: pure functions, no GPU.
#include <boost/test/unit_test.hpp>
#include <random>
#include <set>
#include <vector>

#include "engine/weights/exl3_codec.h"
#include "kernels/cuda/exl3_layout.h"
#include "kernels/cuda/exl3_plan.h"
#include "kernels/cuda/moe_plan.h"

namespace tensorfold::test {
namespace {

using cuda::Exl3DensePlan;

constexpr cuda::Exl3Gpu kH200{132, 227 * 1024, 228 * 1024}, kGb10{48, 99 * 1024, 100 * 1024};

// The state of value `v` of a lane's run, from the lane's words and the word before them.
uint32_t run_state(const std::vector<uint32_t>& run, int bits, int v) {
  const int end = bits * (v + 1) + 32;  // the run begins after one word
  uint32_t state = 0;
  for (int b = end - 16; b < end; ++b)
    state = state << 1 | (run[static_cast<size_t>(b / 32)] >> (31 - b % 32) & 1u);
  return state;
}

}  // namespace

BOOST_AUTO_TEST_CASE(lanes_are_a_permutation_that_comes_back) {
  std::mt19937 random(3);
  for (int bits = 1; bits <= 8; ++bits) {
    const int in = 256, out = 384;
    std::vector<uint32_t> tiles(static_cast<size_t>(cuda::exl3_trellis_words(in, out, bits)));
    for (uint32_t& w : tiles) w = static_cast<uint32_t>(random());
    std::vector<uint32_t> lanes(tiles.size(), 0), back(tiles.size(), 0);
    cuda::exl3_lanes_from_tiles(tiles, in, out, bits, lanes);
    cuda::exl3_tiles_from_lanes(lanes, in, out, bits, back);
    BOOST_CHECK(back == tiles);
    Exl3Parts stored;
    stored.trellis = tiles.data();
    stored.padded_in = in;
    stored.padded_out = out;
    stored.half_bits = static_cast<unsigned char>(2 * bits);
    std::vector<uint32_t> packed(tiles.size(), 0);
    cuda::exl3_pack_lanes(stored, reinterpret_cast<std::byte*>(packed.data()));
    BOOST_CHECK(packed == lanes);
    BOOST_CHECK(lanes != tiles);
    std::set<int64_t> places;
    for (int kt = 0; kt < in / 16; ++kt)
      for (int nt = 0; nt < out / 16; ++nt)
        for (int w = 0; w < 8 * bits; ++w) places.insert(cuda::exl3_lane_word(in, bits, kt, nt, w));
    BOOST_CHECK_EQUAL(places.size(), tiles.size());
    BOOST_CHECK_EQUAL(*places.rbegin(), static_cast<int64_t>(tiles.size()) - 1);
  }
}

// What a lane reads (its chunks, and one word of its neighbour) gives the codec's states.
BOOST_AUTO_TEST_CASE(a_lanes_chunks_hold_its_run) {
  std::mt19937 random(4);
  for (int bits = 1; bits <= 8; ++bits) {
    const int in = 128, out = 128;
    std::vector<uint32_t> tiles(static_cast<size_t>(cuda::exl3_trellis_words(in, out, bits)));
    for (uint32_t& w : tiles) w = static_cast<uint32_t>(random());
    std::vector<uint32_t> lanes(tiles.size());
    cuda::exl3_lanes_from_tiles(tiles, in, out, bits, lanes);
    const auto words_of = [&](int unit, int lane, int i) {  // 4 bits words of tile column i
      std::vector<uint32_t> words;
      for (int j = 0; j < bits; ++j) {
        const int mine = i * bits + j;
        words.push_back(
            lanes[static_cast<size_t>(((unit * bits + mine / 4) * 32 + lane) * 4 + mine % 4)]);
      }
      return words;
    };
    for (int unit = 0; unit < 4; ++unit)
      for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
          std::vector<uint32_t> run{words_of(unit, (lane + 28) % 32, i).back()};
          for (const uint32_t w : words_of(unit, lane, i)) run.push_back(w);
          const int kt = (unit % 2) * 4 + lane % 4, nt = (unit / 2) * 4 + i;
          std::vector<uint16_t> tile;
          for (int w = 0; w < 8 * bits; ++w) {
            const uint32_t word = tiles[static_cast<size_t>((kt * 8 + nt) * 8 * bits + w)];
            tile.push_back(static_cast<uint16_t>(word));
            tile.push_back(static_cast<uint16_t>(word >> 16));
          }
          std::array<uint16_t, 256> states;
          exl3::tile_states(tile, 2 * bits, states);
          for (int v = 0; v < 32; ++v)
            BOOST_REQUIRE_EQUAL(run_state(run, bits, v),
                                states[static_cast<size_t>(32 * (lane / 4) + v)]);
        }
  }
}

BOOST_AUTO_TEST_CASE(cuts_cover_every_block_once) {
  for (int blocks = 1; blocks <= 200; ++blocks)
    for (const int columns : {1, 9, 24, 40, 64, 128, 505})
      for (const int rows : {1, 6, 8})
        for (const cuda::Exl3Gpu& gpu : {kH200, kGb10}) {
          const Exl3DensePlan p = cuda::exl3_dense_plan({blocks, columns, 5, rows}, gpu);
          BOOST_REQUIRE_EQUAL(p.blocks, blocks);
          BOOST_REQUIRE_LE(p.cluster, cuda::kExl3ClusterMax);
          BOOST_REQUIRE_GE(p.cluster * p.cta_blocks, blocks);
          BOOST_REQUIRE_LT((p.cluster - 1) * p.cta_blocks, blocks);  // no rank without work
          BOOST_REQUIRE_GE(p.depth, 1);
          BOOST_REQUIRE_LE(p.depth, cuda::kExl3DepthMax);
          BOOST_REQUIRE_LE(cuda::exl3_dense_shared(p, 5, rows).bytes, gpu.block_bytes_max);
        }
  for (int blocks = 1; blocks <= 200; ++blocks) {
    for (const cuda::MoeCut& cut :
         {cuda::moe_gate_cut(128 * blocks), cuda::moe_down_cut(128 * blocks - 5)}) {
      BOOST_REQUIRE_EQUAL(cut.blocks, blocks);
      BOOST_REQUIRE_GE(cut.chunks * cut.chunk_blocks, blocks);
      BOOST_REQUIRE_LT((cut.chunks - 1) * cut.chunk_blocks, blocks);
    }
    BOOST_REQUIRE_LE(cuda::moe_gate_cut(128 * blocks).chunks, cuda::kMoeGateChunksMax);
    BOOST_REQUIRE_LE(cuda::moe_down_cut(128 * blocks).chunks, cuda::kMoeDownChunksMax);
  }
}

// The shapes of one of two ranks of V4.1, on the smallest GPU too; and what is too wide is told.
BOOST_AUTO_TEST_CASE(cuts_fit_the_shared_memory) {
  // Columns: of all weights of the launch.
  const struct {
    int in, columns, bits, rows, cluster_h200;
  } shapes[] = {{5120, 14, 6, 6, 8},  {1280, 128, 5, 1, 2}, {1280, 128, 5, 6, 2},
                {4096, 32, 5, 6, 6},  {4096, 40, 5, 1, 5},  {4096, 40, 5, 6, 5},
                {5120, 18, 5, 1, 8},  {5120, 505, 6, 1, 1}, {5120, 505, 6, 6, 1},
                {15360, 40, 4, 6, 3}, {5120, 1, 5, 8, 8}};
  for (const auto& s : shapes) {
    BOOST_TEST_CONTEXT(s.in << " x " << s.columns << ", " << s.rows << " rows") {
      BOOST_CHECK(cuda::exl3_dense_fits(s.in, 128 * s.columns, kH200.block_bytes_max));
      BOOST_CHECK(cuda::exl3_dense_fits(s.in, 128 * s.columns, kGb10.block_bytes_max));
      const Exl3DensePlan p = cuda::exl3_dense_plan({s.in / 128, s.columns, s.bits, s.rows}, kH200);
      BOOST_CHECK_EQUAL(p.cluster, s.cluster_h200);
    }
  }
  BOOST_CHECK(!cuda::exl3_dense_fits(65536, 5120, kGb10.block_bytes_max));
  const Exl3DensePlan p = cuda::exl3_dense_plan({40, 505, 6, 8}, kH200);
  const cuda::Exl3DenseShared l = cuda::exl3_dense_shared(p, 6, 8);
  BOOST_CHECK_GE(l.q, p.warps * p.depth * 6 * 512);
  BOOST_CHECK_GE(l.scale, l.q + 2 * 8 * (40 * 128 + 64));
  BOOST_CHECK_GE(l.sums, l.scale + 8 * 40 * 8);
  BOOST_CHECK_EQUAL(l.sums % 16, 0);
  BOOST_CHECK_GE(l.parts, l.sums + 2 * 8 * cuda::kExl3SumStride * 4);
  BOOST_CHECK_EQUAL(l.barriers % 8, 0);
}

// The sum of a row over its blocks never leaves 32 bits: each adds less than 2^(30 - shift).
BOOST_AUTO_TEST_CASE(sums_of_blocks_stay_inside_32_bits) {
  for (int blocks = 1; blocks <= 4096; ++blocks) {
    const int shift = cuda::exl3_sum_shift(blocks);
    BOOST_REQUIRE_LE(int64_t{blocks} << (30 - shift), int64_t{1} << 31);
    if (shift > 0) BOOST_REQUIRE_GT(int64_t{blocks} << (31 - shift), int64_t{1} << 31);
  }
}

BOOST_AUTO_TEST_CASE(parts_of_the_workspace_do_not_overlap) {
  const cuda::MoeDecodeLayout l = cuda::moe_decode_layout(24, 5120, 1152, 6);
  const int64_t pairs = 24 * 7;
  BOOST_CHECK_LE(l.entries + pairs * int64_t{sizeof(cuda::MoeEntry)}, l.slots);
  BOOST_CHECK_LE(l.slots + pairs * 4, l.tickets);
  BOOST_CHECK_LE(l.tickets + 8, l.gate_done);
  BOOST_CHECK_LE(l.gate_done + pairs * 9 * 4, l.down_done);
  BOOST_CHECK_LE(l.down_done + pairs * 40 * 4, l.row_done);
  BOOST_CHECK_LE(l.row_done + 24 * 40 * 4, l.xq);
  BOOST_CHECK_EQUAL(l.tickets + l.counters * 4, l.xq);
  BOOST_CHECK_LE(l.xq + pairs * 4 * 5120, l.xs);
  BOOST_CHECK_LE(l.xs + pairs * 2 * 40 * 8, l.zq);
  BOOST_CHECK_LE(l.zq + pairs * 2 * 1152, l.zs);
  BOOST_CHECK_LE(l.zs + pairs * 9 * 8, l.parts);
  BOOST_CHECK_LE(l.parts + pairs * 2 * 4 * 1152 * 4, l.ye);
  BOOST_CHECK_LE(l.parts + pairs * 5120 * 4, l.ye);
  BOOST_CHECK_LE(l.ye + pairs * 5120 * 4, l.bytes);
}

}  // namespace tensorfold::test
