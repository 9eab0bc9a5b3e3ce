// Opening a device by name (kernels/device.h): the CPU, or a GPU by way of its backend library.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <vector>

#include "kernels/device.h"

namespace tensorfold {
namespace {

constexpr const char* kLibrary = "libtensorfold_cuda.so";
constexpr int kDeviceIndexMax = 63;

struct EntryPoint {
  OpenDeviceFn open;
};

std::string program_folder() {
  std::array<char, PATH_MAX> path{};
  const ssize_t n = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (n <= 0) return ".";
  const std::string whole(path.data(), static_cast<size_t>(n));
  return whole.substr(0, whole.rfind('/'));
}

std::vector<std::string> library_places() {
  if (const char* named = std::getenv("TENSORFOLD_CUDA_LIBRARY"); named != nullptr) return {named};
  const std::string folder = program_folder() + "/";
  const std::string name = kLibrary;
  // Programs of the build tree lie one to three folders below its top.
  return {folder + name,
          folder + "../lib/tensorfoldd/" + name,
          folder + "../kernels/cuda/" + name,
          folder + "../../kernels/cuda/" + name,
          folder + "../../../kernels/cuda/" + name,
          name};
}

// The library's entry point; nothing is closed again, because the device's code lives in it.
Result<EntryPoint> entry_point() {
  std::string reason;
  for (const std::string& place : library_places()) {
    const bool is_path = place.find('/') != std::string::npos;
    if (is_path && access(place.c_str(), R_OK) != 0) {
      if (reason.empty()) reason = place + " is not there";
      continue;
    }
    void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      reason = dlerror();
      continue;
    }
    void* symbol = dlsym(library, kDeviceEntryPoint);
    if (symbol != nullptr) return EntryPoint{reinterpret_cast<OpenDeviceFn>(symbol)};
    reason = place + " has no " + kDeviceEntryPoint;
  }
  return unavailable("the CUDA backend " + std::string(kLibrary) + " can't be opened: " + reason);
}

Result<std::shared_ptr<Device>> open_cuda(int index) {
  TF_ASSIGN_OR_RETURN(const EntryPoint entry, entry_point());
  std::array<char, kDeviceErrorBytes> error{};
  Device* device = entry.open(kDeviceAbiVersion, index, error.data());
  if (device == nullptr) return unavailable(error.data());
  return std::shared_ptr<Device>(device);
}

}  // namespace

Result<std::shared_ptr<Device>> open_device(const std::string& spec) {
  const std::shared_ptr<Device> cpu(&cpu_device(), [](Device*) {});
  if (spec == "cpu") return cpu;
  if (spec == "auto" || spec.empty()) {
    Result<std::shared_ptr<Device>> cuda = open_cuda(0);
    return cuda.ok() ? cuda : Result<std::shared_ptr<Device>>(cpu);
  }
  if (spec == "cuda") return open_cuda(0);
  const std::string digits = spec.starts_with("cuda:") ? spec.substr(5) : "";
  const bool number = !digits.empty() && digits.size() <= 2 &&
                      digits.find_first_not_of("0123456789") == std::string::npos;
  if (!number || std::atoi(digits.c_str()) > kDeviceIndexMax)
    return invalid_argument("device must be \"auto\", \"cpu\", \"cuda\" or \"cuda:N\", not \"" +
                            spec + "\"");
  return open_cuda(std::atoi(digits.c_str()));
}

}  // namespace tensorfold
