// What HTTP costs: the whole surface (sockets, parsing, writers) over an engine that does nothing.
//
//   parse to queue      from the whole request's arrival to Engine::submit
//   token to socket     from RequestSink::on_tokens until the socket has taken the event's bytes
//     the loop wakes    of it: the eventfd, the switch of threads, the way out of epoll
//     event is made     of it: the ring, the output stream, the writer
//     write returns     of it: the system call, which wakes the client
//   token to client     until the client has read it: one that looks all the time, one that sleeps
//   the bare machine    the same hops without this project: eventfd, epoll, one write of as many
//                       bytes; the first three rows of the kernel, and no event made
//   requests a second   short whole replies over kept connections: by the clock, and by the
//                       processor time of the loop's thread alone ("on one core")
// Targets stand beside the figures. The clients share the machine, so the clock's rate is a lower
// bound, and a client that looks takes a core for itself.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>
#include <csignal>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "daemon/api/api.h"
#include "daemon/api/errors.h"
#include "daemon/http/server.h"
#include "daemon/service/time_slice.h"
#include "daemon/service/uv_port.h"
#include "engine/base/check.h"

namespace tensorfold {
namespace {

constexpr int kClients = 4;
constexpr int kRequestsEach = 5000;
constexpr int kStreamTokens = 5000;
constexpr int kTokenGapUs = 100;
constexpr size_t kEventBytes = 222;  // one token's event with its chunk's frame

int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

double seconds_between(const timespec& begin, const timespec& end) {
  return static_cast<double>(end.tv_sec - begin.tv_sec) +
         static_cast<double>(end.tv_nsec - begin.tv_nsec) / 1e9;
}

double percentile_us(std::vector<int64_t> ns, double share) {
  std::sort(ns.begin(), ns.end());
  return static_cast<double>(ns[static_cast<size_t>(share * static_cast<double>(ns.size() - 1))]) /
         1e3;
}

std::vector<int64_t> differences(const std::vector<int64_t>& to, const std::vector<int64_t>& from) {
  std::vector<int64_t> out;
  for (size_t i = 0; i < std::min(to.size(), from.size()); ++i) out.push_back(to[i] - from[i]);
  return out;
}

// Where each token of a timed stream was, and when. Written by one thread each, read at the end.
struct Trace {
  std::vector<int64_t> pushed_ns = std::vector<int64_t>(kStreamTokens);
  std::vector<int64_t> woken_ns = pushed_ns, made_ns = pushed_ns, written_ns = pushed_ns;
  std::vector<int64_t> read_ns;
};

// The loop thread's, for uv_try_write below: tokens that were fed to the stream, and of these how
// many the socket has.
struct LoopNow {
  Trace* trace = nullptr;  // none: no stream is timed
  size_t fed = 0, written = 0;
  int64_t woken_ns = 0;
};
LoopNow g_now;

class PlainOutput final : public OutputStream {
 public:
  OutputDelta feed(std::span<const TokenId> ids) override {
    OutputDelta delta;
    delta.content.assign(ids.size(), 'x');
    g_now.fed += ids.size();
    return delta;
  }
  OutputDelta finish() override { return {}; }
  bool stopped() const override { return false; }
  int reasoning_tokens() const override { return 0; }
  int tool_calls() const override { return 0; }
  int tool_calls_closed() const override { return 0; }
};

// Answers short requests inside submit(); long ones token by token from a thread of its own.
class NullEngine final : public Engine {
 public:
  ~NullEngine() override {
    for (std::thread& t : threads_) t.join();
  }
  Result<RequestId> submit(Request request, std::shared_ptr<RequestSink> sink) override {
    submitted_ns.push_back(now_ns() - handled_ns);
    const int tokens = request.max_tokens.value_or(1);
    if (tokens < kStreamTokens) {
      play(*sink, tokens, nullptr);
    } else {
      g_now = {&traces[streams_++], 0, 0, 0};
      threads_.emplace_back(
          [this, sink, tokens, trace = g_now.trace] { play(*sink, tokens, trace); });
    }
    return ++last_;
  }
  void cancel(RequestId) override {}
  void drain() override {}
  void resume() override {}
  void flush_cache(bool) override {}
  EngineStats stats() const override {
    EngineStats stats;
    stats.state = EngineStats::State::kReady;
    stats.slots_total = 4;
    return stats;
  }
  ModelInfo model() const override { return {"null", "null", 4096, 0, 256}; }
  std::unique_ptr<OutputStream> output_stream(const OutputOptions&) const override {
    return std::make_unique<PlainOutput>();
  }
  std::string token_text(TokenId) const override { return "x"; }
  Result<std::vector<TokenId>> encode(const Prompt&) const override {
    return std::vector<TokenId>{1};
  }

