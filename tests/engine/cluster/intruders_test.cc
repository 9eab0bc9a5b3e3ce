// Who has no business on the link: garbage, half a greeting, old recordings, floods, fakes of
// either side, and peers that fall silent or send another step's exchange. None gets in, none keeps
// a worker out, none is taken for what it is not.
//
// Built a second time with TF_PLANTED_FAULT: proofs are believed, silence is not judged and the
// numbers of exchanges are not compared, which each case must show.
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <random>

#include "engine/cluster/gate.h"
#include "tests/engine/cluster/link_harness.h"

using namespace tensorfold;
using namespace tensorfold::link_test;

namespace {

#ifdef TF_PLANTED_FAULT
constexpr bool kFault = true;
#else
constexpr bool kFault = false;
#endif

using Bytes = std::vector<std::byte>;

Bytes random_of(size_t bytes, uint32_t seed) {
  std::mt19937 rng(seed);
  Bytes out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(static_cast<uint8_t>(rng()));
  return out;
}

// The handshake once more, from its description alone.
Bytes greeting(char role, uint32_t seed) {
  Bytes out = random_of(48, seed);
  const std::string mark = std::string("TFLINK") + role + "1";
  std::memcpy(out.data(), mark.data(), 8);
  const std::array<uint8_t, 8> version = {1, 0, 0, 0, 0, 0, 0, 0};
  std::memcpy(out.data() + 8, version.data(), version.size());
  return out;
}

Bytes proof(const std::string& role, const Bytes& transcript, const std::string& key = kKey) {
  Bytes message;
  for (const char c : "tensorfold link " + role) message.push_back(static_cast<std::byte>(c));
  message.push_back(std::byte{0});
  message.insert(message.end(), transcript.begin(), transcript.end());
  Bytes out(32);
  unsigned int length = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(message.data()), message.size(),
       reinterpret_cast<unsigned char*>(out.data()), &length);
  return out;
}

Bytes joined(const Bytes& a, const Bytes& b) {
  Bytes out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

struct Fixture {
  Fixture() : head(options_of(0, 2, 0)) {
    head.start();
    BOOST_REQUIRE(head.says("waiting for rank 1"));
  }
  // Whatever came before: the worker gets in.
  void worker_gets_in() {
    Rank worker(options_of(1, 2, head.port()));
    worker.start();
    BOOST_TEST(worker.wait(), worker.progress().text);
    BOOST_TEST(head.wait(), head.progress().text);
  }
  Rank head;
};

// Sends a greeting and then `second`; whether the head took it for a proof.
bool taken(const Rank& head, const Bytes& first, const Bytes& second) {
  const Fd fd = raw_connection(head.port());
  raw_send(fd, first);
  BOOST_REQUIRE(raw_read(fd, kPreambleBytes).bytes.size() == kPreambleBytes);
  raw_send(fd, second);
  const RawRead answer = raw_read(fd, kLinkProofBytes);
  BOOST_TEST((answer.closed || answer.bytes.size() == kLinkProofBytes));
  return answer.bytes.size() == kLinkProofBytes;
}

}  // namespace

BOOST_AUTO_TEST_CASE(garbage_is_closed_unanswered) {
  Fixture f;
  for (uint32_t i = 0; i < 60; ++i) {
    const Fd fd = raw_connection(f.head.port());
    Bytes junk = i % 3 == 0 ? greeting('C', i) : random_of(48 + i * 37, i);
    if (i % 3 == 0) junk[i % 16] ^= std::byte{0x40};  // one wrong bit: mark, or what must be 0
    const bool other_version = i % 3 == 0 && i % 16 >= 8 && i % 16 < 12;
    raw_send(fd, junk);
    const RawRead answer = raw_read(fd, 200, other_version ? 50 : kPatienceMs);
    if (other_version) {
      BOOST_TEST(answer.bytes.size() == kPreambleBytes);  // versions are compared after the proof
    } else {
      BOOST_TEST(answer.closed);
      BOOST_TEST(answer.bytes.empty());
    }
  }
  BOOST_TEST(f.head.log.has("127.0.0.9 did not prove the shared key"));
  f.worker_gets_in();
}

BOOST_AUTO_TEST_CASE(the_described_handshake_is_the_one_that_is_spoken) {
  Fixture f;
  const Fd fd = raw_connection(f.head.port());
  const Bytes mine = greeting('C', 5);
  raw_send(fd, mine);
  const Bytes theirs = raw_read(fd, 48).bytes;
  BOOST_REQUIRE(theirs.size() == 48U);
  const Bytes both = joined(mine, theirs);
  const Bytes my_proof = proof("connector", both);
  raw_send(fd, my_proof);
  BOOST_TEST((raw_read(fd, 32).bytes == proof("acceptor", joined(both, my_proof))));
}

