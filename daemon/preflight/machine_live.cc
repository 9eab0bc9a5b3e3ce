// The machine that this runs on. Programs are run without a shell, with a deadline and a bound on
// what they print; files are read past the page cache to measure a disk.
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "daemon/preflight/machine.h"
#include "engine/base/clock.h"

extern char** environ;  // NOLINT: what POSIX names it

namespace tensorfold::preflight {
namespace {

constexpr int64_t kBlockBytes = int64_t{8} << 20;
constexpr size_t kAlignBytes = 4096;

int64_t now_ms() { return system_clock().monotonic_us() / 1000; }

// Reads until the end, the bound or the deadline; whether the end was seen in time.
bool read_all(int fd, int64_t deadline_ms, std::string& out) {
  char block[16 * 1024];
  for (;;) {
    pollfd wait{fd, POLLIN, 0};
    const int64_t left_ms = std::max<int64_t>(0, deadline_ms - now_ms());
    const int ready = poll(&wait, 1, static_cast<int>(left_ms));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t size = ::read(fd, block, sizeof block);
    if (size <= 0) return size == 0;
    if (static_cast<int64_t>(out.size()) < kCommandOutputBytesMax) {
      out.append(block, static_cast<size_t>(size));
    }
  }
}

// Starts the program with its standard output on a pipe; -1 if it is not there.
pid_t start_program(const std::vector<std::string>& argv, int& output) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  std::vector<char*> arguments;
  arguments.reserve(argv.size() + 1);
  for (const std::string& word : argv) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  pid_t pid = -1;
  const int code = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (code != 0) {
    close(ends[0]);
    return -1;
  }
  output = ends[0];
  return pid;
}

class LiveMachine final : public Machine {
 public:
  LiveMachine() : Machine("") {}

  // Of the nearest folder above that exists.
  std::optional<Disk> disk(const std::string& path) const override {
    std::string folder = path;
    struct statvfs info {};
    while (statvfs(folder.c_str(), &info) != 0) {
      const size_t slash = folder.rfind('/');
      if (slash == std::string::npos || folder == "/") return std::nullopt;
      folder = slash == 0 ? "/" : folder.substr(0, slash);
    }
    return Disk{static_cast<int64_t>(info.f_blocks * info.f_frsize),
                static_cast<int64_t>(info.f_bavail * info.f_frsize)};
  }

  std::vector<std::string> environment() const override {
    std::vector<std::string> out;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
      out.emplace_back(*entry);
    return out;
  }

  std::vector<Interface> interfaces() const override {
    std::vector<Interface> out;
    ifaddrs* first = nullptr;
    if (getifaddrs(&first) != 0) return out;
    for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
      const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
      const auto* mask = reinterpret_cast<const sockaddr_in*>(one->ifa_netmask);
      char text[INET_ADDRSTRLEN] = "";
      inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
      const int prefix = mask == nullptr ? 32 : __builtin_popcount(mask->sin_addr.s_addr);
      out.push_back({one->ifa_name, text, prefix});
    }
    freeifaddrs(first);
    return out;
  }

  int64_t page_bytes() const override { return sysconf(_SC_PAGESIZE); }

  std::optional<bool> clock_synchronized() const override {
    timex state{};
    const int code = adjtimex(&state);
    if (code < 0) return std::nullopt;
    return code != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
  }

  int64_t unix_ms() const override { return system_clock().unix_us() / 1000; }

  std::optional<double> read_bytes_per_second(const std::string& file) const override {
    const int fd = open(file.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) return std::nullopt;
    // O_DIRECT wants an aligned buffer.
    std::vector<char> buffer(static_cast<size_t>(kBlockBytes) + kAlignBytes);
    void* block = buffer.data();
    size_t room = buffer.size();
    std::align(kAlignBytes, static_cast<size_t>(kBlockBytes), block, room);
    const int64_t start_us = system_clock().monotonic_us();
    int64_t bytes = 0, spent_us = 0;
    bool good = true;
    while (good && bytes < kReadSampleBytes && spent_us < kReadSampleMs * 1000) {
      const ssize_t size = ::read(fd, block, static_cast<size_t>(kBlockBytes));
      good = size > 0;
      if (good) bytes += size;
      spent_us = system_clock().monotonic_us() - start_us;
    }
    close(fd);
    if (bytes == 0 || spent_us <= 0) return std::nullopt;
    return static_cast<double>(bytes) * 1e6 / static_cast<double>(spent_us);
  }

  std::optional<CommandResult> command(const std::vector<std::string>& argv) const override {
    int output = -1;
    const pid_t pid = start_program(argv, output);
    if (pid < 0) return std::nullopt;
    CommandResult result;
    const bool ended = read_all(output, now_ms() + kCommandTimeoutMs, result.output);
    close(output);
    if (!ended) kill(pid, SIGKILL);
    int state = 0;
    while (waitpid(pid, &state, 0) < 0 && errno == EINTR) {
    }
    // posix_spawn reports a missing program as 127 on some systems.
    if (!ended || !WIFEXITED(state) || WEXITSTATUS(state) == 127) return std::nullopt;
    result.exit_code = WEXITSTATUS(state);
    return result;
  }
};

}  // namespace

std::unique_ptr<Machine> live_machine() { return std::make_unique<LiveMachine>(); }

}  // namespace tensorfold::preflight
