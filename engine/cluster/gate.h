// LinkGate: answers the link's port. Takes connections, has each prove the shared key, reads what
// it wants (JoinRequest) and hands it to the forming thread; while no group is being formed it
// answers for it. Peers that have not proven the key are bounded in number, bytes and time, whoever
// they are: too many from one address push out the oldest of that address, too many in all the
// oldest of all, so that a flood can't keep a worker out.
//
// Owner: the former; the gate has a thread, which never waits for anyone. take() and refuse_all()
// are for the forming thread. Deliberately decides nothing about ranks or fingerprints.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/cluster/handshake.h"
#include "engine/cluster/link_address.h"
#include "engine/cluster/messages.h"
#include "engine/cluster/stop_flag.h"

namespace tensorfold {

inline constexpr size_t kUnprovenPeersMax = 32;           // handshakes at once
inline constexpr size_t kUnprovenPeersPerAddressMax = 8;  // of them from one address
inline constexpr size_t kGateCallersMax = 64;             // proven, waiting for the forming thread
inline constexpr int64_t kGateNoticeGapMs = 10'000;       // between two lines about unproven peers

// Somebody who wants something, or (without a channel) a line about somebody who was turned away.
struct GateCaller {
  std::unique_ptr<Channel> channel;
  JoinRequest request;
  std::string notice;
};

class LinkGate {
 public:
  struct Settings {
    std::string key;
    uint32_t protocol = 0;
    LinkTimers timers;
    int rank = 0;
  };
  static Result<std::unique_ptr<LinkGate>> open(const LinkAddress& address, Settings settings,
                                                LogSink& log, const Clock& clock);
  ~LinkGate();
  LinkGate(const LinkGate&) = delete;
  LinkGate& operator=(const LinkGate&) = delete;

  int port() const { return port_; }
  int ready_fd() const { return ready_.get(); }  // readable while take() has something
  std::optional<GateCaller> take();
  void admit();                            // from now on callers wait for take()
  void refuse_all(const Refusal& reason);  // those who wait and those who come

 private:
  struct Pending;
  LinkGate(Fd listener, Fd ready, int port, Settings settings, LogSink& log, const Clock& clock);
  void run();
  void accept_new();
  void make_room(const LinkAddress& peer);
  bool advance(Pending& pending);  // false: done with it
  bool read_proof(Pending& pending);
  void deliver(GateCaller caller);
  void push(GateCaller caller);  // with mutex_ held
  void notice(const std::string& line);

  const Fd listener_, ready_;
  const int port_;
  const Settings settings_;
  LogSink& log_;
  const Clock& clock_;
  StopFlag stop_;
  // The gate's thread alone:
  std::vector<std::unique_ptr<Pending>> pending_;  // oldest first
  int64_t accept_again_us_ = 0;                    // no descriptors were left until then
  int64_t noticed_us_ = 0, unnoticed_ = 0;
  std::mutex mutex_;
  std::deque<GateCaller> callers_;
  std::optional<Refusal> closed_;  // set: answer this
  std::thread thread_;             // last: ends first
};

}  // namespace tensorfold
