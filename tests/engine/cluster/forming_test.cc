// Forming: any order of starts, every difference named on both sides, wrong and double ranks, stop
// at every moment, and groups that form and break without leaving anything behind.
#include "tests/engine/cluster/link_harness.h"

using namespace tensorfold;
using namespace tensorfold::link_test;

namespace {

void exchange_once(Ranks& ranks) {
  on_ranks(ranks, [](Group& group) {
    const auto mine = static_cast<uint32_t>(group.rank() + 10);
    std::vector<uint32_t> all(static_cast<size_t>(group.world_size()));
    const Status s = group.collective().all_gather(std::as_bytes(std::span(&mine, 1)),
                                                   std::as_writable_bytes(std::span(all)));
    if (!s.ok()) throw std::runtime_error(s.to_string());
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r] != r + 10) throw std::runtime_error("wrong rank's data");
    }
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(ranks_form_in_any_order_of_starts) {
  const std::vector<std::vector<size_t>> orders = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}};
  for (const auto& order : orders) {
    Ranks ranks(4);
    for (const size_t r : order) {
      ranks[r].start();
      sleep_ms(60);
    }
    for (auto& rank : ranks.all)
      BOOST_REQUIRE_MESSAGE(rank->wait(), rank->progress().text + "\n" + rank->log.all());
    for (auto& rank : ranks.all)
      BOOST_TEST(rank->group->generation() == ranks[0].group->generation());
    exchange_once(ranks);
  }
}

BOOST_AUTO_TEST_CASE(each_side_says_whom_it_waits_for) {
  Ranks ranks(3);
  ranks[2].start();
  BOOST_TEST(ranks[2].said("connecting to the head"));
  ranks[0].start();
  BOOST_TEST(ranks[0].says("waiting for rank 1"));
  BOOST_TEST(ranks[2].says("joined; the head is waiting for rank 1"));
  BOOST_TEST((ranks[0].progress().missing == std::vector<int>{1}));
  ranks[1].start();
  for (auto& rank : ranks.all) BOOST_REQUIRE(rank->wait());
}

BOOST_AUTO_TEST_CASE(a_head_that_is_not_there_yet_is_waited_for) {
  // The port is known, but nobody listens: the worker retries until a head takes it.
  int port = 0;
  { port = Rank(options_of(0, 2, 0)).port(); }
  Rank worker(options_of(1, 2, port));
  worker.start();
  BOOST_TEST(eventually([&] { return worker.progress().attempts >= 3; }));
  BOOST_TEST(worker.says("Connection refused"));
  GroupOptions o = options_of(0, 2, 0);
  o.link_port = port;
  Rank head(o);
  head.start();
  BOOST_TEST(head.wait());
  BOOST_TEST(worker.wait());
}

BOOST_AUTO_TEST_CASE(every_difference_is_named_with_both_values_on_both_sides) {
  struct Case {
    std::function<void(GroupOptions&)> change;
    std::string head, worker;
  };
  const std::vector<Case> cases = {
      {[](GroupOptions& o) { o.fingerprint[0].second = "0.2.0"; },
       "code: head has '0.1.0', worker has '0.2.0'", "code: head has '0.1.0', worker has '0.2.0'"},
      {[](GroupOptions& o) { o.fingerprint[1].second = "other"; },
       "model: head has 'tiny-1', worker has 'other'",
       "model: head has 'tiny-1', worker has 'other'"},
      {[](GroupOptions& o) { o.fingerprint.pop_back(); },
       "formats: head has 'bf16', worker has '(absent)'",
       "formats: head has 'bf16', worker has '(absent)'"},
      {[](GroupOptions& o) { o.fingerprint.emplace_back("nccl", "2.28.9 abc"); },
       "nccl: head has '(absent)', worker has '2.28.9 abc'",
       "nccl: head has '(absent)', worker has '2.28.9 abc'"},
      {[](GroupOptions& o) { o.world_size = 3; }, "world_size: head has '2', worker has '3'",
       "world_size: head has '2', worker has '3'"},
      {[](GroupOptions& o) { o.protocol = 7; }, "link protocol: rank 0 has '1', it has '7'",
       "has '1', this rank has '7'"},
      {[](GroupOptions& o) { o.key = kOtherKey; }, "127.0.0.2 did not prove the shared key",
       "the keys differ"},
  };
  for (const Case& c : cases) {
    Rank head(options_of(0, 2, 0));
    head.start();
    GroupOptions o = options_of(1, 2, head.port());
    c.change(o);
    {
      Rank wrong(o);
      wrong.start();
      BOOST_TEST_CONTEXT(c.worker) {
        BOOST_TEST(wrong.says(c.worker), wrong.progress().text);
        BOOST_TEST(head.says(c.head), head.progress().text);
        BOOST_TEST((head.progress().missing == std::vector<int>{1}));
        BOOST_TEST(head.log.has(c.head), head.log.all());
        BOOST_TEST(wrong.log.has(c.worker), wrong.log.all());
      }
    }
    // The right one is taken all the same.
    Rank worker(options_of(1, 2, head.port()));
    worker.start();
    BOOST_TEST(worker.wait());
    BOOST_TEST(head.wait());
  }
}

