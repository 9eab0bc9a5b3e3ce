// The request parser alone: every cut of a message, every limit one past it, malformed input.
#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "daemon/http/request_parser.h"

using namespace tensorfold::http;

namespace {

struct Outcome {
  bool complete = false;
  int status = 0;  // of an error
  std::string message;
  Request request;
  size_t consumed = 0;
};

// Feeds `text` in pieces of `piece` bytes until a message is complete or refused.
Outcome parse(const std::string& text, size_t piece, Limits limits = Limits()) {
  RequestParser parser(limits);
  Outcome out;
  size_t at = 0;
  while (at < text.size() || parser.ready()) {
    const size_t n = std::min(piece, text.size() - at);
    const auto step = parser.feed(std::string_view(text).substr(at, n));
    at += step.consumed;
    if (step.event == RequestParser::Event::kError) {
      out.status = parser.error_status();
      out.message = parser.error_message();
      return out;
    }
    if (step.event == RequestParser::Event::kComplete) {
      out.complete = true;
      out.request = std::move(parser.request());
      out.consumed = at;
      return out;
    }
  }
  return out;
}

const std::string kPost =
    "POST /v1/chat/completions?x=1&y HTTP/1.1\r\nHost: a\r\nX-Thing:  b  \r\n"
    "Content-Length: 5\r\n\r\nhello";
const std::string kChunked =
    "POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    "3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nTrailer: t\r\n\r\n";

}  // namespace

BOOST_AUTO_TEST_CASE(any_cut_gives_the_same_request) {
  for (size_t piece = 1; piece <= kPost.size(); ++piece) {
    const Outcome out = parse(kPost, piece);
    BOOST_REQUIRE_MESSAGE(out.complete, "piece " << piece << ": " << out.message);
    BOOST_TEST((out.request.method == Method::kPost));
    BOOST_TEST(out.request.path == "/v1/chat/completions");
    BOOST_TEST(out.request.query == "x=1&y");
    BOOST_TEST(out.request.body == "hello");
    BOOST_REQUIRE(out.request.header("x-thing") != nullptr);
    BOOST_TEST(*out.request.header("x-thing") == "b");
    BOOST_TEST(out.request.keep_alive);
    BOOST_TEST(out.consumed == kPost.size());
  }
  for (size_t piece = 1; piece <= kChunked.size(); ++piece) {
    const Outcome out = parse(kChunked, piece);
    BOOST_REQUIRE_MESSAGE(out.complete, "piece " << piece << ": " << out.message);
    BOOST_TEST(out.request.body == "abcde");
    BOOST_TEST(out.request.header("trailer") == nullptr);
  }
}

BOOST_AUTO_TEST_CASE(second_request_is_left_alone) {
  const std::string get = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
  const Outcome out = parse(get + get, 1000);
  BOOST_TEST(out.complete);
  BOOST_TEST(out.consumed == get.size());
}

