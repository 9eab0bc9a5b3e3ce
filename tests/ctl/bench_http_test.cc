// `tfctl bench` over loopback: a small HTTP server in this process. What is checked are shapes,
// counts and messages; times are the business of bench_test.cc.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <fstream>
#include <functional>
#include <list>
#include <sstream>
#include <thread>

#include "ctl/bench/http_wire.h"
#include "ctl/bench/runs.h"
#include "ctl/verb.h"
#include "engine/base/json.h"

using namespace tensorfold;
using namespace tensorfold::ctl;

namespace {

struct Received {
  std::string method, path, head, body;
};

// Answers each connection with the bytes that `answer` gives, then closes it.
class HttpServer {
 public:
  using Answer = std::function<std::string(const Received&)>;

  explicit HttpServer(Answer answer) : answer_(std::move(answer)) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    BOOST_REQUIRE(bind(fd_, reinterpret_cast<sockaddr*>(&address), length) == 0);
    BOOST_REQUIRE(listen(fd_, 64) == 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    url = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    BOOST_REQUIRE(pipe(stop_) == 0);
    thread_ = std::thread([this] { serve(); });
  }
  ~HttpServer() {
    close(stop_[1]);
    thread_.join();
    for (std::thread& one : connections_) one.join();
    close(fd_);
    close(stop_[0]);
  }
  std::string url;
  std::atomic<int> served = 0;

 private:
  void serve() {
    for (;;) {
      pollfd items[2] = {{fd_, POLLIN, 0}, {stop_[0], POLLIN, 0}};
      poll(items, 2, -1);
      if (items[1].revents != 0) return;
      const int peer = accept(fd_, nullptr, nullptr);
      if (peer >= 0) connections_.emplace_back([this, peer] { connection(peer); });
    }
  }

  void connection(int peer) {
    std::string text;
    size_t end = std::string::npos;
    char buffer[8192];
    for (;;) {
      const ssize_t count = recv(peer, buffer, sizeof buffer, 0);
      if (count <= 0) break;
      text.append(buffer, static_cast<size_t>(count));
      end = text.find("\r\n\r\n");
      if (end == std::string::npos) continue;
      const size_t at = text.find("Content-Length: ");
      const size_t length = at < end ? std::stoul(text.substr(at + 16)) : 0;
      if (text.size() >= end + 4 + length) break;
    }
    if (end != std::string::npos) {
      const size_t space = text.find(' ');
      const Received received{text.substr(0, space),
                              text.substr(space + 1, text.find(' ', space + 1) - space - 1),
                              text.substr(0, end), text.substr(end + 4)};
      const std::string reply = answer_(received);
      ++served;
      if (reply.empty()) {  // says nothing until the client goes or the test ends
        pollfd items[2] = {{peer, POLLIN, 0}, {stop_[0], POLLIN, 0}};
        poll(items, 2, -1);
      }
      send(peer, reply.data(), reply.size(), MSG_NOSIGNAL);
    }
    close(peer);
  }

