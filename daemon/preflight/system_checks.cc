// Kernel and clock. The kernels and the CMA signature come from field reports of DGX Spark: with
// kexec handover (KHO) the kernel lends its scratch pages to CMA, and long-term pins of RDMA memory
// then fail.
#include <array>

#include "daemon/preflight/checks.h"
#include "daemon/preflight/text.h"

namespace tensorfold::preflight {
namespace {

// Releases that break memory registration, and those that are known to work on a DGX Spark.
constexpr std::array<std::string_view, 2> kBreaking = {"7.0.0-1019-nvidia", "7.0.0-31-"};
constexpr std::array<std::string_view, 4> kKnownGood = {"6.17.0-1032-nvidia", "6.17.0-1031-nvidia",
                                                        "6.17.13", "7.0.0-30-"};
constexpr const char* kRelease = "/proc/sys/kernel/osrelease";
constexpr const char* kKhoOff =
    "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX kho=off\"' | "
    "sudo tee /etc/default/grub.d/50-kho.cfg && sudo update-grub && sudo reboot";

template <size_t N>
bool one_of(const std::array<std::string_view, N>& starts, const std::string& release) {
  for (const std::string_view start : starts)
    if (starts_with(release, start)) return true;
  return false;
}

bool kho_off(const Machine& machine) {
  for (const std::string& word : words(machine.line("/proc/cmdline")))
    if (word == "kho=off" || word == "kho=0") return true;
  return false;
}

std::string crash_kernel_note(const Machine& machine) {
  const std::string size = machine.line("/sys/kernel/kexec_crash_size");
  if (size.empty() || size == "0") return "";
  return " (a crash kernel of " + size + " bytes is reserved: see first that it does not need KHO)";
}

// Installed packages of the dpkg database whose name starts with one of these and are not on hold.
std::vector<std::string> moving_kernel_packages(const std::string& database) {
  std::vector<std::string> out;
  std::string package;
  for (const std::string& line : lines(database)) {
    if (starts_with(line, "Package: ")) package = trim(line.substr(9));
    if (!starts_with(line, "Status: ")) continue;
    const auto state = words(line.substr(8));
    if (state.size() != 3 || state[2] != "installed" || state[0] == "hold") continue;
    // Meta packages pull a new kernel in: their name has no release number.
    const bool meta =
        (starts_with(package, "linux-image-") || starts_with(package, "linux-nvidia") ||
         starts_with(package, "linux-generic")) &&
        !contains(package, ".0-");
    if (meta) out.push_back(package);
  }
  return out;
}

}  // namespace

Finding check_kernel(const Context& context) {
  const std::string release = context.machine.line(kRelease);
  if (release.empty()) return unread(context.published, std::string(kRelease) + " cannot be read");
  if (one_of(kBreaking, release)) {
    if (kho_off(context.machine)) return ok(release + " with kho=off");
    const std::string action =
        "Boot 6.17.0-1032-nvidia and hold it, or add kho=off to the kernel's command line" +
        crash_kernel_note(context.machine) + ".";
    return fail(release + ", which breaks RDMA memory registration", action, {kKhoOff});
  }
  if (!context.spark || one_of(kKnownGood, release)) return ok(release);
  return warn(release + ", which nobody has reported on yet",
              "Watch the check 'cma'; 6.17.0-1032-nvidia is known to work.");
}

Finding check_kernel_hold(const Context& context) {
  if (!context.spark) return not_applicable("not a DGX Spark");
  const auto database = context.machine.read("/var/lib/dpkg/status");
  if (!database) return unread(true, "/var/lib/dpkg/status cannot be read");
  const auto moving = moving_kernel_packages(*database);
  if (moving.empty()) return ok("no kernel package follows upgrades");
  const std::string names = join(moving, " ");
  return warn("not on hold: " + names, "Hold them, so that an upgrade brings no untried kernel.",
              {"sudo apt-mark hold " + names});
}

Finding check_cma(const Context& context) {
  const auto text = context.machine.read("/proc/meminfo");
  const auto total = text ? meminfo_bytes(*text, "CmaTotal") : std::nullopt;
  const auto free = text ? meminfo_bytes(*text, "CmaFree") : std::nullopt;
  if (!text || !meminfo_bytes(*text, "MemTotal")) {
    return unread(context.published, "/proc/meminfo cannot be read");
  }
  if (!total || !free) return not_applicable("/proc/meminfo has no CmaTotal and CmaFree");
  const std::string read = "CmaFree " + bytes_text(*free) + ", CmaTotal " + bytes_text(*total);
  if (*free <= *total) return ok(read);
  return fail(read + ": more is free than there is, so kexec handover lends pages to CMA",
              "Add kho=off to the kernel's command line" + crash_kernel_note(context.machine) +
                  ", or boot 6.17.0-1032-nvidia.",
              {kKhoOff});
}

Finding check_page_size(const Context& context) {
  const int64_t bytes = context.machine.page_bytes();
  const std::string read = bytes_text(bytes) + " pages";
  if (bytes == 4096) return ok(read);
  return warn(read, "Kernels with 4 KiB pages are the tried ones; a start may need more memory.");
}

Finding check_clock(const Context& context) {
  const auto state = context.machine.clock_synchronized();
  if (!state) {
    return unread(context.published, "the kernel does not say whether the clock is synchronized");
  }
  if (*state) return ok("synchronized");
  return warn("not synchronized",
              "Turn time synchronization on; logs of two machines cannot be compared without.",
              {"sudo timedatectl set-ntp true"});
}

}  // namespace tensorfold::preflight
