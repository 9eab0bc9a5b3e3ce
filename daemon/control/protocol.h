// What the daemon and tfctl agree on: HTTP over a Unix socket, JSON with a schema version.
// Header only and free of other parts of the daemon, because ctl includes it.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace tensorfold::control {

// Grows when a member changes its meaning or goes away; new members do not change it.
inline constexpr int kSchemaVersion = 1;

inline constexpr std::string_view kStatusPath = "/status";
inline constexpr std::string_view kMetricsPath = "/metrics";
inline constexpr std::string_view kConfigPath = "/config";
inline constexpr std::string_view kLogLevelPath = "/log-level";
inline constexpr std::string_view kReloadPath = "/reload";
inline constexpr std::string_view kDrainPath = "/drain";
inline constexpr std::string_view kResumePath = "/resume";
inline constexpr std::string_view kStopPath = "/stop";
inline constexpr std::string_view kRequestsPath = "/requests";
inline constexpr std::string_view kCancelPath = "/requests/cancel";
inline constexpr std::string_view kCachePath = "/cache";
inline constexpr std::string_view kCacheFlushPath = "/cache/flush";  // ?spill=1: on disk too
inline constexpr std::string_view kSocketName = "control.sock";
inline constexpr std::string_view kRuntimeDirectory = "/run/tensorfoldd";
inline constexpr size_t kControlReplyBytesMax = 16 * 1024 * 1024;  // what tfctl reads of one reply
inline constexpr size_t kControlBodyBytesMax = 64 * 1024;          // what the daemon reads
inline constexpr size_t kControlConnectionsMax = 32;

// The socket where none is named. The service's runtime directory, or, for a program that a user
// starts by hand and that could not write there, the user's.
inline std::string default_socket_path() {
  const auto usable = [](const std::string& directory, int mode) {
    return access(directory.c_str(), mode) == 0;
  };
  std::string service = std::string(kRuntimeDirectory) + "/" + std::string(kSocketName);
  if (const char* given = std::getenv("RUNTIME_DIRECTORY"); given != nullptr && *given == '/') {
    return std::string(given) + "/" + std::string(kSocketName);
  }
  if (geteuid() == 0 || usable(service, F_OK)) return service;
  const char* user = std::getenv("XDG_RUNTIME_DIR");
  if (user != nullptr && usable(user, W_OK)) {
    return std::string(user) + "/tensorfoldd/" + std::string(kSocketName);
  }
  return service;
}

}  // namespace tensorfold::control
