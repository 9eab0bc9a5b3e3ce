// The heartbeat thread. Owner: see the header.
#include "engine/cluster/liveness.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <system_error>

#include "engine/cluster/link_address.h"

namespace tensorfold {
namespace {

constexpr std::string_view kGaveUp = "gave up: ";

// Of more than two ranks one may give up because another one did: what the first one said counts,
// "rank 3 (192.0.2.4:29620) gave up: rank 2 (...) silent for 4502 ms". Empty: `reason` is its own.
std::string first_word(const std::string& reason) {
  const size_t gave_up = reason.rfind(kGaveUp);
  const size_t who = gave_up == std::string::npos ? gave_up : reason.rfind("rank ", gave_up);
  return who == std::string::npos ? std::string() : reason.substr(who);
}

#ifdef TF_PLANTED_FAULT  // tests: a peer that says nothing is taken to live
constexpr bool kJudgesSilence = false;
#else
constexpr bool kJudgesSilence = true;
#endif

constexpr size_t kRttSamples = 16;
constexpr uint16_t kLeft = 0, kBroke = 1;  // kind of a goodbye: in order, or after a failure
// A peer that stops reading gets no more beats than fit here, and none of it is waited for.
constexpr size_t kWaitingBytesMax = 64 * 1024;

}  // namespace

struct Liveness::Peer {
  int rank = 0;
  std::unique_ptr<Channel> channel;
  int64_t heard_us = 0;      // when the last frame came
  uint64_t next_number = 1;  // of our beats
  int64_t echo_us = -1, echo_at_us = 0;
  uint64_t reported = 0;  // number of the report that it has
  std::array<int64_t, kRttSamples> rtts{};
  size_t rtt_count = 0;
  PeerStatus status;         // under the mutex
  int64_t status_at_us = 0;  // heard_us, under the mutex
};

Result<std::unique_ptr<Liveness>> Liveness::start(Settings settings,
                                                  std::vector<std::unique_ptr<Channel>> channels) {
  std::unique_ptr<Liveness> liveness(new Liveness(std::move(settings), std::move(channels)));
  try {
    liveness->thread_ = std::thread([l = liveness.get()] { l->run(); });
  } catch (const std::system_error& e) {
    return unavailable(std::string("no thread for heartbeats: ") + e.what());
  }
  return liveness;
}

Liveness::Liveness(Settings settings, std::vector<std::unique_ptr<Channel>> channels)
    : settings_(std::move(settings)) {
  for (size_t r = 0; r < channels.size(); ++r) {
    if (!channels[r]) continue;
    auto peer = std::make_unique<Peer>();
    peer->rank = static_cast<int>(r);
    peer->heard_us = peer->status_at_us = settings_.clock->monotonic_us();
    peer->status.rank = peer->rank;
    peer->status.address = channels[r]->peer();
    set_link_options(channels[r]->fd(), settings_.timers.silent_ms);
    peer->channel = std::move(channels[r]);
    peers_.push_back(std::move(peer));
  }
}

Liveness::~Liveness() {
  settings_.health->fail(unavailable("the group was taken down on this rank", "aborted"));
  if (thread_.joinable()) thread_.join();
}

Status Liveness::publish(const LinkFields& report) {
  TF_RETURN_IF_ERROR(check_fields("report", report));
  const std::lock_guard lock(mutex_);
  report_ = encode_fields(report);
  ++report_number_;
  return ok_status();
}

std::vector<PeerStatus> Liveness::peers() const {
  const int64_t now = settings_.clock->monotonic_us();
  const std::lock_guard lock(mutex_);
  std::vector<PeerStatus> out;
  for (const auto& peer : peers_) {
    out.push_back(peer->status);
    out.back().heard_ms_ago = std::max<int64_t>(0, (now - peer->status_at_us) / 1000);
  }
  return out;
}

std::optional<std::pair<int, std::string>> Liveness::left() const {
  const std::lock_guard lock(mutex_);
  return left_;
}

void Liveness::leave(std::string_view reason) {
  std::unique_lock lock(mutex_);
  goodbye_ = std::string(reason);
  wake_.request();
  left_changed_.wait_for(lock, std::chrono::milliseconds(settings_.timers.silent_ms),
                         [&] { return goodbye_sent_ || settings_.health->broken().requested(); });
}

void Liveness::run() {
  const StopFlag& broken = settings_.health->broken();
  int64_t next_beat_us = 0;
  std::vector<pollfd> set;
  while (!broken.requested()) {
    const int64_t now = settings_.clock->monotonic_us();
    const bool beat_now = now >= next_beat_us;
    if (beat_now) next_beat_us = now + settings_.timers.heartbeat_ms * 1000;
    turn(beat_now);
    int64_t until = next_beat_us;
    set.assign(1, {broken.fd(), POLLIN, 0});
    set.push_back({wake_.requested() && goodbye_sent_ ? -1 : wake_.fd(), POLLIN, 0});
    for (const auto& peer : peers_) {
      until = std::min(until, peer->heard_us + settings_.timers.silent_ms * 1000);
      const bool full = !peer->channel->out().empty();
      set.push_back({peer->channel->fd(), static_cast<short>(full ? POLLIN | POLLOUT : POLLIN), 0});
    }
    (void)::poll(set.data(), set.size(), poll_ms(settings_.clock->monotonic_us(), until));
  }
  say_why();
  if (settings_.on_end) settings_.on_end();
  const std::lock_guard lock(mutex_);
  goodbye_sent_ = true;
  left_changed_.notify_all();
}

// Peers learn why from this rank, if the connection still takes it, and notice at once anyway.
void Liveness::say_why() {
  const std::vector<std::byte> why = encode_text(settings_.health->failure().message());
  for (const auto& peer : peers_) {
    if (!goodbye_sent_ && peer->channel->out().empty()) {
      peer->channel->out().put(FrameType::kGoodbye, why, kBroke);
      (void)peer->channel->flush();
    }
    peer->channel->shut();
  }
}

// Reads before it judges: a thread that was held up itself finds what came meanwhile.
void Liveness::turn(bool beat_now) {
  for (const auto& peer : peers_) {
    if (!read(*peer)) return;
  }
  const int64_t now = settings_.clock->monotonic_us();
  std::optional<std::string> goodbye;
  {
    const std::lock_guard lock(mutex_);
    if (!goodbye_sent_) goodbye = goodbye_;
  }
  for (const auto& peer : peers_) {
    if (now - peer->heard_us >= settings_.timers.silent_ms * 1000 && kJudgesSilence) {
      (void)lost(*peer, "silent for " + std::to_string((now - peer->heard_us) / 1000) + " ms",
                 "peer_lost");
      return;
    }
    if (beat_now && peer->channel->out().waiting_bytes() < kWaitingBytesMax) send_beat(*peer, now);
    if (goodbye) peer->channel->out().put(FrameType::kGoodbye, encode_text(*goodbye), kLeft);
    if (peer->channel->flush() == FrameIo::kClosed) {
      // What it sent last, perhaps a goodbye, may still be there to read.
      if (read(*peer)) (void)lost(*peer, "closed its heartbeat connection", "peer_closed");
      return;
    }
  }
  if (!goodbye) return;
  const std::lock_guard lock(mutex_);
  goodbye_sent_ = true;
  left_changed_.notify_all();
}

void Liveness::send_beat(Peer& peer, int64_t now) {
  Beat beat;
  beat.number = peer.next_number++;
  beat.sent_us = now;
  beat.unix_us = settings_.clock->unix_us();
  beat.echo_us = peer.echo_us;
  beat.held_us = peer.echo_us >= 0 ? now - peer.echo_at_us : 0;
  peer.channel->out().put(FrameType::kBeat, encode(beat));
  const std::lock_guard lock(mutex_);
  if (peer.reported == report_number_) return;
  peer.reported = report_number_;
  peer.channel->out().put(FrameType::kReport, report_);
}

bool Liveness::read(Peer& peer) {
  for (;;) {
    Result<Frame> frame = peer.channel->receive_ready();
    if (frame.ok()) {
      if (!heard(peer, *frame)) return false;
      continue;
    }
    if (frame.status().code() == StatusCode::kDeadline) return true;
    if (frame.status().code() == StatusCode::kDataLoss)
      return lost(peer, "sent a damaged heartbeat", "link");
    return lost(peer, "closed its heartbeat connection", "peer_closed");
  }
}

bool Liveness::heard(Peer& peer, const Frame& frame) {
  peer.heard_us = settings_.clock->monotonic_us();
  if (frame.header.type == FrameType::kBeat) {
    const std::optional<Beat> beat = decode_beat(frame.payload);
    if (!beat) return lost(peer, "sent a heartbeat that can't be read", "link");
    on_beat(peer, *beat);
    return true;
  }
  if (frame.header.type == FrameType::kReport) {
    std::optional<LinkFields> report = decode_fields(frame.payload);
    if (!report) return lost(peer, "sent a report that can't be read", "link");
    const std::lock_guard lock(mutex_);
    peer.status.report = std::move(*report);
    return true;
  }
  if (frame.header.type == FrameType::kGoodbye) {
    const std::string reason = decode_text(frame.payload).value_or("no reason");
    if (frame.header.kind != kLeft) {
      const std::string first = first_word(reason);
      if (first.empty()) return lost(peer, std::string(kGaveUp) + reason, "peer_closed");
      settings_.health->fail(unavailable(first, "peer_closed"));
      return false;
    }
    {
      const std::lock_guard lock(mutex_);
      left_ = {peer.rank, reason};
    }
    return lost(peer, "left the group: " + reason, "peer_left");
  }
  return lost(peer, "sent a frame that is no heartbeat", "link");
}

void Liveness::on_beat(Peer& peer, const Beat& beat) {
  peer.echo_us = beat.sent_us;
  peer.echo_at_us = peer.heard_us;
  if (beat.echo_us >= 0) {
    peer.rtts[peer.rtt_count++ % kRttSamples] =
        std::max<int64_t>(0, peer.heard_us - beat.echo_us - beat.held_us);
  }
  const std::lock_guard lock(mutex_);
  peer.status_at_us = peer.heard_us;
  peer.status.clock_offset_ms = (beat.unix_us - settings_.clock->unix_us()) / 1000;
  const size_t count = std::min(peer.rtt_count, kRttSamples);
  if (count > 0) {
    peer.status.rtt_us =
        *std::min_element(peer.rtts.begin(), peer.rtts.begin() + static_cast<long>(count));
  }
}

// Always false: nothing more is read of a group that is broken.
bool Liveness::lost(const Peer& peer, const std::string& what, const char* reason) {
  settings_.health->fail(unavailable(
      "rank " + std::to_string(peer.rank) + " (" + peer.channel->peer() + ") " + what, reason));
  return false;
}

}  // namespace tensorfold
