// ReadAhead: every thing once, in any order of asking, within its bound, and an end at any time.
#include "engine/weights/read_ahead.h"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <numeric>
#include <random>

namespace tensorfold::test {
namespace {

struct Counts {
  std::atomic<int> reads{0};
  std::atomic<int64_t> held{0}, held_max{0};
};

// A thing is its index; size: what it counts.
ReadAhead<size_t> reading(std::vector<int64_t> sizes, int threads, Counts& counts) {
  return ReadAhead<size_t>(sizes, threads, [&counts, sizes] {
    return [&counts, sizes](size_t index) -> Result<size_t> {
      ++counts.reads;
      const int64_t held = counts.held += sizes[index];
      int64_t most = counts.held_max;
      while (most < held && !counts.held_max.compare_exchange_weak(most, held)) {
      }
      if (index % 7 == 6) return data_loss("thing " + std::to_string(index));
      return index;
    };
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_thing_comes_once_in_any_order) {
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    const size_t count = 60;
    Counts counts;
    std::vector<int64_t> sizes(count, kReadAheadBytesMax / (1 + round % 9));
    ReadAhead<size_t> ahead = reading(sizes, 1 + round % 5, counts);
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    if (round % 2 == 1) std::shuffle(order.begin(), order.end(), random);
    int mine = 0;
    for (const size_t index : order) {
      if (round % 3 == 2 && index % 5 == 0) continue;  // nobody asks for it
      std::optional<Result<size_t>> thing = ahead.take(index);
      BOOST_REQUIRE(!ahead.take(index));  // a second time it is not there
      if (!thing) {
        ++mine;
        continue;
      }
      counts.held -= sizes[index];
      BOOST_REQUIRE_EQUAL(thing->ok(), index % 7 != 6);
      if (thing->ok()) BOOST_REQUIRE_EQUAL(**thing, index);
    }
    BOOST_REQUIRE_LE(counts.reads + mine, static_cast<int>(count));
  }
}

BOOST_AUTO_TEST_CASE(no_more_is_held_than_the_bound) {
  Counts counts;
  const std::vector<int64_t> sizes(200, kReadAheadBytesMax / 10);
  ReadAhead<size_t> ahead = reading(sizes, 4, counts);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool came = ahead.take(i).has_value();
    if (came) counts.held -= sizes[i];
  }
  // What was taken is let go by the reader of this count a moment later than by ReadAhead.
  BOOST_TEST(counts.held_max <= 11 * (kReadAheadBytesMax / 10));
}

BOOST_AUTO_TEST_CASE(it_ends_with_things_that_nobody_took) {
  for (int round = 0; round < 50; ++round) {
    Counts counts;
    ReadAhead<size_t> ahead =
        reading(std::vector<int64_t>(100, kReadAheadBytesMax / 3), 1 + round % 8, counts);
    for (size_t i = 0; i < static_cast<size_t>(round % 4); ++i) (void)ahead.take(i);
  }
}

}  // namespace tensorfold::test
