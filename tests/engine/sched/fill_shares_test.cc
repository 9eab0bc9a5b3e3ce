// Shares of prompt rows: nothing is left over that somebody lacks, everybody's least share, short
// prompts first, and equal parts in the long run.
#include "engine/sched/fill_shares.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <random>
#include <set>

using namespace tensorfold;

namespace {

FillDemand demand(SlotId slot, const std::string& client, int64_t left) {
  FillDemand d;
  d.slot = slot;
  d.request = static_cast<uint64_t>(slot) + 1;
  d.client = client;
  d.left = d.most = left;
  return d;
}

int64_t rows_of(const std::vector<FillDemand>& demands, SlotId slot) {
  for (const FillDemand& d : demands) {
    if (d.slot == slot) return d.rows;
  }
  return -1;
}

}  // namespace

BOOST_AUTO_TEST_CASE(random_demands_waste_nothing_and_starve_nobody) {
  std::mt19937_64 rng(11);
  for (int round = 0; round < 5000; ++round) {
    FillShares shares;
    const auto rows = static_cast<int64_t>(64 + rng() % 2000);
    const auto generated = static_cast<int64_t>(6 + rng() % 300);
    std::vector<FillDemand> demands;
    std::map<std::string, int64_t> lacks;
    int64_t prompt_lack = 0;
    int64_t generated_lack = 0;
    for (SlotId slot = 0; slot < static_cast<SlotId>(1 + rng() % 64); ++slot) {
      FillDemand d = demand(slot, std::string(1, static_cast<char>('a' + rng() % 5)),
                            static_cast<int64_t>(1 + rng() % 3000));
      d.generated = rng() % 5 == 0;
      d.waited_steps = static_cast<int64_t>(rng() % 4);
      if (rng() % 3 == 0) d.most = 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(d.left));
      (d.generated ? generated_lack : prompt_lack) += d.most;
      if (!d.generated) lacks[d.client] += d.most;
      demands.push_back(std::move(d));
    }
    shares.deal(demands, rows, generated);
    int64_t total = 0;
    int64_t total_generated = 0;
    std::map<std::string, int64_t> had;
    std::set<std::string> clients;
    for (const FillDemand& d : demands) {
      BOOST_REQUIRE(d.rows >= 0 && d.rows <= d.most);
      total += d.rows;
      if (d.generated) total_generated += d.rows;
      had[d.client] += d.rows;
      clients.insert(d.client);
    }
    BOOST_REQUIRE(total <= rows && total_generated <= generated);
    // Rows are left over only when nobody could have them.
    BOOST_REQUIRE(total >= std::min(rows, prompt_lack + std::min(generated, generated_lack)));
    const int64_t least = rows / (2 * static_cast<int64_t>(clients.size()));
    for (const auto& [client, lack] : lacks) BOOST_REQUIRE(had[client] >= std::min(least, lack));
  }
}

BOOST_AUTO_TEST_CASE(a_short_prompt_jumps_ahead_of_a_long_one_of_anybody) {
  for (const char* client : {"a", "b"}) {
    FillShares shares;
    std::vector<FillDemand> demands = {demand(0, "a", 100'000), demand(1, client, 700)};
    shares.deal(demands, 1024, 384);
    BOOST_TEST(rows_of(demands, 1) == 700);
    BOOST_TEST(rows_of(demands, 0) == 324);
  }
}

BOOST_AUTO_TEST_CASE(a_flood_of_short_prompts_gets_no_more_than_its_part_in_the_long_run) {
  FillShares shares;
  constexpr int64_t kRows = 1000;
  int64_t left = 200'000;
  int64_t flood = 0;
  int64_t least = kRows;
  int steps = 0;
  while (left > 0) {
    ++steps;
    std::vector<FillDemand> demands = {demand(0, "long", left)};
    for (SlotId slot = 1; slot < 12; ++slot) demands.push_back(demand(slot, "flood", 100));
    shares.deal(demands, kRows, 384);
    const int64_t had = rows_of(demands, 0);
    least = std::min(least, had);
    left -= had;
    for (SlotId slot = 1; slot < 12; ++slot) flood += rows_of(demands, slot);
  }
  BOOST_TEST(least >= kRows / 4);
  // Half each, but for the head start that short prompts have: at most the long one's rows.
  BOOST_TEST(steps <= 200'000 * 4 / kRows);
  BOOST_TEST(flood <= 3 * 200'000);
  // From now on their parts are equal: 100 more steps.
  left = 1'000'000;
  int64_t long_rows = 0;
  flood = 0;
  for (int step = 0; step < 2000; ++step) {
    std::vector<FillDemand> demands = {demand(0, "long", left)};
    for (SlotId slot = 1; slot < 12; ++slot) demands.push_back(demand(slot, "flood", 100));
    shares.deal(demands, kRows, 384);
    const int64_t had = rows_of(demands, 0);
    if (step >= 1900) {
      long_rows += had;
      for (SlotId slot = 1; slot < 12; ++slot) flood += rows_of(demands, slot);
    }
    left -= had;
    left = std::max<int64_t>(left, 500'000);
  }
  BOOST_TEST(std::abs(long_rows - flood) <= 4 * kRows);
}
