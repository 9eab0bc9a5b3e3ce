// Channel: one proven connection. Non-blocking parts for loops over many, and waiting ones.
// Owner: one thread at a time; shut() alone is for any thread. Deliberately counts and interprets
// nothing: what a frame of some type means is its caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/cluster/fd.h"
#include "engine/cluster/frame.h"
#include "engine/cluster/link_wait.h"

namespace tensorfold {

struct SessionKeys {
  LinkDigest out{}, in{};  // of this side
};

struct Frame {
  FrameHeader header;
  std::vector<std::byte> payload;
};

class Channel {
 public:
  Channel(Fd fd, const SessionKeys& keys, std::string peer, uint32_t peer_protocol)
      : fd_(std::move(fd)),
        peer_(std::move(peer)),
        peer_protocol_(peer_protocol),
        out_(keys.out),
        in_(keys.in) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int fd() const { return fd_.get(); }
  const std::string& peer() const { return peer_; }  // "192.0.2.2:41210"
  uint32_t peer_protocol() const { return peer_protocol_; }
  FrameOut& out() { return out_; }
  FrameIn& in() { return in_; }

  FrameIo flush() { return out_.flush(fd_.get()); }
  FrameIo next() { return in_.next(fd_.get()); }

  // Until the kernel has it. kUnavailable: closed by the peer; kDeadline; kCancelled.
  Status send(FrameType type, std::span<const std::byte> payload, const LinkWait& wait,
              uint16_t kind = 0, uint8_t flags = 0);
  // kUnavailable: closed by the peer; kDataLoss: damaged; kDeadline; kCancelled.
  Result<Frame> receive(const LinkWait& wait);
  // The next frame that is there already, opened. kDeadline: none.
  Result<Frame> receive_ready();

  // Any thread: both sides see the end of the stream. The descriptor stays until destruction.
  void shut();

 private:
  Fd fd_;
  const std::string peer_;
  const uint32_t peer_protocol_;
  FrameOut out_;
  FrameIn in_;
};

}  // namespace tensorfold
