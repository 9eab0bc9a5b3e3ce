// NCCL itself on GPUs: a rank for each GPU of the machine, up to four, as threads; one GPU makes a
// group of one. Exchanges on device memory, plain and recorded with operations around them, with
// exchanges of the host in between; the end of a group while recordings that hold its communicator
// are there. Skipped without a GPU, or where no NCCL is found.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "engine/cluster/device_exchange.h"
#include "engine/cluster/nccl/nccl_collective.h"
#include "engine/cluster/nccl_environment.h"
#include "kernels/device.h"
#include "tests/engine/cluster/link_harness.h"

using namespace tensorfold;
using namespace tensorfold::link_test;

namespace {

constexpr int kRanksHere = 4;
constexpr int64_t kValues = 5120 * 6;

[[noreturn]] void skip(const Status& why) {
  std::printf("skipped: %s\n", why.message().c_str());
  std::fflush(stdout);
  const char* require = std::getenv("TENSORFOLD_REQUIRE");
  std::_Exit(require != nullptr && std::strstr(require, "gpu") != nullptr ? 1 : 77);
}

// A rank: its GPU, a queue and memory there, and the way to its collective.
struct GpuRank {
  std::shared_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  DeviceArray<float> own, all, sum;
  std::shared_ptr<GroupHealth> health = std::make_shared<GroupHealth>();
  std::unique_ptr<Collective> collective;
  Status status;

  std::vector<float> fetch(const float* from, int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    status = device->download(out.data(), from, count * 4, *stream);
    return out;
  }
};

float value(int rank, int round, int64_t i) {
  return static_cast<float>((rank + 3) * 1000 + round) * 1e-3f + static_cast<float>(i % 977);
}

void give(GpuRank& rank, int r, int round) {
  std::vector<float> own(kValues);
  for (int64_t i = 0; i < kValues; ++i) own[static_cast<size_t>(i)] = value(r, round, i);
  rank.device->upload(rank.own.get(), own.data(), kValues * 4, *rank.stream);
}

int wrong_sums(const std::vector<float>& sums, int world, int round) {
  int wrong = 0;
  for (int64_t i = 0; i < kValues; ++i) {
    float want = value(0, round, i);
    for (int r = 1; r < world; ++r) want += value(r, round, i);
    wrong += sums[static_cast<size_t>(i)] == want ? 0 : 1;
  }
  return wrong;
}

std::vector<GpuRank> open_ranks() {
  (void)::setenv("NCCL_NVLS_ENABLE", "0", 1);
  std::vector<GpuRank> ranks;
  for (int r = 0; r < kRanksHere; ++r) {
    auto device = open_device("cuda:" + std::to_string(r));
    if (!device.ok() && r == 0) skip(device.status());
    if (!device.ok()) break;
    GpuRank& rank = ranks.emplace_back();
    rank.device = *device;
    auto stream = rank.device->make_stream(0);
    BOOST_REQUIRE_MESSAGE(stream.ok(), stream.status().message());
    rank.stream = std::move(*stream);
  }
  for (GpuRank& rank : ranks) {
    rank.own = allocate_array<float>(*rank.device, kValues);
    rank.all = allocate_array<float>(*rank.device, kValues * static_cast<int64_t>(ranks.size()));
    rank.sum = allocate_array<float>(*rank.device, kValues);
  }
  return ranks;
}

template <typename F>
void on_each(std::vector<GpuRank>& ranks, F&& f) {
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r] { f(ranks[r], static_cast<int>(r)); });
  for (auto& t : threads) t.join();
}

void join(std::vector<GpuRank>& ranks) {
  auto nccl = open_nccl();
  if (!nccl.ok()) skip(nccl.status());
  std::printf("%s, %zu ranks\n", (*nccl)->identity.substr(0, 12).c_str(), ranks.size());
  std::vector<std::unique_ptr<Transport>> transports;
  for (GpuRank& rank : ranks)
    transports.push_back(
        make_nccl_transport(*nccl, [&rank] { return rank.device->make_exchange_lane(); }));
  const auto invitation = transports[0]->invite();
  BOOST_REQUIRE(invitation.ok());
  on_each(ranks, [&](GpuRank& rank, int r) {
    JoinContext context;
    context.rank = r;
    context.world_size = static_cast<int>(ranks.size());
    context.invitation = *invitation;
    context.deadline_us = system_clock().monotonic_us() + kPatienceMs * 1000;
    context.health = rank.health;
    context.clock = &system_clock();
    auto joined = transports[static_cast<size_t>(r)]->join(std::move(context));
    rank.status = joined.status();
    if (joined.ok()) rank.collective = std::move(*joined);
  });
  for (GpuRank& rank : ranks) BOOST_REQUIRE_MESSAGE(rank.status.ok(), rank.status.message());
}