  int64_t handled_ns = 0;             // the loop thread's: when the last request was handed over
  std::vector<int64_t> submitted_ns;  // from there to submit()
  Trace traces[2];

 private:
  void play(RequestSink& sink, int tokens, Trace* trace) {
    sink.on_accepted(last_ + 1, 10, 0);
    for (int i = 0; i < tokens; ++i) {
      const TokenId id = 'x';
      if (trace != nullptr) {
        std::this_thread::sleep_for(std::chrono::microseconds(kTokenGapUs));
        trace->pushed_ns[static_cast<size_t>(i)] = now_ns();
      }
      sink.on_tokens(std::span(&id, 1), {});
    }
    ReplyStats stats;
    stats.token_sha = "0123456789ab";
    stats.usage.completion_tokens = tokens;
    sink.on_finished(ok_status(), FinishReason::kStop, stats);
  }

  std::vector<std::thread> threads_;
  size_t streams_ = 0;
  std::atomic<RequestId> last_{0};
};

int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &where.sin_addr);
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  TF_CHECK_EQ(connect(fd, reinterpret_cast<sockaddr*>(&where), sizeof where), 0);
  return fd;
}

void send_chat(int fd, const std::string& members) {
  const std::string body =
      R"({"model":"null","messages":[{"role":"system","content":"Be brief."},)"
      R"({"role":"user","content":"What is the capital of France?"}],"temperature":0.7,)" +
      members + "}";
  const std::string text =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  TF_CHECK_EQ(send(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
}

void short_requests(int port) {
  const int fd = connect_to(port);
  char buffer[8192];
  for (int i = 0; i < kRequestsEach; ++i) {
    send_chat(fd, "\"max_tokens\":8");
    std::string reply;
    while (reply.find("\"accepted\":0}}") == std::string::npos) {
      const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
      TF_CHECK(n > 0);
      reply.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
}

// When each token's event had been read. `looking`: by a client that never sleeps.
std::vector<int64_t> one_stream(int port, bool looking) {
  const int fd = connect_to(port);
  send_chat(fd, "\"stream\":true,\"max_tokens\":" + std::to_string(kStreamTokens));
  std::vector<int64_t> out;
  char buffer[65536];
  std::string tail;
  while (out.size() < static_cast<size_t>(kStreamTokens)) {
    const ssize_t n = recv(fd, buffer, sizeof buffer, looking ? MSG_DONTWAIT : 0);
    if (n < 0 && looking && errno == EAGAIN) continue;
    TF_CHECK(n > 0);
    const int64_t at = now_ns();
    tail.append(buffer, static_cast<size_t>(n));
    constexpr std::string_view kMark = "\"delta\":{\"content\":\"x";
    for (size_t found = tail.find(kMark); found != std::string::npos; found = tail.find(kMark)) {
      // An event carries as many tokens as were waiting.
      for (size_t i = found + kMark.size() - 1; tail[i] == 'x'; ++i) out.push_back(at);
      tail.erase(0, found + kMark.size());
    }
  }
  close(fd);
  return out;
}

// The same hops with nothing of this project in between: a thread that pushes, one that waits in
// epoll and writes an event's bytes, a client that reads them.
Trace bare_stream(bool looking) {
  Trace trace;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof where;
  TF_CHECK_EQ(bind(listener, reinterpret_cast<sockaddr*>(&where), size), 0);
  TF_CHECK_EQ(listen(listener, 1), 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&where), &size);
  const int client = connect_to(ntohs(where.sin_port));
  const int server = accept(listener, nullptr, nullptr);
  const int one = 1;
  setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  const int wake = eventfd(0, EFD_NONBLOCK);
  const int poller = epoll_create1(0);
  epoll_event interest{};
  interest.events = EPOLLIN;
  TF_CHECK_EQ(epoll_ctl(poller, EPOLL_CTL_ADD, wake, &interest), 0);
  std::thread engine([&] {
    const uint64_t one_more = 1;
    for (int64_t& at : trace.pushed_ns) {
      std::this_thread::sleep_for(std::chrono::microseconds(kTokenGapUs));
      at = now_ns();
      TF_CHECK_EQ(write(wake, &one_more, sizeof one_more), ssize_t{sizeof one_more});
    }
  });
  std::thread reader([&] {
    char buffer[65536];
    size_t bytes = 0;
    while (trace.read_ns.size() < static_cast<size_t>(kStreamTokens)) {
      const ssize_t n = recv(client, buffer, sizeof buffer, looking ? MSG_DONTWAIT : 0);
      if (n < 0 && looking && errno == EAGAIN) continue;
      TF_CHECK(n > 0);
      bytes += static_cast<size_t>(n);
      while (trace.read_ns.size() < bytes / kEventBytes) trace.read_ns.push_back(now_ns());
    }
  });
  const std::string event(kEventBytes, 'x');
  for (size_t done = 0; done < trace.pushed_ns.size();) {
    uint64_t count = 0;
    epoll_event got{};
    if (epoll_wait(poller, &got, 1, -1) != 1) continue;
    if (read(wake, &count, sizeof count) != ssize_t{sizeof count}) continue;
    const int64_t woken = now_ns();
    std::string out;
    for (uint64_t i = 0; i < count; ++i) out += event;
    const int64_t made = now_ns();
    TF_CHECK_EQ(write(server, out.data(), out.size()), static_cast<ssize_t>(out.size()));
    const int64_t written = now_ns();
    for (; count > 0; --count, ++done) {
      trace.woken_ns[done] = woken;
      trace.made_ns[done] = made;
      trace.written_ns[done] = written;
    }
  }
  engine.join();
  reader.join();
  for (const int fd : {listener, client, server, wake, poller}) close(fd);
  return trace;
}

void print_trace(const char* title, const Trace& trace, bool looking, const char* target) {
  const auto row = [](const char* name, const std::vector<int64_t>& ns, const char* aim) {
    std::printf("  %-30s %7.1f us %7.1f us   %s\n", name, percentile_us(ns, 0.5),
                percentile_us(ns, 0.99), aim);
  };
  std::printf("%s, a client that %s\n", title, looking ? "looks all the time" : "sleeps");
  row("token to socket", differences(trace.written_ns, trace.pushed_ns), target);
  row("  the loop wakes", differences(trace.woken_ns, trace.pushed_ns), "");
  row("  event is made", differences(trace.made_ns, trace.woken_ns), "");
  row("  write returns", differences(trace.written_ns, trace.made_ns), "");
  row("token to client", differences(trace.read_ns, trace.pushed_ns), "");
}

void run() {
  uv_loop_t loop;
  TF_CHECK_EQ(uv_loop_init(&loop), 0);
  NullEngine engine;
  engine.submitted_ns.reserve(kClients * kRequestsEach + 8);
  std::unique_ptr<api::Api> surface;
  service::UvPort port(&loop, [&] {
    g_now.woken_ns = now_ns();
    surface->chat().on_wake();
  });
  api::ApiOptions options;
  options.chat.served_name = "null";
  surface = std::make_unique<api::Api>(engine, options, system_clock(), null_log(), port);
  http::ServerHooks hooks;
  hooks.handle = [&](std::shared_ptr<http::Exchange> e) {
    engine.handled_ns = now_ns();
    surface->handle(e);
  };
  hooks.precheck = [&](const http::Request& r) { return surface->precheck(r); };
  hooks.decorate = [&](const http::Request& q, http::Response& r) { surface->decorate(q, r); };
  http::Server server(&loop, http::Limits(), hooks, system_clock(), null_log());
  TF_CHECK(server.listen_tcp("127.0.0.1:0").ok());
  double wall_s = 0;
  timespec cpu_begin{}, cpu_end{};
  std::atomic<bool> counted{false}, over{false};
  std::thread clients([&] {
    const int64_t begin = now_ns();
    std::vector<std::thread> threads;
    for (int i = 0; i < kClients; ++i) threads.emplace_back(short_requests, server.port());
    for (std::thread& t : threads) t.join();
    wall_s = static_cast<double>(now_ns() - begin) / 1e9;
    counted = true;
    engine.traces[0].read_ns = one_stream(server.port(), true);
    engine.traces[1].read_ns = one_stream(server.port(), false);
    over = true;
    port.wake();
  });
  service::take_short_slice();  // as the daemon does
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu_begin);
  while (!over) {
    uv_run(&loop, UV_RUN_ONCE);
    if (!counted) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu_end);
  }
  timespec stream_end{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &stream_end);
  clients.join();
  server.close(nullptr);
  uv_run(&loop, UV_RUN_NOWAIT);
  const double cpu_s = seconds_between(cpu_begin, cpu_end);
  const int requests = kClients * kRequestsEach;
  engine.submitted_ns.resize(static_cast<size_t>(requests));
  std::printf("%-32s %10s %10s   %s\n", "", "p50", "p99", "target at p99");
  std::printf("%-32s %7.1f us %7.1f us   50 us\n", "parse to queue",
              percentile_us(engine.submitted_ns, 0.5), percentile_us(engine.submitted_ns, 0.99));
  for (const bool looking : {true, false}) {
    print_trace("the surface", engine.traces[looking ? 0 : 1], looking, "50 us");
    print_trace("the bare machine", bare_stream(looking), looking, "");
  }
  std::printf("%-32s %7.1f us of the loop's processor time each\n", "tokens of a stream",
              seconds_between(cpu_end, stream_end) * 1e6 / (2 * kStreamTokens));
  std::printf(
      "short requests a second: %.0f on one core (target 2,000), %.0f by the clock with %d "
      "clients on this machine\n",
      requests / cpu_s, requests / wall_s, kClients);
  port.close();
  surface.reset();
  uv_run(&loop, UV_RUN_DEFAULT);
  uv_loop_close(&loop);
}

}  // namespace
}  // namespace tensorfold

// The linker hands every call of uv_try_write in this program here (--wrap).
extern "C" int __real_uv_try_write(uv_stream_t*, const uv_buf_t*, unsigned);
extern "C" int __wrap_uv_try_write(uv_stream_t* stream, const uv_buf_t* buffers, unsigned count) {
  tensorfold::LoopNow& now = tensorfold::g_now;
  const int64_t made = tensorfold::now_ns();
  const int code = __real_uv_try_write(stream, buffers, count);
  if (now.trace == nullptr) return code;
  const int64_t written = tensorfold::now_ns();
  for (; now.written < now.fed; ++now.written) {
    now.trace->woken_ns[now.written] = now.woken_ns;
    now.trace->made_ns[now.written] = made;
    now.trace->written_ns[now.written] = written;
  }
  return code;
}

int main() {
  std::signal(SIGPIPE, SIG_IGN);  // as the daemon does: a client may hang up first
  tensorfold::run();
  return 0;
}
