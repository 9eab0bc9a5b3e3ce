// Memory of a machine whose GPU uses it too: what counts is MemAvailable, not what CUDA calls free.
#include <algorithm>

#include "daemon/preflight/checks.h"
#include "daemon/preflight/text.h"

namespace tensorfold::preflight {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;
// One rank of the published model with its cache: about 100 GB. Reports start at 92 GiB with luck
// and at 104 GiB with room.
constexpr int64_t kMemoryLeastBytes = 92 * kGib;
constexpr int64_t kMemoryGoodBytes = 104 * kGib;
constexpr int64_t kEmbeddedMemoryBytes = kGib;
constexpr int64_t kSwapUsedBytes = kGib;
constexpr int64_t kKillerFloorBytes = 3 * kGib;  // what the service leaves free at least
constexpr int kLargeOrder = 9;                   // 2 MiB with 4 KiB pages
constexpr int64_t kLargePercentLeast = 10;
constexpr size_t kConsumersShown = 3;

bool service_runs(const Machine& machine) {
  const auto all = processes(machine);
  return std::any_of(all.begin(), all.end(), is_tensorfoldd);
}

std::string largest_consumers(const Machine& machine) {
  auto all = processes(machine);
  std::sort(all.begin(), all.end(),
            [](const Process& a, const Process& b) { return a.resident_bytes > b.resident_bytes; });
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(kConsumersShown, all.size()); ++i) {
    if (all[i].resident_bytes < kGib) break;
    shown.push_back(all[i].name + " (pid " + std::to_string(all[i].pid) + ", " +
                    bytes_text(all[i].resident_bytes) + ")");
  }
  return join(shown, ", ");
}

// The word in brackets of "always [madvise] never".
std::string chosen(const std::string& line) {
  const size_t open = line.find('['), close = line.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return line;
  return line.substr(open + 1, close - open - 1);
}

bool one_of_words(const std::string& word, std::string_view known) {
  const auto all = words(known);
  return std::find(all.begin(), all.end(), word) != all.end();
}

// earlyoom's floor in bytes: -M KIB, or -m PERCENT of the memory (10 by default); of "a,b" the
// first.
int64_t earlyoom_floor(const std::string& command, int64_t total) {
  const auto arguments = words(command);
  int64_t percent = 10;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string& option = arguments[i];
    if (!starts_with(option, "-m") && !starts_with(option, "-M")) continue;
    std::string value = option.size() > 2 ? option.substr(2) : "";
    if (value.empty() && i + 1 < arguments.size()) value = arguments[i + 1];
    const auto number = to_int(split(value, ',')[0]);
    if (!number || *number < 0 || *number > total) continue;
    if (option[1] == 'M') return *number * 1024;
    percent = *number;
  }
  return total / 100 * percent;
}

}  // namespace

Finding check_memory(const Context& context) {
  const auto text = context.machine.read("/proc/meminfo");
  const auto available = text ? meminfo_bytes(*text, "MemAvailable") : std::nullopt;
  if (!available) return unread(context.published, "/proc/meminfo has no MemAvailable");
  const int64_t total = meminfo_bytes(*text, "MemTotal").value_or(0);
  const std::string read = bytes_text(*available) + " of " + bytes_text(total) + " available";
  if (!context.published) {
    if (*available >= kEmbeddedMemoryBytes) return ok(read);
    return fail(read,
                "Free memory: the embedded model wants " + bytes_text(kEmbeddedMemoryBytes) + ".");
  }
  if (!context.spark) {
    return not_applicable(read + "; what the model needs here depends on the GPU");
  }
  if (service_runs(context.machine)) {
    return not_applicable(read + "; tensorfoldd runs and holds its part");
  }
  const std::string consumers = largest_consumers(context.machine);
  const std::string seen = consumers.empty() ? read : read + "; largest: " + consumers;
  if (*available >= kMemoryGoodBytes) return ok(read);
  const std::string action = "End what else uses memory, or restart the machine.";
  return *available >= kMemoryLeastBytes ? warn(seen + "; 104 GiB leave room", action)
                                         : fail(seen + "; about 100 GB are needed", action);
}

