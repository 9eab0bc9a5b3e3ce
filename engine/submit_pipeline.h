// SubmitPipeline: from a submitted Request to one that the engine thread can plan: checks, prompt
// encoding, tokenisation, price. A bounded pool of worker threads; cancellable at every stage.
//
// Owners: a Submission belongs to whoever holds it: the caller, the worker queue, a worker, then
// the engine's queue. Its Ticket is shared with those that may cancel it; the sink is called by the
// holder alone, and finish() is the only way out, once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/base/bounded_queue.h"
#include "engine/base/clock.h"
#include "engine/constraint_service.h"
#include "engine/engine.h"
#include "engine/grammar/mask_source.h"
#include "engine/sched/admission.h"
#include "engine/text_codec.h"

namespace tensorfold {

inline constexpr int kPromptWorkers = 2;    // threads
inline constexpr int kStopStringsMax = 64;  // per request
inline constexpr size_t kStopStringMaxBytes = 1024;
inline constexpr size_t kAllowedTokensMax = size_t{1} << 20;
inline constexpr size_t kPromptScoresMax = size_t{1} << 18;  // tokens and alternatives of a prompt

class TicketBook;

// One request's way out, and the flag that cancels it.
class Ticket {
 public:
  Ticket(RequestId id, std::shared_ptr<RequestSink> sink, TicketBook& book)
      : id_(id), sink_(std::move(sink)), book_(book) {}
  RequestId id() const { return id_; }
  RequestSink& sink() { return *sink_; }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  void cancel() { cancelled_.store(true, std::memory_order_release); }
  // Ends the request. Calling it twice is a fault of ours and aborts.
  void finish(const Status& status, FinishReason reason, const ReplyStats& stats);

 private:
  const RequestId id_;
  const std::shared_ptr<RequestSink> sink_;
  TicketBook& book_;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> finished_{false};
};

// All requests that have not ended, by id; bounds how many there are.
class TicketBook {
 public:
  // nullptr when `most` are open.
  std::shared_ptr<Ticket> open(std::shared_ptr<RequestSink> sink, size_t most);
  void cancel(RequestId id);
  void close(RequestId id);
  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<RequestId, std::shared_ptr<Ticket>> tickets_;
  RequestId next_ = 1;
};

struct Submission {
  std::shared_ptr<Ticket> ticket;
  Request request;
  int64_t submitted_us = 0;
  // Filled in by a worker.
  PromptIds prompt;
  Price price;
  std::shared_ptr<const MaskSource> mask;
  std::vector<std::string> annotations;  // of its constraint
};

// Refuses what sampling or planning could not run. `vocab`: tokens of the model.
Status check_request(const Request& request, int vocab);

class SubmitPipeline {
 public:
  using Deliver = std::function<bool(Submission&&)>;  // to the engine; false: it is shut
  SubmitPipeline(std::shared_ptr<const TextCodec> text, int vocab, const Capacity& capacity,
                 const Clock& clock, size_t queue_items, Deliver deliver,
                 std::shared_ptr<ConstraintService> constraints = nullptr);
  ~SubmitPipeline();  // what is still queued ends as unavailable

  bool push(Submission&& submission);  // false: full or shut

 private:
  void work();
  void prepare(Submission submission);
  Status fill_in(Submission& submission) const;
  Status constrain(Submission& submission) const;

  const std::shared_ptr<const TextCodec> text_;
  const int vocab_;
  const Capacity capacity_;
  const Clock& clock_;
  const Deliver deliver_;
  const std::shared_ptr<ConstraintService> constraints_;
  BoundedQueue<Submission> queue_;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

// The status of a request that must not go on, or ok.
Status reason_to_stop(const Ticket& ticket, const Request& request, int64_t now_us);

}  // namespace tensorfold
