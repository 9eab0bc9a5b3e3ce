// The bodies of every POST route: the first byte picks the route, the rest is the body. Any body
// gives an order within its bounds and a writer that writes valid JSON and events, or a 400 with a
// message; never anything else.
#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/api/bodies.h"
#include "daemon/api/errors.h"
#include "engine/base/check.h"

using namespace tensorfold;
using namespace tensorfold::api;

namespace {

void check_refusal(const Status& status, Dialect dialect) {
  TF_CHECK_EQ(http_status(status), 400);
  TF_CHECK(!status.message().empty());
  TF_CHECK(parse_json(error_response(dialect, status).body).ok());
}

// Every event is one line of JSON after "data: ", or [DONE].
void check_events(const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = bytes.find("\n\n", at);
    TF_CHECK(end != std::string::npos);
    const size_t data = bytes.find("data: ", at);
    if (bytes[at] != ':') {
      TF_CHECK(data != std::string::npos && data < end);
      const std::string_view text = std::string_view(bytes).substr(data + 6, end - data - 6);
      TF_CHECK(text == "[DONE]" || parse_json(text).ok());
    }
    at = end + 2;
  }
}

void write_a_reply(ReplyOrder& order) {
  ReplyInfo info;
  info.id = "id";
  info.text = [](TokenId) { return std::string("\xC3"); };
  std::string out;
  order.writer->begin(info, out);
  const int choices = static_cast<int>(order.prompts.size()) * order.n;
  const ReplyStats stats;
  const Usage total;
  for (int i = 0; i < choices; ++i) {
    OutputDelta delta;
    delta.reasoning = "r";
    delta.content = "c";
    delta.tool_calls = {{0, "id", "f", "{"}};
    order.writer->piece({i, delta, {}, {}, info.text}, out);
    order.writer->finish({i, FinishReason::kStop, stats, i + 1 == choices ? &total : nullptr}, out);
  }
  order.writer->end(out);
  order.stream ? check_events(out) : TF_CHECK(parse_json(out).ok());
}

void check_order(Result<ReplyOrder> order, Dialect dialect) {
  if (!order.ok()) return check_refusal(order.status(), dialect);
  TF_CHECK(order->writer != nullptr && !order->prompts.empty());
  TF_CHECK(order->n >= 1 && order->n * static_cast<int>(order->prompts.size()) <= kReplyChoicesMax);
  for (const Request& request : order->prompts) {
    TF_CHECK_LE(request.stop.size(), kApiStopStringsMax);
    TF_CHECK(request.sampling.temperature >= 0 && request.sampling.temperature <= 2);
    TF_CHECK(!request.max_tokens || *request.max_tokens >= 0);
    TF_CHECK(!request.prompt.continue_final || !request.prompt.messages.empty());
  }
  write_a_reply(*order);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const ChatDefaults defaults;
  switch (data[0] % 5) {
    case 0:
      check_order(read_chat_order(body, defaults), Dialect::kChat);
      break;
    case 1:
      check_order(read_completion_order(body, defaults), Dialect::kCompletions);
      break;
    case 2:
      check_order(read_messages_order(body, defaults), Dialect::kMessages);
      break;
    case 3:
      check_order(read_responses_order(body, defaults), Dialect::kResponses);
      break;
    default: {
      std::string model;
      const auto prompt = read_count_body(body, defaults, &model);
      if (!prompt.ok()) check_refusal(prompt.status(), Dialect::kMessages);
    }
  }
  return 0;
}
