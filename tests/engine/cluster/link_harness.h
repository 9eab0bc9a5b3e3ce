// Ranks of a group in one process, each on its own thread and address of the loopback network, and
// raw sockets that play what is no rank. Timers are a fifth of the real ones, but those that would
// end a group on a machine that is too loaded to beat in time, unless a test says otherwise.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/cluster/channel.h"
#include "engine/cluster/fd.h"
#include "engine/cluster/group.h"
#include "engine/cluster/handshake.h"
#include "engine/cluster/link_address.h"
#include "engine/cluster/messages.h"
#include "engine/cluster/transport.h"

namespace tensorfold::link_test {

inline constexpr int64_t kPatienceMs = 60'000;  // of a test for what must come
inline const std::string kKey = "0123456789abcdef0123456789abcdef";
inline const std::string kOtherKey = "0123456789abcdef0123456789abcdeF";

inline void sleep_ms(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

template <typename F>
bool eventually(F&& true_now, int64_t ms = kPatienceMs) {
  const int64_t end = system_clock().monotonic_us() + ms * 1000;
  while (!true_now()) {
    if (system_clock().monotonic_us() > end) return false;
    sleep_ms(2);
  }
  return true;
}

class LineLog final : public LogSink {
 public:
  void write(LogLevel, std::string_view message, std::initializer_list<LogField>) override {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(message);
  }
  bool has(std::string_view part) const { return count(part) > 0; }
  size_t count(std::string_view part) const {
    const std::lock_guard lock(mutex_);
    size_t found = 0;
    for (const std::string& line : lines_) found += line.find(part) != std::string::npos ? 1 : 0;
    return found;
  }
  std::string all() const {
    const std::lock_guard lock(mutex_);
    std::string out;
    for (const std::string& line : lines_) out += line + "\n";
    return out;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

inline std::string address_of(int rank) { return "127.0.0." + std::to_string(rank + 1); }

inline GroupOptions options_of(int rank, int world, int head_port) {
  GroupOptions o;
  o.rank = rank;
  o.world_size = world;
  o.link_address = address_of(rank);
  o.link_port = 0;
  o.head_address = address_of(0);
  o.head_port = head_port;
  o.key = kKey;
  o.fingerprint = {{"code", "0.1.0"}, {"model", "tiny-1"}, {"formats", "bf16"}};
  o.timers = LinkTimers{}.divided(5);
  o.timers.mesh_ms = 10'000;
  o.timers.silent_ms = o.timers.send_ms = 5'000;
  return o;
}

// One rank: its former, and forming on a thread of its own.
class Rank {
 public:
  explicit Rank(GroupOptions options) : transport_(make_socket_transport()) {
    auto made = GroupFormer::create(std::move(options), *transport_, log);
    BOOST_REQUIRE_MESSAGE(made.ok(), made.status().to_string());
    former_ = std::move(*made);
  }
  ~Rank() { stop(); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int port() const { return former_->port(); }
  void start() {
    BOOST_REQUIRE(!thread_.joinable());
    stop_ = std::make_unique<StopFlag>();
    formed_ = false;
    thread_ = std::thread([this] {
      auto result = former_->form(*stop_, [this](const FormProgress& p) {
        const std::lock_guard lock(mutex_);
        progress_ = p;
        told_ += p.text + "\n";
      });
      const std::lock_guard lock(mutex_);
      if (result.ok()) {
        group = std::move(*result);
      } else {
        status_ = result.status();
      }
      formed_ = true;
    });
  }
  bool formed() const { return formed_; }
  bool wait(int64_t ms = kPatienceMs) {
    const bool in_time = eventually([&] { return formed(); }, ms);
    if (in_time && thread_.joinable()) thread_.join();
    return in_time && group != nullptr;
  }
  void stop() {
    if (!thread_.joinable()) return;
    stop_->request();
    thread_.join();
  }
  FormProgress progress() const {
    const std::lock_guard lock(mutex_);
    return progress_;
  }
  // Now or before: for a state that may be over before the test looks.
  bool said(std::string_view part) const {
    return eventually([&] {
      const std::lock_guard lock(mutex_);
      return told_.find(part) != std::string::npos;
    });
  }
  bool says(std::string_view part, int64_t ms = kPatienceMs) const {
    return eventually([&] { return progress().text.find(part) != std::string::npos; }, ms);
  }
  Status status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }

  LineLog log;
  std::unique_ptr<Group> group;

 private:
  const std::unique_ptr<Transport> transport_;
  std::unique_ptr<StopFlag> stop_;
  mutable std::mutex mutex_;
  FormProgress progress_;
  std::string told_;  // every text of progress, a line each
  Status status_;
  std::atomic<bool> formed_{false};
  std::thread thread_;
  std::unique_ptr<GroupFormer> former_;
};

// A whole group; `change` may alter the options of each rank.
struct Ranks {
  explicit Ranks(int world, const std::function<void(GroupOptions&)>& change = {}) {
    int port = 0;
    for (int r = 0; r < world; ++r) {
      GroupOptions o = options_of(r, world, port);
      if (change) change(o);
      all.push_back(std::make_unique<Rank>(std::move(o)));
      if (r == 0) port = all[0]->port();
    }
  }
  void form() {
    for (auto& rank : all) rank->start();
    for (auto& rank : all) {
      BOOST_REQUIRE_MESSAGE(rank->wait(), "no group: " + rank->progress().text);
    }
  }
  Rank& operator[](size_t r) { return *all[r]; }
  std::vector<std::unique_ptr<Rank>> all;
};

template <typename F>
void on_ranks(Ranks& ranks, F&& f) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks.all) threads.emplace_back([&f, g = rank->group.get()] { f(*g); });
  for (auto& t : threads) t.join();
}

// A connection to the head's port from `from`, not proven.
inline Result<Fd> try_connection(int port, const std::string& from = "127.0.0.9") {
  const auto source = LinkAddress::parse("from", from, 0);
  const auto to = LinkAddress::parse("to", address_of(0), port);
  const LinkWait wait{&system_clock(), system_clock().monotonic_us() + kPatienceMs * 1000};
  return connect_to(*source, *to, wait);
}
inline Fd raw_connection(int port, const std::string& from = "127.0.0.9") {
  auto fd = try_connection(port, from);
  BOOST_REQUIRE_MESSAGE(fd.ok(), fd.status().to_string());
  return std::move(*fd);
}

inline void raw_send(const Fd& fd, std::span<const std::byte> bytes) {
  (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// What comes until the other side closes, up to `bytes_max`; nothing when it stays open and silent.
struct RawRead {
  std::vector<std::byte> bytes;
  bool closed = false;
};
inline RawRead raw_read(const Fd& fd, size_t bytes_max, int64_t ms = kPatienceMs) {
  RawRead out;
  const int64_t end = system_clock().monotonic_us() + ms * 1000;
  while (out.bytes.size() < bytes_max) {
    pollfd set{fd.get(), POLLIN, 0};
    const int64_t left = (end - system_clock().monotonic_us()) / 1000;
    if (left <= 0 || ::poll(&set, 1, static_cast<int>(left)) <= 0) return out;
    std::array<std::byte, 4096> part{};
    const ssize_t got =
        ::recv(fd.get(), part.data(), std::min(part.size(), bytes_max - out.bytes.size()), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) {
      out.closed = true;
      return out;
    }
    out.bytes.insert(out.bytes.end(), part.begin(), part.begin() + got);
  }
  return out;
}

inline LinkWait patience() {
  return {&system_clock(), system_clock().monotonic_us() + kPatienceMs * 1000};
}

// A connection that has proven the key, for peers that misbehave behind the proof.
inline std::unique_ptr<Channel> proven(int port, uint32_t protocol = kLinkProtocol,
                                       const std::string& from = "127.0.0.9") {
  auto channel = prove_to(raw_connection(port, from), "the head",
                          std::as_bytes(std::span(kKey.data(), kKey.size())), protocol, patience());
  BOOST_REQUIRE_MESSAGE(channel.ok(), channel.status().to_string());
  return std::move(*channel);
}

inline std::vector<std::byte> pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::byte>(static_cast<uint8_t>(seed * 131U + i * 7U + (i >> 9U)));
  return out;
}

// A worker played by hand, up to a standing group on the head; then it does as the test likes.
struct HandWorker {
  std::unique_ptr<Channel> control, heartbeat, exchange;

  explicit HandWorker(Rank& head) {
    // Before that the port answers that nothing is being formed; a worker would try again.
    BOOST_REQUIRE(head.says("waiting for rank 1"));
    JoinRequest request;
    request.rank = 1;
    request.world_size = 2;
    request.fingerprint = options_of(1, 2, 0).fingerprint;
    control = join(head, request);
    std::optional<Roster> roster;
    while (!roster) {
      const auto frame = control->receive(patience());
      BOOST_REQUIRE_MESSAGE(frame.ok(), frame.status().to_string());
      if (frame->header.type == FrameType::kRoster) roster = decode_roster(frame->payload);
    }
    request.generation = roster->generation;
    request.use = ChannelUse::kHeartbeat;
    heartbeat = join(head, request);
    // Ready while the head still takes connections, as a rank is that was faster than others.
    BOOST_REQUIRE(control->send(FrameType::kReady, {}, patience()).ok());
    request.use = ChannelUse::kExchange;
    exchange = join(head, request);
    BOOST_REQUIRE(head.wait());
  }
  static std::unique_ptr<Channel> join(Rank& head, const JoinRequest& request) {
    auto channel = proven(head.port());
    BOOST_REQUIRE(channel->send(FrameType::kJoin, encode(request), patience()).ok());
    const auto answer = channel->receive(patience());
    BOOST_REQUIRE_MESSAGE(answer.ok(), answer.status().to_string());
    BOOST_REQUIRE((answer->header.type == FrameType::kWelcome));
    return channel;
  }
  bool beat(uint64_t number) const {  // from any thread: checks nothing
    Beat b;
    b.number = number;
    return heartbeat->send(FrameType::kBeat, encode(b), patience()).ok();
  }
};

inline size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}
inline size_t threads_now() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    ++count;
  return count;
}

}  // namespace tensorfold::link_test
