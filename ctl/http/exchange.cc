#include "ctl/http/exchange.h"

#include <curl/curl.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>

namespace tensorfold::ctl {
namespace {

constexpr int64_t kTurnMs = 1000;  // the longest sleep before deadlines are looked at again

// CURL and CURLM are both void.
struct FreeEasy {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
struct FreeMulti {
  void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};
struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

class Exchange {
 public:
  Exchange(const HttpCall& call, const Clock& clock) : call_(call), clock_(clock) {}

  HttpOutcome run() {
    start_curl();
    easy_.reset(curl_easy_init());
    multi_.reset(curl_multi_init());
    if (!easy_ || !multi_) return fault(HttpFault::kOther, "libcurl: out of memory");
    set_up();
    curl_multi_add_handle(multi_.get(), easy_.get());
    out_.sent_us = moved_us_ = clock_.monotonic_us();
    const bool in_time = turn();
    out_.end_us = clock_.monotonic_us();
    if (!in_time) fault(HttpFault::kTimeout, "no byte in time");
    if (in_time) take_result();
    curl_multi_remove_handle(multi_.get(), easy_.get());
    return std::move(out_);
  }

 private:
  template <typename T>
  void set(CURLoption option, T value) {
    curl_easy_setopt(easy_.get(), option, value);
  }

  void set_up() {
    set(CURLOPT_URL, call_.url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http");
    set(CURLOPT_PROXY, "");  // also none of the environment
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
    set(CURLOPT_FORBID_REUSE, 1L);
    set(CURLOPT_CONNECTTIMEOUT_MS, long{call_.connect_ms});
    set(CURLOPT_ERRORBUFFER, error_);
    if (!call_.unix_socket.empty()) set(CURLOPT_UNIX_SOCKET_PATH, call_.unix_socket.c_str());
    if (!call_.resolved.empty()) {
      resolve_.reset(curl_slist_append(nullptr, call_.resolved.c_str()));
      set(CURLOPT_RESOLVE, resolve_.get());
    }
    // A long body is not held back until the server says that it wants it.
    for (const char* header : {"Connection: close", "Expect:"}) add_header(header);
    for (const std::string& header : call_.headers) add_header(header.c_str());
    if (call_.method == "POST") {
      set(CURLOPT_POST, 1L);
      set(CURLOPT_POSTFIELDS, call_.body.c_str());
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call_.body.size()));
      add_header(call_.body.empty() ? "Content-Type:" : "Content-Type: application/json");
    }
    set(CURLOPT_HTTPHEADER, headers_.get());
    set(CURLOPT_HEADERFUNCTION, &Exchange::on_header);
    set(CURLOPT_HEADERDATA, this);
    set(CURLOPT_WRITEFUNCTION, &Exchange::on_body);
    set(CURLOPT_WRITEDATA, this);
  }

  void add_header(const char* line) { headers_.reset(curl_slist_append(headers_.release(), line)); }

  // False: a deadline passed first.
  bool turn() {
    const int64_t end_us = out_.sent_us + call_.total_ms * 1000;
    for (;;) {
      int running = 0;
      if (curl_multi_perform(multi_.get(), &running) != CURLM_OK || running == 0) return true;
      const int64_t now_us = clock_.monotonic_us();
      curl_off_t sent = 0;
      curl_easy_getinfo(easy_.get(), CURLINFO_SIZE_UPLOAD_T, &sent);
      if (sent != sent_) moved_us_ = now_us;
      sent_ = sent;
      const int64_t idle_us = call_.idle_ms > 0 ? moved_us_ + call_.idle_ms * 1000 : end_us;
      const int64_t left_us = std::min(end_us, idle_us) - now_us;
      if (left_us <= 0) return false;
      const int64_t wait_ms = std::min((left_us + 999) / 1000, kTurnMs);
      curl_multi_poll(multi_.get(), nullptr, 0, static_cast<int>(wait_ms), nullptr);
    }
  }

  void take_result() {
    CURLcode code = CURLE_FAILED_INIT;
    int queued = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi_.get(), &queued)) {
      if (message->msg == CURLMSG_DONE) code = message->data.result;
    }
    if (out_.fault != HttpFault::kNone) return;  // by on_body
    long status = 0, error = 0;
    curl_off_t connected_us = 0;
    curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(easy_.get(), CURLINFO_OS_ERRNO, &error);
    curl_easy_getinfo(easy_.get(), CURLINFO_CONNECT_TIME_T, &connected_us);
    out_.status = static_cast<int>(status);
    out_.error = static_cast<int>(error);
    const std::string detail = error_[0] != '\0' ? error_ : curl_easy_strerror(code);
    switch (code) {
      case CURLE_OK:
        return;
      case CURLE_COULDNT_CONNECT:
        fault(HttpFault::kConnect, detail);
        return;
      case CURLE_OPERATION_TIMEDOUT:
        if (connected_us == 0) out_.error = ETIMEDOUT;
        fault(connected_us == 0 ? HttpFault::kConnect : HttpFault::kTimeout, detail);
        return;
      case CURLE_UNSUPPORTED_PROTOCOL:  // a status line that is none
      case CURLE_WEIRD_SERVER_REPLY:
      case CURLE_BAD_CONTENT_ENCODING:
        fault(HttpFault::kNotHttp, detail);
        return;
      case CURLE_PARTIAL_FILE:
      case CURLE_GOT_NOTHING:
      case CURLE_RECV_ERROR:
      case CURLE_SEND_ERROR:
        fault(HttpFault::kCut, detail);
        return;
      default:
        fault(HttpFault::kOther, detail);
    }
  }

  HttpOutcome& fault(HttpFault what, std::string detail) {
    out_.fault = what;
    out_.detail = std::move(detail);
    return out_;
  }

  static size_t on_header(char*, size_t size, size_t count, void* me) {
    auto& self = *static_cast<Exchange*>(me);
    self.moved_us_ = self.clock_.monotonic_us();
    return size * count;
  }

  static size_t on_body(char* at, size_t size, size_t count, void* me) {
    return static_cast<Exchange*>(me)->take({at, size * count}) ? size * count : 0;
  }

  bool take(std::string_view bytes) {
    moved_us_ = clock_.monotonic_us();
    if (status_ == 0) curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status_);
    const bool streamed = status_ == 200 && call_.sink;
    const int64_t most = streamed ? call_.streamed_bytes_max : call_.kept_bytes_max;
    body_bytes_ += static_cast<int64_t>(bytes.size());
    if (body_bytes_ > most) {
      fault(HttpFault::kLong, "the reply has more than " + std::to_string(most) + " bytes");
      return false;
    }
    if (!streamed) {
      out_.body.append(bytes);
      return true;
    }
    out_.refused = call_.sink(moved_us_, bytes);
    if (!out_.refused.ok()) fault(HttpFault::kSink, out_.refused.message());
    return out_.refused.ok();
  }

  const HttpCall& call_;
  const Clock& clock_;
  HttpOutcome out_;
  std::unique_ptr<curl_slist, FreeList> headers_, resolve_;
  std::unique_ptr<CURL, FreeEasy> easy_;
  std::unique_ptr<CURLM, FreeMulti> multi_;
  char error_[CURL_ERROR_SIZE] = "";
  long status_ = 0;  // HTTP, once a body comes
  int64_t body_bytes_ = 0;
  int64_t moved_us_ = 0;  // when the last byte went or came
  curl_off_t sent_ = 0;
};

}  // namespace

void start_curl() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

HttpOutcome exchange_http(const HttpCall& call, const Clock& clock) {
  return Exchange(call, clock).run();
}

}  // namespace tensorfold::ctl
