// TCP sockets of a link probe: waits that end at a deadline, errors that name the address.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace tensorfold::preflight {

int64_t probe_now_ms();

class ProbeSocket {
 public:
  ProbeSocket() = default;
  explicit ProbeSocket(int fd) : fd_(fd) {}
  ProbeSocket(ProbeSocket&& other) noexcept;
  ProbeSocket& operator=(ProbeSocket&& other) noexcept;
  ~ProbeSocket();

  // On a port that the system picks.
  static Result<ProbeSocket> listen_at(const std::string& address);
  static Result<ProbeSocket> connect_to(const std::string& from, const std::string& to,
                                        int64_t port, int64_t until_ms);
  // `given_up` ends the wait early, with kUnavailable.
  Result<ProbeSocket> accept_one(int64_t until_ms, const std::function<bool()>& given_up) const;
  int64_t port() const;

  Status send_text(std::string_view text, int64_t until_ms) const;
  Result<std::string> receive_text(size_t bytes, int64_t until_ms) const;
  // Bytes without a meaning, sent or received and dropped.
  Status send_filler(int64_t bytes, int64_t until_ms) const;
  Status receive_filler(int64_t bytes, int64_t until_ms) const;

 private:
  Status wait(short events, int64_t until_ms) const;
  Status send_some(std::string_view text, int64_t until_ms, size_t& sent) const;
  int fd_ = -1;
};

}  // namespace tensorfold::preflight
