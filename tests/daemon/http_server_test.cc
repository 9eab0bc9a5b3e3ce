// The server over real sockets: keep-alive, pipelining, time and size limits, clients that go away.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/daemon/loopback.h"

using namespace tensorfold;
using namespace tensorfold::http;

namespace {

// Answers by path: /echo the body, /hold keeps the exchange, /stream N chunks, /flood endless.
struct Handler {
  std::mutex mutex;
  std::vector<std::shared_ptr<Exchange>> held;
  std::atomic<int> gone{0};
  std::atomic<int> held_count{0};

  ServerHooks hooks() {
    ServerHooks out;
    out.handle = [this](std::shared_ptr<Exchange> e) { handle(std::move(e)); };
    out.precheck = [](const Request& r) -> std::optional<Response> {
      if (r.path != "/refused") return std::nullopt;
      Response response;
      response.status = 404;
      response.body = "no";
      return response;
    };
    out.error_body = [](const Request&, int status, std::string_view message) {
      return std::to_string(status) + " " + std::string(message);
    };
    return out;
  }

  void handle(std::shared_ptr<Exchange> e) {
    const std::string path = e->request().path;
    if (path == "/hold" || path == "/flood") {
      e->on_gone([this] { ++gone; });
      if (path == "/flood") {
        e->begin_stream(Response());
        const std::string block(64 * 1024, 'x');
        for (int i = 0; i < 400 && !e->gone(); ++i) e->write(block);
      }
      held.push_back(e);
      ++held_count;
      return;
    }
    if (path == "/stream") {
      e->begin_stream(Response());
      e->write("one");
      e->write("");
      e->write("two");
      e->end_stream("");
      return;
    }
    if (path == "/joined") {
      Response head;
      head.body = "first";
      e->begin_stream(std::move(head));
      e->end_stream("last");
      return;
    }
    Response response;
    response.content_type = "text/plain";
    response.body = e->request().body;
    e->respond(std::move(response));
  }
};

std::string post(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}
std::string get(const std::string& path) { return "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n"; }

int count_of(const std::string& text, const std::string& what) {
  int n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
  return n;
}

template <typename Condition>
bool eventually(Condition condition, int ms = 5000) {
  for (int i = 0; i < ms; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

Limits quick() {
  Limits limits;
  limits.sweep_ms = 10;
  return limits;
}

}  // namespace

BOOST_AUTO_TEST_CASE(keep_alive_and_pipelining) {
  Handler handler;
  LoopbackServer server(quick(), handler.hooks());
  Client client(server.port());
  client.send(post("/echo", "first"));
  const std::string first = client.read_until("first");
  BOOST_TEST(first.rfind("HTTP/1.1 200 OK\r\n", 0) == 0);
  BOOST_TEST(first.find("Connection: keep-alive\r\n") != std::string::npos);
  BOOST_TEST(first.find("Content-Length: 5\r\n") != std::string::npos);
  std::string many;
  for (int i = 0; i < 50; ++i) many += post("/echo", "n" + std::to_string(i) + ";");
  client.send(many);
  const std::string replies = client.read_until("n49;");
  BOOST_TEST(count_of(replies, "HTTP/1.1 200 OK") == 50);
  BOOST_TEST(!client.closed());
  BOOST_TEST(server.counters().connections_total == 1);
}

BOOST_AUTO_TEST_CASE(http_1_0_and_close) {
  Handler handler;
  LoopbackServer server(quick(), handler.hooks());
  Client old(server.port());
  old.send("GET /stream HTTP/1.0\r\n\r\n");
  const std::string reply = old.read_all();
  BOOST_TEST(old.closed());
  BOOST_TEST(reply.find("chunked") == std::string::npos);
  BOOST_TEST(reply.find("\r\n\r\nonetwo") != std::string::npos);
  Client closing(server.port());
  closing.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  BOOST_TEST(closing.read_all().find("Connection: close") != std::string::npos);
  BOOST_TEST(closing.closed());
}

BOOST_AUTO_TEST_CASE(streams_are_chunked) {
  Handler handler;
  LoopbackServer server(quick(), handler.hooks());
  Client client(server.port());
  client.send(get("/stream") + post("/echo", "after"));
  const std::string reply = client.read_until("after");
  BOOST_TEST(reply.find("\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\nHTTP/1.1 200") !=
             std::string::npos);
}

// What a stream begins and ends with goes out with its head and its end, framed as the rest is.
BOOST_AUTO_TEST_CASE(a_stream_begins_and_ends_with_bytes) {
  Handler handler;
  LoopbackServer server(quick(), handler.hooks());
  Client client(server.port());
  client.send(get("/joined") + "HEAD /joined HTTP/1.1\r\nHost: a\r\n\r\n" + post("/echo", "after"));
  const std::string reply = client.read_until("after");
  BOOST_TEST(reply.find("\r\n\r\n5\r\nfirst\r\n4\r\nlast\r\n0\r\n\r\nHTTP/1.1 200") !=
             std::string::npos);
  BOOST_TEST(count_of(reply, "first") == 1);  // the HEAD has none of it
  Client old(server.port());
  old.send("GET /joined HTTP/1.0\r\n\r\n");
  const std::string plain = old.read_all();
  BOOST_TEST(plain.substr(plain.find("\r\n\r\n") + 4) == "firstlast");
}

BOOST_AUTO_TEST_CASE(head_has_no_body) {
  Handler handler;
  LoopbackServer server(quick(), handler.hooks());
  Client client(server.port());
  client.send("HEAD /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" + get("/stream"));
  const std::string reply = client.read_until("two");
  BOOST_TEST(reply.find("Content-Length: 3\r\n") != std::string::npos);
  BOOST_TEST(reply.find("\r\n\r\nHTTP/1.1 200") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(expect_continue) {
  Handler handler;
  LoopbackServer server(quick(), handler.hooks());
  Client client(server.port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  BOOST_TEST(client.read_until("\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("body");
  BOOST_TEST(client.read_until("body").find("200 OK") != std::string::npos);
  // A request that is refused is told so instead.
  client.send(
      "POST /refused HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  const std::string refused = client.read_all();
  BOOST_TEST(refused.rfind("HTTP/1.1 404", 0) == 0);
  BOOST_TEST(client.closed());
}

BOOST_AUTO_TEST_CASE(short_refused_bodies_keep_the_connection) {
  Handler handler;
  LoopbackServer server(quick(), handler.hooks());
  Client client(server.port());
  client.send(post("/refused", "body") + post("/echo", "next"));
  const std::string reply = client.read_until("next");
  BOOST_TEST(reply.rfind("HTTP/1.1 404", 0) == 0);
  BOOST_TEST(reply.find("HTTP/1.1 200") != std::string::npos);
  BOOST_TEST(!client.closed());
}

BOOST_AUTO_TEST_CASE(long_body_is_refused_before_it_is_sent) {
  Handler handler;
  Limits limits = quick();
  limits.body_bytes = 1000;
  LoopbackServer server(limits, handler.hooks());
  Client client(server.port());
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000\r\n\r\n");
  client.send(std::string(1'000'000, 'x'));  // a client that sends before it reads
  const std::string reply = client.read_all();
  BOOST_TEST(reply.rfind("HTTP/1.1 413", 0) == 0, reply);
  BOOST_TEST(server.counters().bad_requests_total == 1);
}

BOOST_AUTO_TEST_CASE(garbage_gets_400_and_the_end) {
  Handler handler;
  LoopbackServer server(quick(), handler.hooks());
  for (const std::string& garbage :
       {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 9), std::string("hello\r\n\r\n"),
        std::string(100'000, 'A'), std::string("GET / HTTP/1.1\r\nHost: a\r\nx\r\n\r\n"),
        std::string(1000, '\0')}) {
    Client client(server.port());
    client.send(garbage);
    const std::string reply = client.read_all();
    BOOST_TEST(reply.rfind("HTTP/1.1 4", 0) == 0, reply);
    BOOST_TEST(client.closed());
  }
}

BOOST_AUTO_TEST_CASE(slow_requests_end_in_408) {
  Handler handler;
  Limits limits = quick();
  limits.header_ms = 100;
  limits.body_ms = 100;
  limits.idle_ms = 300;
  LoopbackServer server(limits, handler.hooks());
  Client headers(server.port()), body(server.port()), idle(server.port());
  headers.send("GET / HTTP/1.1\r\nHost: a\r\n");
  body.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab");
  BOOST_TEST(headers.read_all().rfind("HTTP/1.1 408", 0) == 0);
  BOOST_TEST(body.read_all().rfind("HTTP/1.1 408", 0) == 0);
  BOOST_TEST(idle.read_all() == "");
  BOOST_TEST(idle.closed());
  BOOST_TEST(server.counters().timeouts_total == 2);
}

BOOST_AUTO_TEST_CASE(a_trickle_does_not_hold_the_headers_open) {
  Handler handler;
  Limits limits = quick();
  limits.header_ms = 200;
  LoopbackServer server(limits, handler.hooks());
  Client client(server.port());
  const std::string text = "GET / HTTP/1.1\r\nHost: a\r\nX-Slow: yes and more\r\n";
  for (const char c : text) {
    client.send(std::string_view(&c, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  BOOST_TEST(client.read_all().rfind("HTTP/1.1 408", 0) == 0);
}

BOOST_AUTO_TEST_CASE(one_connection_past_the_limit_gets_503) {
  Handler handler;
  Limits limits = quick();
  limits.connections = 2;
  LoopbackServer server(limits, handler.hooks());
  Client a(server.port()), b(server.port());
  a.send(get("/echo"));
  b.send(get("/echo"));
  BOOST_TEST(a.read_until("\r\n\r\n").find("200 OK") != std::string::npos);
  BOOST_TEST(b.read_until("\r\n\r\n").find("200 OK") != std::string::npos);
  Client c(server.port());
  BOOST_TEST(c.read_all().rfind("HTTP/1.1 503", 0) == 0);
  BOOST_TEST(server.counters().connections_refused_total == 1);
}

BOOST_AUTO_TEST_CASE(one_byte_past_the_sum_of_bodies_gets_503) {
  Handler handler;
  Limits limits = quick();
  limits.bodies_bytes = 1000;
  LoopbackServer server(limits, handler.hooks());
  const auto held = [&] {
    size_t bytes = 0;
    server.on_loop([&] { bytes = server.server().body_bytes(); });
    return bytes;
  };
  // One request that is not answered yet, and one whose body is half there: 900 of 1,000 bytes.
  Client waiting(server.port()), half(server.port()), third(server.port());
  waiting.send(post("/hold", std::string(400, 'w')));
  half.send(post("/echo", std::string(600, 'h')).substr(0, post("/echo", "").size() + 502));
  BOOST_TEST(eventually([&] { return held() == 900; }));
  third.send(post("/echo", std::string(100, 't')));
  BOOST_TEST(third.read_until("ttt").find("200 OK") != std::string::npos);
  BOOST_TEST(held() == 900U);
  third.send(post("/echo", std::string(101, 'u')));
  const std::string refused = third.read_all();
  const auto at = refused.find("HTTP/1.1 503");
  BOOST_REQUIRE(at != std::string::npos);
  BOOST_TEST(refused.find("Retry-After: ", at) != std::string::npos);
  BOOST_TEST(server.counters().bodies_refused_total == 1);
  // A chunked body is counted as it comes.
  Client chunked(server.port());
  chunked.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  chunked.send("64\r\n" + std::string(100, 'c') + "\r\n1\r\nc\r\n0\r\n\r\n");
  BOOST_TEST(chunked.read_all().rfind("HTTP/1.1 503", 0) == 0);
  BOOST_TEST(held() == 900U);
  // Answered, gone: nothing is counted any more.
  server.on_loop([&] { handler.held.at(0)->respond(Response()); });
  BOOST_TEST(waiting.read_until("\r\n\r\n").find("200 OK") != std::string::npos);
  half.reset();
  BOOST_TEST(eventually([&] { return held() == 0; }));
  Client last(server.port());
  last.send(post("/echo", std::string(1000, 'z')));
  BOOST_TEST(last.read_until("zzz").find("200 OK") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(clients_that_go_away_are_noticed) {
  Handler handler;
  LoopbackServer server(quick(), handler.hooks());
  {
    Client closing(server.port());
    closing.send(get("/hold"));
    BOOST_TEST(eventually([&] { return handler.held_count == 1; }));
  }
  BOOST_TEST(eventually([&] { return handler.gone == 1; }));
  Client half(server.port());
  half.send(get("/hold"));
  half.shut_write();
  BOOST_TEST(eventually([&] { return handler.gone == 2; }));
  Client reset(server.port());
  reset.send(get("/hold"));
  BOOST_TEST(eventually([&] { return handler.held_count == 3; }));
  reset.reset();
  BOOST_TEST(eventually([&] { return handler.gone == 3; }));
  // An answer that comes too late is a no-op.
  server.on_loop([&] {
    for (auto& exchange : handler.held) {
      BOOST_TEST(exchange->gone());
      exchange->respond(Response());
    }
    handler.held.clear();
  });
  BOOST_TEST(eventually([&] { return server.connections() == 0; }));
}

BOOST_AUTO_TEST_CASE(pipelined_requests_wait_and_are_bounded) {
  Handler handler;
  LoopbackServer server(quick(), handler.hooks());
  Client client(server.port());
  client.send(get("/hold") + post("/echo", "second"));
  BOOST_TEST(eventually([&] { return handler.held_count == 1; }));
  server.on_loop([&] {
    Response response;
    response.body = "first";
    std::exchange(handler.held, {}).at(0)->respond(std::move(response));
  });
  const std::string replies = client.read_until("second");
  BOOST_TEST(replies.find("first") < replies.find("second"));
  // One past the bound: what was pipelined is dropped, the reply in progress still comes.
  Client greedy(server.port());
  greedy.send(get("/hold"));
  BOOST_TEST(eventually([&] { return handler.held_count == 2; }));
  greedy.send(post("/echo", std::string(kPipelinedBytesMax + 1, 'p')));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  server.on_loop([&] {
    Response response;
    response.body = "only";
    std::exchange(handler.held, {}).at(0)->respond(std::move(response));
  });
  const std::string reply = greedy.read_all();
  BOOST_TEST(count_of(reply, "HTTP/1.1") == 1);
  BOOST_TEST(reply.find("only") != std::string::npos);
  BOOST_TEST(greedy.closed());
}

BOOST_AUTO_TEST_CASE(a_reader_that_does_not_read_is_dropped) {
  Handler handler;
  Limits limits = quick();
  limits.write_backlog_bytes = 256 * 1024;
  LoopbackServer server(limits, handler.hooks());
  Client slow(server.port(), 4096);
  slow.send(get("/flood"));
  BOOST_TEST(eventually([&] { return handler.gone == 1; }));
  BOOST_TEST(server.counters().slow_readers_total == 1);
  Client other(server.port());
  other.send(post("/echo", "fine"));
  BOOST_TEST(other.read_until("fine").find("200 OK") != std::string::npos);
  server.on_loop([&] { handler.held.clear(); });
}

BOOST_AUTO_TEST_CASE(a_stalled_write_ends) {
  Handler handler;
  Limits limits = quick();
  limits.write_backlog_bytes = 1 << 30;
  limits.write_stall_ms = 200;
  LoopbackServer server(limits, handler.hooks());
  Client slow(server.port(), 4096);
  slow.send(get("/flood"));
  BOOST_TEST(eventually([&] { return handler.gone == 1; }));
  server.on_loop([&] { handler.held.clear(); });
}

BOOST_AUTO_TEST_CASE(many_idle_connections) {
  Handler handler;
  LoopbackServer server(quick(), handler.hooks());
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 500; ++i) clients.push_back(std::make_unique<Client>(server.port()));
  clients.back()->send(post("/echo", "alive"));
  BOOST_TEST(clients.back()->read_until("alive").find("200 OK") != std::string::npos);
  clients.clear();
  BOOST_TEST(eventually([&] { return server.connections() == 0; }));
}
