// Frames, messages and the key file, below the sockets: every flipped bit, every lost, repeated or
// moved frame is noticed; every bound is refused one past it; forms are stable.
#include "engine/cluster/frame.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <fstream>

#include "engine/cluster/fd.h"
#include "engine/cluster/handshake.h"
#include "engine/cluster/link_key.h"
#include "engine/cluster/messages.h"
#include "tests/temp_folder.h"

using namespace tensorfold;

namespace {

using Bytes = std::vector<std::byte>;

LinkDigest key_of(uint8_t first) {
  LinkDigest key{};
  key[0] = static_cast<std::byte>(first);
  return key;
}

struct Pair {
  Pair() {
    std::array<int, 2> fds{};
    BOOST_REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()) == 0);
    a = Fd(fds[0]);
    b = Fd(fds[1]);
  }
  Fd a, b;
};

// The bytes of one sealed frame.
Bytes sealed(FrameOut& out, FrameType type, const Bytes& payload) {
  const Pair pair;
  out.put(type, payload);
  BOOST_REQUIRE((out.flush(pair.a.get()) == FrameIo::kReady));
  Bytes bytes(kFrameHeaderBytes + payload.size() + kFrameTagBytes);
  BOOST_REQUIRE(::recv(pair.b.get(), bytes.data(), bytes.size(), MSG_WAITALL) ==
                static_cast<ssize_t>(bytes.size()));
  return bytes;
}

// What a reader makes of these bytes: the payload of the first frame, or nothing.
std::optional<Bytes> opened(FrameIn& in, const Bytes& bytes) {
  in.feed(bytes);
  if (in.next(-1) != FrameIo::kReady) return std::nullopt;
  Bytes payload(in.header().bytes);
  if (!in.take(payload)) return std::nullopt;
  return payload;
}

std::string refusal_of_key(const std::string& path) {
  const auto key = read_link_key(path);
  return key.ok() ? "taken: " + std::to_string(key->size()) : key.status().message();
}

}  // namespace

BOOST_AUTO_TEST_CASE(frames_open_in_their_place_and_nowhere_else) {
  const Bytes one(100, std::byte{1}), two(3, std::byte{2}), none;
  FrameOut out(key_of(1));
  const std::vector<Bytes> row = {sealed(out, FrameType::kMessage, one),
                                  sealed(out, FrameType::kMessage, two),
                                  sealed(out, FrameType::kMessage, none)};
  FrameIn good(key_of(1));
  BOOST_TEST((opened(good, row[0]) == one));
  BOOST_TEST((opened(good, row[1]) == two));
  BOOST_TEST((opened(good, row[2]) == none));
  BOOST_TEST(!opened(good, row[2]));                 // again
  BOOST_TEST((good.next(-1) == FrameIo::kDamaged));  // for good
  FrameIn skipped(key_of(1)), swapped(key_of(1)), other_key(key_of(2));
  BOOST_TEST(!opened(skipped, row[1]));
  BOOST_TEST((opened(swapped, row[0]) == one));
  BOOST_TEST(!opened(swapped, row[2]));
  BOOST_TEST(!opened(other_key, row[0]));
  for (size_t bit = 0; bit < 8 * row[0].size(); ++bit) {
    Bytes flipped = row[0];
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    FrameIn in(key_of(1));
    BOOST_REQUIRE_MESSAGE(!opened(in, flipped), "bit " << bit);
  }
}

BOOST_AUTO_TEST_CASE(frames_cross_a_socket_in_any_pieces) {
  const Pair pair;
  FrameOut out(key_of(3));
  FrameIn in(key_of(3));
  size_t sent = 0, got = 0;
  while (got < 40) {
    while (sent < 40 && out.empty()) {
      out.put(FrameType::kData, Bytes(sent * sent * 80, static_cast<std::byte>(sent)));
      ++sent;
      if (out.flush(pair.a.get()) == FrameIo::kBlocked) break;
    }
    (void)out.flush(pair.a.get());
    while (in.next(pair.b.get()) == FrameIo::kReady) {
      Bytes payload(in.header().bytes);
      BOOST_REQUIRE(in.take(payload));
      BOOST_REQUIRE((payload == Bytes(got * got * 80, static_cast<std::byte>(got))));
      ++got;
    }
  }
}

BOOST_AUTO_TEST_CASE(headers_over_the_bounds_are_damage) {
  const auto decodes = [](const FrameHeader& h) {
    FrameHeader back;
    return decode_frame_header(encode_frame_header(h), back) && back.bytes == h.bytes &&
           back.type == h.type && back.flags == h.flags && back.kind == h.kind;
  };
  const auto most = static_cast<uint32_t>(kFrameBytesMax);
  BOOST_TEST(decodes({most, FrameType::kData, kFrameMore, 65535}));
  BOOST_TEST(!decodes({most + 1, FrameType::kData, 0, 0}));
  BOOST_TEST(!decodes({0, static_cast<FrameType>(0), 0, 0}));
  BOOST_TEST(!decodes({0, static_cast<FrameType>(kFrameTypeLast + 1), 0, 0}));
  BOOST_TEST(!decodes({0, FrameType::kData, 2, 0}));
}

