#include "daemon/preflight/rdma_memory.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>

namespace tensorfold::preflight {
namespace {

// Sizes that are tried, each 16 times the one before.
constexpr int64_t kGrowth = 16;
// Of what the user may lock: the rest is for what the library itself locks.
constexpr int64_t kLimitShare = 2;
constexpr int kAccess = 1 | 2 | 4;  // local write, remote write, remote read

// What libibverbs exports; every pointer is opaque here.
struct Verbs {
  void** (*get_device_list)(int*) = nullptr;
  void (*free_device_list)(void**) = nullptr;
  const char* (*get_device_name)(void*) = nullptr;
  void* (*open_device)(void*) = nullptr;
  int (*close_device)(void*) = nullptr;
  void* (*alloc_pd)(void*) = nullptr;
  int (*dealloc_pd)(void*) = nullptr;
  void* (*reg_mr)(void*, void*, size_t, int) = nullptr;
  int (*dereg_mr)(void*) = nullptr;
};

template <typename Function>
bool find(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  return out != nullptr;
}

bool find_all(void* library, Verbs& out) {
  return find(library, "ibv_get_device_list", out.get_device_list) &&
         find(library, "ibv_free_device_list", out.free_device_list) &&
         find(library, "ibv_get_device_name", out.get_device_name) &&
         find(library, "ibv_open_device", out.open_device) &&
         find(library, "ibv_close_device", out.close_device) &&
         find(library, "ibv_alloc_pd", out.alloc_pd) &&
         find(library, "ibv_dealloc_pd", out.dealloc_pd) &&
         find(library, "ibv_reg_mr", out.reg_mr) && find(library, "ibv_dereg_mr", out.dereg_mr);
}

std::string error_text(int code) {
  return code == 0 ? "no reason is given" : std::generic_category().message(code);
}

// An open device of that name, or null.
void* open_named(const Verbs& verbs, const std::string& name) {
  int count = 0;
  void** list = verbs.get_device_list(&count);
  if (list == nullptr) return nullptr;
  void* out = nullptr;
  for (int i = 0; i < count && out == nullptr; ++i) {
    const char* found = verbs.get_device_name(list[i]);
    if (found != nullptr && name == found) out = verbs.open_device(list[i]);
  }
  verbs.free_device_list(list);
  return out;
}

// errno of one trial; 0: it worked.
int try_bytes(const Verbs& verbs, void* domain, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return errno;
  errno = 0;
  void* region = verbs.reg_mr(domain, memory, size, kAccess);
  const int code = region == nullptr ? (errno == 0 ? EIO : errno) : 0;
  if (region != nullptr) verbs.dereg_mr(region);
  munmap(memory, size);
  return code;
}

void try_sizes(const Verbs& verbs, void* domain, RdmaMemory& out) {
  int64_t most = kRegistrationBytesMax;
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const auto allowed = static_cast<int64_t>(limit.rlim_cur) / kLimitShare;
    if (allowed < most) out.limit_bytes = static_cast<int64_t>(limit.rlim_cur);
    most = std::min(most, std::max(allowed, kRegistrationBytesLeast));
  }
  for (int64_t bytes = kRegistrationBytesLeast;; bytes = std::min(most, bytes * kGrowth)) {
    const int code = try_bytes(verbs, domain, bytes);
    if (code != 0) {
      out.refused_bytes = bytes;
      out.problem = error_text(code);
      return;
    }
    out.registered_bytes = bytes;
    if (bytes >= most) return;
  }
}

}  // namespace

std::optional<RdmaMemory> register_rdma_memory(const std::string& device, const char* library) {
  // Never closed: it keeps what it has read of the devices, and its drivers do not unload well.
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  Verbs verbs;
  if (handle == nullptr || !find_all(handle, verbs)) return std::nullopt;
  void* context = open_named(verbs, device);
  if (context == nullptr) return std::nullopt;
  RdmaMemory out;
  errno = 0;
  void* domain = verbs.alloc_pd(context);
  if (domain == nullptr) {
    out.refused_bytes = kRegistrationBytesLeast;
    out.problem = "no protection domain: " + error_text(errno);
  } else {
    try_sizes(verbs, domain, out);
    verbs.dealloc_pd(domain);
  }
  verbs.close_device(context);
  return out;
}

}  // namespace tensorfold::preflight