// Two exchanges, as a layer has them.
Status queue_sum(GpuRank& rank, int world) {
  DeviceExchange& exchange = *rank.collective->on_device();
  for (int i = 0; i < 2; ++i) {
    TF_RETURN_IF_ERROR(exchange.gather(rank.own.get(), rank.all.get(), kValues * 4,
                                       rank.device->native_queue(*rank.stream)));
    rank.device->sum_parts(rank.sum.get(), rank.all.get(), ValueType::kF32, world, kValues,
                           *rank.stream);
  }
  return ok_status();
}

}  // namespace

BOOST_AUTO_TEST_CASE(exchanges_plain_and_recorded_and_the_end_of_a_group) {
  std::vector<GpuRank> ranks = open_ranks();
  join(ranks);
  const auto world = static_cast<int>(ranks.size());
  std::vector<std::unique_ptr<StepGraph>> graphs(ranks.size());
  std::atomic<int> wrong{0};
  on_each(ranks, [&](GpuRank& rank, int r) {
    const auto check = [&](const Status& status) {
      if (status.ok()) return true;
      ++wrong;
      std::printf("rank %d: %s\n", r, status.message().c_str());
      return false;
    };
    DeviceExchange& exchange = *rank.collective->on_device();
    std::vector<std::byte> words(static_cast<size_t>(world) * 16);
    for (int round = 0; round < 12; ++round) {
      exchange.begin();
      give(rank, r, round);
      if (round < 2) {
        if (!check(queue_sum(rank, world))) return;
      } else if (round == 2) {
        if (!check(rank.device->begin_graph(*rank.stream))) return;
        const Status queued = queue_sum(rank, world);
        auto graph = rank.device->end_graph(*rank.stream);
        if (!check(queued) || !check(graph.status())) return;
        graphs[static_cast<size_t>(r)] = std::move(*graph);
        if (r == 0) std::printf("%d nodes\n", graphs[0]->nodes());
      }
      if (round >= 2) rank.device->run_graph(*graphs[static_cast<size_t>(r)], *rank.stream);
      // An exchange of the host, queued behind: it must not overtake the step's.
      if (round % 3 == 0 && !check(rank.collective->all_gather({words.data(), 16}, words))) return;
      const std::vector<float> sums = rank.fetch(rank.sum.get(), kValues);
      wrong += wrong_sums(sums, world, round);
      if (!check(rank.status) || !check(exchange.end())) return;
    }
  });
  BOOST_TEST(wrong == 0);

  // The group breaks while recordings hold the communicator; then they go, then the collective.
  for (GpuRank& rank : ranks) rank.health->fail(unavailable("rank 9 is silent", "peer_lost"));
  sleep_ms(3 * kNcclWatchMs);
  for (GpuRank& rank : ranks) {
    std::vector<std::byte> words(static_cast<size_t>(world) * 16);
    BOOST_TEST(!rank.collective->all_gather({words.data(), 16}, words).ok());
  }
  const auto begin = std::chrono::steady_clock::now();
  graphs.clear();
  on_each(ranks, [](GpuRank& rank, int) { rank.collective.reset(); });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("let go in %.3f s\n", took.count());
}

// The time of an exchange inside a recording, beside the library's own with nothing around it.
BOOST_AUTO_TEST_CASE(time_of_an_exchange) {
  std::vector<GpuRank> ranks = open_ranks();
  join(ranks);
  const auto world = static_cast<int>(ranks.size());
  constexpr int kExchanges = 80, kRuns = 30;
  std::atomic<int> wrong{0};
  on_each(ranks, [&](GpuRank& rank, int r) {
    DeviceExchange& exchange = *rank.collective->on_device();
    for (const int64_t rows : {1, 6, 24}) {
      const int64_t count = std::min<int64_t>(5120 * rows, kValues);
      for (const bool sums : {false, true}) {
        std::unique_ptr<StepGraph> graph;
        for (const bool record : {false, true}) {  // connections are made before recording
          if (record && !rank.device->begin_graph(*rank.stream).ok()) ++wrong;
          for (int i = 0; i < kExchanges; ++i) {
            if (!exchange
                     .gather(rank.own.get(), rank.all.get(), static_cast<size_t>(count) * 4,
                             rank.device->native_queue(*rank.stream))
                     .ok())
              ++wrong;
            if (sums)
              rank.device->sum_parts(rank.sum.get(), rank.all.get(), ValueType::kF32, world, count,
                                     *rank.stream);
          }
          if (!record) continue;
          auto made = rank.device->end_graph(*rank.stream);
          if (!made.ok()) return void(++wrong);
          graph = std::move(*made);
        }
        rank.device->run_graph(*graph, *rank.stream);
        if (!rank.device->synchronise(*rank.stream).ok()) ++wrong;
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < kRuns; ++i) rank.device->run_graph(*graph, *rank.stream);
        if (!rank.device->synchronise(*rank.stream).ok()) ++wrong;
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        if (r == 0)
          std::printf("%lld values, %s: %.2f us an exchange\n", static_cast<long long>(count),
                      sums ? "with the sum" : "alone", took.count() * 1e6 / kRuns / kExchanges);
      }
    }
  });
  BOOST_TEST(wrong == 0);
}