BOOST_AUTO_TEST_CASE(wrong_proofs_and_recordings_do_not_get_in) {
  Fixture f;
  int in = 0;
  in += taken(f.head, greeting('C', 1), random_of(32, 2)) ? 1 : 0;
  in += taken(f.head, greeting('C', 1), Bytes(32)) ? 1 : 0;
  // A whole conversation is recorded and said again, join and all.
  const Fd good = raw_connection(f.head.port());
  const Bytes first = greeting('C', 3);
  raw_send(good, first);
  const Bytes second = raw_read(good, 48).bytes;
  const Bytes third = proof("connector", joined(first, second));
  raw_send(good, third);
  BOOST_REQUIRE(raw_read(good, 32).bytes.size() == 32U);
  in += taken(f.head, first, third) ? 1 : 0;
  // The acceptor's own proof of that conversation, and of this one by the wrong key or role.
  in += taken(f.head, first, proof("acceptor", joined(first, second))) ? 1 : 0;
  for (const auto& [role, key] : {std::pair("connector", kOtherKey), std::pair("acceptor", kKey)}) {
    const Fd fd = raw_connection(f.head.port());
    raw_send(fd, first);
    const Bytes theirs = raw_read(fd, 48).bytes;
    raw_send(fd, proof(role, joined(first, theirs), key));
    in += raw_read(fd, 32).bytes.size() == 32 ? 1 : 0;
  }
  BOOST_TEST(in == (kFault ? 6 : 0));
  f.worker_gets_in();
}

BOOST_AUTO_TEST_CASE(fakes_of_the_head_are_not_believed) {
  // Each fake answers a connector; what the connector made of it.
  const auto meet = [](const std::function<void(const Fd&)>& fake) {
    int port = 0;
    const auto address = LinkAddress::parse("fake", "127.0.0.8", 0);
    auto listener = listen_on(*address, &port);
    BOOST_REQUIRE(listener.ok());
    std::thread thread([&] {
      (void)wait_ready(listener->get(), POLLIN, patience());
      LinkAddress peer;
      const Fd fd = accept_from(listener->get(), &peer);
      fake(fd);
    });
    auto fd = connect_to(*LinkAddress::parse("from", "127.0.0.9", 0), address->with_port(port),
                         patience());
    BOOST_REQUIRE(fd.ok());
    const auto channel =
        prove_to(std::move(*fd), "the fake", std::as_bytes(std::span(kKey.data(), kKey.size())), 1,
                 patience());
    thread.join();
    return channel.ok() ? std::string("believed") : channel.status().message();
  };
  const std::string differ = "the fake could not prove the shared key: the keys differ";
  BOOST_TEST(meet([](const Fd& fd) { raw_send(fd, raw_read(fd, 48).bytes); }) ==
             "the fake does not speak the link's protocol");
  BOOST_TEST(meet([](const Fd& fd) { raw_send(fd, random_of(48, 1)); }) ==
             "the fake does not speak the link's protocol");
  BOOST_TEST(meet([](const Fd& fd) {
               (void)raw_read(fd, 48);
               raw_send(fd, greeting('A', 2));
               (void)raw_read(fd, 32);
             }) == "the fake did not take the proof of the shared key: the keys differ");
  // Hands the connector's own proof back; makes one up; uses another key.
  BOOST_TEST(meet([](const Fd& fd) {
               (void)raw_read(fd, 48);
               raw_send(fd, greeting('A', 2));
               raw_send(fd, raw_read(fd, 32).bytes);
             }) == (kFault ? "believed" : differ));
  BOOST_TEST(meet([](const Fd& fd) {
               const Bytes mine = greeting('A', 2);
               const Bytes both = joined(raw_read(fd, 48).bytes, mine);
               raw_send(fd, mine);
               const Bytes theirs = raw_read(fd, 32).bytes;
               raw_send(fd, proof("acceptor", joined(both, theirs), kOtherKey));
             }) == (kFault ? "believed" : differ));
  BOOST_TEST(meet([](const Fd& fd) {
               const Bytes mine = greeting('A', 2);
               const Bytes both = joined(raw_read(fd, 48).bytes, mine);
               raw_send(fd, mine);
               const Bytes theirs = raw_read(fd, 32).bytes;
               raw_send(fd, proof("acceptor", joined(both, theirs)));
             }) == "believed");
}

BOOST_AUTO_TEST_CASE(slow_and_silent_peers_are_closed_at_the_bound) {
  Fixture f;
  const int64_t bound_ms = options_of(0, 2, 0).timers.handshake_ms;
  const Bytes hello = greeting('C', 1);
  const int64_t start_us = system_clock().monotonic_us();
  const Fd silent = raw_connection(f.head.port());
  const Fd slow = raw_connection(f.head.port());
  // A byte at a time, which would take twice the bound.
  std::thread drips([&] {
    for (const std::byte& b : hello) {
      raw_send(slow, std::span(&b, 1));
      sleep_ms(2 * bound_ms / static_cast<int64_t>(hello.size()));
    }
  });
  BOOST_TEST(raw_read(silent, 1).closed);
  BOOST_TEST((system_clock().monotonic_us() - start_us) / 1000 >= bound_ms);
  BOOST_TEST(raw_read(slow, 1).closed);
  drips.join();
  f.worker_gets_in();
}

