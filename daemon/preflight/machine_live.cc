// The machine that this runs on. Programs are run without a shell, with a deadline and a bound on
// what they print; files are read past the page cache to measure a disk.
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "daemon/preflight/check.h"
#include "daemon/preflight/machine.h"
#include "engine/base/clock.h"
#include "engine/base/program.h"

extern char** environ;  // NOLINT: what POSIX names it

namespace tensorfold::preflight {
namespace {

constexpr int64_t kBlockBytes = int64_t{8} << 20;
constexpr size_t kAlignBytes = 4096;

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

  std::optional<RdmaMemory> register_memory(const std::string& device) const override {
    return register_rdma_memory(device);
  }

  std::optional<LinkProbe> probe(const std::string& host, const std::string& here,
                                 const std::string& there) const override {
    return probe_link(here, there, peer_command(host, {"tfctl"}));
  }

  std::optional<CommandResult> command(const std::vector<std::string>& argv) const override {
    ProgramRun run;
    run.from = ProgramRun::Input::kNothing;
    run.capture = run.drop_errors = true;
    run.output_bytes_max = kCommandOutputBytesMax;
    run.deadline_ms = kCommandTimeoutMs;
    auto ended = run_program(argv, run);
    if (!ended.ok() || ended->timed_out) return std::nullopt;
    return CommandResult{ended->exit_status, std::move(ended->output)};
  }
};

}  // namespace

std::unique_ptr<Machine> live_machine() { return std::make_unique<LiveMachine>(); }

}  // namespace tensorfold::preflight
