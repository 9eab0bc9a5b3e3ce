// A group that stands: messages both ways, reports, exchanges of many sizes and ranks, and every
// way in which it ends: left in order, aborted, a peer that dies, falls silent, stops reading, gets
// out of step or sends garbage.
#include "tests/engine/cluster/link_harness.h"

#include "engine/cluster/agreement.h"
#include "engine/cluster/socket_collective.h"

using namespace tensorfold;
using namespace tensorfold::link_test;

namespace {

LinkArrival received(Group& group, int rank, int64_t ms = kPatienceMs) {
  auto arrival = group.receive(rank, ms);
  BOOST_REQUIRE_MESSAGE(arrival.ok(), arrival.status().to_string());
  return std::move(*arrival);
}

// Kills a rank's connections as a crash would: no goodbye. A second process is not needed for it:
// a fork's copy keeps no descriptor open, and the kernel says FIN for a process either way.
void crash(Rank& rank) { rank.group.reset(); }

std::string reason_of(const Group& group) { return group.failure().reason(); }

}  // namespace

BOOST_AUTO_TEST_CASE(messages_arrive_whole_and_in_order_both_ways) {
  Ranks ranks(3);
  ranks.form();
  Group& head = *ranks[0].group;
  const std::vector<size_t> sizes = {0, 1, 100, kFrameBytesMax, kFrameBytesMax + 1, 700'000};
  std::atomic<int> good{0};
  std::vector<std::jthread> workers;  // joined also when a check ends the test
  for (size_t r = 1; r < 3; ++r) {
    workers.emplace_back([&, r] {
      Group& group = *ranks[r].group;
      for (size_t i = 0; i < sizes.size(); ++i) {
        const auto got = group.receive(0, kPatienceMs);
        if (!got.ok() || got->kind != 7 + i || got->body != pattern(sizes[i], 3)) return;
        if (!group.send(static_cast<uint16_t>(100 * r + i), got->body).ok()) return;
      }
      ++good;
    });
  }
  for (size_t i = 0; i < sizes.size(); ++i)
    BOOST_TEST(head.send(static_cast<uint16_t>(7 + i), pattern(sizes[i], 3)).ok());
  for (size_t r = 1; r < 3; ++r) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const LinkArrival got = received(head, static_cast<int>(r));
      BOOST_TEST((got.what == LinkArrival::Kind::kMessage));
      BOOST_TEST(got.kind == 100 * r + i);
      BOOST_TEST((got.body == pattern(sizes[i], 3)));
    }
  }
  workers.clear();
  BOOST_TEST(good == 2);
  BOOST_TEST(head.send_to(2, 1, pattern(9, 1)).ok());
  BOOST_TEST(received(*ranks[2].group, 0).body.size() == 9U);
  BOOST_TEST((received(*ranks[1].group, 0, 0).what == LinkArrival::Kind::kIdle));
  BOOST_TEST(!head.pending(1));
  const std::vector<std::byte> over(kLinkMessageBytesMax + 1);
  BOOST_TEST((head.send(1, over).code() == StatusCode::kInvalidArgument));
  BOOST_TEST(head.failure().ok());
  BOOST_TEST(head.counters().messages_sent == static_cast<int64_t>(2 * sizes.size() + 1));
}

