// The HTTP request parser: however the bytes are cut, the same requests come out and the same text
// is refused (for which of its faults may depend on the cut), and nothing is kept past the limits.
// The first byte chooses the cut.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/http/request_parser.h"
#include "engine/base/check.h"

using namespace tensorfold::http;

namespace {

struct Outcome {
  std::vector<std::string> requests;  // method, path, fields and body of each
  bool refused = false;
  bool operator==(const Outcome&) const = default;
};

Limits small_limits() {
  Limits limits;
  limits.header_bytes = 512;
  limits.body_bytes = 256;
  return limits;
}

std::string describe(const Request& request) {
  std::string out(method_name(request.method));
  out += ' ' + request.path + '?' + request.query + '\n';
  for (const Header& field : request.headers) out += field.name + ": " + field.value + '\n';
  return out + '\n' + request.body + (request.keep_alive ? "+" : "-");
}

Outcome run(std::string_view text, size_t piece) {
  const Limits limits = small_limits();
  RequestParser parser(limits);
  Outcome out;
  size_t at = 0;
  while (at < text.size() || parser.ready()) {
    const auto step = parser.feed(text.substr(at, piece));
    TF_CHECK_LE(step.consumed, text.size() - at);
    at += step.consumed;
    if (step.event == RequestParser::Event::kError) {
      TF_CHECK_GE(parser.error_status(), 400);
      TF_CHECK(!parser.error_message().empty());
      out.refused = true;
      return out;
    }
    if (step.event != RequestParser::Event::kComplete) continue;
    const Request& request = parser.request();
    TF_CHECK_LE(request.body.size(), limits.body_bytes);
    TF_CHECK_LE(request.headers.size(), kHeaderCountMax);
    out.requests.push_back(describe(request));
    if (!request.keep_alive) return out;
    parser.reset();
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = run(text, text.size() + 1);
  TF_CHECK(whole == run(text, 1));
  TF_CHECK(whole == run(text, 1 + data[0] % 64));
  return 0;
}
