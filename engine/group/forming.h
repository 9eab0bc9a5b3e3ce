// Forming: makes groups in a thread of its own, so that the engine thread never blocks on ranks
// that are not there. It begins to form when it is made, and again when told that the last group is
// gone.
//
// Threads: take(), text() and again() are called by the engine thread. When `stop` is requested and
// the group in use has not gone within kStopGraceUs, it is aborted here, which ends the exchange
// that the engine thread may be waiting in.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/base/log_sink.h"
#include "engine/cluster/group.h"

namespace tensorfold {

inline constexpr int64_t kStopGraceUs = 4'000'000;  // more than the disk's writes get at the stop

class Forming {
 public:
  // One attempt: blocks until a group stands or `stop` (GroupFormer::form()).
  using Form = std::function<Result<std::unique_ptr<Group>>(
      const StopFlag& stop, const std::function<void(const FormProgress&)>& progress)>;

  Forming(Form form, StopFlag& stop, LogSink& log);
  ~Forming();

  // The group that was formed, or nullptr after `wait_us`. It is the caller's until gone(); no
  // other is formed meanwhile.
  std::unique_ptr<Group> take(int64_t wait_us);
  // Just before the taken group is destroyed, and after.
  void leaving();
  void again();
  std::string text() const;  // what is waited for

 private:
  enum class State : uint8_t { kForming, kFormed, kTaken, kClosing, kStopped };
  void work();
  void form_one(std::unique_lock<std::mutex>& lock);

  const Form form_;
  StopFlag& stop_;
  LogSink& log_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kForming;
  std::unique_ptr<Group> formed_;
  Group* in_use_ = nullptr;
  std::string text_ = "the group is forming";
  std::thread thread_;  // last
};

}  // namespace tensorfold
