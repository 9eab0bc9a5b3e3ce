// Programs on this machine and, over ssh, on another. Arguments reach the other machine's program
// as they are: ssh joins them with spaces and a shell there takes them apart, so each is quoted.
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

inline constexpr size_t kHostBytesMax = 255;                        // "user@host"
inline constexpr size_t kProgramOutputBytesMax = size_t{16} << 20;  // kept of one program
inline constexpr int kSshFailed = 255;  // ssh's own exit status when it could not log in
inline constexpr int kNotFound = 127;   // a shell's when it has no such program
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

struct Ended {
  int exit_status = 0;  // 128 + N: ended by signal N
  std::string output;   // with `capture`
};

// Runs a program found on PATH and waits for its end. Standard input is `input` with `feed`, else
// the caller's; standard output is kept with `capture`, else the caller's.
struct Run {
  bool capture = false, feed = false;
  std::string input;
};
Result<Ended> run_program(const std::vector<std::string>& argv, const Run& run = {});

}  // namespace tensorfold::remote
