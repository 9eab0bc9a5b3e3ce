// The gate's loop. Owner: its thread; see the header.
#include "engine/cluster/gate.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace tensorfold {
namespace {

constexpr int64_t kAcceptPauseUs = 100'000;  // when the process has no descriptor left
// Few, so that those who came before are read before a flood pushes them out.
constexpr int kAcceptsPerTurn = 4;
constexpr int64_t kIdlePollUs = 60'000'000;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The refusal is small and the connection new: the kernel takes it at once, or nobody is there.
void refuse(Channel& channel, const Refusal& why) {
  channel.out().put(FrameType::kRefusal, encode(why));
  (void)channel.flush();
}

}  // namespace

struct LinkGate::Pending {
  Pending(Fd f, LinkAddress a, std::span<const std::byte> key, uint32_t protocol, int64_t until)
      : fd(std::move(f)), peer(std::move(a)), handshake(key, protocol), deadline_us(until) {}
  int poll_fd() const { return channel ? channel->fd() : fd.get(); }

  Fd fd;  // until proven
  LinkAddress peer;
  AcceptHandshake handshake;
  int64_t deadline_us;
  std::array<std::byte, kPreambleBytes> input{};  // of the message that is being read
  size_t have = 0;
  std::unique_ptr<Channel> channel;  // once proven
};

Result<std::unique_ptr<LinkGate>> LinkGate::open(const LinkAddress& address, Settings settings,
                                                 LogSink& log, const Clock& clock) {
  int port = 0;
  TF_ASSIGN_OR_RETURN(Fd listener, listen_on(address, &port));
  Fd ready(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
  if (!ready.open()) return io_error("eventfd", errno);
  std::unique_ptr<LinkGate> gate(
      new LinkGate(std::move(listener), std::move(ready), port, std::move(settings), log, clock));
  try {
    gate->thread_ = std::thread([g = gate.get()] { g->run(); });
  } catch (const std::system_error& e) {
    return unavailable(std::string("no thread for the link's port: ") + e.what());
  }
  return gate;
}

LinkGate::LinkGate(Fd listener, Fd ready, int port, Settings settings, LogSink& log,
                   const Clock& clock)
    : listener_(std::move(listener)),
      ready_(std::move(ready)),
      port_(port),
      settings_(std::move(settings)),
      log_(log),
      clock_(clock),
      closed_(Refusal{"no group is being formed now", {}}) {}

LinkGate::~LinkGate() {
  stop_.request();
  if (thread_.joinable()) thread_.join();
}

std::optional<GateCaller> LinkGate::take() {
  const std::lock_guard lock(mutex_);
  if (callers_.empty()) return std::nullopt;
  uint64_t one = 0;
  [[maybe_unused]] const ssize_t got = ::read(ready_.get(), &one, sizeof one);
  GateCaller caller = std::move(callers_.front());
  callers_.pop_front();
  return caller;
}

void LinkGate::admit() {
  const std::lock_guard lock(mutex_);
  closed_.reset();
}

void LinkGate::refuse_all(const Refusal& reason) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = reason;
  }
  while (std::optional<GateCaller> caller = take()) {
    if (caller->channel) refuse(*caller->channel, reason);
  }
}

void LinkGate::run() {
  std::vector<pollfd> set;
  while (!stop_.requested()) {
    const int64_t now = clock_.monotonic_us();
    int64_t until = now + kIdlePollUs;
    set.assign(1, {stop_.fd(), POLLIN, 0});
    const bool accepting = now >= accept_again_us_;
    set.push_back({accepting ? listener_.get() : -1, POLLIN, 0});
    if (!accepting) until = std::min(until, accept_again_us_);
    for (const auto& p : pending_) {
      set.push_back({p->poll_fd(), POLLIN, 0});
      until = std::min(until, p->deadline_us);
    }
    if (::poll(set.data(), set.size(), poll_ms(now, until)) < 0) continue;
    std::vector<std::unique_ptr<Pending>> kept;
    for (size_t i = 0; i < pending_.size(); ++i) {
      const bool late = clock_.monotonic_us() >= pending_[i]->deadline_us;
      if (late && !pending_[i]->channel)
        notice(pending_[i]->peer.host() + " did not prove the shared key in time");
      if (!late && (set[i + 2].revents == 0 || advance(*pending_[i])))
        kept.push_back(std::move(pending_[i]));
    }
    pending_ = std::move(kept);
    if (set[1].revents != 0) accept_new();
  }
}