BOOST_AUTO_TEST_CASE(exchanges_of_every_size_and_number_of_ranks) {
  for (const int world : {2, 3, 4}) {
    Ranks ranks(world);
    ranks.form();
    std::atomic<int> good{0};
    on_ranks(ranks, [&](Group& group) {
      for (const size_t bytes : {size_t{0}, size_t{1}, size_t{16'384}, kFrameBytesMax,
                                 kFrameBytesMax + 1, size_t{3'000'001}, size_t{40}}) {
        const auto in = pattern(bytes, static_cast<uint32_t>(group.rank()));
        std::vector<std::byte> out(bytes * static_cast<size_t>(world));
        if (!group.collective().all_gather(in, out).ok()) return;
        for (int r = 0; r < world; ++r) {
          const auto part = pattern(bytes, static_cast<uint32_t>(r));
          if (!std::equal(part.begin(), part.end(),
                          out.begin() + static_cast<long>(bytes * static_cast<size_t>(r))))
            return;
        }
      }
      const auto words = gather_words(group.collective(), {7, static_cast<uint64_t>(group.rank())});
      for (size_t r = 0; r < static_cast<size_t>(world); ++r) {
        if (!words.ok() || (*words)[r] != AgreementWords{7, r}) return;
      }
      ++good;
    });
    BOOST_TEST(good == world);
    BOOST_TEST(ranks[0].group->counters().exchanges == 8);
  }
}

// Every rank as the root, of every size, between exchanges; the root may run ahead.
BOOST_AUTO_TEST_CASE(broadcasts_of_every_size_from_every_rank) {
  for (const int world : {2, 4}) {
    Ranks ranks(world);
    ranks.form();
    std::atomic<int> good{0};
    on_ranks(ranks, [&](Group& group) {
      Collective& c = group.collective();
      uint32_t round = 0;
      for (const size_t bytes :
           {size_t{0}, size_t{1}, size_t{4096}, kFrameBytesMax + 1, size_t{3'000'001}}) {
        for (int root = 0; root < world; ++root, ++round) {
          auto data = pattern(bytes, round * 100 + static_cast<uint32_t>(group.rank()));
          if (!c.broadcast(data, root).ok()) return;
          if (data != pattern(bytes, round * 100 + static_cast<uint32_t>(root))) return;
          if (round % 3 == 0 && !gather_words(c, {round, 0}).ok()) return;
        }
      }
      ++good;
    });
    BOOST_TEST(good == world);
  }
}

BOOST_AUTO_TEST_CASE(a_broadcast_that_meets_an_exchange_is_out_of_step) {
  Ranks ranks(2);
  ranks.form();
  Status statuses[2];
  on_ranks(ranks, [&](Group& group) {
    std::vector<std::byte> data(64), all(128);
    statuses[group.rank()] = group.rank() == 0 ? group.collective().all_gather(data, all)
                                               : group.collective().broadcast(data, 0);
  });
  BOOST_TEST(statuses[1].message().find("broadcast 1 of 64 bytes") != std::string::npos,
             statuses[1].message());
  BOOST_TEST(!statuses[0].ok());
}

BOOST_AUTO_TEST_CASE(who_waits_for_a_broadcast_hears_of_the_roots_end) {
  Ranks ranks(2);
  ranks.form();
  Status status;
  std::thread waits([&] {
    std::vector<std::byte> data(64);
    status = ranks[1].group->collective().broadcast(data, 0);
  });
  sleep_ms(50);
  ranks[0].group.reset();
  waits.join();
  BOOST_TEST((status.code() == StatusCode::kUnavailable));
}

// Sums equal those of ranks in one process to the bit: the same contract as every Collective.
BOOST_AUTO_TEST_CASE(sums_equal_those_of_thread_ranks_to_the_bit) {
  constexpr size_t kValues = 5120;
  constexpr int kWorld = 4;
  const auto value = [](int rank, size_t i) {
    const auto m =
        static_cast<float>((static_cast<uint32_t>(rank) * 2654435761U + i * 40503U) % 9973U);
    return (m - 5000.0F) * (i % 3 == 0 ? 1e-4F : 1e3F) * (rank % 2 == 0 ? 1.0F : 1e-3F);
  };
  const auto sum_with = [&](Collective& c, std::vector<float>& data) {
    std::vector<float> scratch;
    data.resize(kValues);
    for (size_t i = 0; i < kValues; ++i) data[i] = value(c.rank(), i);
    return c.all_reduce_sum(data, scratch).ok();
  };
  std::vector<std::vector<float>> by_socket(kWorld), by_thread(kWorld);
  std::atomic<int> good{0};
  Ranks ranks(kWorld);
  ranks.form();
  on_ranks(ranks, [&](Group& g) {
    good += sum_with(g.collective(), by_socket[static_cast<size_t>(g.rank())]) ? 1 : 0;
  });
  auto handles = make_thread_collectives(kWorld, static_cast<int>(kPatienceMs));
  std::vector<std::thread> threads;
  for (auto& c : handles) {
    threads.emplace_back([&, p = c.get()] {
      good += sum_with(*p, by_thread[static_cast<size_t>(p->rank())]) ? 1 : 0;
    });
  }
  for (auto& t : threads) t.join();
  BOOST_REQUIRE(good == 2 * kWorld);
  for (const auto& r : by_socket) {
    BOOST_REQUIRE(r.size() == kValues);
    BOOST_TEST(std::memcmp(r.data(), by_thread[0].data(), kValues * sizeof(float)) == 0);
  }
}

BOOST_AUTO_TEST_CASE(reports_and_round_trips_reach_every_peer) {
  Ranks ranks(3);
  ranks.form();
  BOOST_TEST(ranks[1].group->publish({{"state", "serving"}, {"memory", "61 GiB"}}).ok());
  const auto there = [&](size_t at) {
    for (const PeerStatus& p : ranks[at].group->peers()) {
      if (p.rank == 1 && p.rtt_us >= 0 && p.report.size() == 2 && p.report[1].second == "61 GiB")
        return true;
    }
    return false;
  };
  BOOST_TEST(eventually([&] { return there(0) && there(2); }));
  const auto peers = ranks[0].group->peers();
  BOOST_REQUIRE(peers.size() == 2U);
  BOOST_TEST(peers[0].address.starts_with("127.0.0.2:"));
  BOOST_TEST(std::abs(peers[0].clock_offset_ms) < 60'000);
  const std::string big(kLinkValueBytesMax + 1, 'x');
  BOOST_TEST((ranks[1].group->publish({{"state", big}}).code() == StatusCode::kInvalidArgument));
}

BOOST_AUTO_TEST_CASE(a_rank_that_leaves_in_order_is_closed_and_not_lost) {
  Ranks ranks(2);
  ranks.form();
  BOOST_TEST(ranks[0].group->send(5, pattern(10, 1)).ok());
  ranks[0].group->close("the service stops");
  // What was sent before the goodbye still arrives.
  BOOST_TEST((received(*ranks[1].group, 0).what == LinkArrival::Kind::kMessage));
  const LinkArrival end = received(*ranks[1].group, 0);
  BOOST_TEST((end.what == LinkArrival::Kind::kClosed));
  BOOST_TEST(end.reason == "the service stops");
  BOOST_TEST(reason_of(*ranks[1].group) == "peer_left");
  BOOST_TEST(reason_of(*ranks[0].group) == "aborted");
}

BOOST_AUTO_TEST_CASE(an_abort_from_another_thread_ends_every_wait) {
  for (const bool in_exchange : {true, false}) {
    Ranks ranks(2);
    ranks.form();
    std::atomic<int> told{0};
    for (auto& rank : ranks.all)
      rank->group->on_failure([&](const Status& s) { told += s.ok() ? 0 : 1; });
    std::thread waits([&] {
      Group& group = *ranks[1].group;
      std::array<std::byte, 2> out{};
      const Status s = in_exchange ? group.collective().all_gather(std::span(out).first(1), out)
                                   : group.receive(0, kPatienceMs).status();
      BOOST_TEST(s.reason() == "aborted");
    });
    sleep_ms(30);
    ranks[1].group->abort(unavailable("the test says so", "aborted"));
    waits.join();
    BOOST_TEST(eventually([&] { return !ranks[0].group->failure().ok(); }));
    BOOST_TEST(reason_of(*ranks[0].group) == "peer_closed");
    BOOST_TEST(ranks[0].group->failure().message().find("the test says so") != std::string::npos);
    BOOST_TEST(eventually([&] { return told == 2; }));
    // And at once for who asks later.
    ranks[0].group->on_failure([&](const Status&) { ++told; });
    BOOST_TEST(told == 3);
    BOOST_TEST(!ranks[1].group->send(1, {}).ok());
  }
}

BOOST_AUTO_TEST_CASE(a_peer_that_dies_is_noticed_at_once_everywhere) {
  Ranks ranks(3);
  ranks.form();
  std::atomic<int> failed{0};
  std::thread first([&] {
    std::array<std::byte, 3> out{};
    failed += ranks[0].group->collective().all_gather(std::span(out).first(1), out).ok() ? 0 : 1;
  });
  sleep_ms(20);
  crash(ranks[2]);
  first.join();
  BOOST_TEST(failed == 1);
  BOOST_TEST(eventually([&] { return !ranks[1].group->failure().ok(); }));
  BOOST_TEST(reason_of(*ranks[0].group) == "peer_closed");
  BOOST_TEST(ranks[0].group->failure().message().find("rank 2") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_peer_that_lives_but_does_not_compute_or_read_is_bounded) {
  GroupOptions o = options_of(0, 2, 0);
  o.timers.exchange_ms = 300;
  o.timers.send_ms = 300;
  for (const bool exchange : {true, false}) {
    Rank head(o);
    head.start();
    const HandWorker worker(head);
    std::atomic<bool> done{false};
    std::thread beats([&] {
      for (uint64_t i = 0; !done; ++i) {
        if (!worker.beat(i)) return;  // the head gave the group up
        sleep_ms(20);
      }
    });
    Status s;
    const std::vector<std::byte> big(kLinkMessageBytesMax);
    std::vector<std::byte> out(2 * big.size());
    if (exchange) {
      s = head.group->collective().all_gather(big, out);
    } else {
      for (int i = 0; i < 8 && s.ok(); ++i) s = head.group->send(1, big);
    }
    done = true;
    beats.join();
    BOOST_TEST(s.reason() == "slow", s.to_string());
    BOOST_TEST(reason_of(*head.group) == "slow");
    BOOST_TEST(s.message().find("rank") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(ranks_of_different_sizes_are_told_so_with_both_sizes) {
  Ranks ranks(2);
  ranks.form();
  std::vector<Status> statuses(2);
  on_ranks(ranks, [&](Group& group) {
    const auto r = static_cast<size_t>(group.rank());
    const size_t bytes = r == 1 ? 24 : 16;
    std::vector<std::byte> in(bytes), out(2 * bytes);
    statuses[r] = group.collective().all_gather(in, out);
  });
  for (const Status& s : statuses) {
    BOOST_TEST(!s.ok());
    BOOST_TEST(s.message().find("out of step") != std::string::npos, s.message());
    BOOST_TEST(s.message().find("16 bytes") != std::string::npos, s.message());
    BOOST_TEST(s.message().find("24 bytes") != std::string::npos, s.message());
  }
}

BOOST_AUTO_TEST_CASE(damage_on_any_connection_breaks_the_group) {
  for (int which = 0; which < 6; ++which) {
    Rank head(options_of(0, 2, 0));
    head.start();
    const HandWorker worker(head);
    const auto raw = [](const Channel& c, size_t bytes) {
      const auto junk = pattern(bytes, 77);
      (void)::send(c.fd(), junk.data(), junk.size(), MSG_NOSIGNAL);
    };
    std::vector<std::byte> in(16), out(32);
    if (which == 0) raw(*worker.heartbeat, 200);
    if (which == 1) raw(*worker.control, 200);
    if (which == 2) raw(*worker.exchange, 200);
    // Sealed well, but not what belongs there.
    if (which == 3) BOOST_TEST(worker.heartbeat->send(FrameType::kData, {}, patience()).ok());
    if (which == 4) BOOST_TEST(worker.control->send(FrameType::kBeat, {}, patience()).ok());
    if (which == 5) BOOST_TEST(worker.exchange->send(FrameType::kData, in, patience()).ok());
    Status s;
    if (which % 3 == 0) {
      BOOST_REQUIRE(eventually([&] { return !head.group->failure().ok(); }));
      s = head.group->failure();
    }
    if (which % 3 == 1) s = head.group->receive(1, kPatienceMs).status();
    if (which % 3 == 2) s = head.group->collective().all_gather(in, out);
    BOOST_TEST_CONTEXT(which) { BOOST_TEST(s.reason() == "link", s.to_string()); }
  }
}