BOOST_AUTO_TEST_CASE(wrong_ranks_and_second_workers_are_refused) {
  Rank head(options_of(0, 3, 0));
  head.start();
  Rank first(options_of(1, 3, head.port()));
  first.start();
  BOOST_REQUIRE(first.says("joined; the head is waiting for rank 2"));
  GroupOptions twin = options_of(1, 3, head.port());
  twin.link_address = "127.0.0.7";
  Rank second(twin);
  second.start();
  BOOST_TEST(second.says("rank 1 is taken by 127.0.0.2:"), second.progress().text);
  BOOST_TEST(head.says("rank 1 at 127.0.0.7 was refused: rank 1 is taken by 127.0.0.2"));
  second.stop();
  // A rank that no table has, and one that claims to be the head.
  for (const uint32_t rank : {0U, 3U, 4'000'000'000U}) {
    const auto channel = proven(head.port());
    JoinRequest request;
    request.rank = rank;
    request.world_size = 3;
    request.fingerprint = options_of(1, 3, 0).fingerprint;
    BOOST_REQUIRE(channel->send(FrameType::kJoin, encode(request), patience()).ok());
    const auto answer = channel->receive(patience());
    BOOST_REQUIRE_MESSAGE(answer.ok(), answer.status().to_string());
    BOOST_REQUIRE((answer->header.type == FrameType::kRefusal));
    BOOST_TEST(decode_refusal(answer->payload)->text() ==
               "rank " + std::to_string(rank) + " is not a worker's rank (1 to 2)");
  }
  Rank third(options_of(2, 3, head.port()));
  third.start();
  BOOST_TEST(third.wait());
  BOOST_TEST(first.wait());
  BOOST_TEST(head.wait());
  // While the group stands, who comes late is told so.
  second.start();
  BOOST_TEST(second.says("a group of 3 ranks stands"), second.progress().text);
}

BOOST_AUTO_TEST_CASE(a_worker_that_goes_while_others_are_awaited_is_replaced) {
  Rank head(options_of(0, 3, 0));
  head.start();
  {
    Rank first(options_of(1, 3, head.port()));
    first.start();
    BOOST_REQUIRE(head.says("waiting for rank 2"));
  }
  BOOST_TEST(head.says("waiting for rank 1, 2"));
  Rank again(options_of(1, 3, head.port()));
  Rank other(options_of(2, 3, head.port()));
  again.start();
  other.start();
  BOOST_TEST(again.wait());
  BOOST_TEST(other.wait());
  BOOST_TEST(head.wait());
}

BOOST_AUTO_TEST_CASE(connections_of_another_generation_are_refused) {
  Rank head(options_of(0, 2, 0));
  head.start();
  BOOST_REQUIRE(head.says("waiting for rank 1"));
  for (const ChannelUse use : {ChannelUse::kHeartbeat, ChannelUse::kExchange}) {
    const auto stale = proven(head.port());
    JoinRequest request;
    request.use = use;
    request.rank = 1;
    request.world_size = 2;
    request.generation = 12345;
    BOOST_REQUIRE(stale->send(FrameType::kJoin, encode(request), patience()).ok());
    const auto answer = stale->receive(patience());
    BOOST_REQUIRE_MESSAGE(answer.ok(), answer.status().to_string());
    BOOST_TEST((answer->header.type == FrameType::kRefusal));
  }
  Rank worker(options_of(1, 2, head.port()));
  worker.start();
  BOOST_TEST(worker.wait());
  BOOST_TEST(head.wait());
}

BOOST_AUTO_TEST_CASE(a_worker_with_an_old_generation_is_refused_while_the_group_is_connected) {
  Rank head(options_of(0, 2, 0));
  head.start();
  BOOST_REQUIRE(head.says("waiting for rank 1"));
  // A peer that joins as rank 1 and then connects with the generation of long ago.
  const auto control = proven(head.port());
  JoinRequest request;
  request.rank = 1;
  request.world_size = 2;
  request.fingerprint = options_of(1, 2, 0).fingerprint;
  BOOST_REQUIRE(control->send(FrameType::kJoin, encode(request), patience()).ok());
  std::optional<Roster> roster;
  while (!roster) {
    const auto frame = control->receive(patience());
    BOOST_REQUIRE_MESSAGE(frame.ok(), frame.status().to_string());
    if (frame->header.type == FrameType::kRoster) roster = decode_roster(frame->payload);
  }
  const auto ask = [&](uint64_t generation) {
    auto channel = proven(head.port());
    request.use = ChannelUse::kHeartbeat;
    request.generation = generation;
    BOOST_REQUIRE(channel->send(FrameType::kJoin, encode(request), patience()).ok());
    const auto answer = channel->receive(patience());
    BOOST_REQUIRE_MESSAGE(answer.ok(), answer.status().to_string());
    if (answer->header.type == FrameType::kWelcome) return std::string("welcome");
    return decode_refusal(answer->payload)->text();
  };
  BOOST_TEST(ask(roster->generation ^ 2U) == "a connection of another generation of the group");
  BOOST_TEST(ask(roster->generation) == "welcome");
}

BOOST_AUTO_TEST_CASE(a_stop_ends_forming_at_every_moment) {
  // Stopped after a random time from the start on, with peers coming and going.
  for (int round = 0; round < 12; ++round) {
    Ranks ranks(3);
    for (size_t r = 0; r < 3; ++r) {
      if (static_cast<int>(r) != round % 4) ranks[r].start();
    }
    sleep_ms(round * 7);
    for (auto& rank : ranks.all) {
      const int64_t before = system_clock().monotonic_us();
      rank->stop();
      // No wait of the link is as long: the shortest bound that could have been waited out is 400
      // ms, the longest 10 s. Generous for a loaded machine.
      BOOST_TEST(system_clock().monotonic_us() - before < 5'000'000);
      if (!rank->group && rank->formed())
        BOOST_TEST((rank->status().code() == StatusCode::kCancelled));
    }
  }
}

BOOST_AUTO_TEST_CASE(an_address_that_is_not_there_yet_is_waited_for_and_bad_options_are_named) {
  const auto transport = make_socket_transport();
  const auto refused = [&](const std::function<void(GroupOptions&)>& change) {
    GroupOptions o = options_of(1, 2, 29620);
    change(o);
    const auto made = GroupFormer::create(o, *transport, null_log());
    return made.ok() ? std::string("taken") : made.status().message();
  };
  BOOST_TEST(refused([](GroupOptions&) {}) == "taken");
  BOOST_TEST(refused([](GroupOptions& o) {
               o.link_address = "spark-1";
             }).starts_with("cluster.link_address: 'spark-1' is not a numeric address"));
  BOOST_TEST(refused([](GroupOptions& o) {
               o.link_address = "0.0.0.0";
             }).starts_with("cluster.link_address: '0.0.0.0' means every interface"));
  BOOST_TEST(refused([](GroupOptions& o) { o.head_address = ""; }).starts_with("cluster.head: ''"));
  BOOST_TEST(refused([](GroupOptions& o) { o.head_address = "::1"; }).starts_with("cluster.head:"));
  BOOST_TEST(refused([](GroupOptions& o) { o.rank = 2; }).starts_with("cluster.rank: 2 of 2"));
  BOOST_TEST(refused([](GroupOptions& o) { o.world_size = 17; }).starts_with("cluster.world_size"));
  BOOST_TEST(refused([](GroupOptions& o) { o.world_size = 1; }).starts_with("cluster.world_size"));
  BOOST_TEST(refused([](GroupOptions& o) { o.key = "short"; }).starts_with("cluster.key_file"));
  BOOST_TEST(refused([](GroupOptions& o) { o.fingerprint.emplace_back("code", "x"); }) ==
             "fingerprint: field 'code' twice");
  BOOST_TEST(refused([](GroupOptions& o) {
               o.fingerprint[0].second.assign(kLinkValueBytesMax + 1, 'x');
             }).starts_with("fingerprint: field 'code' is too long"));
  BOOST_TEST(refused([](GroupOptions& o) {
               for (size_t i = 0; i < kLinkFieldsMax; ++i)
                 o.fingerprint.emplace_back("f" + std::to_string(i), "");
             }).starts_with("fingerprint: more than 64 fields"));
  GroupOptions absent = options_of(0, 2, 0);
  absent.link_address = "192.0.2.77";  // reserved for documentation: nobody's
  Rank head(absent);
  head.start();
  BOOST_TEST(head.says("192.0.2.77 is not an address of this machine"));
  head.stop();
  BOOST_TEST((head.status().code() == StatusCode::kCancelled));
}

BOOST_AUTO_TEST_CASE(two_hundred_groups_form_and_break_and_leave_nothing) {
  Ranks ranks(2, [](GroupOptions& o) { o.timers.retry_first_ms = 1; });
  size_t descriptors = 0, threads = 0;
  for (int round = 0; round < 200; ++round) {
    ranks.form();
    if (round % 8 == 0) exchange_once(ranks);
    Rank& breaker = ranks[static_cast<size_t>(round % 2)];
    Rank& other = ranks[static_cast<size_t>(1 - round % 2)];
    if (round % 3 == 0) breaker.group->abort(unavailable("a test", "aborted"));
    if (round % 3 == 1) breaker.group->close("a test");
    if (round % 3 == 2) breaker.group.reset();
    BOOST_REQUIRE(eventually([&] { return !other.group->failure().ok(); }));
    ranks[0].group.reset();
    ranks[1].group.reset();
    if (round == 4) {
      descriptors = open_descriptors();
      threads = threads_now();
    }
  }
  BOOST_TEST(open_descriptors() <= descriptors);
  BOOST_TEST(threads_now() <= threads);
}
