// Liveness: heartbeats between this rank and every other one, on connections of their own and on a
// thread of its own, so that a busy or frozen engine thread neither delays nor fakes them. A peer
// that is silent for silent_ms, closes, or leaves in order fails the group's health.
//
// A heartbeat carries numbers and monotonic times of its sender, so the round trip is measured
// without equal clocks; wall clocks are told, never used. Reports (published fields) ride along.
// Owner: the Group; the thread alone uses the connections. Deliberately ignorant of the engine: a
// peer whose engine hangs while its heartbeats go on is found by the exchange's deadline.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/cluster/channel.h"
#include "engine/cluster/group.h"
#include "engine/cluster/group_health.h"
#include "engine/cluster/messages.h"

namespace tensorfold {

class Liveness {
 public:
  struct Settings {
    int rank = 0;
    LinkTimers timers;
    const Clock* clock = nullptr;
    std::shared_ptr<GroupHealth> health;
    std::function<void()> on_end;  // once the group is broken, on the thread, before it ends
  };
  // `channels` by rank, none at the own.
  static Result<std::unique_ptr<Liveness>> start(Settings settings,
                                                 std::vector<std::unique_ptr<Channel>> channels);
  ~Liveness();  // breaks the group, so that the thread ends
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  Status publish(const LinkFields& report);
  std::vector<PeerStatus> peers() const;
  // Says goodbye to all peers; returns when that is with the kernel or after silent_ms.
  void leave(std::string_view reason);
  // The rank that said goodbye and its reason, once failure() is "peer_left".
  std::optional<std::pair<int, std::string>> left() const;

 private:
  struct Peer;
  Liveness(Settings settings, std::vector<std::unique_ptr<Channel>> channels);
  void run();
  void say_why();
  void turn(bool beat_now);
  void send_beat(Peer& peer, int64_t now);
  bool read(Peer& peer);  // false: the group is broken now
  void on_beat(Peer& peer, const Beat& beat);
  bool heard(Peer& peer, const Frame& frame);
  bool lost(const Peer& peer, const std::string& what, const char* reason);

  const Settings settings_;
  StopFlag wake_;  // leave() only: read once
  std::vector<std::unique_ptr<Peer>> peers_;
  mutable std::mutex mutex_;  // report_, goodbye_, left_, and `status` of each peer
  std::condition_variable left_changed_;
  std::vector<std::byte> report_;  // encoded, empty: none yet
  uint64_t report_number_ = 0;
  std::optional<std::string> goodbye_;
  bool goodbye_sent_ = false;
  std::optional<std::pair<int, std::string>> left_;
  std::thread thread_;
};

}  // namespace tensorfold
