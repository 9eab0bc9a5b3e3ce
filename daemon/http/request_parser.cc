// llhttp's callbacks into one bounded Request.
#include "daemon/http/request_parser.h"

#include <algorithm>
#include <cctype>

namespace tensorfold::http {
namespace {

constexpr int kStop = HPE_USER;

Method to_method(uint8_t method) {
  switch (method) {
    case HTTP_GET:
      return Method::kGet;
    case HTTP_HEAD:
      return Method::kHead;
    case HTTP_POST:
      return Method::kPost;
    case HTTP_PUT:
      return Method::kPut;
    case HTTP_PATCH:
      return Method::kPatch;
    case HTTP_DELETE:
      return Method::kDelete;
    case HTTP_OPTIONS:
      return Method::kOptions;
    default:
      return Method::kOther;
  }
}

void lower(std::string& text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

}  // namespace

RequestParser::RequestParser(const Limits& limits) : limits_(limits) {
  llhttp_settings_init(&settings_);
  settings_.on_message_begin = on_begin;
  settings_.on_url = on_url;
  settings_.on_header_field = on_field;
  settings_.on_header_value = on_value;
  settings_.on_header_value_complete = on_value_complete;
  settings_.on_headers_complete = on_headers_complete;
  settings_.on_chunk_header = on_chunk;
  settings_.on_body = on_body;
  settings_.on_message_complete = on_message_complete;
  reset();
}

void RequestParser::reset() {
  llhttp_init(&parser_, HTTP_REQUEST, &settings_);
  parser_.data = this;
  request_ = Request();
  target_.clear();
  field_.clear();
  value_.clear();
  header_bytes_ = header_count_ = 0;
  wire_bytes_ = chunks_ = 0;
  started_ = headers_complete_ = complete_ = false;
}

RequestParser::Step RequestParser::feed(std::string_view data) {
  if (failed_) return {Event::kError, 0};
  if (data.empty()) {
    if (!ready()) return {Event::kNeedMore, 0};
    data = "";  // llhttp wants a pointer
  }
  const bool had_headers = headers_complete_;
  const llhttp_errno_t code = llhttp_execute(&parser_, data.data(), data.size());
  size_t consumed = data.size();
  if (code == HPE_PAUSED) {
    consumed = static_cast<size_t>(llhttp_get_error_pos(&parser_) - data.data());
  }
  if (had_headers && (code == HPE_OK || code == HPE_PAUSED) && !count_frames(consumed)) {
    failed_ = true;
    return {Event::kError, data.size()};
  }
  if (code == HPE_OK) return {Event::kNeedMore, consumed};
  if (code == HPE_PAUSED) {
    llhttp_resume(&parser_);
    if (complete_) return {Event::kComplete, consumed};
    return {had_headers ? Event::kNeedMore : Event::kHeaders, consumed};
  }
  failed_ = true;
  if (error_status_ == 0) {
    error_status_ = code == HPE_INVALID_VERSION ? 505 : 400;
    const char* reason = llhttp_get_error_reason(&parser_);
    error_message_ = std::string("malformed HTTP request: ") +
                     (reason != nullptr && *reason != '\0' ? reason : llhttp_errno_name(code));
  }
  return {Event::kError, data.size()};
}

bool RequestParser::has_body() const {
  return (parser_.flags & F_CHUNKED) != 0 ||
         ((parser_.flags & F_CONTENT_LENGTH) != 0 && parser_.content_length > 0);
}

bool RequestParser::has_long_body() const {
  return has_body() &&
         ((parser_.flags & F_CHUNKED) != 0 || parser_.content_length > kRefusedBodyBytesMax);
}

bool RequestParser::expects_continue() const {
  return request_.version_minor >= 1 && request_.header("expect") != nullptr;
}

RequestParser& RequestParser::self(llhttp_t* parser) {
  return *static_cast<RequestParser*>(parser->data);
}

int RequestParser::fail(int status, std::string message) {
  error_status_ = status;
  error_message_ = std::move(message);
  return kStop;
}

int RequestParser::count_header_bytes(size_t bytes) {
  header_bytes_ += bytes;
  if (header_bytes_ <= limits_.header_bytes) return 0;
  return fail(431,
              "request headers are longer than " + std::to_string(limits_.header_bytes) + " bytes");
}

// A chunked body's size lines, extensions and trailers are not kept, but they take time to read.
bool RequestParser::count_frames(size_t bytes) {
  if ((parser_.flags & F_CHUNKED) == 0) return true;
  wire_bytes_ += bytes;
  const size_t spare = limits_.header_bytes + kChunkSpareBytesMax;
  if (wire_bytes_ - request_.body.size() <= spare + chunks_ * kChunkFrameBytesMax) return true;
  fail(400, "malformed HTTP request: the chunks of the body carry more than the body");
  return false;
}

int RequestParser::on_begin(llhttp_t* parser) {
  self(parser).started_ = true;
  return 0;
}

int RequestParser::on_url(llhttp_t* parser, const char* at, size_t length) {
  RequestParser& me = self(parser);
  me.target_.append(at, length);
  if (me.target_.size() > kTargetBytesMax) {
    return me.fail(
        414, "the request target is longer than " + std::to_string(kTargetBytesMax) + " bytes");
  }
  return me.count_header_bytes(length);
}

int RequestParser::on_field(llhttp_t* parser, const char* at, size_t length) {
  RequestParser& me = self(parser);
  me.field_.append(at, length);
  return me.count_header_bytes(length);
}

int RequestParser::on_value(llhttp_t* parser, const char* at, size_t length) {
  RequestParser& me = self(parser);
  me.value_.append(at, length);
  return me.count_header_bytes(length);
}

int RequestParser::on_value_complete(llhttp_t* parser) {
  RequestParser& me = self(parser);
  if (++me.header_count_ > kHeaderCountMax) {
    return me.fail(431, "more than " + std::to_string(kHeaderCountMax) + " header fields");
  }
  lower(me.field_);
  while (!me.value_.empty() && (me.value_.back() == ' ' || me.value_.back() == '\t')) {
    me.value_.pop_back();
  }
  // Trailers of a chunked body are counted and dropped.
  if (!me.headers_complete_) {
    me.request_.headers.push_back({std::move(me.field_), std::move(me.value_)});
  }
  me.field_.clear();
  me.value_.clear();
  return me.count_header_bytes(4);  // ": " and the line's end
}

int RequestParser::split_target() {
  std::string_view target = target_;
  if (target.rfind("http://", 0) == 0) {  // absolute form, as a proxy's client sends it
    const size_t slash = target.find('/', 7);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  if (target.empty() || (target[0] != '/' && target != "*")) {
    return fail(400, "malformed HTTP request: the target is not a path");
  }
  const size_t question = target.find('?');
  request_.path = std::string(target.substr(0, question));
  if (question != std::string_view::npos) request_.query = std::string(target.substr(question + 1));
  return 0;
}

int RequestParser::finish_headers() {
  request_.method = to_method(parser_.method);
  request_.version_minor = parser_.http_minor;
  if (parser_.http_major != 1) return fail(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  if (parser_.method == HTTP_CONNECT) return fail(501, "CONNECT is not supported");
  parser_.upgrade = 0;  // an upgrade is an offer, and is declined by answering as usual
  if (const int stop = split_target(); stop != 0) return stop;
  const auto is_host = [](const Header& h) { return h.name == "host"; };
  const auto hosts = std::count_if(request_.headers.begin(), request_.headers.end(), is_host);
  if (hosts > 1 || (hosts == 0 && request_.version_minor >= 1)) {
    return fail(400, "malformed HTTP request: exactly one Host header is needed");
  }
  if (const std::string* coding = request_.header("transfer-encoding"); coding != nullptr) {
    std::string value = *coding;
    lower(value);
    if (value != "chunked") {
      return fail(501, "Transfer-Encoding '" + value + "': only chunked is spoken here");
    }
  }
  if ((parser_.flags & F_CONTENT_LENGTH) != 0 && parser_.content_length > limits_.body_bytes) {
    return body_too_long();
  }
  if (const std::string* expect = request_.header("expect"); expect != nullptr) {
    std::string value = *expect;
    lower(value);
    if (value != "100-continue") return fail(417, "unknown expectation '" + *expect + "'");
  }
  return 0;
}

int RequestParser::on_headers_complete(llhttp_t* parser) {
  RequestParser& me = self(parser);
  if (const int stop = me.finish_headers(); stop != 0) return stop;
  me.headers_complete_ = true;
  me.header_count_ = 0;  // trailers have a count of their own
  return HPE_PAUSED;
}

int RequestParser::body_too_long() {
  return fail(413,
              "the request body is longer than " + std::to_string(limits_.body_bytes) + " bytes");
}

// A chunk says its size first.
int RequestParser::on_chunk(llhttp_t* parser) {
  RequestParser& me = self(parser);
  ++me.chunks_;
  const size_t room = me.limits_.body_bytes - me.request_.body.size();
  return parser->content_length > room ? me.body_too_long() : 0;
}

int RequestParser::on_body(llhttp_t* parser, const char* at, size_t length) {
  RequestParser& me = self(parser);
  if (me.request_.body.size() + length > me.limits_.body_bytes) return me.body_too_long();
  if (me.request_.body.capacity() == 0 && (parser->flags & F_CHUNKED) == 0) {
    me.request_.body.reserve(length + parser->content_length);
  }
  me.request_.body.append(at, length);
  return 0;
}

int RequestParser::on_message_complete(llhttp_t* parser) {
  RequestParser& me = self(parser);
  me.complete_ = true;
  me.request_.keep_alive = llhttp_should_keep_alive(parser) != 0;
  return HPE_PAUSED;
}

}  // namespace tensorfold::http
