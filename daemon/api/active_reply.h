// One reply in progress: its client, its writer, and the engine's requests that make it. Private to
// the reply service.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/api/key_gate.h"
#include "daemon/api/reply_order.h"
#include "daemon/api/reply_sink.h"
#include "daemon/http/message.h"

namespace tensorfold::api {

struct ChoiceRun {
  std::shared_ptr<ReplySink> sink;
  RequestId id = 0;
  OutputOptions options;
  std::unique_ptr<OutputStream> output;
  bool started = false;
  bool cancelled = false;
  bool done = false;
};

struct ActiveReply {
  std::shared_ptr<http::Exchange> exchange;
  KeyIdentity key;
  ReplyInfo info;
  ReplyOrder order;
  std::vector<ChoiceRun> choices;  // those of the first prompt, then of the second, ...
  size_t started = 0;              // how many of them were begun
  size_t running = 0, ended = 0;
  bool accepted = false;         // by the engine: the first choice
  bool streaming = false;        // headers are sent
  bool gone = false;             // the client went away
  bool answered = false;         // an error or the last byte is sent
  std::optional<Status> forced;  // ends with this instead of what the engine says
  std::string unsent;            // of a stream: made in this turn, written at its end
  Usage usage;                   // of the choices that have ended
  ReplyStats first_stats;        // of the first choice
  FinishReason last_reason = FinishReason::kStop;
  int calls = 0;
  int64_t started_us = 0, first_token_us = 0, last_write_us = 0;
  int prompt_done = 0, prompt_total = 0;  // of the first choice
  int64_t reply_tokens = 0;               // so far, of all choices

  bool over() const { return running == 0 && (answered || gone); }
};

}  // namespace tensorfold::api
