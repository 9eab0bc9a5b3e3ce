// What the preflight checks may know of a machine: files below a root, and a few facts that no file
// tells. Two kinds: the machine this runs on, and a recorded one (a folder), for tests and for
// looking at somebody else's machine.
//
// Owner: the caller's thread. Nothing here changes the machine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/preflight/link_probe.h"
#include "daemon/preflight/rdma_memory.h"
#include "engine/base/status.h"

namespace tensorfold::preflight {

inline constexpr int64_t kMachineFileBytesMax = int64_t{64}
                                                << 20;  // of one file that a check reads
inline constexpr int64_t kCommandOutputBytesMax = int64_t{1} << 20;
inline constexpr int64_t kCommandTimeoutMs = 20'000;             // of one program that a check asks
inline constexpr int64_t kReadSampleBytes = int64_t{256} << 20;  // read to measure a disk
inline constexpr int64_t kReadSampleMs = 2'000;

struct Disk {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // for a user who is not root
};

struct Interface {
  std::string name;
  std::string address;  // IPv4, "192.168.100.1"
  int prefix = 0;       // bits
};

struct CommandResult {
  int exit_code = 0;
  std::string output;  // standard output
};

class Machine {
 public:
  explicit Machine(std::string root) : root_(std::move(root)) {}
  virtual ~Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Paths are absolute, as on the machine: "/proc/meminfo".
  std::optional<std::string> read(const std::string& path) const;  // nothing if it cannot be read
  std::string line(const std::string& path) const;  // the first line, trimmed; empty if none
  std::vector<std::string> list(const std::string& path) const;  // names, sorted
  bool exists(const std::string& path) const;
  std::string link(const std::string& path) const;  // what a symbolic link says, or empty
  std::optional<int64_t> file_bytes(const std::string& path) const;
  // The first bytes of a file, for headers of large ones.
  std::optional<std::string> read_head(const std::string& path, int64_t bytes) const;

  virtual std::optional<Disk> disk(const std::string& path) const = 0;
  virtual std::vector<std::string> environment() const = 0;  // "NAME=value"
  virtual std::vector<Interface> interfaces() const = 0;
  virtual int64_t page_bytes() const = 0;
  virtual std::optional<bool> clock_synchronized() const = 0;
  virtual int64_t unix_ms() const = 0;
  virtual std::optional<double> read_bytes_per_second(const std::string& file) const = 0;
  // Registers memory with an RDMA device for a moment; nothing where that cannot be tried.
  virtual std::optional<RdmaMemory> register_memory(const std::string& device) const = 0;
  // Measures the path to another machine's address; nothing where that cannot be tried.
  virtual std::optional<LinkProbe> probe(const std::string& host, const std::string& here,
                                         const std::string& there) const = 0;
  // Runs a program; nothing if it is not there or did not end in time.
  virtual std::optional<CommandResult> command(const std::vector<std::string>& argv) const = 0;

 protected:
  std::string at(const std::string& path) const { return root_ + path; }

 private:
  const std::string root_;
};

std::unique_ptr<Machine> live_machine();

// A folder with the machine's files in their places (proc/, sys/, etc/, ...) and facts.json:
//   disks {"/": {"total_bytes": n, "free_bytes": n}} (the longest prefix counts), environment
//   ["NAME=value"], interfaces [{"name", "address", "prefix"}], page_bytes, clock_synchronized,
//   unix_ms, read_bytes_per_second {"file": rate}, commands [{"argv": "nvidia-smi ...",
//   "exit_code": n, "output": "..."}], registered_memory {"rocep1s0f0": {"registered_bytes": n,
//   "refused_bytes": n, "problem": "...", "limit_bytes": n}}, link_probes [{"here": "...",
//   "there": "...", "problem": "...", "reached_here": b, "reached_there": b, "out": rate, "in":
//   rate}].
Result<std::unique_ptr<Machine>> recorded_machine(const std::string& folder);

}  // namespace tensorfold::preflight
