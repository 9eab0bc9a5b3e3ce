// Frames: what goes over a connection once both sides have proven the key.
//
//   header, 8 bytes   u32 payload bytes | u8 type | u8 flags | u16 kind     (little-endian)
//   sealed payload    payload bytes, then the tag of kFrameTagBytes
//
// Frames have their place in a row (FrameSeal); a length over the bound, an unknown type or flag,
// or a seal that does not open damages the connection for good. Owner: a FrameOut and a FrameIn
// belong to the thread that uses their channel. Deliberately knows no sockets beyond send and recv
// on a non-blocking descriptor, and no meaning of payloads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cluster/link_crypto.h"

namespace tensorfold {

inline constexpr size_t kFrameBytesMax = size_t{128} << 10;  // payload of one frame
inline constexpr size_t kFrameHeaderBytes = 8;

enum class FrameType : uint8_t {
  kJoin = 1,       // connector: who I am and what this connection is for
  kWelcome = 2,    // acceptor: taken
  kRefusal = 3,    // acceptor: not taken, and why
  kForming = 4,    // head: who is missing; worker: still here
  kRoster = 5,     // head: a generation and its ranks
  kReady = 6,      // worker: connected to all
  kGo = 7,         // head: the group stands
  kGoodbye = 8,    // leaves, and why
  kBeat = 9,       // heartbeat
  kReport = 10,    // what a rank published
  kMessage = 11,   // part of a message
  kExchange = 12,  // an exchange begins: its number and size
  kData = 13,      // part of an exchange
};
inline constexpr uint8_t kFrameTypeLast = 13;
inline constexpr uint8_t kFrameMore = 1;  // flag: the message goes on in the next frame

struct FrameHeader {
  uint32_t bytes = 0;  // of the payload
  FrameType type = FrameType::kBeat;
  uint8_t flags = 0;
  uint16_t kind = 0;  // of a message
};

std::array<std::byte, kFrameHeaderBytes> encode_frame_header(const FrameHeader& header);
// False: no header that this version sends.
bool decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes, FrameHeader& header);

enum class FrameIo : uint8_t {
  kReady,    // in: a whole frame is there; out: everything is with the kernel
  kBlocked,  // poll, then again
  kClosed,   // the peer closed or reset the connection
  kDamaged,  // not a frame, or its seal does not open
};

class FrameOut {
 public:
  explicit FrameOut(const LinkDigest& key) : seal_(key, FrameSeal::Side::kSealing) {}
  bool empty() const { return sent_ == buffer_.size(); }
  size_t waiting_bytes() const { return buffer_.size() - sent_; }
  // payload at most kFrameBytesMax. Takes memory, sends nothing.
  void put(FrameType type, std::span<const std::byte> payload, uint16_t kind = 0,
           uint8_t flags = 0);
  FrameIo flush(int fd);

 private:
  FrameSeal seal_;
  std::vector<std::byte> buffer_;
  size_t sent_ = 0;
};

class FrameIn {
 public:
  explicit FrameIn(const LinkDigest& key) : seal_(key, FrameSeal::Side::kOpening) {}
  // kReady: header() is the next frame's, for take(). Reads only as much as is there.
  FrameIo next(int fd);
  const FrameHeader& header() const { return header_; }
  // into [header().bytes]. False: damaged, and so is every later call.
  bool take(std::span<std::byte> into);
  // Bytes that came with an earlier connection state (none in practice) or from a test.
  void feed(std::span<const std::byte> bytes);

 private:
  FrameIo parse();
  FrameSeal seal_;
  std::vector<std::byte> buffer_;  // [first_, end_) is read and not yet taken
  size_t first_ = 0, end_ = 0;
  FrameHeader header_;
  bool ready_ = false, damaged_ = false;
};

}  // namespace tensorfold
