// Every bound of the HTTP server, with its unit. A Limits value carries those that a configuration
// or a test may change; the others are constants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold::http {

inline constexpr size_t kTargetBytesMax = 8 * 1024;         // request target; past it: 414
inline constexpr size_t kHeaderCountMax = 100;              // fields of one request; past it: 431
inline constexpr size_t kReadBufferBytes = 64 * 1024;       // one read from a socket
inline constexpr size_t kChunkFrameBytesMax = 64;           // around each chunk of a body, and
inline constexpr size_t kChunkSpareBytesMax = 16 * 1024;    // in all; past both: 400
inline constexpr size_t kPipelinedBytesMax = 64 * 1024;     // kept while a reply is being written
inline constexpr size_t kRefusedBodyBytesMax = 64 * 1024;   // read though refused; past it: closed
inline constexpr size_t kLingerBytesMax = 4 * 1024 * 1024;  // read and dropped after a refusal
inline constexpr size_t kRefusedConnectionsMax = 64;        // being told 503; past it: just closed
inline constexpr int kListenBacklogConnections = 511;
inline constexpr unsigned kTcpKeepaliveSeconds = 60;  // of silence before the peer is probed

struct Limits {
  size_t header_bytes = size_t{32} * 1024;       // target and fields together; past it: 431
  size_t body_bytes = size_t{32} * 1024 * 1024;  // past it: 413
  size_t bodies_bytes =
      size_t{256} * 1024 * 1024;  // of all requests not yet answered; past it: 503
  size_t connections = 1024;      // past it: 503 and close
  size_t write_backlog_bytes = size_t{4} * 1024 * 1024;  // a stream's unsent bytes; past it: closed
  int64_t header_ms = 10'000;       // from a request's first byte to its last header
  int64_t body_ms = 120'000;        // from the last header to the body's end
  int64_t body_gap_ms = 20'000;     // between two pieces of a body
  int64_t idle_ms = 180'000;        // between two requests
  int64_t write_stall_ms = 60'000;  // nothing of a reply could be written
  int64_t linger_ms = 2'000;        // after a last reply, until the peer closes
  int64_t sweep_ms = 250;           // how often deadlines are looked at
};

}  // namespace tensorfold::http