  Answer answer_;
  int fd_ = -1;
  int stop_[2];
  std::list<std::thread> connections_;
  std::thread thread_;
};

std::string whole(int status, const std::string& body) {
  return "HTTP/1.1 " + std::to_string(status) +
         " X\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string chunk(const std::string& text) {
  std::ostringstream size;
  size << std::hex << text.size();
  return size.str() + "\r\n" + text + "\r\n";
}

// More than three reads take: the first and the last text of a reply never come at once, and no
// test waits for that.
constexpr int64_t kReplyBytes = 200'000;

// An OpenAI-compatible server that counts words.
std::string openai(const Received& received) {
  if (received.path == "/v1/models") return whole(200, R"({"data":[{"id":"small"}]})");
  const auto body = parse_json(received.body);
  if (received.path != "/v1/chat/completions" || !body.ok()) {
    return whole(404, R"({"error":{"message":"no such path"}})");
  }
  const Json* model = body->find("model");
  if (model == nullptr || model->as_string() != "small") {
    return whole(404, R"({"error":{"message":"no such model"}})");
  }
  std::string out =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  const int64_t tokens = *body->find("max_tokens")->as_int64();
  const std::string pad(static_cast<size_t>(kReplyBytes / tokens), '.');
  for (int64_t i = 0; i < tokens; ++i) {
    out +=
        chunk("data: {\"choices\":[{\"delta\":{\"content\":\"w \"}}],\"pad\":\"" + pad + "\"}\n\n");
  }
  const std::string& text = body->find("messages")->as_array()[0].find("content")->as_string();
  const auto words = std::count(text.begin(), text.end(), ' ') + 1;
  out += chunk(
      "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}],\"usage\":{"
      "\"prompt_tokens\":" +
      std::to_string(words) + ",\"completion_tokens\":" + std::to_string(tokens) +
      ",\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\ndata: [DONE]\n\n");
  return out + "0\r\n\r\n";
}

struct Run {
  int code;
  std::string out, err;
};

Run tool(std::vector<std::string> args) {
  args.insert(args.begin(), "bench");
  std::istringstream in;
  std::ostringstream out, err;
  const int code = run_tfctl(args, in, out, err);
  return {code, out.str(), err.str()};
}

Json document_of(const Run& run) {
  BOOST_REQUIRE_MESSAGE(run.code == kExitOk, run.err);
  auto document = parse_json(run.out);
  BOOST_REQUIRE_MESSAGE(document.ok(), run.out);
  return *std::move(document);
}

const Json& cell(const Json& document, size_t i) { return document.find("cells")->as_array()[i]; }

void check_error(const std::vector<std::string>& args, int code, const std::string& message) {
  const Run run = tool(args);
  BOOST_TEST(run.code == code, run.code << " for " << message << ": " << run.err);
  BOOST_TEST(run.err.find(message) != std::string::npos, run.err << " without " << message);
  BOOST_TEST(run.out.empty());
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_verb_over_loopback) {
  HttpServer server(openai);
  const Json ready = document_of(
      tool({"ready", "--url", server.url, "--json", "--pid", std::to_string(getpid())}));
  BOOST_TEST(ready.find("bench")->as_string() == "ready");
  BOOST_TEST(ready.find("ready_s")->as_double() > 0);
  BOOST_TEST(*ready.find("attempts")->as_int64() == 1);

  const Json decode = document_of(
      tool({"decode", "--url", server.url + "/v1", "--json", "--set", "b", "--reps", "2"}));
  BOOST_TEST(decode.find("model")->as_string() == "small");
  BOOST_REQUIRE(decode.find("cells")->as_array().size() == 3);
  BOOST_TEST(cell(decode, 2).find("prompt")->as_string() == "count");
  BOOST_TEST(cell(decode, 2).find("decode_tps")->find("all")->as_array().size() == 2);
  BOOST_TEST(*cell(decode, 0).find("completion_tokens")->as_array()[1].as_int64() == 384);
  BOOST_TEST(cell(decode, 0).find("identical_texts")->as_bool());

  const Json concurrent =
      document_of(tool({"concurrent", "--url", server.url, "--json", "--streams", "1,3", "--reps",
                        "2", "--tokens", "40", "--long-prompt", "500"}));
  BOOST_TEST(*cell(concurrent, 1).find("streams")->as_int64() == 3);
  BOOST_TEST(cell(concurrent, 1).find("first_token_s_all")->as_array().size() == 6);
  BOOST_TEST(cell(concurrent, 1).find("aggregate_tps")->find("median")->as_double() > 0);
  const Json* fill = cell(concurrent, 1).find("long_prompt");
  BOOST_REQUIRE(fill != nullptr);
  BOOST_TEST(fill->find("prompt_tokens")->as_array().size() == 2);

  const Json sustained = document_of(tool({"sustained", "--url", server.url, "--json", "--streams",
                                           "2", "--seconds", "0.2", "--tokens", "8"}));
  BOOST_TEST(cell(sustained, 0).find("aggregate_tps")->as_double() > 0);

  const Json prefill = document_of(
      tool({"prefill", "--url", server.url, "--json", "--lengths", "1000,3000", "--reps", "2"}));
  BOOST_TEST(prefill.find("prompts")->as_string() == "words");
  BOOST_TEST(*cell(prefill, 1).find("prompt_tokens")->as_array()[0].as_int64() == 3000);
  BOOST_TEST(*cell(prefill, 1).find("cached_tokens")->as_array()[1].as_int64() == 0);

  const Json depth = document_of(tool({"depth", "--url", server.url, "--json", "--lengths", "2000",
                                       "--tokens", "20", "--reps", "1"}));
  BOOST_TEST(depth.find("cells")->as_array().size() == 2);
  const Json first =
      document_of(tool({"first-long", "--url", server.url, "--json", "--length", "900"}));
  BOOST_TEST(first.find("prefill_tps")->as_array().size() == 3);

  const Run needle = tool({"needle", "--url", server.url, "--lengths", "800"});
  BOOST_TEST(needle.code == kExitFailed);  // this server knows no phrase
  BOOST_TEST(needle.err.find("found 0 of 3") != std::string::npos);
  BOOST_TEST(needle.out.find("prompt tokens") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_key_is_sent_and_a_refusal_is_told) {
  HttpServer server([](const Received& received) {
    return received.head.find("\r\nAuthorization: Bearer tf-0123456789\r\n") == std::string::npos
               ? whole(401, R"({"error":{"message":"no valid key"}})")
               : openai(received);
  });
  const std::string path = "/tmp/tf-bench-key-" + std::to_string(getpid());
  std::ofstream(path) << "# keys\n\nhome: tf-0123456789\nother: tf-none\n";
  BOOST_TEST(tool({"decode", "--url", server.url, "--tokens", "8", "--key-file", path}).code ==
             kExitOk);
  check_error({"decode", "--url", server.url}, kExitFailed,
              "GET /v1/models was answered 401: no valid key");
  const int before = server.served;
  check_error({"ready", "--url", server.url}, kExitFailed, "401: no valid key");
  BOOST_TEST(server.served == before + 1);
  std::ofstream(path) << "# none\n";
  check_error({"decode", "--url", server.url, "--key-file", path}, kExitFailed, "has no key in it");
  std::ofstream(path) << std::string(bench::kBenchKeyFileBytesMax + 1, '#');
  check_error({"decode", "--url", server.url, "--key-file", path}, kExitFailed, "has more than");
  unlink(path.c_str());
  check_error({"decode", "--url", server.url, "--key-file", path}, kExitFailed, "No such file");
}

BOOST_AUTO_TEST_CASE(servers_that_are_not_there_or_not_right) {
  std::string gone;
  {
    HttpServer server(openai);
    gone = server.url;
    check_error({"prefill", "--url", server.url, "--model", "other"}, kExitFailed,
                "was answered 404: no such model");
  }
  check_error({"decode", "--url", gone}, kExitNotRunning, "no server answers on 127.0.0.1:");
  check_error({"ready", "--url", gone, "--wait", "0.05", "--poll", "0.02"}, kExitTimeout,
              "not ready within 0 s: no server answers");
  HttpServer junk([](const Received&) { return std::string("SSH-2.0-x\r\n"); });
  check_error({"decode", "--url", junk.url}, kExitFailed, "does not speak HTTP");
  HttpServer cut(
      [](const Received&) { return std::string("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"); });
  check_error({"decode", "--url", cut.url}, kExitFailed, "ended the connection before");
  HttpServer mute([](const Received&) { return std::string(); });
  check_error({"decode", "--url", mute.url, "--idle-timeout", "0.1"}, kExitTimeout,
              "sent nothing within");
  HttpServer html([](const Received&) { return whole(200, "<html>"); });
  check_error({"decode", "--url", html.url}, kExitFailed, "not JSON: <html>");
}

BOOST_AUTO_TEST_CASE(options_out_of_range_are_named) {
  const struct {
    std::vector<std::string> args;
    std::string message;
  } cases[] = {
      {{"decode", "--url", "https://example.com"}, "https is not spoken here"},
      {{"decode", "--url", "127.0.0.1:8888"}, "must begin with http://"},
      {{"decode", "--url", "http://:80"}, "no host"},
      {{"decode", "--url", "http://a:65536"}, "'65536' is not a port"},
      {{"decode", "--url", "http://key@a"}, "--key-file"},
      {{"decode", "--set", "c"}, "--set 'c': a or b"},
      {{"decode", "--reps", "1001"}, "--reps '1001': a number in 1..1000"},
      {{"decode", "--tokens", "131073"}, "--tokens '131073'"},
      {{"concurrent", "--streams", "4,65"}, "--streams '65': a number in 1..64"},
      {{"concurrent", "--streams", "4,,5"}, "--streams ''"},
      {{"prefill", "--lengths", "1048577"}, "--lengths '1048577'"},
      {{"sustained", "--seconds", "86401"}, "--seconds '86401'"},
      {{"ready", "--wait", "soon"}, "--wait 'soon'"},
  };
  for (const auto& one : cases) check_error(one.args, kExitUsage, one.message);
  std::string list = "1";
  for (int64_t i = 0; i < bench::kBenchListItemsMax; ++i) list += ",1";
  check_error({"prefill", "--lengths", list}, kExitUsage, "at most 64 numbers");
}

BOOST_AUTO_TEST_CASE(addresses) {
  const auto proxied = bench::parse_url("http://[::1]:8080/llm/v1/");
  BOOST_REQUIRE(proxied.ok());
  BOOST_TEST(proxied->host == "::1");
  BOOST_TEST(proxied->port == "8080");
  BOOST_TEST(proxied->base == "/llm");
  BOOST_TEST(bench::parse_url("http://spark")->port == "80");
  for (const char* bad :
       {"http://[::1", "http://[::1]8080", "http://a:", "http://a b", "ftp://a"}) {
    BOOST_TEST(!bench::parse_url(bad).ok(), bad);
  }
}
