// The wire over TCP (ctl/http/exchange.h): HTTP/1.1 in the clear, one connection an exchange.
//
// Not done here: TLS (https is refused by name; a proxy on this machine can carry it), redirects,
// keep-alive. The host name is looked up once, so that no reply's time has a look-up in it.
#pragma once

#include <memory>
#include <string>

#include "ctl/bench/wire.h"
#include "engine/base/clock.h"

namespace tensorfold::ctl::bench {

inline constexpr int kBenchConnectMs = 10'000;                         // for a connection to open
inline constexpr int64_t kBenchReplyBytesMax = int64_t{64} << 20;      // of a reply kept whole
inline constexpr int64_t kBenchStreamBytesMax = int64_t{1} << 30;      // of one streamed reply
inline constexpr int64_t kBenchExchangeMs = int64_t{4} * 3600 * 1000;  // one exchange, whole
inline constexpr size_t kBenchKeyFileBytesMax = size_t{64} * 1024;     // --key-file

struct Url {
  std::string host;  // without brackets
  std::string port;  // decimal
  std::string base;  // path before "/v1", "" or "/proxy"
};

// "http://HOST[:PORT][/BASE]"; a "/v1" at the end is taken off. The error names the part.
Result<Url> parse_url(const std::string& text);

// The first key of a file of keys: "KEY" or "label: KEY" a line, '#' comments.
Result<std::string> read_key_file(const std::string& path);

struct HttpWireOptions {
  std::string key;                // Authorization: Bearer; empty: none
  int idle_timeout_ms = 900'000;  // no byte for so long ends an exchange
};

Result<std::unique_ptr<Wire>> open_http_wire(const Url& url, HttpWireOptions options,
                                             const Clock& clock);

}  // namespace tensorfold::ctl::bench
