// One HTTP GET with libcurl: the request's settings, and what came of it. Run by curl_easy_perform
// or as one of many in a curl_multi; the owner's thread only.
//
// The token goes to the host of the base URL and nowhere else: not to where that host redirects,
// not over plain HTTP to another machine. Certificates are always checked. Proxies are those of
// the environment (https_proxy, http_proxy, all_proxy, no_proxy).
#pragma once

#include <curl/curl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ctl/model/retry.h"
#include "engine/base/status.h"

namespace tensorfold::models {

inline constexpr int64_t kDripBytesPerSecond = 200;  // slower than this, it counts as stalled
inline constexpr int kRedirectsMax = 8;
inline constexpr int64_t kConnectMs = 20'000;        // to reach a server
inline constexpr int64_t kErrorBodyBytesMax = 4096;  // kept of an error's body
inline constexpr int64_t kHeaderValueBytesMax = 8192;
inline constexpr int64_t kTokenBytesMax = 4096;

struct HttpOptions {
  std::string base_url;       // "https://host/prefix", no slash at the end
  std::string token;          // empty: none
  std::string ca_file;        // certificates of authorities; empty: the system's
  int64_t stall_ms = 30'000;  // a connection that brings next to nothing for so long is given up
};

// http or https with a host; a token over plain HTTP only to this machine.
Status check_http_options(const HttpOptions& options);

// The first line of a file that only its owner may read.
Result<std::string> read_token_file(const std::string& path);

struct ContentRange {
  int64_t first = 0, last = 0;
  int64_t total = -1;  // -1: not told
};
std::optional<ContentRange> parse_content_range(std::string_view value);
// The address with rel="next" of a Link header, or empty.
std::string next_link(std::string_view value);

class HttpTransfer {
 public:
  enum class Take : unsigned char { kTaken, kPause, kStop };
  struct Answer {
    long status = 0;
    int64_t content_length = -1;
    std::optional<ContentRange> range;
    std::string retry_after, link;
    std::string encoding;    // Content-Encoding, unless it is "identity": nobody asked for one
    std::string error_body;  // of a status that is no success
  };

  HttpTransfer(const HttpOptions& options, const std::string& url);
  ~HttpTransfer();
  HttpTransfer(const HttpTransfer&) = delete;
  HttpTransfer& operator=(const HttpTransfer&) = delete;

  CURL* handle() { return easy_; }
  void ask_from(int64_t offset);                // "bytes=offset-"
  void ask_range(int64_t first, int64_t last);  // both included
  void receive_buffer(int64_t bytes);
  // Gets the body of a success (200..299), in pieces.
  void set_sink(std::function<Take(std::span<const std::byte>)> sink) { sink_ = std::move(sink); }

  const Answer& answer() const { return answer_; }
  std::string_view curl_detail() const { return error_; }

 private:
  static size_t on_header(char* data, size_t size, size_t count, void* self);
  static size_t on_body(char* data, size_t size, size_t count, void* self);
  void header(std::string_view line);

  CURL* easy_;
  curl_slist* headers_ = nullptr;
  std::function<Take(std::span<const std::byte>)> sink_;
  Answer answer_;
  char error_[CURL_ERROR_SIZE] = "";
};

struct HttpText {
  std::string body, link;
};
// A whole body of at most `bytes_max`, tried again as retry.h says.
Result<HttpText> http_get(const HttpOptions& options, const std::string& url, int64_t bytes_max);
// Bytes [first, last] of a file.
Result<std::string> http_get_range(const HttpOptions& options, const std::string& url,
                                   int64_t first, int64_t last);

}  // namespace tensorfold::models
