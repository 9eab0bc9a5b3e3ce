// Waiting sends and receives over frames. Owner: see the header.
#include "engine/cluster/channel.h"

#include <poll.h>
#include <sys/socket.h>

namespace tensorfold {

Status Channel::send(FrameType type, std::span<const std::byte> payload, const LinkWait& wait,
                     uint16_t kind, uint8_t flags) {
  out_.put(type, payload, kind, flags);
  for (;;) {
    const FrameIo io = flush();
    if (io == FrameIo::kReady) return ok_status();
    if (io == FrameIo::kClosed) return unavailable(peer_ + " closed the connection");
    TF_RETURN_IF_ERROR(wait_ready(fd_.get(), POLLOUT, wait));
  }
}

Result<Frame> Channel::receive_ready() {
  switch (next()) {
    case FrameIo::kReady:
      break;
    case FrameIo::kBlocked:
      return Status(StatusCode::kDeadline, "nothing from " + peer_);
    case FrameIo::kClosed:
      return unavailable(peer_ + " closed the connection");
    case FrameIo::kDamaged:
      return data_loss("a damaged frame from " + peer_);
  }
  Frame frame{in_.header(), std::vector<std::byte>(in_.header().bytes)};
  if (!in_.take(frame.payload)) return data_loss("a frame from " + peer_ + " does not open");
  return frame;
}

Result<Frame> Channel::receive(const LinkWait& wait) {
  for (;;) {
    Result<Frame> frame = receive_ready();
    if (frame.ok() || frame.status().code() != StatusCode::kDeadline) return frame;
    TF_RETURN_IF_ERROR(wait_ready(fd_.get(), POLLIN, wait));
  }
}

void Channel::shut() { (void)::shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace tensorfold
