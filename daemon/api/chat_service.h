// POST /v1/chat/completions from the parsed body to the last byte: owns every reply in progress.
//
// Owner: the loop thread. A reply lives from start() until the engine's on_finished has been
// rendered; a client that goes away makes it cancelled, not forgotten.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "daemon/api/chat_reply.h"
#include "daemon/api/chat_request.h"
#include "daemon/api/chat_stream.h"
#include "daemon/api/loop_port.h"
#include "daemon/api/reply_sink.h"
#include "daemon/http/message.h"
#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/engine.h"

namespace tensorfold::api {

inline constexpr size_t kInlineBodyBytesMax = 64 * 1024;  // longer bodies are parsed on a worker

struct ChatSettings {
  std::string served_name;
  ChatDefaults defaults;
  int64_t keepalive_us = 15'000'000;  // between comments before the first token; 0 is none
};

struct ChatCounters {
  uint64_t requests_total = 0;
  uint64_t refused_total = 0;  // answered with an error before a token
  uint64_t failed_total = 0;
  uint64_t cancelled_total = 0;  // the client went away
};

class ChatService {
 public:
  ChatService(Engine& engine, ChatSettings settings, const Clock& clock, LogSink& log,
              LoopPort& port);
  ~ChatService();
  ChatService(const ChatService&) = delete;
  ChatService& operator=(const ChatService&) = delete;

  void handle(std::shared_ptr<http::Exchange> exchange, std::string label);
  void on_wake();                      // events are waiting
  void tick();                         // about once a second: keepalive comments
  void cancel_all(const Status& why);  // every reply in progress ends with this error

  size_t active() const { return active_.size() + parsing_; }
  const ChatCounters& counters() const { return counters_; }
  void set_settings(ChatSettings settings);  // for requests from now on

 private:
  struct Active;

  void start(std::shared_ptr<http::Exchange> exchange, std::string label, Result<ChatCall> parsed);
  bool drain(Active& reply);  // true when it is over
  void on_accepted(Active& reply, int prompt_tokens, int cached_tokens);
  void on_tokens(Active& reply, std::span<const TokenId> ids,
                 std::span<const TokenLogprob> logprobs);
  void on_finished(Active& reply, const ReplyEvent::Extra& end);
  void succeed(Active& reply, FinishReason reason, const ReplyStats& stats);
  void fail(Active& reply, const Status& status);
  void log_end(const Active& reply, const Status& status, FinishReason reason,
               const ReplyStats& stats);

  Engine& engine_;
  std::shared_ptr<const ChatSettings> settings_;
  const Clock& clock_;
  LogSink& log_;
  LoopPort& port_;
  ChatCounters counters_;
  size_t parsing_ = 0;  // bodies on a worker
  std::list<std::unique_ptr<Active>> active_;
};

}  // namespace tensorfold::api