void LinkGate::accept_new() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    LinkAddress peer;
    Fd fd = accept_from(listener_.get(), &peer);
    if (!fd.open()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
        accept_again_us_ = clock_.monotonic_us() + kAcceptPauseUs;
      return;
    }
    make_room(peer);
    set_link_options(fd.get(), settings_.timers.handshake_ms);
    const int64_t until = clock_.monotonic_us() + settings_.timers.handshake_ms * 1000;
    pending_.push_back(std::make_unique<Pending>(std::move(fd), peer, bytes_of(settings_.key),
                                                 settings_.protocol, until));
  }
}

void LinkGate::make_room(const LinkAddress& peer) {
  const std::string host = peer.host();
  const auto drop_oldest = [&](size_t most, auto&& counts) {
    const auto held = std::count_if(pending_.begin(), pending_.end(), counts);
    if (static_cast<size_t>(held) < most) return;
    const auto oldest = std::find_if(pending_.begin(), pending_.end(), counts);
    notice((*oldest)->peer.host() + " has too many connections without a proof");
    pending_.erase(oldest);
  };
  const auto unproven = [](const auto& p) { return p->channel == nullptr; };
  drop_oldest(kUnprovenPeersPerAddressMax,
              [&](const auto& p) { return unproven(p) && p->peer.host() == host; });
  drop_oldest(kUnprovenPeersMax, unproven);
}

// Reads what is there; never more than the handshake's next message before the proof.
bool LinkGate::advance(Pending& pending) {
  while (!pending.channel) {
    const size_t wants = pending.handshake.wants();
    const ssize_t got =
        ::recv(pending.fd.get(), pending.input.data() + pending.have, wants - pending.have, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;
    pending.have += static_cast<size_t>(got);
    if (pending.have == wants && !read_proof(pending)) return false;
  }
  const FrameIo io = pending.channel->next();
  if (io == FrameIo::kBlocked) return true;
  if (io != FrameIo::kReady) return false;
  Result<Frame> frame = pending.channel->receive_ready();
  if (!frame.ok() || frame->header.type != FrameType::kJoin) return false;
  std::optional<JoinRequest> request = decode_join(frame->payload);
  if (!request) return false;
  deliver({std::move(pending.channel), std::move(*request), {}});
  return false;
}

bool LinkGate::read_proof(Pending& pending) {
  const auto step = pending.handshake.consume(std::span(pending.input).first(pending.have));
  pending.have = 0;
  if (step == AcceptHandshake::Step::kRefused) {
    notice(pending.peer.host() + " did not prove the shared key");
    return false;
  }
  const std::vector<std::byte> output = pending.handshake.take_output();
  // A new connection takes these few bytes at once; one that does not is no peer.
  if (::send(pending.fd.get(), output.data(), output.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(output.size())) {
    return false;
  }
  if (step == AcceptHandshake::Step::kMore) return true;
  const uint32_t theirs = pending.handshake.peer_protocol();
  if (theirs != settings_.protocol) {
    const std::string mine = std::to_string(settings_.protocol);
    deliver({nullptr,
             {},
             pending.peer.host() + " was refused: link protocol: rank " +
                 std::to_string(settings_.rank) + " has '" + mine + "', it has '" +
                 std::to_string(theirs) + "'"});
    return false;
  }
  pending.channel = std::make_unique<Channel>(std::move(pending.fd), pending.handshake.keys(),
                                              pending.peer.text(), theirs);
  return true;
}

void LinkGate::deliver(GateCaller caller) {
  if (!caller.notice.empty()) log_.warning("link: " + caller.notice);
  const std::lock_guard lock(mutex_);
  if (closed_) {
    if (caller.channel) refuse(*caller.channel, *closed_);
  } else if (callers_.size() < kGateCallersMax) {
    push(std::move(caller));
  }
}

void LinkGate::push(GateCaller caller) {
  callers_.push_back(std::move(caller));
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(ready_.get(), &one, sizeof one);
}

// Anyone who reaches the port can cause these: one line at a time, the rest is counted.
void LinkGate::notice(const std::string& line) {
  const int64_t now = clock_.monotonic_us();
  if (noticed_us_ != 0 && now - noticed_us_ < kGateNoticeGapMs * 1000) {
    ++unnoticed_;
    return;
  }
  noticed_us_ = now;
  const std::string more =
      unnoticed_ > 0 ? " (and " + std::to_string(unnoticed_) + " more before)" : "";
  unnoticed_ = 0;
  deliver({nullptr, {}, line + more});
}

}  // namespace tensorfold