BOOST_AUTO_TEST_CASE(a_flood_of_connections_does_not_keep_the_worker_out) {
  Fixture f;
  std::vector<Fd> flood;
  for (int i = 0; i < 200; ++i) flood.push_back(raw_connection(f.head.port()));
  // Held are only as many as one address may; the oldest were closed for the newer.
  const auto still_open = [&] {
    return std::count_if(flood.begin(), flood.end(), [](const Fd& fd) {
      std::byte none{};
      return ::recv(fd.get(), &none, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
    });
  };
  BOOST_TEST(
      eventually([&] { return still_open() <= static_cast<long>(kUnprovenPeersPerAddressMax); }));
  std::atomic<bool> done{false};
  std::thread more([&, port = f.head.port()] {
    while (!done) {
      const auto fd = try_connection(port);
      if (fd.ok()) raw_send(*fd, greeting('C', 1));
      sleep_ms(1);
    }
  });
  f.worker_gets_in();
  done = true;
  more.join();
}

BOOST_AUTO_TEST_CASE(peers_that_have_the_key_but_not_the_protocol_are_closed) {
  Fixture f;
  const Bytes join = encode(JoinRequest{});
  const Bytes cut(join.begin(), join.end() - 1);
  const std::vector<std::pair<FrameType, Bytes>> wrong = {
      {FrameType::kJoin, {}},
      {FrameType::kJoin, cut},
      {FrameType::kJoin, joined(join, Bytes(1))},
      {FrameType::kMessage, join},
      {FrameType::kRoster, join},
      {FrameType::kJoin, random_of(5000, 1)}};
  for (const auto& [type, payload] : wrong) {
    const auto channel = proven(f.head.port());
    BOOST_REQUIRE(channel->send(type, payload, patience()).ok());
    const auto answer = channel->receive(patience());
    BOOST_TEST((answer.status().code() == StatusCode::kUnavailable));
  }
  const auto mute = proven(f.head.port());  // proves and says nothing more
  BOOST_TEST((mute->receive(patience()).status().code() == StatusCode::kUnavailable));
  f.worker_gets_in();
}

// A frozen peer (SIGSTOP) or a cut cable: its kernel still acknowledges, or nothing does; either
// way nothing comes any more and nothing is closed.
BOOST_AUTO_TEST_CASE(a_silent_peer_is_lost_within_the_bound) {
  GroupOptions o = options_of(0, 2, 0);
  o.timers.silent_ms = 1500;  // ten times the gap between beats: the machine may be loaded
  Rank head(o);
  head.start();
  const HandWorker worker(head);
  for (uint64_t i = 0; i < 12; ++i) {
    BOOST_REQUIRE(worker.beat(i));
    sleep_ms(o.timers.silent_ms / 10);
    BOOST_REQUIRE_MESSAGE(head.group->failure().ok(), head.group->failure().to_string());
  }
  const int64_t start_us = system_clock().monotonic_us();
  BOOST_REQUIRE(worker.beat(99));
  const bool lost = eventually([&] { return !head.group->failure().ok(); },
                               kFault ? 2 * o.timers.silent_ms : kPatienceMs);
  BOOST_TEST(lost == !kFault);
  if (kFault) return;
  BOOST_TEST((system_clock().monotonic_us() - start_us) / 1000 >= o.timers.silent_ms);
  BOOST_TEST(head.group->failure().reason() == "peer_lost");
  BOOST_TEST(head.group->failure().message().find("rank 1") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_exchange_of_another_number_is_never_taken_for_this_one) {
  Rank head(options_of(0, 2, 0));
  head.start();
  const HandWorker worker(head);
  // Right size, right data, wrong number.
  const Bytes data = pattern(16, 4);
  BOOST_REQUIRE(
      worker.exchange->send(FrameType::kExchange, encode(ExchangeHead{2, 16}), patience()).ok());
  BOOST_REQUIRE(worker.exchange->send(FrameType::kData, data, patience()).ok());
  Bytes in(16), out(32);
  const Status s = head.group->collective().all_gather(in, out);
  if (kFault) {
    BOOST_TEST(s.ok());
    return;
  }
  BOOST_TEST(s.reason() == "out_of_step");
  BOOST_TEST(s.message() ==
             "out of step: rank 1 is at exchange 2 of 16 bytes, rank 0 at exchange 1 of 16 bytes");
}
