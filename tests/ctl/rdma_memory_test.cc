// The trial registration of RDMA memory, against a stand-in for libibverbs (fake_verbs.cc).
#include <sys/resource.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>

#include "daemon/preflight/rdma_memory.h"

namespace tensorfold::preflight {
namespace {

// The user's limit on locked memory, put back at the end.
class MemoryLimit {
 public:
  explicit MemoryLimit(rlim_t bytes) {
    getrlimit(RLIMIT_MEMLOCK, &before_);
    rlimit now = before_;
    now.rlim_cur = bytes == RLIM_INFINITY ? now.rlim_max : bytes;
    unlimited_ = setrlimit(RLIMIT_MEMLOCK, &now) == 0 && now.rlim_cur == RLIM_INFINITY;
  }
  ~MemoryLimit() { setrlimit(RLIMIT_MEMLOCK, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  bool unlimited() const { return unlimited_; }

 private:
  rlimit before_{};
  bool unlimited_ = false;
};

RdmaMemory trial(const char* most) {
  if (most == nullptr) {
    unsetenv("FAKE_VERBS_MAX");
  } else {
    setenv("FAKE_VERBS_MAX", most, 1);
  }
  const auto out = register_rdma_memory("fake0", TF_FAKE_VERBS);
  BOOST_REQUIRE(out.has_value());
  BOOST_TEST(getenv("FAKE_VERBS_LEAK") == nullptr);
  return *out;
}

BOOST_AUTO_TEST_CASE(all_sizes_are_registered_and_given_back) {
  const MemoryLimit limit(RLIM_INFINITY);
  const RdmaMemory found = trial(nullptr);
  BOOST_TEST(found.refused_bytes == 0);
  BOOST_TEST(found.problem.empty());
  if (limit.unlimited()) {
    BOOST_TEST(found.registered_bytes == kRegistrationBytesMax);
    BOOST_TEST(found.limit_bytes == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_page_that_is_refused_and_a_size_that_is_too_large) {
  const MemoryLimit limit(RLIM_INFINITY);
  const RdmaMemory none = trial("100");
  BOOST_TEST(none.registered_bytes == 0);
  BOOST_TEST(none.refused_bytes == kRegistrationBytesLeast);
  BOOST_TEST(none.problem == "Cannot allocate memory");
  if (!limit.unlimited()) return;
  const RdmaMemory some = trial("2000000");
  BOOST_TEST(some.registered_bytes == 1'048'576);
  BOOST_TEST(some.refused_bytes == 16'777'216);
}

BOOST_AUTO_TEST_CASE(the_users_limit_keeps_the_trial_small) {
  const MemoryLimit limit(8 << 20);
  const RdmaMemory found = trial("4194304");
  BOOST_TEST(found.registered_bytes == 4 << 20);
  BOOST_TEST(found.refused_bytes == 0);
  BOOST_TEST(found.limit_bytes == 8 << 20);
}

BOOST_AUTO_TEST_CASE(without_library_or_device_nothing_is_said) {
  BOOST_TEST(!register_rdma_memory("fake0", "libtensorfold-no-such.so").has_value());
  BOOST_TEST(!register_rdma_memory("fake0", "libm.so.6").has_value());  // has none of the functions
  BOOST_TEST(!register_rdma_memory("mlx5_0", TF_FAKE_VERBS).has_value());
  BOOST_TEST(getenv("FAKE_VERBS_LEAK") == nullptr);
}

}  // namespace
}  // namespace tensorfold::preflight
