// The library's entry point (kernels/device.h: OpenDeviceFn).
#include <cstdio>
#include <string>

#include "kernels/cuda/ops.h"

extern "C" __attribute__((visibility("default"))) tensorfold::Device* tensorfold_open_device(
    int abi_version, int index, char* error) {
  std::string problem;
  tensorfold::Device* device = tensorfold::cuda::open_gpu(abi_version, index, problem);
  if (device == nullptr) std::snprintf(error, tensorfold::kDeviceErrorBytes, "%s", problem.c_str());
  return device;
}
