#include "engine/base/positioned_io.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tensorfold {
namespace {

constexpr size_t kCallBytesMax = size_t{1} << 30;  // the kernel does less than 2 GiB in one call

}  // namespace

IoOutcome read_at(int fd, int64_t offset, std::span<std::byte> out) {
  IoOutcome done;
  while (done.bytes < out.size()) {
    const size_t want = std::min(out.size() - done.bytes, kCallBytesMax);
    const auto at = static_cast<off_t>(offset + static_cast<int64_t>(done.bytes));
    const ssize_t got = ::pread(fd, out.data() + done.bytes, want, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) done.error = errno;
    if (got <= 0) break;
    done.bytes += static_cast<size_t>(got);
  }
  return done;
}

IoOutcome write_at(int fd, int64_t offset, std::span<const std::byte> bytes) {
  IoOutcome done;
  while (done.bytes < bytes.size()) {
    const size_t want = std::min(bytes.size() - done.bytes, kCallBytesMax);
    const auto at = static_cast<off_t>(offset + static_cast<int64_t>(done.bytes));
    const ssize_t put = ::pwrite(fd, bytes.data() + done.bytes, want, at);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      done.error = errno;
      break;
    }
    done.bytes += static_cast<size_t>(put);
  }
  return done;
}

}  // namespace tensorfold
