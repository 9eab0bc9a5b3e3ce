// A stand-in for libibverbs with one device, "fake0", which registers up to FAKE_VERBS_MAX bytes of
// memory and refuses more with ENOMEM; FAKE_VERBS_LEAK is set while something was not given back.
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace {

int device, context, domain, region;
int open_things = 0;
void* list[2] = {&device, nullptr};

void count(int change) {
  open_things += change;
  if (open_things == 0) {
    unsetenv("FAKE_VERBS_LEAK");
  } else {
    setenv("FAKE_VERBS_LEAK", "1", 1);
  }
}

}  // namespace

extern "C" {

void** ibv_get_device_list(int* number) {
  *number = 1;
  count(1);
  return list;
}
void ibv_free_device_list(void**) { count(-1); }
const char* ibv_get_device_name(void*) { return "fake0"; }
void* ibv_open_device(void*) {
  count(1);
  return &context;
}
int ibv_close_device(void*) {
  count(-1);
  return 0;
}
void* ibv_alloc_pd(void*) {
  count(1);
  return &domain;
}
int ibv_dealloc_pd(void*) {
  count(-1);
  return 0;
}
void* ibv_reg_mr(void*, void* memory, size_t bytes, int) {
  const char* most = getenv("FAKE_VERBS_MAX");
  if (most != nullptr && bytes > strtoull(most, nullptr, 10)) {
    errno = ENOMEM;
    return nullptr;
  }
  memset(memory, 1, 1);  // it is there
  count(1);
  return &region;
}
int ibv_dereg_mr(void*) {
  count(-1);
  return 0;
}
}
