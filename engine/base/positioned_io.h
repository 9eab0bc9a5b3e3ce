// Whole reads and writes at a position of an open file: short calls and interruptions are gone on
// with. Callers name the file in their own errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tensorfold {

struct IoOutcome {
  int error = 0;     // errno, 0: none
  size_t bytes = 0;  // done; without an error fewer than asked for only at the end of the file
};

IoOutcome read_at(int fd, int64_t offset, std::span<std::byte> out);
IoOutcome write_at(int fd, int64_t offset, std::span<const std::byte> bytes);

}  // namespace tensorfold
