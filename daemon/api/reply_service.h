// Replies in progress, of every API: from the parsed body to the last byte.
//
// Owner: the loop thread. A reply lives from start() until the engine has ended every request that
// was made for it; a client that goes away makes them cancelled, not forgotten. What a reply looks
// like is its writer's business; what a body means is the reader's.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/api/key_gate.h"
#include "daemon/api/loop_port.h"
#include "daemon/api/reply_metrics.h"
#include "daemon/api/reply_order.h"
#include "daemon/http/message.h"
#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/engine.h"

namespace tensorfold::api {

inline constexpr size_t kInlineBodyBytesMax = 64 * 1024;  // longer bodies are parsed on a worker

struct ReplySettings {
  std::string served_name;
  ChatDefaults defaults;
  int64_t keepalive_us = 15'000'000;   // between comments on a silent stream; 0 is none
  int64_t stall_us = 300'000'000;      // without a step of the engine a reply fails; 0 is never
  int64_t queue_wait_us = 30'000'000;  // longest wait at a key's own limit
};

struct ReplyCounters {
  uint64_t requests_total = 0;
  uint64_t refused_total = 0;  // answered with an error before a token
  uint64_t failed_total = 0;
  uint64_t cancelled_total = 0;  // the client went away
};

// A reply in progress as an operator sees it: nothing of its text.
struct ActiveInfo {
  std::string id, label;
  std::string_view dialect;  // "chat", "completions", "messages", "responses"
  std::string_view state;    // "waiting", "prefill", "decode"
  bool stream = false;
  int prompt_tokens = 0, prompt_done = 0;
  int64_t reply_tokens = 0;  // so far, of all choices
  int64_t age_us = 0;
};

struct ActiveReply;

class ReplyService {
 public:
  // Finishes an order on the loop thread, with what only it may touch (stored replies).
  using Prepare = std::function<Status(ReplyOrder& order)>;

  ReplyService(Engine& engine, ReplySettings settings, const Clock& clock, LogSink& log,
               LoopPort& port);
  ~ReplyService();
  ReplyService(const ReplyService&) = delete;
  ReplyService& operator=(const ReplyService&) = delete;

  void handle(const std::shared_ptr<http::Exchange>& exchange, const KeyIdentity& key,
              Dialect dialect, ReadBody read, const Prepare& prepare);
  void on_wake();                      // events are waiting
  void tick();                         // a few times a second: comments, stalls, waits
  void cancel_all(const Status& why);  // every reply in progress ends with this error
  // Not ok: from now on new requests are refused with it. Those that wait or run are not touched.
  void hold(Status why) { held_ = std::move(why); }
  const Status& held() const { return held_; }
  bool cut_newest(const Status& why);  // the reply that began last; false: there is none
  // Cancels the reply of that id if it belongs to the label; false: there is none.
  bool cancel(std::string_view id, std::string_view label);
  // For the operator: every reply in progress, in order of arrival (reply_list.cc).
  std::vector<ActiveInfo> list() const;
  bool cancel(std::string_view id);

  size_t active() const { return active_.size() + parsing_ + gate_.waiting(); }
  const ReplyCounters& counters() const { return counters_; }
  const ReplyMetrics& metrics() const { return metrics_; }
  const KeyGate& gate() const { return gate_; }
  void set_settings(ReplySettings settings);  // for requests from now on

 private:
  void parsed(const std::shared_ptr<http::Exchange>& exchange, const KeyIdentity& key,
              Dialect dialect, Result<ReplyOrder> order, const Prepare& prepare);
  Status check_order(const ReplyOrder& order) const;
  // False when it ended at once.
  bool start(std::shared_ptr<http::Exchange> exchange, const KeyIdentity& key, ReplyOrder order);
  void refuse(http::Exchange& exchange, Dialect dialect, const Status& status);
  Status start_choice(ActiveReply& reply, size_t index);
  void start_more(ActiveReply& reply);
  bool drain(ActiveReply& reply);  // true when it is over
  void drain_choice(ActiveReply& reply, size_t index);
  void on_accepted(ActiveReply& reply, size_t index, int prompt_tokens, int cached);
  void on_progress(ActiveReply& reply, size_t index, int done, int total);
  void on_prompt(ActiveReply& reply, size_t index, std::span<const TokenLogprob> tokens);
  void on_tokens(ActiveReply& reply, size_t index, std::span<const TokenId> ids,
                 std::span<const TokenLogprob> logprobs);
  void on_finished(ActiveReply& reply, size_t index, const Status& status, FinishReason reason,
                   const ReplyStats& stats);
  void choice_done(ActiveReply& reply, size_t index, FinishReason reason, const ReplyStats& stats);
  void fail(ActiveReply& reply, const Status& status);
  void stop_choices(ActiveReply& reply);
  void cancel(ActiveReply& reply);
  void flush(ActiveReply& reply);
  void watch(ActiveReply& reply, int64_t now_us);
  void log_end(const ActiveReply& reply, const Status& status);

  Engine& engine_;
  std::shared_ptr<const ReplySettings> settings_;
  const Clock& clock_;
  LogSink& log_;
  LoopPort& port_;
  ReplyCounters counters_;
  ReplyMetrics metrics_;
  KeyGate gate_;
  Status held_;  // why nothing new is begun; ok: it is
  const TokenText token_text_;
  size_t parsing_ = 0;  // bodies on a worker
  uint64_t last_steps_ = 0;
  int64_t last_step_us_ = 0;    // when the engine was last seen to move
  int64_t moved_after_us_ = 0;  // it moved after this time for sure
  int64_t last_tick_us_ = 0;
  std::list<std::unique_ptr<ActiveReply>> active_;
};

}  // namespace tensorfold::api