BOOST_AUTO_TEST_CASE(keep_alive_follows_the_version) {
  BOOST_TEST(!parse("GET / HTTP/1.0\r\n\r\n", 99).request.keep_alive);
  BOOST_TEST(parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 99).request.keep_alive);
  BOOST_TEST(
      !parse("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 99).request.keep_alive);
}

BOOST_AUTO_TEST_CASE(malformed_requests_have_a_status) {
  struct Case {
    std::string text;
    int status;
  };
  const std::string host = "Host: a\r\n";
  const Case cases[] = {
      {"\x16\x03\x01\x02\x01garbage\r\n\r\n", 400},  // a TLS hello
      {"GET / HTTP/1.1\r\n\r\n", 400},               // no Host
      {"GET / HTTP/1.1\r\n" + host + host + "\r\n", 400},
      {"GET / HTTP/2.0\r\n" + host + "\r\n", 505},
      {"GET nopath HTTP/1.1\r\n" + host + "\r\n", 400},
      {"BREW / HTTP/1.1\r\n" + host + "\r\n", 400},
      {"CONNECT a:1 HTTP/1.1\r\n" + host + "\r\n", 501},
      {"GET / HTTP/1.1\r\nHost a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nX: a\x01z\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nX : a\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: -5\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 5x\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
       400},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked, gzip\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Expect: coffee\r\nContent-Length: 1\r\n\r\n", 417},
  };
  for (const Case& c : cases) {
    for (const size_t piece : {size_t{1}, size_t{7}, c.text.size()}) {
      const Outcome out = parse(c.text, piece);
      BOOST_TEST(out.status == c.status, c.text << " gave " << out.status << " " << out.message);
    }
  }
}

BOOST_AUTO_TEST_CASE(limits_hold_one_past_them) {
  Limits limits;
  limits.header_bytes = 1000;
  limits.body_bytes = 10;
  const auto with_body = [](size_t n) {
    return "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(n) + "\r\n\r\n" +
           std::string(n, 'x');
  };
  BOOST_TEST(parse(with_body(10), 5, limits).complete);
  BOOST_TEST(parse(with_body(11), 5, limits).status == 413);
  const std::string chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  BOOST_TEST(parse(chunked + "a\r\n0123456789\r\n0\r\n\r\n", 5, limits).complete);
  BOOST_TEST(parse(chunked + "b\r\n01234567890\r\n0\r\n\r\n", 5, limits).status == 413);
  // Refused by its size line, before a byte of it has come.
  BOOST_TEST(parse(chunked + "b\r\n", 5, limits).status == 413);
  BOOST_TEST(parse(chunked + "3\r\nabc\r\n8\r\n", 5, limits).status == 413);
  BOOST_TEST(parse(chunked + "ffffffffffffffff\r\n", 5, limits).status == 413);

  const auto with_header = [](size_t n) {
    return "GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(n, 'h') + "\r\n\r\n";
  };
  // Counted: the target, names, values and four bytes a field.
  const size_t fixed = 1 + 4 + 1 + 4 + 1 + 4;
  BOOST_TEST(parse(with_header(1000 - fixed), 64, limits).complete);
  BOOST_TEST(parse(with_header(1001 - fixed), 64, limits).status == 431);

  const auto with_fields = [](size_t n) {
    std::string text = "GET / HTTP/1.1\r\nHost: a\r\n";
    for (size_t i = 1; i < n; ++i) text += "A: b\r\n";
    return text + "\r\n";
  };
  BOOST_TEST(parse(with_fields(kHeaderCountMax), 4096).complete);
  BOOST_TEST(parse(with_fields(kHeaderCountMax + 1), 4096).status == 431);

  const auto with_target = [](size_t n) {
    return "GET /" + std::string(n - 1, 'p') + " HTTP/1.1\r\nHost: a\r\n\r\n";
  };
  BOOST_TEST(parse(with_target(kTargetBytesMax), 4096).complete);
  BOOST_TEST(parse(with_target(kTargetBytesMax + 1), 4096).status == 414);
}

BOOST_AUTO_TEST_CASE(trailers_are_bounded) {
  std::string text = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n";
  for (size_t i = 0; i <= kHeaderCountMax; ++i) text += "T: x\r\n";
  BOOST_TEST(parse(text + "\r\n", 512).status == 431);
}

// What a chunked body has beside its bytes is dropped, and bounded: one long extension, or a short
// one on every chunk.
BOOST_AUTO_TEST_CASE(chunk_extensions_are_bounded) {
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  const auto extended = [&](size_t bytes) {
    return head + "1;" + std::string(bytes, 'e') + "\r\nx\r\n0\r\n\r\n";
  };
  Limits limits;
  limits.header_bytes = 1000;
  const auto chunks = [&](size_t extension) {
    std::string text = head;
    for (int i = 0; i < 2000; ++i) text += "1;" + std::string(extension, 'e') + "\r\nx\r\n";
    return text + "0\r\n\r\n";
  };
  for (const size_t piece : {size_t{7}, size_t{4096}}) {
    BOOST_TEST(parse(extended(kChunkSpareBytesMax), piece, limits).complete);
    BOOST_TEST(parse(extended(kChunkSpareBytesMax + 2000), piece, limits).status == 400);
    BOOST_TEST(parse(chunks(kChunkFrameBytesMax - 6), piece, limits).complete);
    BOOST_TEST(parse(chunks(kChunkFrameBytesMax + 10), piece, limits).status == 400);
  }
  BOOST_TEST(parse(chunks(1), 7, limits).request.body.size() == 2000);
}

BOOST_AUTO_TEST_CASE(absolute_form_and_upgrades) {
  BOOST_TEST(parse("GET http://h/a?b HTTP/1.1\r\nHost: h\r\n\r\n", 99).request.path == "/a");
  const Outcome out =
      parse("GET /a HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", 99);
  BOOST_TEST(out.complete);
}
