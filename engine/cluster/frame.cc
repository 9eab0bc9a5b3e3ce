// Sealing, sending, receiving and opening frames. Owner: see the header.
// Deliberately reads at most one frame ahead: the buffers stay at two frames.
#include "engine/cluster/frame.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

constexpr size_t kWholeFrameBytesMax = kFrameHeaderBytes + kFrameBytesMax + kFrameTagBytes;
constexpr size_t kReadBytesLeast = 4096;

}  // namespace

std::array<std::byte, kFrameHeaderBytes> encode_frame_header(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> out{};
  for (size_t i = 0; i < 4; ++i) out[i] = static_cast<std::byte>((header.bytes >> (8 * i)) & 255U);
  out[4] = static_cast<std::byte>(header.type);
  out[5] = static_cast<std::byte>(header.flags);
  out[6] = static_cast<std::byte>(header.kind & 255U);
  out[7] = static_cast<std::byte>(header.kind >> 8U);
  return out;
}

bool decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes, FrameHeader& header) {
  const auto at = [&](size_t i) { return std::to_integer<uint32_t>(bytes[i]); };
  header.bytes = at(0) | at(1) << 8U | at(2) << 16U | at(3) << 24U;
  const uint32_t type = at(4);
  header.type = static_cast<FrameType>(type);
  header.flags = static_cast<uint8_t>(at(5));
  header.kind = static_cast<uint16_t>(at(6) | at(7) << 8U);
  return header.bytes <= kFrameBytesMax && type >= 1 && type <= kFrameTypeLast &&
         header.flags <= kFrameMore;
}

void FrameOut::put(FrameType type, std::span<const std::byte> payload, uint16_t kind,
                   uint8_t flags) {
  TF_CHECK_LE(payload.size(), kFrameBytesMax);
  if (empty()) {
    buffer_.clear();
    sent_ = 0;
  }
  const auto header =
      encode_frame_header({static_cast<uint32_t>(payload.size()), type, flags, kind});
  const size_t start = buffer_.size();
  buffer_.resize(start + header.size() + payload.size() + kFrameTagBytes);
  std::memcpy(buffer_.data() + start, header.data(), header.size());
  seal_.seal(header, payload, buffer_.data() + start + header.size());
}

FrameIo FrameOut::flush(int fd) {
  while (!empty()) {
    const ssize_t sent = ::send(fd, buffer_.data() + sent_, buffer_.size() - sent_, MSG_NOSIGNAL);
    if (sent > 0) {
      sent_ += static_cast<size_t>(sent);
    } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return FrameIo::kBlocked;
    } else if (sent < 0 && errno != EINTR) {
      return FrameIo::kClosed;
    }
  }
  return FrameIo::kReady;
}

FrameIo FrameIn::next(int fd) {
  for (;;) {
    const FrameIo parsed = parse();
    if (parsed != FrameIo::kBlocked) return parsed;
    // Room for the frame whose header is there, or for any small ones.
    const size_t held = end_ - first_;
    if (held == 0) first_ = end_ = 0;
    size_t wanted = kReadBytesLeast;
    if (held >= kFrameHeaderBytes)
      wanted = std::max(wanted, kFrameHeaderBytes + header_.bytes + kFrameTagBytes);
    if (first_ + wanted > buffer_.size()) {
      if (held > 0) std::memmove(buffer_.data(), buffer_.data() + first_, held);
      first_ = 0;
      end_ = held;
      if (buffer_.size() < wanted) buffer_.resize(std::min(2 * wanted, 2 * kWholeFrameBytesMax));
    }
    const ssize_t got = ::recv(fd, buffer_.data() + end_, buffer_.size() - end_, 0);
    if (got > 0) {
      end_ += static_cast<size_t>(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return FrameIo::kBlocked;
    } else if (got == 0 || errno != EINTR) {
      return FrameIo::kClosed;
    }
  }
}

void FrameIn::feed(std::span<const std::byte> bytes) {
  buffer_.resize(end_);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  end_ = buffer_.size();
}

// kBlocked: not a whole frame yet.
FrameIo FrameIn::parse() {
  if (damaged_) return FrameIo::kDamaged;
  if (ready_) return FrameIo::kReady;
  if (end_ - first_ < kFrameHeaderBytes) return FrameIo::kBlocked;
  const auto head = std::span(buffer_).subspan(first_).first<kFrameHeaderBytes>();
  if (!decode_frame_header(head, header_)) {
    damaged_ = true;
    return FrameIo::kDamaged;
  }
  if (end_ - first_ < kFrameHeaderBytes + header_.bytes + kFrameTagBytes) return FrameIo::kBlocked;
  ready_ = true;
  return FrameIo::kReady;
}

bool FrameIn::take(std::span<std::byte> into) {
  TF_CHECK(ready_);
  TF_CHECK_EQ(into.size(), header_.bytes);
  const auto whole = std::span(buffer_).subspan(first_);
  const auto sealed = whole.subspan(kFrameHeaderBytes, header_.bytes + kFrameTagBytes);
  damaged_ = !seal_.open(whole.first(kFrameHeaderBytes), sealed, into);
  first_ += kFrameHeaderBytes + sealed.size();
  ready_ = false;
  return !damaged_;
}

}  // namespace tensorfold
