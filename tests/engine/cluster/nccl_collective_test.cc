// The NCCL transport over a stand-in for the library and for a GPU's lane: what is asked of NCCL
// and in which order, communicators that are never made, errors that show only later, peers that do
// not come, aborts from another thread. Nothing here says anything about NCCL itself. With the
// planted fault nobody watches: an asynchronous error then goes unnoticed.
#include "engine/cluster/nccl/nccl_collective.h"

#include <dlfcn.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "engine/cluster/device_exchange.h"
#include "tests/engine/cluster/fake_lane.h"
#include "tests/engine/cluster/link_harness.h"

using namespace tensorfold;
using namespace tensorfold::link_test;
using fake_nccl::Control;

namespace {

#ifdef TF_PLANTED_FAULT
constexpr bool kWatched = false;
#else
constexpr bool kWatched = true;
#endif

Result<std::unique_ptr<ExchangeLane>> make_lane() {
  return std::unique_ptr<ExchangeLane>(std::make_unique<fake_nccl::FakeLane>());
}

struct FakeNccl {
  FakeNccl() {
    (void)::setenv("TENSORFOLD_NCCL_LIBRARY", TF_FAKE_NCCL, 1);
    void* library = ::dlopen(TF_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    BOOST_REQUIRE(library != nullptr);
    const auto find =
        reinterpret_cast<fake_nccl::ControlFn>(::dlsym(library, fake_nccl::kFakeNcclControl));
    BOOST_REQUIRE(find != nullptr);
    control = find();
    control->version = 22'809;
    control->never_made = false;
    control->looks_until_made = control->async_code = control->refuse_init = 0;
  }
  Control* control = nullptr;
};

// A rank's way to its collective, without a link.
struct Joined {
  std::shared_ptr<GroupHealth> health = std::make_shared<GroupHealth>();
  Status status;
  std::unique_ptr<Collective> collective;
};

struct JoinOptions {
  int64_t join_ms = kPatienceMs;
  int64_t exchange_ms = kPatienceMs;
  const StopFlag* stop = nullptr;
};

// `here` of `world` ranks join, each on its thread.
std::vector<Joined> join_ranks(int world, int here, const JoinOptions& options = {}) {
  auto nccl = open_nccl();
  BOOST_REQUIRE_MESSAGE(nccl.ok(), nccl.status().message());
  const auto transport = make_nccl_transport(*nccl, make_lane);
  const auto invitation = transport->invite();
  BOOST_REQUIRE(invitation.ok());
  std::vector<Joined> ranks(static_cast<size_t>(here));
  std::vector<std::thread> threads;
  for (int r = 0; r < here; ++r) {
    threads.emplace_back([&, r] {
      Joined& rank = ranks[static_cast<size_t>(r)];
      JoinContext context;
      context.rank = r;
      context.world_size = world;
      context.invitation = *invitation;
      context.timers.exchange_ms = options.exchange_ms;
      context.deadline_us = system_clock().monotonic_us() + options.join_ms * 1000;
      context.stop = options.stop;
      context.health = rank.health;
      context.clock = &system_clock();
      auto joined = transport->join(std::move(context));
      rank.status = joined.status();
      if (joined.ok()) rank.collective = std::move(*joined);
    });
  }
  for (auto& t : threads) t.join();
  return ranks;
}

template <typename F>
void on_each(std::vector<Joined>& ranks, F&& f) {
  std::vector<std::thread> threads;
  for (Joined& rank : ranks) threads.emplace_back([&f, &rank] { f(rank); });
  for (auto& t : threads) t.join();
}

Status gather_one(Collective& collective) {
  const std::byte in{1};
  std::vector<std::byte> out(static_cast<size_t>(collective.world_size()));
  return collective.all_gather(std::span(&in, 1), out);
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_library_is_checked_before_it_is_used) {
  FakeNccl fake;
  const auto nccl = open_nccl();
  BOOST_REQUIRE(nccl.ok());
  BOOST_TEST((*nccl)->identity.starts_with("2.28.9 sha256:"), (*nccl)->identity);
  BOOST_TEST((*nccl)->identity.size() == std::string("2.28.9 sha256:").size() + 64);
  fake.control->version = kNcclVersionLeast - 1;
  const Status old = open_nccl().status();
  BOOST_TEST((old.code() == StatusCode::kUnsupported));
  BOOST_TEST(old.message().find("21899") != std::string::npos, old.message());
  (void)::setenv("TENSORFOLD_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  const Status gone = open_nccl().status();
  BOOST_TEST(gone.message().find("/nowhere/libnccl.so.2") != std::string::npos, gone.message());
}

BOOST_AUTO_TEST_CASE(ranks_gather_and_hear_the_root) {
  FakeNccl fake;
  fake.control->looks_until_made = 5;
  for (const int world : {2, 4}) {
    auto ranks = join_ranks(world, world);
    for (Joined& rank : ranks) BOOST_REQUIRE_MESSAGE(rank.status.ok(), rank.status.message());
    BOOST_TEST(fake.control->config_size == static_cast<int>(sizeof(NcclConfig)));
    BOOST_TEST(fake.control->config_magic == kNcclConfigMagic);
    BOOST_TEST(fake.control->config_version == kNcclVersionLeast);
    BOOST_TEST(fake.control->blocking == 0);
    std::atomic<int> wrong{0};
    on_each(ranks, [&](Joined& rank) {
      Collective& c = *rank.collective;
      for (uint32_t round = 0; round < 40; ++round) {
        const size_t bytes = 1 + round * 977 % 5000 + (round == 20 ? 3 * kNcclFirstBytes : 0);
        const auto own = static_cast<uint32_t>(c.rank()) * 1000 + round;
        std::vector<std::byte> out(bytes * static_cast<size_t>(world));
        if (!c.all_gather(pattern(bytes, own), out).ok()) ++wrong;
        for (uint32_t r = 0; r < static_cast<uint32_t>(world); ++r) {
          const auto want = pattern(bytes, r * 1000 + round);
          if (std::memcmp(out.data() + bytes * r, want.data(), bytes) != 0) ++wrong;
        }
        const int root = static_cast<int>(round) % world;
        auto data = pattern(bytes, own);
        if (!c.broadcast(data, root).ok()) ++wrong;
        if (data != pattern(bytes, static_cast<uint32_t>(root) * 1000 + round)) ++wrong;
      }
    });
    BOOST_TEST(wrong == 0);
  }
  BOOST_TEST(fake.control->made == fake.control->aborted);
}

BOOST_AUTO_TEST_CASE(a_communicator_that_is_never_made_ends_at_the_deadline_or_the_stop) {
  FakeNccl fake;
  fake.control->never_made = true;
  JoinOptions options;
  options.join_ms = 30;
  auto late = join_ranks(2, 2, options);
  for (Joined& rank : late) {
    BOOST_TEST((rank.status.code() == StatusCode::kDeadline), rank.status.to_string());
    BOOST_TEST(rank.status.message().find("communicator") != std::string::npos);
  }
  StopFlag stop;
  options.join_ms = kPatienceMs;
  options.stop = &stop;
  std::thread stopper([&] {
    sleep_ms(20);
    stop.request();
  });
  auto stopped = join_ranks(2, 1, options);
  stopper.join();
  BOOST_TEST((stopped[0].status.code() == StatusCode::kCancelled));
  fake.control->refuse_init = kNcclRemoteError;
  auto refused = join_ranks(2, 1);
  BOOST_TEST(refused[0].status.message().find("remote process exited: a detail") !=
             std::string::npos);
  BOOST_TEST(fake.control->made == fake.control->aborted);
}

BOOST_AUTO_TEST_CASE(an_asynchronous_error_breaks_the_group_without_an_exchange) {
  FakeNccl fake;
  auto ranks = join_ranks(2, 2);
  fake.control->async_code = kNcclRemoteError;
  const int64_t wait_ms = kWatched ? kPatienceMs : 10 * kNcclWatchMs;
  for (Joined& rank : ranks) {
    const bool noticed = eventually([&] { return rank.health->broken().requested(); }, wait_ms);
    BOOST_TEST(noticed == kWatched);
    if (!noticed) continue;
    BOOST_TEST(rank.health->failure().reason() == "peer_lost");
    BOOST_TEST(rank.health->failure().message().find("NCCL: remote process exited") !=
               std::string::npos);
    BOOST_TEST(!gather_one(*rank.collective).ok());
  }
  if (kWatched) BOOST_TEST(eventually([&] { return fake.control->aborted == fake.control->made; }));
}

BOOST_AUTO_TEST_CASE(an_exchange_ends_when_another_thread_says_that_the_group_is_broken) {
  FakeNccl fake;
  auto ranks = join_ranks(2, 2);
  const int aborted = fake.control->aborted;
  Status status;
  std::thread waits([&] { status = gather_one(*ranks[0].collective); });
  BOOST_TEST(eventually([&] { return fake.control->all_gathers > 0; }));
  sleep_ms(20);
  ranks[0].health->fail(unavailable("rank 1 is silent", "peer_lost"));
  waits.join();
  BOOST_TEST(status.message() == "rank 1 is silent");
  if (kWatched) BOOST_TEST(eventually([&] { return fake.control->aborted > aborted; }));
  BOOST_TEST(!gather_one(*ranks[0].collective).ok());
}

BOOST_AUTO_TEST_CASE(an_exchange_that_no_peer_joins_is_slow) {
  FakeNccl fake;
  JoinOptions options;
  options.exchange_ms = 40;
  auto ranks = join_ranks(2, 2, options);
  const Status status = gather_one(*ranks[1].collective);
  BOOST_TEST(status.reason() == "slow");
  // What may still come belongs to another exchange.
  BOOST_TEST(gather_one(*ranks[1].collective).reason() == "slow");
}

// Several queued at once, on the step's queue, with exchanges of the host in between: those see
// what the step's left.
BOOST_AUTO_TEST_CASE(exchanges_on_device_memory_are_queued_and_keep_their_order) {
  FakeNccl fake;
  auto ranks = join_ranks(2, 2);
  std::atomic<int> wrong{0};
  on_each(ranks, [&](Joined& rank) {
    Collective& c = *rank.collective;
    DeviceExchange* device = c.on_device();
    if (device == nullptr) return void(++wrong);
    fake_nccl::Queue queue;
    constexpr size_t kPieces = 20, kBytes = 300;
    for (uint32_t round = 0; round < 5; ++round) {
      std::vector<std::byte> in, out(kPieces * 2 * kBytes);
      for (uint32_t p = 0; p < kPieces; ++p) {
        const auto piece = pattern(kBytes, static_cast<uint32_t>(c.rank()) * 1000 + round * 50 + p);
        in.insert(in.end(), piece.begin(), piece.end());
      }
      device->begin();
      for (size_t p = 0; p < kPieces; ++p)
        if (!device->gather(&in[p * kBytes], &out[p * 2 * kBytes], kBytes, &queue).ok()) ++wrong;
      if (!gather_one(c).ok()) ++wrong;
      if (queue.waiting != 0) ++wrong;
      for (uint32_t p = 0; p < kPieces; ++p)
        for (uint32_t r = 0; r < 2; ++r) {
          const auto want = pattern(kBytes, r * 1000 + round * 50 + p);
          if (std::memcmp(&out[(p * 2 + r) * kBytes], want.data(), kBytes) != 0) ++wrong;
        }
      if (!device->end().ok()) ++wrong;
    }
  });
  BOOST_TEST(wrong == 0);
}

// A peer that lives and does not come: the step's wait for its device must end.
BOOST_AUTO_TEST_CASE(a_step_whose_exchanges_do_not_end_breaks_the_group) {
  FakeNccl fake;
  JoinOptions options;
  options.exchange_ms = 40;
  auto ranks = join_ranks(2, 2, options);
  DeviceExchange& device = *ranks[0].collective->on_device();
  fake_nccl::Queue queue;
  const std::byte in{1};
  std::byte out[2];
  device.begin();
  BOOST_TEST(device.gather(&in, out, 1, &queue).ok());
  const int64_t wait_ms = kWatched ? kPatienceMs : 10 * kNcclWatchMs;
  BOOST_TEST(eventually([&] { return queue.waiting == 0; }, wait_ms) == kWatched);
  const Status ended = device.end();
  if (!kWatched) return;
  BOOST_TEST(ended.reason() == "slow");
  BOOST_TEST(ended.message().find("did not end in time") != std::string::npos);
  BOOST_TEST(!device.gather(&in, out, 1, &queue).ok());
  // Between steps nothing is overdue.
  auto others = join_ranks(2, 2, options);
  others[0].collective->on_device()->begin();
  BOOST_TEST(others[0].collective->on_device()->end().ok());
  sleep_ms(3 * kNcclWatchMs);
  BOOST_TEST(!others[0].health->broken().requested());
}

// An aborted communicator waits for the recorded steps that hold it; nobody may wait for it then.
BOOST_AUTO_TEST_CASE(recorded_steps_may_outlive_the_communicator_for_a_while) {
  FakeNccl fake;
  auto ranks = join_ranks(2, 2);
  fake.control->held = 1;
  ranks[0].health->fail(unavailable("rank 1 is silent", "peer_lost"));
  sleep_ms(3 * kNcclWatchMs);
  BOOST_TEST(gather_one(*ranks[0].collective).message() == "rank 1 is silent");
  BOOST_TEST(ranks[0].collective->on_device()->end().message() == "rank 1 is silent");
  fake.control->held = 0;
  ranks.clear();
  BOOST_TEST(fake.control->made == fake.control->aborted);
}

BOOST_AUTO_TEST_CASE(a_group_of_the_link_exchanges_over_it_and_ends_with_it) {
  FakeNccl fake;
  const auto nccl = open_nccl();
  BOOST_REQUIRE(nccl.ok());
  const auto transport = make_nccl_transport(*nccl, make_lane);
  LineLog log;
  StopFlag stop;
  auto head = GroupFormer::create(options_of(0, 2, 0), *transport, log);
  BOOST_REQUIRE(head.ok());
  auto worker = GroupFormer::create(options_of(1, 2, (*head)->port()), *transport, log);
  BOOST_REQUIRE(worker.ok());
  std::unique_ptr<Group> groups[2];
  const auto form = [&](GroupFormer& former, std::unique_ptr<Group>& into) {
    auto made = former.form(stop, [](const FormProgress&) {});
    if (made.ok()) into = std::move(*made);
  };
  std::thread other([&] { form(**worker, groups[1]); });
  form(**head, groups[0]);
  other.join();
  BOOST_REQUIRE((groups[0] && groups[1]));
  Status statuses[2];
  std::thread second([&] { statuses[1] = gather_one(groups[1]->collective()); });
  statuses[0] = gather_one(groups[0]->collective());
  second.join();
  BOOST_TEST((statuses[0].ok() && statuses[1].ok()));
  BOOST_TEST(groups[0]->counters().exchanges == 1);
  // One side waits in an exchange; the other goes.
  std::thread waits([&] { statuses[0] = gather_one(groups[0]->collective()); });
  groups[1]->abort(unavailable("rank 1 gives up", "aborted"));
  groups[1].reset();
  waits.join();
  BOOST_TEST((statuses[0].code() == StatusCode::kUnavailable));
  BOOST_TEST(!groups[0]->failure().ok());
}
