// Collectives: sums in rank order to the bit, equal on all ranks, and a missing peer is an error
// within the deadline, on every rank and for good.
#include "engine/cluster/collective.h"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

using namespace tensorfold;

namespace {

template <typename F>
void on_ranks(std::vector<std::unique_ptr<Collective>>& ranks, F&& f) {
  std::vector<std::thread> threads;
  for (auto& c : ranks) threads.emplace_back([&f, &c] { f(*c); });
  for (auto& t : threads) t.join();
}

float part(int rank, size_t i) {
  // Magnitudes differ, so that another order of addition gives other bits.
  std::mt19937 rng(static_cast<uint32_t>(rank) * 7919U + static_cast<uint32_t>(i));
  const auto mantissa = static_cast<float>(rng() % 100000U) - 50000.0F;
  return mantissa * std::pow(10.0F, static_cast<float>(rng() % 9U) - 4.0F);
}

}  // namespace

BOOST_AUTO_TEST_CASE(single_rank_copies) {
  auto c = make_single_collective();
  BOOST_TEST(c->rank() == 0);
  BOOST_TEST(c->world_size() == 1);
  const std::vector<float> in = {1, 2, 3};
  std::vector<float> out(3);
  BOOST_REQUIRE(
      c->all_gather(std::as_bytes(std::span(in)), std::as_writable_bytes(std::span(out))).ok());
  BOOST_TEST(in == out);
  std::vector<float> scratch;
  BOOST_REQUIRE(c->all_reduce_sum(out, scratch).ok());
  BOOST_TEST(in == out);
  BOOST_TEST(scratch.empty());
}

BOOST_AUTO_TEST_CASE(sums_in_rank_order_on_every_rank) {
  constexpr size_t kValues = 257;
  for (const int world : {2, 3, 5}) {
    auto ranks = make_thread_collectives(world, 10000);
    std::vector<std::vector<float>> results(static_cast<size_t>(world));
    on_ranks(ranks, [&](Collective& c) {
      std::vector<float> scratch;
      for (int round = 0; round < 200; ++round) {
        std::vector<float> data(kValues);
        for (size_t i = 0; i < kValues; ++i)
          data[i] = part(c.rank(), i + static_cast<size_t>(round % 3));
        if (!c.all_reduce_sum(data, scratch).ok()) return;
        results[static_cast<size_t>(c.rank())] = data;
      }
    });
    bool another_order_differs = false;
    for (size_t i = 0; i < kValues; ++i) {
      float sum = part(0, i + 1);
      for (int r = 1; r < world; ++r) sum += part(r, i + 1);
      float reversed = part(world - 1, i + 1);
      for (int r = world - 2; r >= 0; --r) reversed += part(r, i + 1);
      another_order_differs |= world > 2 && sum != reversed;
      for (const auto& result : results) {
        BOOST_REQUIRE(result.size() == kValues);
        BOOST_REQUIRE(std::memcmp(&result[i], &sum, sizeof sum) == 0);
      }
    }
    BOOST_TEST((world == 2 || another_order_differs), "the data can't tell orders apart");
  }
}

BOOST_AUTO_TEST_CASE(gathers_by_rank) {
  auto ranks = make_thread_collectives(4, 10000);
  on_ranks(ranks, [](Collective& c) {
    for (uint32_t round = 0; round < 500; ++round) {
      const std::vector<uint32_t> in(1 + round % 5,
                                     static_cast<uint32_t>(c.rank()) * 1000U + round);
      std::vector<uint32_t> out(in.size() * 4);
      const Status s =
          c.all_gather(std::as_bytes(std::span(in)), std::as_writable_bytes(std::span(out)));
      if (!s.ok()) throw std::runtime_error(s.to_string());
      for (size_t i = 0; i < out.size(); ++i) {
        if (out[i] != i / in.size() * 1000U + round) throw std::runtime_error("wrong rank's data");
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(broadcasts_by_way_of_a_gather) {
  auto ranks = make_thread_collectives(3, 10000);
  std::atomic<int> wrong{0};
  on_ranks(ranks, [&](Collective& c) {
    for (int root = 0; root < 3; ++root) {
      std::vector<std::byte> data(100, static_cast<std::byte>(10 + c.rank()));
      if (!c.broadcast(data, root).ok()) ++wrong;
      if (data != std::vector<std::byte>(100, static_cast<std::byte>(10 + root))) ++wrong;
    }
  });
  BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(absent_peer_is_unavailable_within_the_deadline_and_stays_so) {
  auto ranks = make_thread_collectives(3, 50);
  std::vector<Status> statuses(3);
  const auto gather = [](Collective& c) {
    std::byte in{1};
    std::vector<std::byte> out(3);
    return c.all_gather(std::span(&in, 1), out);
  };
  std::thread first([&] { statuses[0] = gather(*ranks[0]); });
  std::thread second([&] { statuses[1] = gather(*ranks[1]); });
  first.join();
  second.join();
  BOOST_TEST((statuses[0].code() == StatusCode::kUnavailable));
  BOOST_TEST((statuses[1].code() == StatusCode::kUnavailable));
  BOOST_TEST(statuses[0].reason() == "peer_lost");
  // The third comes too late: it is told at once instead of pairing with a later call.
  BOOST_TEST((gather(*ranks[2]).code() == StatusCode::kUnavailable));
}

BOOST_AUTO_TEST_CASE(unequal_sizes_fail_on_both_ranks) {
  auto ranks = make_thread_collectives(2, 10000);
  std::vector<Status> statuses(2);
  on_ranks(ranks, [&](Collective& c) {
    const auto n = static_cast<size_t>(c.rank()) + 1;
    std::vector<std::byte> in(n);
    std::vector<std::byte> out(2 * n);
    statuses[static_cast<size_t>(c.rank())] = c.all_gather(in, out);
  });
  for (const Status& s : statuses) {
    BOOST_TEST((s.code() == StatusCode::kInternal));
    BOOST_TEST(s.message().find("different sizes") != std::string::npos);
  }
}
