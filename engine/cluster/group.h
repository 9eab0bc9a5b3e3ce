// Group: the ranks of one model, joined by the link. GroupFormer makes one group after another (a
// group that broke is never mended, the next generation takes its place); a Group carries messages
// between head and workers, holds the Collective and says when and why it ended.
//
// The link, in short (docs/cluster.md has it whole): the head, rank 0, listens on its link address;
// workers connect to it and, with more than two ranks, to each other. Each connection proves the
// shared key both ways before anything else is read. Then frames are encrypted and authenticated.
// Head and workers may start in any order.
//
// Threads: GroupFormer belongs to one thread (it has another of its own that answers the port).
// A Group's send, receive and collective() belong to the engine thread of its rank; abort(),
// publish(), failure() and peers() are for any thread. A group has a thread for heartbeats.
// Deliberately not here: what messages mean, recovery of requests (engine/group), configuration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/base/status.h"
#include "engine/cluster/collective.h"
#include "engine/cluster/stop_flag.h"

namespace tensorfold {

class Transport;  // engine/cluster/transport.h

inline constexpr uint32_t kLinkProtocol = 1;  // of join, roster and group frames
inline constexpr size_t kLinkMessageBytesMax = size_t{32} << 20;  // one message of send()
inline constexpr size_t kLinkFieldsMax = 64;          // entries of a fingerprint or a report
inline constexpr size_t kLinkNameBytesMax = 64;       // name of a field
inline constexpr size_t kLinkValueBytesMax = 1024;    // value of a field
inline constexpr size_t kLinkReasonBytesMax = 512;    // why a group is left
inline constexpr size_t kLinkReportBytesMax = 16384;  // names and values of a report together

// {name, value}, in a stable order. Values are short text: a version, a digest, a number.
using LinkFields = std::vector<std::pair<std::string, std::string>>;

// Every wait of the link. Tests divide them all by one number.
struct LinkTimers {
  int64_t heartbeat_ms = 500;  // each rank to each other rank
  int64_t silent_ms = 4000;    // a peer not heard for so long is lost: noticed within 5 s, although
                               // a beat may still come after one way of the link is closed
  int64_t connect_ms = 2000;   // one attempt to open a connection
  int64_t handshake_ms = 2000;   // from a connection's start to its proof
  int64_t mesh_ms = 15000;       // all connections of a generation and its transport
  int64_t retry_first_ms = 100;  // between attempts, doubled up to the most, jitter of a quarter
  int64_t retry_most_ms = 2000;  //
  int64_t send_ms = 5000;        // a message into the socket of a peer that does not read
  int64_t exchange_ms = 60000;   // one all_gather: bounds a peer that lives but does not compute
  LinkTimers divided(int64_t by) const;  // kept: 1 s for handshakes, 5 s for a mesh, 1 ms
};

struct GroupOptions {
  int rank = 0;        // 0: head
  int world_size = 2;  // 2..kRanksMax
  // Numeric addresses (IPv4, IPv6, IPv6%interface), never names: resolving one could block.
  std::string link_address;  // of this machine; listened on and connected from, nothing else
  int link_port = 29620;     // listened on by the head, and by workers of more than two ranks;
                             // 0: any (tests; GroupFormer::port() tells)
  std::string head_address;  // workers only
  int head_port = 29620;     // workers only
  std::string key;           // shared key, at least kLinkKeyBytesLeast bytes (link_key.h reads it)
  // What must be equal on all ranks, in any words: code version, model fingerprint, formats,
  // numeric revision, settings, NCCL library. A difference refuses the worker and names each field
  // with both values on both sides. The protocol version and world size are compared without being
  // here.
  LinkFields fingerprint;
  LinkTimers timers;
  uint32_t protocol = kLinkProtocol;  // tests pretend to be another version
};

enum class FormState : uint8_t {
  kListening,   // head: workers are missing
  kConnecting,  // worker: no connection to the head yet
  kWaiting,     // worker: joined; others are missing
  kJoining,     // everyone is there; connections and transport are made
  kRefused,     // the last attempt was refused or failed; `text` says why; tried again
};

// Told on the forming thread whenever something changed; must be quick.
struct FormProgress {
  FormState state = FormState::kListening;
  std::string text;          // one line for STATUS: "waiting for rank 1", "head refused: ..."
  std::vector<int> missing;  // head: ranks that are not there
  int64_t attempts = 0;      // worker: attempts so far in this form()
};

struct PeerStatus {
  int rank = 0;
  std::string address;          // "192.0.2.2:41210"
  int64_t heard_ms_ago = 0;     // since its last heartbeat
  int64_t rtt_us = -1;          // of heartbeats, the least of the last 16; -1: not yet measured
  int64_t clock_offset_ms = 0;  // its wall clock less ours; only told, never used
  LinkFields report;            // what it published last
};

// What receive() brings.
struct LinkArrival {
  enum class Kind : uint8_t {
    kMessage,  // `kind` and `body`
    kIdle,     // nothing came within the timeout
    kClosed,   // the peer left in order (close()); `reason` is its word
  };
  Kind what = Kind::kIdle;
  uint16_t kind = 0;  // chosen by the sender; its meaning is engine/group's
  std::vector<std::byte> body;
  std::string reason;
};

struct LinkCounters {
  int64_t exchanges = 0;       // all_gathers done
  int64_t exchange_us = 0;     // time in them, waiting for peers included
  int64_t exchange_bytes = 0;  // sent in them
  int64_t messages_sent = 0, messages_received = 0;
};

// One generation. Destroying it closes every connection and joins its thread.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual uint64_t generation() const = 0;  // equal on all ranks, differs between groups