BOOST_AUTO_TEST_CASE(messages_keep_their_form_and_refuse_one_past_each_bound) {
  JoinRequest join;
  join.use = ChannelUse::kExchange;
  join.rank = 3;
  join.world_size = 4;
  join.generation = 1ULL << 63U;
  join.listen_address = std::string(kLinkAddressBytesMax, 'a');
  join.listen_port = 65535;
  for (size_t i = 0; i < kLinkFieldsMax; ++i)
    join.fingerprint.emplace_back(std::string(kLinkNameBytesMax, 'n'), "value");
  const Bytes bytes = encode(join);
  const auto back = decode_join(bytes);
  BOOST_REQUIRE(back.has_value());
  BOOST_TEST((encode(*back) == bytes));
  for (size_t n = 0; n < bytes.size(); ++n) BOOST_REQUIRE(!decode_join(std::span(bytes).first(n)));
  const auto refused = [&](const std::function<void(JoinRequest&)>& change) {
    JoinRequest other = join;
    change(other);
    return !decode_join(encode(other));
  };
  BOOST_TEST(refused([](JoinRequest& j) { j.listen_address += 'a'; }));
  BOOST_TEST(refused([](JoinRequest& j) { j.fingerprint.emplace_back("one", "more"); }));
  BOOST_TEST(refused([](JoinRequest& j) { j.fingerprint[0].first += 'n'; }));
  BOOST_TEST(refused([](JoinRequest& j) { j.fingerprint[0].second.assign(1025, 'v'); }));
  BOOST_TEST(refused([](JoinRequest& j) {
    for (auto& field : j.fingerprint) field.second.assign(300, 'v');
  }));
  BOOST_TEST(refused([](JoinRequest& j) { j.use = static_cast<ChannelUse>(4); }));
  Roster roster{5, {{1, "a", 2}, {2, "b", 3}}, Bytes(kInvitationBytesMax)};
  BOOST_TEST(decode_roster(encode(roster)).has_value());
  roster.invitation.emplace_back();
  BOOST_TEST(!decode_roster(encode(roster)));
  roster = {5, {{2, "a", 2}}, {}};
  BOOST_TEST(!decode_roster(encode(roster)));
  // A refusal is cut to its bounds when it is written, so that it always arrives.
  Refusal refusal{std::string(5000, 'r'), {}};
  for (int i = 0; i < 100; ++i) refusal.differences.push_back({"n", "h", "w"});
  const auto cut = decode_refusal(encode(refusal));
  BOOST_REQUIRE(cut.has_value());
  BOOST_TEST(cut->reason.size() == kLinkReasonBytesMax);
  BOOST_TEST(cut->differences.size() == kDifferencesMax);
}

BOOST_AUTO_TEST_CASE(differences_are_found_in_any_order_of_fields) {
  const LinkFields head = {{"a", "1"}, {"b", "2"}, {"c", "3"}};
  BOOST_TEST(compare_fields(head, {{"c", "3"}, {"a", "1"}, {"b", "2"}}).empty());
  const auto found = compare_fields(head, {{"b", "x"}, {"a", "1"}, {"d", "4"}});
  BOOST_REQUIRE(found.size() == 3U);
  const Refusal refusal{"no", found};
  BOOST_TEST(refusal.text() ==
             "no; b: head has '2', worker has 'x'; c: head has '3', worker has "
             "'(absent)'; d: head has '(absent)', worker has '4'");
}

BOOST_AUTO_TEST_CASE(the_key_file_is_for_its_owner_alone) {
  const TempFolder folder;
  const std::string path = folder.path("key");
  const auto write = [&](const std::string& text, mode_t mode) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    BOOST_REQUIRE(::chmod(path.c_str(), mode) == 0);
  };
  const std::string key(64, 'k');
  BOOST_TEST(refusal_of_key(path).find("No such file") != std::string::npos);
  write(key + "\n", 0600);
  BOOST_TEST(refusal_of_key(path) == "taken: 64");
  BOOST_TEST(*read_link_key(path) == key);
  write(key, 0400);
  BOOST_TEST(refusal_of_key(path) == "taken: 64");
  for (const mode_t mode : {0640U, 0604U, 0620U, 0602U, 0610U, 0601U, 0644U}) {
    write(key, mode);
    BOOST_TEST(refusal_of_key(path) ==
               path + " holds the cluster's key and must be for its owner alone: chmod 600");
  }
  write(std::string(31, 'k') + "\n", 0600);
  BOOST_TEST(refusal_of_key(path).find("has a key of 31 bytes, at least 32") != std::string::npos);
  write(std::string(kLinkKeyBytesMax, 'k'), 0600);
  BOOST_TEST(refusal_of_key(path) == "taken: 4096");
  write(std::string(kLinkKeyBytesMax + 1, 'k'), 0600);
  BOOST_TEST(refusal_of_key(path).find("longer than 4096") != std::string::npos);
  BOOST_TEST(refusal_of_key(folder.path()).find("not a regular file") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_an_unproven_peer_may_send_is_bounded) {
  const std::string key(32, 'k');
  AcceptHandshake handshake(std::as_bytes(std::span(key.data(), key.size())), 1);
  BOOST_TEST(handshake.wants() == kPreambleBytes);
  Bytes hello(kPreambleBytes);
  std::memcpy(hello.data(), "TFLINKC1", 8);
  BOOST_TEST((handshake.consume(hello) == AcceptHandshake::Step::kMore));
  BOOST_TEST(handshake.wants() == kLinkProofBytes);
  BOOST_TEST(handshake.take_output().size() == kPreambleBytes);
  BOOST_TEST((handshake.consume(Bytes(kLinkProofBytes)) == AcceptHandshake::Step::kRefused));
  BOOST_TEST(handshake.wants() == 0U);
  BOOST_TEST(handshake.take_output().empty());
  BOOST_TEST(kUnprovenBytesMax == 80U);
}
