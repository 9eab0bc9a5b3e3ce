// Socket activation: the API's listening socket, where the service manager holds it
// (tensorfoldd.socket). Without one nothing is taken, and http.listen is opened as ever.
//
// Owner: the process at its start, before any thread; the descriptor then belongs to the HTTP
// server.
#pragma once

#include <optional>
#include <string>

#include "engine/base/status.h"

namespace tensorfold::service {

inline constexpr char kListenName[] = "http";  // FileDescriptorName= of the socket unit

struct PassedSocket {
  int fd = -1;
  std::string address;  // as http.listen has it: "127.0.0.1:8888", "[::1]:8888"
};

// What was passed: nothing, or one listening TCP socket named kListenName. Anything else is refused
// by its name, because ignoring it would leave clients waiting on it. Forgets the variables, so
// that no child takes the socket for its own.
Result<std::optional<PassedSocket>> take_passed_socket();

}  // namespace tensorfold::service
