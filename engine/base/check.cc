#include "engine/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace tensorfold {

void check_failed(const char* file, int line, const char* expr, const char* detail) {
  std::fprintf(stderr, "%s:%d: check failed: %s %s\n", file, line, expr, detail);
  std::abort();
}

void check_op_failed(const char* file, int line, const char* expr, long long a, long long b) {
  std::fprintf(stderr, "%s:%d: check failed: %s (%lld, %lld)\n", file, line, expr, a, b);
  std::abort();
}

}  // namespace tensorfold
