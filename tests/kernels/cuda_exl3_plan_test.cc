// How EXL3 products of generated rows are cut by groups of warps and for many rows: every block
// once, inside a GPU's shared memory, for all shapes. Pure functions, no GPU.
#include <boost/test/unit_test.hpp>

#include "kernels/cuda/exl3_many_plan.h"
#include "kernels/cuda/exl3_plan.h"

namespace tensorfold::test {
namespace {

using namespace cuda;

constexpr Exl3Gpu kGpus[] = {{132, 227 * 1024, 228 * 1024, 9}, {48, 99 * 1024, 100 * 1024, 12}};

void check_cut(int blocks, int cluster, int cta_blocks) {
  BOOST_REQUIRE_GE(cluster, 1);
  BOOST_REQUIRE_LE(cluster, kExl3ClusterMax);
  BOOST_REQUIRE_GE(cluster * cta_blocks, blocks);
  BOOST_REQUIRE_LT((cluster - 1) * cta_blocks, blocks);  // no rank without work
}

}  // namespace

BOOST_AUTO_TEST_CASE(groups_of_warps) {
  for (const Exl3Gpu& gpu : kGpus)
    for (int blocks = 1; blocks <= 120; ++blocks)
      for (const int columns : {1, 14, 18, 32, 40, 128, 505})
        for (const int rows : {1, 6, 8}) {
          const Exl3DensePlan p = exl3_group_plan({blocks, columns, 6, rows}, gpu);
          if (p.depth == 0) continue;  // the kernel of single warps takes it
          check_cut(blocks, p.cluster, p.cta_blocks);
          const Exl3DenseShared l = exl3_group_shared(p, 6, rows);
          BOOST_REQUIRE_LE(l.bytes, gpu.block_bytes_max);
          BOOST_REQUIRE_LE(p.depth, kExl3GroupStagesMax);
          const int groups = p.warps / kExl3GroupWarps;
          BOOST_REQUIRE_EQUAL(p.warps % kExl3GroupWarps, 0);
          // One stage is enough only where no group takes a second step.
          if (p.depth == 1) BOOST_REQUIRE_LE(p.cta_blocks * p.columns, groups);
          BOOST_REQUIRE_GE(l.q, groups * p.depth * 6 * 2048);
          BOOST_REQUIRE_EQUAL(l.q % 16, 0);
          BOOST_REQUIRE_EQUAL(l.scale % 8, 0);
          BOOST_REQUIRE_EQUAL(l.sums % 16, 0);
          BOOST_REQUIRE_EQUAL(l.parts % 16, 0);
          BOOST_REQUIRE_EQUAL(l.barriers % 8, 0);
          BOOST_REQUIRE_GE(l.exchange, l.barriers + groups * 2 * kExl3GroupStagesMax * 8);
          BOOST_REQUIRE_GE(l.bytes, l.exchange + 16);
        }
}

BOOST_AUTO_TEST_CASE(single_warps_take_what_is_left) {
  for (const Exl3Gpu& gpu : kGpus)
    for (int blocks = 1; blocks <= 120; ++blocks)
      for (const int columns : {1, 40, 505}) {
        const Exl3DensePlan p = exl3_dense_plan({blocks, columns, 6, 8}, gpu);
        BOOST_REQUIRE_GE(p.depth, 1);
        const Exl3DenseShared l = exl3_dense_shared(p, 6, 8);
        BOOST_REQUIRE_GE(l.exchange, l.barriers + p.warps * kExl3DepthMax * 8);
        BOOST_REQUIRE_LE(l.exchange + 16, l.bytes);
      }
}

BOOST_AUTO_TEST_CASE(many_rows) {
  for (const Exl3Gpu& gpu : kGpus)
    for (int blocks = 1; blocks <= 120; ++blocks)
      for (const int columns : {1, 18, 40, 128, 505})
        for (const int rows : {9, 24, 128, 512}) {
          const Exl3ManyPlan p = exl3_many_plan(blocks, columns, 6, rows, gpu);
          BOOST_REQUIRE_GE(p.stages, 1);
          check_cut(blocks, p.cluster, p.cta_blocks);
          if (p.stages == 1) BOOST_REQUIRE_EQUAL(p.cta_blocks, 1);
          const Exl3ManyShared l = exl3_many_shared(p, 6);
          BOOST_REQUIRE_LE(l.bytes, gpu.block_bytes_max);
          BOOST_REQUIRE_EQUAL(l.stage % 1024, 0);
          BOOST_REQUIRE_GE(l.stage, l.ratios + kExl3ManyTile * 8);
        }
  const Exl3ManyWorkspace w = exl3_many_workspace(33, 640);
  BOOST_CHECK_EQUAL(w.ratios, 64 * 2 * 640);
  BOOST_CHECK_EQUAL(w.scales, w.ratios + 64 * 5 * 8);
  BOOST_CHECK_GE(w.bytes, w.scales + 64 * 4);
}

}  // namespace tensorfold::test
