// How one API writes a reply: called with what happens, gives the bytes to send.
//
// One per reply, used by the loop thread after it was made (by whoever parsed the body). A stream's
// writer gives server-sent events as things happen; a whole reply's collects and gives one JSON
// object at end(). Every text that it is given is valid UTF-8.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "daemon/api/reply_json.h"
#include "engine/base/status.h"
#include "engine/engine.h"

namespace tensorfold::api {

// One step of one choice, as it came from the engine.
struct ReplyPiece {
  int choice = 0;
  const OutputDelta& delta;
  std::span<const TokenId> ids;
  std::span<const TokenLogprob> logprobs;  // as many as ids, or none
  const TokenText& text;
};

struct ChoiceEnd {
  int choice = 0;
  FinishReason reason = FinishReason::kStop;
  const ReplyStats& stats;  // of this choice
  const Usage* total;       // of the whole reply; only with the last choice
  int stop_index = -1;      // the stop string that ended it
};

class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;

  virtual std::string_view id_prefix() const = 0;  // "chatcmpl-"
  // The engine took the (first) choice.
  virtual void begin(const ReplyInfo& info, std::string& out) = 0;
  // Prompt tokens of a choice that are computed; only called for streams.
  virtual void progress(int done, int total, std::string& out) = 0;
  // The next tokens of a prompt, of its first choice; before that choice's pieces.
  virtual void prompt_logprobs(int /*choice*/, std::span<const TokenLogprob> /*tokens*/,
                               const TokenText& /*text*/) {}
  virtual void piece(const ReplyPiece& piece, std::string& out) = 0;
  virtual void finish(const ChoiceEnd& end, std::string& out) = 0;
  // After the last choice's finish.
  virtual void end(std::string& out) = 0;
  // A stream that has begun ends with this instead.
  virtual void error(int http_status, const Status& status, std::string& out) = 0;
  // Something that a client passes over, so that a silent stream is seen to live. Prompt tokens
  // done and in all; 0 and 0 when the prompt is done.
  virtual void keepalive(int done, int total, std::string& out) = 0;
};

}  // namespace tensorfold::api
