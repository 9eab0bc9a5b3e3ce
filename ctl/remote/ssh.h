// Programs on another machine, over ssh (engine/base/program.h runs them). Arguments reach the
// other machine's program as they are: ssh joins them with spaces and a shell there takes them
// apart, so each is quoted.
//
// A login must work without a password (BatchMode); ssh's own settings (~/.ssh/config) apply.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold::remote {

inline constexpr size_t kHostBytesMax = 255;  // "user@host"
inline constexpr int kSshFailed = 255;        // ssh's own exit status when it could not log in
inline constexpr int kNotFound = 127;         // a shell's when it has no such program
inline constexpr int kSshConnectSeconds = 10;

// "[user@]host" that ssh cannot take for an option.
Status check_host(std::string_view host);

// One word for a POSIX shell.
std::string shell_quote(std::string_view word);

// The arguments of ssh that run `argv` there. `terminal`: with one there, too.
std::vector<std::string> ssh_command(const std::string& host, std::span<const std::string> argv,
                                     bool terminal);
// What `rsync -e` wants.
std::string ssh_transport();

}  // namespace tensorfold::remote
