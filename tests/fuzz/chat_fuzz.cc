// The translation of a chat request: any body gives a request within its bounds, or a 400 with a
// message; never anything else.
#include <cstdint>
#include <string_view>

#include "daemon/api/chat_request.h"
#include "daemon/api/errors.h"
#include "engine/base/check.h"

using namespace tensorfold;
using namespace tensorfold::api;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto call = parse_chat(body, ChatDefaults());
  if (!call.ok()) {
    TF_CHECK_EQ(http_status(call.status()), 400);
    TF_CHECK(!call.status().message().empty());
    TF_CHECK(parse_json(error_response(call.status()).body).ok());
    return 0;
  }
  const Request& request = call->request;
  TF_CHECK(!request.prompt.messages.empty());
  TF_CHECK_LE(request.prompt.messages.size(), kMessagesMax);
  TF_CHECK_LE(request.stop.size(), kApiStopStringsMax);
  TF_CHECK_LE(request.prompt.tools.size(), kToolsMax);
  TF_CHECK(request.sampling.temperature >= 0 && request.sampling.temperature <= 2);
  TF_CHECK(request.sampling.top_p > 0 && request.sampling.top_p <= 1);
  TF_CHECK(request.prompt.thinking.effort >= 1 && request.prompt.thinking.effort <= 100);
  TF_CHECK(!request.max_tokens || *request.max_tokens >= 0);
  return 0;
}
