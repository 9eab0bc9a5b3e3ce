// The safetensors reader over a file of any bytes: it is refused with the file's name in the
// message, or every tensor of it lies inside the file and can be read.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "engine/base/check.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/safetensors_header.h"
#include "engine/weights/stored_weight.h"

using tensorfold::IndexMap;
using tensorfold::Safetensors;
using tensorfold::TensorInfo;

namespace {

void check_file(const std::string& path, size_t size) {
  const auto files = Safetensors::open(path);
  if (!files.ok()) {
    TF_CHECK(files.status().message().find(path) != std::string::npos);
    return;
  }
  std::array<std::byte, 64> bytes;
  for (const TensorInfo& t : files->tensors()) {
    TF_CHECK(files->find(t.name) == &t);
    TF_CHECK(t.offset >= 8 && t.bytes >= 0);
    TF_CHECK(t.offset + t.bytes <= static_cast<int64_t>(size));
    const auto count = static_cast<size_t>(std::min<int64_t>(t.bytes, bytes.size()));
    TF_CHECK(
        files->read(t, t.bytes - static_cast<int64_t>(count), std::span(bytes).first(count)).ok());
  }
  // Whatever the tensors are, asking for a weight gives it, nothing or an error.
  tensorfold::WeightSpec spec;
  spec.name = "w";
  spec.weight_class = tensorfold::WeightClass::kExpert;
  spec.out = spec.in = 128;
  const auto stored = find_stored(*files, spec);
  if (stored.ok() && stored->has_value()) {
    (void)read_stored(*files, (*stored)->parts[0], {0, 128}, {0, 128}).ok();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  IndexMap index;
  (void)tensorfold::parse_safetensors_index({reinterpret_cast<const char*>(data), size}, index)
      .ok();
  const int fd = ::memfd_create("safetensors", 0);
  TF_CHECK(fd >= 0);
  TF_CHECK(::write(fd, data, size) == static_cast<ssize_t>(size));
  check_file("/proc/self/fd/" + std::to_string(fd), size);
  ::close(fd);
  return 0;
}
