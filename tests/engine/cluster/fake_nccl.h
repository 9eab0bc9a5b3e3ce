// What the stand-in for NCCL (fake_nccl.cc, a shared library) can be told, found by dlsym under
// kFakeNcclControl, and the queue that its operations wait in (fake_lane.h).
#pragma once

#include <atomic>

namespace tensorfold::fake_nccl {

struct Control {
  std::atomic<int> version{22'809};
  std::atomic<bool> never_made{false};   // communicators stay in progress
  std::atomic<int> looks_until_made{0};  // of ncclCommGetAsyncError
  std::atomic<int> async_code{0};        // what it says of all communicators, once made
  std::atomic<int> refuse_init{0};       // ncclCommInitRankConfig gives it
  std::atomic<int> config_size{0}, config_version{0}, blocking{-1};  // as they came in
  std::atomic<unsigned int> config_magic{0};
  std::atomic<int> made{0}, aborted{0};  // communicators
  std::atomic<int> all_gathers{0}, broadcasts{0};
  std::atomic<int> held{0};  // recorded steps that hold a communicator: aborting waits for them
};

// Of one rank's device: operations of the library that are not done yet.
struct Queue {
  std::atomic<int> waiting{0};
};

inline constexpr const char* kFakeNcclControl = "fake_nccl_control";
using ControlFn = Control* (*)();

}  // namespace tensorfold::fake_nccl
