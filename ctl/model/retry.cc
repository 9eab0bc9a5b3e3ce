#include "ctl/model/retry.h"

#include <algorithm>
#include <charconv>

#include "engine/base/json.h"
#include "engine/base/utf8.h"

namespace tensorfold::models {
namespace {

// The server's own words, if its answer has them in the usual place.
std::string server_words(std::string_view body) {
  constexpr size_t kWordsBytesMax = 200;
  const auto json = parse_json(body);
  const Json* error = json.ok() ? json->find("error") : nullptr;
  if (error == nullptr || !error->is_string()) return "";
  return " (" + shown_text(error->as_string(), kWordsBytesMax, ' ') + ")";
}

}  // namespace

Fault http_fault(long status, std::string_view body) {
  Fault out;
  out.what = "HTTP status " + std::to_string(status) + server_words(body);
  switch (status) {
    case 401:
    case 403:
      out.all = true;
      out.what += ": not public, or the token has no access to it (--token-file)";
      break;
    case 404:
      out.what += ": not there";
      break;
    case 408:
    case 416:  // what is on disk does not fit what the server has: from the start
    case 425:
    case 429:
      out.again = true;
      break;
    default:
      out.again = status >= 500;
  }
  return out;
}

Fault curl_fault(CURLcode code, std::string_view detail) {
  Fault out;
  out.what = detail.empty() ? curl_easy_strerror(code) : std::string(detail);
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_BAD_FUNCTION_ARGUMENT:
    case CURLE_OUT_OF_MEMORY:
      out.all = true;
      break;
    case CURLE_OPERATION_TIMEDOUT:
      out.again = true;
      out.what = "nothing or next to nothing came for too long";
      break;
    default:
      out.again = true;
  }
  return out;
}

Fault encoding_fault(std::string_view encoding) {
  return {true, false,
          "the answer is encoded as " + std::string(encoding) + ", which was not asked for"};
}

int64_t backoff_ms(int tries) {
  int64_t ms = kBackoffFirstMs;
  for (int i = 1; i < tries && ms < kBackoffMostMs; ++i) ms *= 2;
  return std::min(ms, kBackoffMostMs);
}

int64_t retry_after_ms(std::string_view header, int64_t unix_ms) {
  int64_t seconds = 0;
  const auto [end, code] = std::from_chars(header.data(), header.data() + header.size(), seconds);
  if (code == std::errc() && end == header.data() + header.size() && seconds >= 0) {
    return std::min(seconds, kRetryAfterMostMs) * 1000;
  }
  const std::string text(header);
  const time_t at = curl_getdate(text.c_str(), nullptr);
  if (at < 0) return -1;
  return std::max<int64_t>(0, int64_t{at} * 1000 - unix_ms);
}

}  // namespace tensorfold::models
