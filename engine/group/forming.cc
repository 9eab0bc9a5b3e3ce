// See the header.
#include "engine/group/forming.h"

#include <chrono>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

constexpr std::chrono::milliseconds kLookMs{100};  // for the stop, while a group is in use

}  // namespace

Forming::Forming(Form form, StopFlag& stop, LogSink& log)
    : form_(std::move(form)), stop_(stop), log_(log) {
  thread_ = std::thread([this] { work(); });
}

Forming::~Forming() {
  stop_.request();
  {
    std::lock_guard lock(mutex_);
    TF_CHECK(in_use_ == nullptr);
    state_ = State::kStopped;
  }
  changed_.notify_all();
  thread_.join();
}

void Forming::work() {
  std::unique_lock lock(mutex_);
  int64_t stopping_us = 0;
  while (state_ != State::kStopped) {
    if (state_ == State::kForming && !stop_.requested()) {
      form_one(lock);
      continue;
    }
    changed_.wait_for(lock, kLookMs);
    if (!stop_.requested() || state_ != State::kTaken) continue;
    stopping_us += std::chrono::microseconds(kLookMs).count();
    if (stopping_us >= kStopGraceUs)
      in_use_->abort(unavailable("this rank is stopping", "aborted"));
  }
}

void Forming::form_one(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  auto group = form_(stop_, [this](const FormProgress& progress) {
    std::lock_guard inner(mutex_);
    text_ = progress.text;
  });
  lock.lock();
  if (state_ == State::kStopped) return;
  if (group.ok()) {
    formed_ = std::move(group).value();
    state_ = State::kFormed;
    changed_.notify_all();
    return;
  }
  if (stop_.requested()) return;
  text_ = group.status().message();
  log_.error("the group cannot form: " + text_);
  changed_.wait_for(lock, kLookMs);
}

std::unique_ptr<Group> Forming::take(int64_t wait_us) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::microseconds(wait_us),
                    [this] { return state_ == State::kFormed; });
  if (state_ != State::kFormed) return nullptr;
  state_ = State::kTaken;
  in_use_ = formed_.get();
  return std::move(formed_);
}

void Forming::leaving() {
  std::lock_guard lock(mutex_);
  TF_CHECK(state_ == State::kTaken);
  in_use_ = nullptr;
  state_ = State::kClosing;
}

void Forming::again() {
  {
    std::lock_guard lock(mutex_);
    TF_CHECK(state_ == State::kClosing);
    state_ = State::kForming;
    text_ = "the group is forming";
  }
  changed_.notify_all();
}

std::string Forming::text() const {
  std::lock_guard lock(mutex_);
  return text_;
}

}  // namespace tensorfold
