// The memory plan against layouts that are counted by hand, and what is refused before anything is
// taken.
#include <boost/test/unit_test.hpp>
#include <string>

#include "engine/memory_plan.h"

namespace tensorfold {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

// A layout of the published model's size: 4 slots, 4 Mi positions.
CacheLayout large_layout() {
  CacheLayout out;
  out.slots = 4;
  out.layers = 40;
  out.decoder_start = 20;
  out.stages = 3;
  out.ring_bytes = 144 * 640;
  out.pair_floats = 65'536;
  out.block_bytes = 2'000'000;
  out.pool_blocks = 16'384;
  out.snapshot_units = 128;
  return out;
}

bool says(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

BOOST_AUTO_TEST_CASE(parts_add_up_to_the_layout) {
  const CacheLayout layout = large_layout();
  const MemoryPlan plan = plan_memory(layout, 92 * kGib);
  BOOST_TEST(plan.pool_bytes == 16'384 * 2'000'000LL);
  BOOST_TEST(plan.pool_positions == 4'194'304);
  BOOST_TEST(plan.rings_bytes == 4 * (43 * 144 * 640 + 65'536 * 4));
  BOOST_TEST(plan.snapshots_bytes == 128 * layout.snapshot_unit_bytes());
  BOOST_TEST(plan.total() == 92 * kGib + layout.bytes());
  BOOST_TEST(plan_text(plan).find("weights 92.00 GiB") != std::string::npos);
  BOOST_TEST(plan_text(plan).find('\n') == std::string::npos);
}

BOOST_AUTO_TEST_CASE(meminfo_is_read) {
  const HostMemory spark = parse_meminfo(
      "MemTotal:       125513084 kB\nMemFree:         1024 kB\nMemAvailable:   115343360 kB\n");
  BOOST_TEST(spark.total_bytes == 125'513'084LL * 1024);
  BOOST_TEST(spark.available_bytes == 115'343'360LL * 1024);
  BOOST_TEST(parse_meminfo("").total_bytes == 0);
  BOOST_TEST(parse_meminfo("MemTotal: x kB\nMemAvailable:").available_bytes == 0);
  const auto here = host_memory();
  BOOST_REQUIRE(here.has_value());
  BOOST_TEST(here->available_bytes <= here->total_bytes);
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_refused_with_the_pool_that_would) {
  const HostMemory spark{119 * kGib, 110 * kGib};
  CacheLayout layout = large_layout();
  const int64_t weights = 92 * kGib;
  Status status = check_plan(plan_memory(layout, weights), spark);  // 92 + 31 GiB
  BOOST_TEST((status.code() == StatusCode::kInvalidArgument));
  BOOST_TEST(says(status, "6.00 GiB of them stay free"));
  // The pool that it names fits, and one block more does not.
  const std::string marker = "cache.pool_tokens = ";
  const size_t at = status.message().find(marker);
  BOOST_REQUIRE(at != std::string::npos);
  layout.pool_blocks = std::stoll(status.message().substr(at + marker.size())) / kBlockPositions;
  BOOST_TEST(layout.pool_blocks > 1000);
  BOOST_TEST(check_plan(plan_memory(layout, weights), spark).ok());
  layout.pool_blocks += 1;
  status = check_plan(plan_memory(layout, weights), spark);
  // Not now; an empty machine would do.
  BOOST_TEST((status.code() == StatusCode::kUnavailable));
}

BOOST_AUTO_TEST_CASE(no_pool_helps_when_the_weights_do_not_fit) {
  const Status status =
      check_plan(plan_memory(large_layout(), 120 * kGib), {119 * kGib, 110 * kGib});
  BOOST_TEST((status.code() == StatusCode::kInvalidArgument));
  BOOST_TEST(says(status, "smaller model"));
  BOOST_TEST(!says(status, "cache.pool_tokens ="));
}

BOOST_AUTO_TEST_CASE(a_small_machine_keeps_less_free) {
  BOOST_TEST(free_bytes_kept({24 * kGib, 20 * kGib}) == kSmallHostFreeBytes);
  BOOST_TEST(free_bytes_kept({119 * kGib, 20 * kGib}) == kLargeHostFreeBytes);
  CacheLayout tiny = large_layout();
  tiny.pool_blocks = 128;
  BOOST_TEST(check_plan(plan_memory(tiny, kGib / 100), {24 * kGib, 2 * kGib}).ok());
}

}  // namespace
}  // namespace tensorfold
