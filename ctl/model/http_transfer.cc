#include "ctl/model/http_transfer.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <thread>

#include "ctl/http/exchange.h"
#include "engine/base/clock.h"
#include "engine/base/utf8.h"
#include "engine/weights/file.h"

namespace tensorfold::models {
namespace {

constexpr size_t kEncodingBytesShown = 40;
constexpr std::string_view kHttps = "https://", kHttp = "http://";

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

bool to_whole(std::string_view text, int64_t& value) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() && end == text.data() + text.size() && value >= 0;
}

// "host" of "http://host:port/prefix".
std::string_view host_of(std::string_view url) {
  url.remove_prefix(std::min(url.size(), url.find("://") + 3));
  url = url.substr(0, url.find('/'));
  if (!url.empty() && url.front() == '[') return url.substr(0, url.find(']') + 1);
  return url.substr(0, url.find(':'));
}

bool is_this_machine(std::string_view host) {
  return host == "127.0.0.1" || host == "localhost" || host == "[::1]";
}

}  // namespace

Status check_http_options(const HttpOptions& options) {
  const std::string& url = options.base_url;
  const bool plain = url.rfind(kHttp, 0) == 0;
  const bool good = (plain || url.rfind(kHttps, 0) == 0) && !host_of(url).empty() &&
                    url.find('@') == url.npos && url.find('?') == url.npos &&
                    std::none_of(url.begin(), url.end(), [](char c) {
                      return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f;
                    });
  if (!good) {
    return invalid_argument("--base-url must be http(s)://HOST[:PORT][/PATH], not '" + url + "'");
  }
  if (plain && !options.token.empty() && !is_this_machine(host_of(url))) {
    return invalid_argument("a token is not sent over plain HTTP to " + std::string(host_of(url)) +
                            ": use https");
  }
  return ok_status();
}

Result<std::string> read_token_file(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return io_error(path, errno);
  if (!S_ISREG(info.st_mode)) return invalid_argument(path + ": the token must be in a file");
  if ((info.st_mode & 077) != 0) {
    return invalid_argument(path + ": others may read it; do: chmod 600 " + path);
  }
  TF_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kTokenBytesMax));
  const std::string token(trimmed(std::string_view(text).substr(0, text.find('\n'))));
  const bool good = !token.empty() && std::all_of(token.begin(), token.end(), [](char c) {
    return static_cast<unsigned char>(c) > 0x20 && static_cast<unsigned char>(c) < 0x7f;
  });
  if (!good) return invalid_argument(path + ": its first line is no token");
  return token;
}

// "bytes 100-199/1000", "bytes 100-199/*"
std::optional<ContentRange> parse_content_range(std::string_view value) {
  value = trimmed(value);
  if (value.size() < 6 || !same_name(value.substr(0, 6), "bytes ")) return std::nullopt;
  value = trimmed(value.substr(6));
  const size_t dash = value.find('-'), slash = value.find('/');
  if (dash == value.npos || slash == value.npos || dash > slash) return std::nullopt;
  ContentRange out;
  if (!to_whole(value.substr(0, dash), out.first) ||
      !to_whole(value.substr(dash + 1, slash - dash - 1), out.last) || out.last < out.first) {
    return std::nullopt;
  }
  const std::string_view total = value.substr(slash + 1);
  if (total != "*" && !to_whole(total, out.total)) return std::nullopt;
  return out;
}

std::string next_link(std::string_view value) {
  while (!value.empty()) {
    const size_t open = value.find('<'), close = value.find('>');
    if (open == value.npos || close == value.npos || close < open) return "";
    const size_t end = std::min(value.find(',', close), value.size());
    if (value.substr(close, end - close).find("rel=\"next\"") != value.npos) {
      return std::string(value.substr(open + 1, close - open - 1));
    }
    value.remove_prefix(std::min(value.size(), end + 1));
  }
  return "";
}

