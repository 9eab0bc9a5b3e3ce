// NVIDIA driver, device nodes, clocks, and who else uses the GPU.
#include <algorithm>
#include <cstdlib>

#include "daemon/preflight/checks.h"
#include "daemon/preflight/facts.h"
#include "daemon/preflight/text.h"

namespace tensorfold::preflight {
namespace {

constexpr int64_t kDriverLeast = 580;  // the first series with CUDA 13
constexpr int64_t kBusyPercent = 50;
constexpr int64_t kSlowClockPercent = 50;  // of the highest SM clock
constexpr int64_t kStuckBusyPercent = 90;  // of a GPU that waits in a loop for its peer...
constexpr double kStuckWatts = 30;         // ...and works on nothing; a Spark at work takes more
constexpr int64_t kOtherMemoryMib = 2048;  // of other programs on a Spark
constexpr int64_t kSlowdownReasons = 0x8 | 0x20 | 0x40 | 0x80;  // HW, SW thermal, HW thermal, brake

bool has_gpu(const Context& context) {
  for (const std::string& device : context.machine.list("/sys/bus/pci/devices")) {
    const std::string folder = "/sys/bus/pci/devices/" + device;
    if (context.machine.line(folder + "/vendor") == "0x10de" &&
        starts_with(context.machine.line(folder + "/class"), "0x03")) {
      return true;
    }
  }
  return context.spark;
}

std::vector<std::string> smi(const char* query) {
  return {"nvidia-smi", query, "--format=csv,noheader,nounits"};
}

std::vector<std::string> fields_of(const std::string& row) {
  std::vector<std::string> out = split(row, ',');
  for (std::string& field : out) field = trim(field);
  return out;
}

// What nvidia-smi says where the GPU does not tell: "[N/A]", "[Not Supported]".
bool unknown(const std::string& field) { return starts_with(field, "["); }

// Watts, or nothing.
std::optional<double> power_draw(const Machine& machine) {
  const auto result = machine.command(smi("--query-gpu=power.draw"));
  if (!result || result->exit_code != 0) return std::nullopt;
  const std::string text = trim(result->output.substr(0, result->output.find('\n')));
  char* end = nullptr;
  const double watts = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') return std::nullopt;
  return watts;
}

}  // namespace

// "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build ..."
std::string driver_version(const Machine& machine) {
  for (const std::string& word : words(machine.line("/proc/driver/nvidia/version"))) {
    const auto parts = split(word, '.');
    if (parts.size() < 2 || parts.size() > 3) continue;
    if (std::all_of(parts.begin(), parts.end(),
                    [](const auto& p) { return to_int(p).has_value(); }))
      return word;
  }
  return "";
}

Finding check_driver(const Context& context) {
  if (!has_gpu(context)) {
    const bool seen = context.machine.exists("/sys/bus/pci/devices");
    return unread(!seen && context.published && context.settings.device != "cpu",
                  seen ? "no NVIDIA GPU" : "no NVIDIA GPU: /sys/bus/pci/devices cannot be read");
  }
  const std::string version = driver_version(context.machine);
  if (version.empty()) {
    return fail("no NVIDIA driver is loaded (/proc/driver/nvidia/version)",
                "Install or load the driver; see dmesg for why it did not load.",
                {"sudo modprobe nvidia"});
  }
  const auto major = to_int(split(version, '.')[0]);
  if (major && *major < kDriverLeast) {
    return fail(version, "Install a driver of series 580 or later: CUDA 13 needs it.");
  }
  return ok(version);
}

Finding check_gpu_nodes(const Context& context) {
  if (!has_gpu(context)) return not_applicable("no NVIDIA GPU");
  std::vector<std::string> missing;
  for (const char* node : {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"})
    if (!context.machine.exists(node)) missing.emplace_back(node);
  if (missing.empty()) return ok("/dev/nvidia0, nvidiactl and nvidia-uvm are there");
  return fail(join(missing, ", ") + (missing.size() == 1 ? " is missing" : " are missing"),
              "Load nvidia_uvm and make the nodes before the service starts; the service itself "
              "may not.",
              {"sudo modprobe nvidia_uvm", "sudo nvidia-modprobe -u -c0"});
}

Finding check_gpu_clock(const Context& context) {
  if (!has_gpu(context)) return not_applicable("no NVIDIA GPU");
  const auto result = context.machine.command(
      smi("--query-gpu=clocks.sm,clocks.max.sm,utilization.gpu,temperature.gpu,"
          "clocks_throttle_reasons.active"));
  if (!result || result->exit_code != 0) return unread(true, "nvidia-smi gives no clocks");
  const auto fields = fields_of(result->output.substr(0, result->output.find('\n')));
  if (fields.size() < 5) return unread(true, "nvidia-smi's answer has another form");
  const auto clock = to_int(fields[0]), top = to_int(fields[1]), busy = to_int(fields[2]);
  const std::string read = "SM clock " + fields[0] + " of " + fields[1] + " MHz, " + fields[2] +
                           "% busy, " + fields[3] + " C";
  const std::string hex = starts_with(fields[4], "0x") ? fields[4].substr(2) : fields[4];
  const bool sense = (clock || unknown(fields[0])) && (top || unknown(fields[1])) &&
                     (busy || unknown(fields[2])) && (to_int(hex, 16) || unknown(hex));
  if (!sense) return unread(true, "nvidia-smi's answer has another form");
  const int64_t reasons = to_int(hex, 16).value_or(0);
  if ((reasons & kSlowdownReasons) != 0) {
    return warn(read + ", slowed down (reasons " + fields[4] + ")",
                "Let it cool, and cap the clock: no loss of speed is seen at 2000 MHz.",
                {"sudo nvidia-smi -lgc 0,2000"});
  }
  if (clock && top && busy && *busy >= kBusyPercent && *top > 0 &&
      *clock * 100 < *top * kSlowClockPercent) {
    return warn(read + ": busy, and slow without a reason given",
                "Shut down, take the power supply off for a minute, and start again.");
  }
  if (context.spark && busy && *busy >= kStuckBusyPercent) {
    const auto watts = power_draw(context.machine);
    if (watts && *watts < kStuckWatts) {
      return warn(read + " at " + std::to_string(static_cast<int64_t>(*watts)) +
                      " W: it seems to wait in a loop",
                  "If replies do not move on, restart the service on both machines, and compare "
                  "their NCCL libraries (tfctl doctor --peer).",
                  {"sudo systemctl restart tensorfoldd"});
    }
  }
  return ok(read);
}

Finding check_gpu_processes(const Context& context) {
  if (!has_gpu(context)) return not_applicable("no NVIDIA GPU");
  const auto result =
      context.machine.command(smi("--query-compute-apps=pid,process_name,used_memory"));
  if (!result || result->exit_code != 0) return unread(true, "nvidia-smi gives no processes");
  std::vector<std::string> others;
  int64_t memory_mib = 0;
  for (const std::string& row : lines(result->output)) {
    const auto fields = fields_of(row);
    if (trim(row).empty()) continue;
    if (fields.size() < 3 || !to_int(fields[0])) {
      return unread(true, "nvidia-smi's answer has another form");
    }
    const std::string name = fields[1].substr(fields[1].rfind('/') + 1);
    if (name == "tensorfoldd") continue;
    memory_mib += to_int(fields[2]).value_or(0);
    others.push_back(name + " (pid " + fields[0] + ", " + fields[2] + " MiB)");
  }
  if (others.empty()) return ok("no other program uses it");
  const std::string read = "in use by " + join(others, ", ");
  const std::string action = "End it: the model needs the whole GPU and its memory.";
  return context.spark && memory_mib >= kOtherMemoryMib ? fail(read, action) : warn(read, action);
}

Finding check_display(const Context& context) {
  if (!context.spark) return not_applicable("not a DGX Spark");
  std::vector<std::string> seen;
  for (const Process& process : processes(context.machine)) {
    for (const char* name : {"gdm3", "gdm", "lightdm", "sddm", "Xorg", "gnome-shell", "Xwayland"})
      if (process.name == name) seen.push_back(process.name);
  }
  const std::string modeset = context.machine.line("/sys/module/nvidia_drm/parameters/modeset");
  const std::string mode = modeset.empty() ? "" : "; nvidia_drm modeset " + modeset;
  if (seen.empty()) return ok("no desktop runs" + mode);
  return warn(
      join(seen, ", ") + mode, "Turn the desktop off: it shares the model's memory.",
      {"sudo systemctl set-default multi-user.target", "sudo systemctl isolate multi-user.target"});
}

Finding check_cuda_backend(const Context& context) {
  constexpr const char* kLibrary = "/usr/lib/tensorfoldd/libtensorfold_cuda.so";
  if (!has_gpu(context)) return not_applicable("no NVIDIA GPU");
  if (context.settings.device == "cpu") return not_applicable("engine.device is cpu");
  if (!context.published) return not_applicable("the embedded model runs on the CPU");
  if (context.machine.exists(kLibrary)) return ok(std::string(kLibrary) + " is there");
  return fail(std::string(kLibrary) + " is missing",
              "Install the package tensorfoldd-cuda of the same version.",
              {"sudo apt install tensorfoldd-cuda"});
}

Finding check_nccl_library(const Context& context) {
  if (!has_gpu(context)) return not_applicable("no NVIDIA GPU");
  if (context.settings.role == "single" && context.settings.peer.empty()) {
    return not_applicable("one machine by itself needs none");
  }
  const std::string version = nccl_version(context.machine);
  if (!version.empty()) return ok("libnccl " + version);
  return warn("no libnccl.so.2 in the usual folders",
              "Install NVIDIA's package libnccl2, the same version on both machines.",
              {"sudo apt install libnccl2"});
}

}  // namespace tensorfold::preflight