  // Engine thread. An exchange that fails fails the whole group with that status.
  virtual Collective& collective() = 0;

  // Engine thread. Head: to every worker, in order. Worker: to the head. Returns when the bytes are
  // with the kernel; kUnavailable when the group is or gets broken, or a peer does not read for
  // send_ms (that breaks it). Plans go this way; what else does is engine/group's.
  virtual Status send(uint16_t kind, std::span<const std::byte> body) = 0;
  // Head, to one worker.
  virtual Status send_to(int rank, uint16_t kind, std::span<const std::byte> body) = 0;

  // Engine thread. The next message of `rank` (worker: 0; head: a worker). timeout_ms 0: only look.
  // kUnavailable when the group broke; abort() from another thread ends the wait at once.
  virtual Result<LinkArrival> receive(int rank, int64_t timeout_ms) = 0;
  // Head: whether a worker has sent something that receive() would bring without waiting.
  virtual bool pending(int rank) = 0;

  // Leaves in order: peers see kClosed with `reason` (truncated), not a failure. Then as abort().
  virtual void close(std::string_view reason) = 0;
  // Any thread. Breaks the group at once: every wait of it on this rank ends, peers notice. The
  // first caller's status is failure(); later ones change nothing.
  virtual void abort(Status why) = 0;

  // Any thread. ok while the group works. reason(): "peer_lost" (silent), "peer_closed",
  // "peer_left" (in order), "out_of_step", "aborted", "link" (damaged frame), "slow" (exchange_ms).
  // The message names the rank.
  virtual Status failure() const = 0;
  // Called once, with failure(), on the thread that noticed (often the heartbeats'); at once when
  // the group is broken already. Must not block and must not destroy the group.
  virtual void on_failure(std::function<void(const Status&)> listener) = 0;

  // Any thread. This rank's report (state, memory, temperature, ...) goes to all peers with the
  // next heartbeat. Over the bounds: kInvalidArgument.
  virtual Status publish(LinkFields report) = 0;
  virtual std::vector<PeerStatus> peers() const = 0;  // by rank, without this one
  virtual LinkCounters counters() const = 0;
};

class GroupFormer {
 public:
  // Checks the options (a Status names the field) and, where this rank listens, binds the port: kIo
  // when that is taken. An address that this machine does not have yet is waited for by form().
  // `transport` makes the Collective of each generation. All references must outlive the former and
  // its groups.
  static Result<std::unique_ptr<GroupFormer>> create(GroupOptions options, Transport& transport,
                                                     LogSink& log,
                                                     const Clock& clock = system_clock());
  virtual ~GroupFormer() = default;

  // Blocks until a group stands or `stop` is requested (kCancelled), for as long as that takes:
  // refusals, wrong peers and lost peers are logged, told to `progress` and tried again. The
  // last group must be gone (a worker that comes while one stands is told so).
  virtual Result<std::unique_ptr<Group>> form(
      const StopFlag& stop, const std::function<void(const FormProgress&)>& progress) = 0;

  virtual int port() const = 0;  // listened on; 0: this rank does not listen
};

}  // namespace tensorfold
