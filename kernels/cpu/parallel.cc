// The pool behind CpuStream: one job at a time, handed out by an atomic counter.
#include "kernels/cpu/parallel.h"

#include <algorithm>
#include <system_error>

namespace tensorfold {
namespace {

constexpr int kSpinRounds = 4000;  // about 50 us before an idle lane sleeps

inline void pause_lane() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Result<std::unique_ptr<CpuStream>> CpuStream::create(int threads) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  threads = std::clamp(threads, 1, kCpuLanesMax);
  std::unique_ptr<CpuStream> stream(new CpuStream(threads));
  try {
    stream->workers_.reserve(static_cast<size_t>(threads - 1));
    for (int lane = 1; lane < threads; ++lane)
      stream->workers_.emplace_back([s = stream.get(), lane] { s->worker_loop(lane); });
  } catch (const std::system_error& e) {
    return unavailable(std::string("cannot start CPU worker threads: ") + e.what());
  }
  return stream;
}

CpuStream::~CpuStream() {
  stop_.store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void CpuStream::work(int lane) {
  for (;;) {
    const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    fn_(ctx_, task, lane);
  }
}

void CpuStream::run(int64_t tasks, Task fn, void* ctx) {
  fn_ = fn;
  ctx_ = ctx;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(lanes_ - 1, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  work(0);
  for (int spin = 0; busy_.load(std::memory_order_acquire) != 0; ++spin) {
    pause_lane();
    const int32_t left = spin < kSpinRounds ? 0 : busy_.load(std::memory_order_acquire);
    if (left != 0) busy_.wait(left, std::memory_order_acquire);
  }
}

void CpuStream::worker_loop(int lane) {
  uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; epoch_.load(std::memory_order_acquire) == seen; ++spin) {
      pause_lane();
      if (spin >= kSpinRounds) epoch_.wait(seen, std::memory_order_acquire);
    }
    ++seen;  // run() waits for every lane, so no epoch is skipped
    if (stop_.load(std::memory_order_acquire)) return;
    work(lane);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

}  // namespace tensorfold
