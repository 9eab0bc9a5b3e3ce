// Which steps are recorded, when, and which make way (engine/model/graph_table.h).
#include <boost/test/unit_test.hpp>
#include <memory>
#include <random>

#include "engine/model/graph_table.h"

namespace tensorfold::test {
namespace {

int alive = 0;

class FakeGraph final : public StepGraph {
 public:
  explicit FakeGraph(int64_t bytes) : bytes_(bytes) { ++alive; }
  ~FakeGraph() override { --alive; }
  int nodes() const override { return 1; }
  int64_t bytes() const override { return bytes_; }

 private:
  int64_t bytes_;
};

GraphParts parts_of(std::initializer_list<int64_t> bytes) {
  GraphParts parts;
  for (const int64_t b : bytes) parts.push_back(std::make_unique<FakeGraph>(b));
  return parts;
}

GraphStep step_of(int rows) {
  GraphStep s;
  s.rows = s.decoder_rows = rows;
  s.positions_end = 100;
  return s;
}

// As the model does it; whether the step was run from a recording.
bool run(GraphTable& table, const GraphKey& key, int64_t bytes) {
  const GraphUse use = table.use(key);
  if (use == GraphUse::kRecord) table.keep(key, parts_of({bytes}));
  return use == GraphUse::kRun;
}

}  // namespace

BOOST_AUTO_TEST_CASE(rows_are_padded_up) {
  for (int rows = 1; rows <= 384; ++rows) {
    const int padded = padded_rows(rows);
    BOOST_CHECK_GE(padded, rows);
    BOOST_CHECK_LE(least_rows(padded), rows);
    BOOST_CHECK_EQUAL(padded_rows(least_rows(padded)), padded);
    if (rows > 8) BOOST_CHECK_LE(2 * padded, 3 * rows + 2);  // at most half as many again
  }
  BOOST_CHECK_EQUAL(padded_rows(8), 8);
  BOOST_CHECK_EQUAL(padded_rows(9), 12);
  BOOST_CHECK_EQUAL(padded_rows(385), 0);
}

BOOST_AUTO_TEST_CASE(buckets_double_up_to_the_context) {
  BOOST_CHECK_EQUAL(positions_bucket(1, 1 << 20), 512);
  BOOST_CHECK_EQUAL(positions_bucket(512, 1 << 20), 512);
  BOOST_CHECK_EQUAL(positions_bucket(513, 1 << 20), 2048);
  BOOST_CHECK_EQUAL(positions_bucket(2048, 1 << 20), 2048);
  BOOST_CHECK_EQUAL(positions_bucket(2049, 1 << 20), 4096);
  BOOST_CHECK_EQUAL(positions_bucket((1 << 19) + 1, 1 << 20), 1 << 20);
  BOOST_CHECK_EQUAL(positions_bucket(100, 768), 512);
  BOOST_CHECK_EQUAL(positions_bucket(600, 768), 768);
  BOOST_CHECK_EQUAL(positions_bucket(100, 300), 300);
  BOOST_CHECK_EQUAL(positions_bucket(2100, 3000), 3000);
}

BOOST_AUTO_TEST_CASE(what_makes_a_step_impossible_to_record) {
  BOOST_REQUIRE(graph_key(step_of(9), 640, 4096).has_value());
  BOOST_CHECK((*graph_key(step_of(9), 640, 4096) == GraphKey{12, 512}));
  GraphStep s = step_of(9);
  s.prompt_rows = 1;
  BOOST_CHECK(!graph_key(s, 640, 4096));
  s = step_of(9);
  s.decoder_rows = 8;
  BOOST_CHECK(!graph_key(s, 640, 4096));
  s = step_of(9);
  s.probed = true;
  BOOST_CHECK(!graph_key(s, 640, 4096));
  s = step_of(9);
  s.meets_on_host = true;
  BOOST_CHECK(!graph_key(s, 640, 4096));
  s = step_of(9);
  s.positions_end = 4097;
  BOOST_CHECK(!graph_key(s, 640, 4096));
  BOOST_CHECK(!graph_key(step_of(0), 640, 4096));
  BOOST_CHECK(!graph_key(step_of(385), 640, 4096));
  BOOST_CHECK(!graph_key(step_of(9), 11, 4096));  // the padded rows don't fit the buffers
  BOOST_CHECK(graph_key(step_of(9), 12, 4096).has_value());
}

BOOST_AUTO_TEST_CASE(a_key_is_recorded_when_it_comes_again) {
  GraphTable table;
  const GraphKey a{6, 2048}, b{6, 4096};
  BOOST_CHECK(table.use(a) == GraphUse::kQueue);
  BOOST_CHECK(table.use(b) == GraphUse::kQueue);
  BOOST_CHECK(table.use(a) == GraphUse::kRecord);
  table.keep(a, parts_of({100, 200, 300}));
  BOOST_CHECK(table.use(a) == GraphUse::kRun);
  BOOST_CHECK_EQUAL(table.parts(a).size(), 3);
  BOOST_CHECK(table.use(b) == GraphUse::kRecord);
  table.refuse(b);
  for (int i = 0; i < 5; ++i) BOOST_CHECK(table.use(b) == GraphUse::kQueue);
  const StepGraphStats& s = table.stats();
  BOOST_CHECK_EQUAL(s.recorded, 1);
  BOOST_CHECK_EQUAL(s.refused, 1);
  BOOST_CHECK_EQUAL(s.graphs, 1);
  BOOST_CHECK_EQUAL(s.bytes, 600);
  BOOST_CHECK_EQUAL(s.runs, 1);
  BOOST_CHECK_EQUAL(s.queued, 7);
}

BOOST_AUTO_TEST_CASE(the_one_used_longest_ago_makes_way) {
  GraphTable table(300);
  const GraphKey a{1, 2048}, b{2, 2048}, c{3, 2048}, d{4, 2048};
  for (const GraphKey& key : {a, b, c}) {
    run(table, key, 100);
    run(table, key, 100);
  }
  BOOST_CHECK(run(table, a, 100));  // b is now the oldest
  run(table, d, 100);
  run(table, d, 100);
  BOOST_CHECK_EQUAL(table.stats().evicted, 1);
  BOOST_CHECK_EQUAL(table.stats().bytes, 300);
  BOOST_CHECK(run(table, a, 100));
  BOOST_CHECK(run(table, c, 100));
  BOOST_CHECK(run(table, d, 100));
  BOOST_CHECK(table.use(b) == GraphUse::kQueue);  // it must come up twice again
  BOOST_CHECK(table.use(b) == GraphUse::kRecord);
  table.keep(b, parts_of({201}));  // two make way for a large one
  BOOST_CHECK_EQUAL(table.stats().evicted, 4);
  BOOST_CHECK_EQUAL(table.stats().bytes, 201);
}

BOOST_AUTO_TEST_CASE(one_past_the_bounds_is_not_kept) {
  GraphTable table(300);
  const GraphKey a{1, 2048};
  table.use(a);
  BOOST_CHECK(table.use(a) == GraphUse::kRecord);
  table.keep(a, parts_of({200, 101}));
  BOOST_CHECK(table.use(a) == GraphUse::kQueue);
  BOOST_CHECK_EQUAL(table.stats().refused, 1);
  BOOST_CHECK_EQUAL(table.stats().bytes, 0);
  BOOST_CHECK_EQUAL(alive, 0);

  GraphTable keys;  // one more key than are remembered
  for (int i = 0; i <= kGraphKeysMax; ++i) keys.use({i + 1, 2048});
  const GraphKey last{kGraphKeysMax + 1, 2048};
  for (int i = 0; i < 3; ++i) BOOST_CHECK(keys.use(last) == GraphUse::kQueue);
  BOOST_CHECK(keys.use({1, 2048}) == GraphUse::kRecord);
}

BOOST_AUTO_TEST_CASE(bounds_hold_over_random_steps) {
  std::mt19937 random(3);
  {
    GraphTable table(5000, 7);
    int64_t steps = 0, recorded_steps = 0;
    for (int i = 0; i < 20000; ++i, ++steps) {
      const GraphKey key{padded_rows(1 + static_cast<int>(random() % 24)),
                         int64_t{2048} << (random() % 3)};
      const GraphUse use = table.use(key);
      if (use == GraphUse::kRecord) {
        ++recorded_steps;
        table.keep(key, parts_of({static_cast<int64_t>(random() % 1500), 1}));
      }
      const StepGraphStats& s = table.stats();
      BOOST_REQUIRE(s.bytes >= 0 && s.bytes <= 5000 && s.graphs <= 7);
      BOOST_REQUIRE_EQUAL(alive, 2 * s.graphs);
      BOOST_REQUIRE_EQUAL(s.graphs, s.recorded - s.evicted);
    }
    const StepGraphStats& s = table.stats();
    BOOST_CHECK_EQUAL(s.queued + s.runs + recorded_steps, steps);
    BOOST_CHECK_GT(s.evicted, 100);
  }
  BOOST_CHECK_EQUAL(alive, 0);
}

}  // namespace tensorfold::test