HttpTransfer::HttpTransfer(const HttpOptions& options, const std::string& url) {
  ctl::start_curl();
  easy_ = curl_easy_init();
  TF_CHECK(easy_ != nullptr);
  const bool https = options.base_url.rfind(kHttps, 0) == 0;
  const char* protocols = https ? "https" : "http,https";
  curl_easy_setopt(easy_, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy_, CURLOPT_PROTOCOLS_STR, protocols);
  curl_easy_setopt(easy_, CURLOPT_REDIR_PROTOCOLS_STR, protocols);
  curl_easy_setopt(easy_, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(easy_, CURLOPT_MAXREDIRS, long{kRedirectsMax});
  curl_easy_setopt(easy_, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy_, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(kConnectMs));
  curl_easy_setopt(easy_, CURLOPT_LOW_SPEED_LIMIT, static_cast<long>(kDripBytesPerSecond));
  curl_easy_setopt(easy_, CURLOPT_LOW_SPEED_TIME,
                   static_cast<long>(std::max<int64_t>(1, options.stall_ms / 1000)));
  curl_easy_setopt(easy_, CURLOPT_TCP_KEEPALIVE, 1L);
  // A connection for each file: streams of one HTTP/2 connection share its window.
  curl_easy_setopt(easy_, CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  curl_easy_setopt(easy_, CURLOPT_USERAGENT, "tfctl/" TF_VERSION);
  curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, error_);
  if (!options.ca_file.empty()) curl_easy_setopt(easy_, CURLOPT_CAINFO, options.ca_file.c_str());
  headers_ = curl_slist_append(headers_, "Accept-Encoding: identity");  // ranges and hashes need it
  if (!options.token.empty()) {
    // libcurl keeps this header for the first host; UNRESTRICTED_AUTH stays off.
    headers_ = curl_slist_append(headers_, ("Authorization: Bearer " + options.token).c_str());
  }
  curl_easy_setopt(easy_, CURLOPT_HTTPHEADER, headers_);
  curl_easy_setopt(easy_, CURLOPT_HEADERFUNCTION, &HttpTransfer::on_header);
  curl_easy_setopt(easy_, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(easy_, CURLOPT_WRITEFUNCTION, &HttpTransfer::on_body);
  curl_easy_setopt(easy_, CURLOPT_WRITEDATA, this);
}

HttpTransfer::~HttpTransfer() {
  curl_easy_cleanup(easy_);
  curl_slist_free_all(headers_);
}

void HttpTransfer::ask_from(int64_t offset) {
  curl_easy_setopt(easy_, CURLOPT_RANGE, (std::to_string(offset) + "-").c_str());
}

void HttpTransfer::ask_range(int64_t first, int64_t last) {
  curl_easy_setopt(easy_, CURLOPT_RANGE,
                   (std::to_string(first) + "-" + std::to_string(last)).c_str());
}

void HttpTransfer::receive_buffer(int64_t bytes) {
  curl_easy_setopt(easy_, CURLOPT_BUFFERSIZE, static_cast<long>(bytes));
}

// A status line begins a new answer: of a redirection's target, or after "100 Continue".
void HttpTransfer::header(std::string_view line) {
  if (line.rfind("HTTP/", 0) == 0) {
    answer_ = Answer();
    const size_t space = line.find(' ');
    int64_t status = 0;
    if (space != line.npos && to_whole(line.substr(space + 1, 3), status)) {
      answer_.status = static_cast<long>(status);
    }
    return;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return;
  const std::string_view name = line.substr(0, colon), value = trimmed(line.substr(colon + 1));
  if (static_cast<int64_t>(value.size()) > kHeaderValueBytesMax) return;
  if (same_name(name, "content-length")) {
    if (!to_whole(value, answer_.content_length)) answer_.content_length = -1;
  } else if (same_name(name, "content-range")) {
    answer_.range = parse_content_range(value);
  } else if (same_name(name, "retry-after")) {
    answer_.retry_after = value;
  } else if (same_name(name, "content-encoding")) {
    answer_.encoding = same_name(value, "identity") ? "" : shown_text(value, kEncodingBytesShown);
  } else if (same_name(name, "link")) {
    answer_.link = value;
  }
}

size_t HttpTransfer::on_header(char* data, size_t size, size_t count, void* self) {
  static_cast<HttpTransfer*>(self)->header(trimmed({data, size * count}));
  return size * count;
}

size_t HttpTransfer::on_body(char* data, size_t size, size_t count, void* self) {
  auto& me = *static_cast<HttpTransfer*>(self);
  const size_t bytes = size * count;
  if (me.answer_.status < 200 || me.answer_.status > 299) {
    const size_t room = static_cast<size_t>(kErrorBodyBytesMax) - me.answer_.error_body.size();
    me.answer_.error_body.append(data, std::min(room, bytes));
    return bytes;
  }
  switch (me.sink_(std::as_bytes(std::span<const char>(data, bytes)))) {
    case Take::kTaken:
      return bytes;
    case Take::kPause:
      return CURL_WRITEFUNC_PAUSE;
    case Take::kStop:
      break;
  }
  return bytes == 0 ? 1 : 0;  // anything but `bytes` ends the transfer
}

namespace {

// One try. `fault.what` is empty when it went well.
Fault try_get(HttpTransfer& transfer, int64_t bytes_max, std::string& body) {
  body.clear();
  bool too_long = false;
  transfer.set_sink([&](std::span<const std::byte> piece) {
    too_long = static_cast<int64_t>(body.size() + piece.size()) > bytes_max;
    if (too_long) return HttpTransfer::Take::kStop;
    body.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return HttpTransfer::Take::kTaken;
  });
  const CURLcode code = curl_easy_perform(transfer.handle());
  if (too_long) {
    return {false, false, "its answer is longer than " + std::to_string(bytes_max) + " bytes"};
  }
  if (code != CURLE_OK) return curl_fault(code, transfer.curl_detail());
  const long status = transfer.answer().status;
  if (const std::string& encoding = transfer.answer().encoding; !encoding.empty()) {
    return encoding_fault(encoding);
  }
  if (status >= 200 && status <= 299) return {};
  return http_fault(status, transfer.answer().error_body);
}

Status after_fault(const std::string& url, const Fault& fault, int tries, std::string_view wait) {
  if (!fault.again) {
    return Status(StatusCode::kUnavailable, url + ": " + fault.what, {},
                  fault.what.find(" 404") != std::string::npos ? "not_found" : "");
  }
  if (tries >= kTriesMax) {
    return unavailable(url + ": " + fault.what + "; given up after " + std::to_string(tries) +
                       " tries");
  }
  int64_t ms = retry_after_ms(wait, system_clock().unix_us() / 1000);
  if (ms > kRetryAfterMostMs) {
    return unavailable(url + ": " + fault.what + "; the server asks to come back in " +
                       std::to_string(ms / 1000) + " s");
  }
  if (ms < 0) ms = backoff_ms(tries);
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  return ok_status();
}

}  // namespace

Result<HttpText> http_get(const HttpOptions& options, const std::string& url, int64_t bytes_max) {
  for (int tries = 1;; ++tries) {
    HttpTransfer transfer(options, url);
    HttpText out;
    const Fault fault = try_get(transfer, bytes_max, out.body);
    if (fault.what.empty()) {
      out.link = next_link(transfer.answer().link);
      return out;
    }
    TF_RETURN_IF_ERROR(after_fault(url, fault, tries, transfer.answer().retry_after));
  }
}

Result<std::string> http_get_range(const HttpOptions& options, const std::string& url,
                                   int64_t first, int64_t last) {
  const int64_t wanted = last - first + 1;
  for (int tries = 1;; ++tries) {
    HttpTransfer transfer(options, url);
    transfer.ask_range(first, last);
    std::string body;
    Fault fault = try_get(transfer, wanted, body);
    const HttpTransfer::Answer& answer = transfer.answer();
    if (fault.what.empty() &&
        (answer.status != 206 || !answer.range || answer.range->first != first ||
         static_cast<int64_t>(body.size()) != wanted)) {
      fault = {true, false, "did not answer the range that was asked for"};
    }
    if (fault.what.empty()) return body;
    TF_RETURN_IF_ERROR(after_fault(url, fault, tries, answer.retry_after));
  }
}

}  // namespace tensorfold::models