Finding check_swap(const Context& context) {
  const auto text = context.machine.read("/proc/meminfo");
  const auto total = text ? meminfo_bytes(*text, "SwapTotal") : std::nullopt;
  const auto free = text ? meminfo_bytes(*text, "SwapFree") : std::nullopt;
  if (!total || !free)
    return unread(context.published, "/proc/meminfo has no SwapTotal and SwapFree");
  if (*total == 0) return ok("no swap");
  const int64_t used = std::max<int64_t>(0, *total - *free);
  const std::string read = bytes_text(used) + " of " + bytes_text(*total) + " swap in use";
  if (used < kSwapUsedBytes || !context.published) return ok(read);
  return warn(read, "End what was swapped out, and empty the swap before a start.",
              {"sudo swapoff -a && sudo swapon -a"});
}

Finding check_huge_pages(const Context& context) {
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  if (!context.machine.exists(folder + "enabled")) {
    return not_applicable("this kernel has no transparent huge pages");
  }
  const std::string enabled = chosen(context.machine.line(folder + "enabled"));
  const std::string defrag = chosen(context.machine.line(folder + "defrag"));
  if (!one_of_words(enabled, "always madvise never") ||
      !one_of_words(defrag, "always defer defer+madvise madvise never")) {
    return unread(context.published, folder + ": enabled or defrag says nothing known");
  }
  const std::string read = "enabled " + enabled + ", defrag " + defrag;
  if (enabled != "always" || defrag != "always") return ok(read);
  return warn(read, "Let only programs that ask for huge pages wait for them.",
              {"echo madvise | sudo tee " + folder + "defrag"});
}

constexpr size_t kOrdersMost = 16;                 // the kernel has 11
constexpr int64_t kBlocksMost = int64_t{1} << 34;  // of one order: all pages of 64 TiB

Finding check_fragmentation(const Context& context) {
  const auto text = context.machine.read("/proc/buddyinfo");
  if (!text) return unread(context.published, "/proc/buddyinfo cannot be read");
  int64_t all_pages = 0, large_pages = 0;
  for (const std::string& row : lines(*text)) {
    const auto fields = words(row);  // Node 0, zone Normal n0 n1 ...
    for (size_t i = 4; i < std::min(fields.size(), 4 + kOrdersMost); ++i) {
      const int order = static_cast<int>(i) - 4;
      const int64_t blocks = to_int(fields[i]).value_or(0);
      if (blocks < 0 || blocks > kBlocksMost) continue;
      const int64_t pages = blocks << order;
      all_pages += pages;
      if (order >= kLargeOrder) large_pages += pages;
    }
  }
  if (all_pages == 0) return unread(context.published, "/proc/buddyinfo lists no free pages");
  const int64_t percent = large_pages * 100 / all_pages;
  const std::string read = std::to_string(percent) + "% of free memory is in blocks of " +
                           bytes_text(context.machine.page_bytes() << kLargeOrder) + " and more";
  if (!context.spark || percent >= kLargePercentLeast || service_runs(context.machine)) {
    return ok(read);
  }
  return warn(read, "Compact memory before a start.",
              {"sync; echo 3 | sudo tee /proc/sys/vm/drop_caches",
               "echo 1 | sudo tee /proc/sys/vm/compact_memory"});
}

Finding check_memory_killers(const Context& context) {
  const auto text = context.machine.read("/proc/meminfo");
  const int64_t total = text ? meminfo_bytes(*text, "MemTotal").value_or(0) : 0;
  const auto all = processes(context.machine);
  if (all.empty()) return unread(context.published, "/proc lists no process");
  std::vector<std::string> seen, high;
  for (const Process& process : all) {
    if (process.name == "earlyoom") {
      const int64_t floor = earlyoom_floor(process.command, total);
      seen.push_back("earlyoom below " + bytes_text(floor));
      if (floor > kKillerFloorBytes) high.push_back(seen.back());
    } else if (starts_with(process.name, "systemd-oom") || starts_with(process.name, "nohang") ||
               contains(process.command, "memguard") || contains(process.command, "anti-oom") ||
               contains(process.command, "anti_oom")) {
      seen.push_back(process.name + " (pid " + std::to_string(process.pid) + ")");
      // systemd-oomd acts only on units that ask for it; the thresholds of others cannot be seen.
      if (!starts_with(process.name, "systemd-oom")) high.push_back(seen.back());
    }
  }
  if (seen.empty()) return ok("none runs");
  if (high.empty() || !context.published) return ok(join(seen, ", "));
  return warn(join(seen, ", "),
              "Set their thresholds below 3 GiB, or turn them off: " + join(high, ", ") + ".");
}

}  // namespace tensorfold::preflight
