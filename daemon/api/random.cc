#include "daemon/api/random.h"

#include <sys/random.h>

#include "engine/base/check.h"

namespace tensorfold::api {

uint64_t random_u64() {
  uint64_t value = 0;
  // Requests of up to 256 bytes are never cut short once the kernel's pool is ready.
  TF_CHECK_EQ(getrandom(&value, sizeof value, 0), static_cast<ssize_t>(sizeof value));
  return value;
}

std::string random_id(std::string_view prefix) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out(prefix);
  uint64_t bits = 0;
  for (int i = 0; i < 24; ++i) {
    if (i % 16 == 0) bits = random_u64();
    out += kDigits[bits & 15];
    bits >>= 4;
  }
  return out;
}

}  // namespace tensorfold::api
