// Replies of /v1/responses, whole and streamed.
//
// Order of a stream: created, in_progress; for each item output_item.added, then content_part.added
// (reasoning and text), its deltas, their done, content_part.done, output_item.done; then completed
// or incomplete. Every event has a sequence_number. A failure is response.failed, and nothing
// after.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/api/reply_writer.h"
#include "daemon/api/response_store.h"

namespace tensorfold::api {

// What a response object gives back of its request.
struct ResponsesLook {
  Json instructions, metadata, tools, tool_choice, reasoning, text;
  bool has_instructions = false;
  std::string previous;
  bool store = true;
  bool parallel = true;
  double temperature = 1, top_p = 1;
  std::optional<int> max_output_tokens;
  bool logprobs = false;  // of the text's tokens
  int top_logprobs = 0;
};

class ResponsesWriter final : public ReplyWriter {
 public:
  ResponsesWriter(bool stream, ResponsesLook look) : stream_(stream), look_(std::move(look)) {}

  // For the store.
  bool has_instructions() const { return look_.has_instructions; }
  bool wants_store() const { return look_.store; }
  void keep(const std::vector<ChatMessage>& messages) { messages_ = messages; }
  void on_complete(std::function<void(StoredResponse)> store) { store_ = std::move(store); }

  std::string_view id_prefix() const override { return "resp_"; }
  void begin(const ReplyInfo& info, std::string& out) override;
  void progress(int, int, std::string&) override {}
  void piece(const ReplyPiece& piece, std::string& out) override;
  void finish(const ChoiceEnd& end, std::string& out) override;
  void end(std::string&) override {}
  void error(int http_status, const Status& status, std::string& out) override;
  void keepalive(int done, int total, std::string& out) override;

 private:
  enum class Kind : unsigned char { kReasoning, kText, kCall };
  struct Item {
    Kind kind;
    std::string id, text;  // text: or a call's arguments
    std::string call_id, name;
    std::string logprobs;  // entries, of text
    bool cut = false;      // the reply's end came first
  };

  void open(Kind kind, const ToolCallDelta* call, std::string& out);
  void close(std::string& out);
  void add(std::string_view text, std::string_view logprobs, std::string& out);
  void put_item(JsonOut& json, const Item& item, bool done) const;
  void put_part(JsonOut& json, const Item& item) const;
  void put_response(JsonOut& json, std::string_view status) const;
  void put_request(JsonOut& json) const;
  void hand_over();
  template <typename Body>
  void event(std::string& out, std::string_view type, const Body& body);

  const bool stream_;
  const ResponsesLook look_;
  ReplyInfo info_;
  std::vector<Item> items_;
  bool open_ = false;             // the last item goes on
  std::string pending_logprobs_;  // entries of tokens before the text that they come with
  int sequence_ = 0;
  std::optional<FinishReason> reason_;
  std::optional<ReplyStats> stats_;
  Status failure_;
  std::vector<ChatMessage> messages_;
  std::function<void(StoredResponse)> store_;
};

std::unique_ptr<ReplyWriter> make_responses_writer(bool stream, ResponsesLook look);

}  // namespace tensorfold::api
