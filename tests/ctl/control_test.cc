// tfctl's side of the control socket, against a socket that answers as a test wants.
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "ctl/verb.h"

using namespace tensorfold::ctl;

namespace {

// Answers every connection with the given bytes and closes; "" never answers.
class FakeDaemon {
 public:
  explicit FakeDaemon(std::string reply) : reply_(std::move(reply)) {
    char name[] = "/tmp/tf-ctl-XXXXXX";
    folder_ = mkdtemp(name);
    path = folder_ + "/control.sock";
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    BOOST_REQUIRE(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    BOOST_REQUIRE(listen(fd_, 8) == 0);
    BOOST_REQUIRE(pipe(stop_) == 0);
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeDaemon() {
    close(stop_[1]);
    thread_.join();
    close(fd_);
    close(stop_[0]);
    unlink(path.c_str());
    rmdir(folder_.c_str());
  }
  std::string path;

 private:
  void serve() {
    for (;;) {
      pollfd items[2] = {{fd_, POLLIN, 0}, {stop_[0], POLLIN, 0}};
      poll(items, 2, -1);
      if (items[1].revents != 0) return;
      const int peer = accept(fd_, nullptr, nullptr);
      char buffer[4096];
      if (recv(peer, buffer, sizeof buffer, 0) > 0 && reply_.empty()) {
        pollfd gone[2] = {{peer, POLLIN, 0}, {stop_[0], POLLIN, 0}};
        poll(gone, 2, -1);  // until the client gives up
      }
      send(peer, reply_.data(), reply_.size(), MSG_NOSIGNAL);
      close(peer);
    }
  }

  std::string folder_, reply_;
  int fd_ = -1;
  int stop_[2];
  std::thread thread_;
};

std::string http(int status, const std::string& body) {
  return "HTTP/1.1 " + std::to_string(status) +
         " X\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

struct Run {
  int code;
  std::string out, err;
};

Run tfctl(std::vector<std::string> args) {
  std::istringstream in;
  std::ostringstream out, err;
  const int code = run_tfctl(args, in, out, err);
  return {code, out.str(), err.str()};
}

const std::string kReady =
    R"({"schema_version":1,"version":"9.9","state":"ready","detail":"","uptime_s":3725,)"
    R"("model":{"name":"tiny","path":"/m","context":8192},"listen":"127.0.0.1:8888",)"
    R"("slots":{"total":4,"busy":1,"prefilling":0},"queue":{"waiting":2,"limit":64},)"
    R"("rates":{"decode_tokens_per_second":101.25,"prefill_tokens_per_second":0},)"
    R"("cache":{"pool_tokens":32768,"used_tokens":8192},)"
    R"("memory":{"resident_bytes":104857600,"weight_bytes":1024,"cache_bytes":12}})";

}  // namespace

BOOST_AUTO_TEST_CASE(status_as_text_and_json) {
  const FakeDaemon daemon(http(200, kReady));
  const Run text = tfctl({"--socket", daemon.path, "status"});
  BOOST_TEST(text.code == kExitOk);
  for (const char* part : {"state:    ready\n", "tiny", "1 h 2 min", "1 of 4 busy", "2 of 64",
                           "101.2 tok/s decode", "8192 of 32768 positions (25%)", "100.0 MiB"}) {
    BOOST_TEST(text.out.find(part) != std::string::npos, part << " in\n" << text.out);
  }
  const Run json = tfctl({"--socket", daemon.path, "--json", "status"});
  BOOST_TEST(json.out == kReady + "\n");
  BOOST_TEST(tfctl({"--socket", daemon.path, "status", "--json"}).out == kReady + "\n");
  BOOST_TEST(tfctl({"--socket", daemon.path, "health"}).code == kExitOk);
}

BOOST_AUTO_TEST_CASE(not_running_is_3) {
  const Run none = tfctl({"--socket", "/tmp/tf-ctl-none/control.sock", "status"});
  BOOST_TEST(none.code == kExitNotRunning);
  BOOST_TEST(none.err.find("not running") != std::string::npos);
  std::string path;
  {
    const FakeDaemon daemon("");
    path = daemon.path;
  }
  BOOST_TEST(tfctl({"--socket", path, "health"}).code == kExitNotRunning);
  BOOST_TEST(tfctl({"--socket", path, "health", "--wait", "0.3"}).code == kExitNotRunning);
}

BOOST_AUTO_TEST_CASE(no_permission_is_4) {
  const FakeDaemon daemon(http(200, kReady));
  if (geteuid() == 0) {
    // Permissions do not bind root: try as nobody, in a process of its own.
    const pid_t child = fork();
    if (child == 0) {
      if (setgid(65534) != 0 || setuid(65534) != 0) _exit(99);
      _exit(tfctl({"--socket", daemon.path, "status"}).code);
    }
    int status = 0;
    BOOST_REQUIRE(waitpid(child, &status, 0) == child);
    BOOST_TEST(WEXITSTATUS(status) == kExitPermission);
  } else {
    chmod(daemon.path.c_str(), 0);
    BOOST_TEST(tfctl({"--socket", daemon.path, "status"}).code == kExitPermission);
  }
}

BOOST_AUTO_TEST_CASE(no_answer_is_5) {
  const FakeDaemon daemon("");
  const Run run = tfctl({"--socket", daemon.path, "--timeout", "0.2", "status"});
  BOOST_TEST(run.code == kExitTimeout);
}

// Connections that nobody has taken yet fill the queue of the socket: the next one is tried again.
BOOST_AUTO_TEST_CASE(a_full_backlog_is_waited_out) {
  char name[] = "/tmp/tf-ctl-XXXXXX";
  const std::string folder = mkdtemp(name), path = folder + "/control.sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  const auto* where = reinterpret_cast<const sockaddr*>(&address);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  BOOST_REQUIRE(bind(listener, where, sizeof address) == 0);
  BOOST_REQUIRE(listen(listener, 0) == 0);
  const int first = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  BOOST_REQUIRE(connect(first, where, sizeof address) == 0);
  const Run late = tfctl({"--socket", path, "--timeout", "0.2", "status"});
  BOOST_TEST(late.code == kExitTimeout, late.err);
  std::thread daemon([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));  // tfctl finds it full meanwhile
    close(accept(listener, nullptr, nullptr));
    const int peer = accept(listener, nullptr, nullptr);
    char buffer[4096];
    const std::string reply = http(200, kReady);
    BOOST_TEST(recv(peer, buffer, sizeof buffer, 0) > 0);
    send(peer, reply.data(), reply.size(), MSG_NOSIGNAL);
    close(peer);
  });
  const Run run = tfctl({"--socket", path, "--timeout", "60", "status"});
  BOOST_TEST(run.code == kExitOk, run.err);
  shutdown(listener, SHUT_RDWR);  // nobody waits for a connection that did not come
  daemon.join();
  close(first);
  close(listener);
  unlink(path.c_str());
  rmdir(folder.c_str());
}

BOOST_AUTO_TEST_CASE(not_ready_is_6) {
  const FakeDaemon daemon(http(200, R"({"state":"loading","detail":"1 of 2"})"));
  const Run run = tfctl({"--socket", daemon.path, "health"});
  BOOST_TEST(run.code == kExitNotReady);
  BOOST_TEST(run.out == "loading: 1 of 2\n");
  BOOST_TEST(tfctl({"--socket", daemon.path, "health", "--wait", "0.3"}).code == kExitNotReady);
  const Run json = tfctl({"--socket", daemon.path, "health", "--json"});
  BOOST_TEST(json.out.find("\"ready\": false") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(refusals_and_nonsense_are_1) {
  const FakeDaemon refusing(http(404, R"({"error":{"message":"no such path: /status"}})"));
  const Run run = tfctl({"--socket", refusing.path, "status"});
  BOOST_TEST(run.code == kExitFailed);
  BOOST_TEST(run.err.find("no such path") != std::string::npos);
  for (const std::string& reply :
       {std::string("hello"), std::string("SSH-2.0-OpenSSH\r\n"), http(200, "not json"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort")}) {
    const FakeDaemon daemon(reply);
    const Run bad = tfctl({"--socket", daemon.path, "status"});
    BOOST_TEST(bad.code == kExitFailed, reply);
    BOOST_TEST(!bad.err.empty());
  }
}

BOOST_AUTO_TEST_CASE(usage_is_2) {
  for (const auto& args : std::vector<std::vector<std::string>>{{},
                                                                {"nope"},
                                                                {"status", "extra"},
                                                                {"status", "--nope"},
                                                                {"--timeout", "0", "status"},
                                                                {"--timeout", "x", "status"},
                                                                {"--socket"},
                                                                {"health", "--wait"},
                                                                {"health", "--wait", "soon"},
                                                                {"health", "--wait", "-1"}}) {
    BOOST_TEST(tfctl(args).code == kExitUsage);
  }
  const Run help = tfctl({"--help"});
  BOOST_TEST(help.code == kExitOk);
  for (const Verb& verb : verb_table()) {
    BOOST_TEST(help.out.find(verb.name) != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(help_of_a_verb) {
  const std::vector<std::string> one = {"model", "verify", "--help"};
  for (const auto& args : std::vector<std::vector<std::string>>{
           one,
           {"model", "verify", "-h"},
           {"help", "model", "verify"},
           {"--help", "model", "verify"},
           {"model", "verify", "DIR", "--parallel", "3", "--help"},
           {"--timeout", "3", "model", "verify", "--help"}}) {
    const Run help = tfctl(args);
    BOOST_TEST(help.code == kExitOk);
    BOOST_TEST(help.out == tfctl(one).out);
    BOOST_TEST(help.out.find("  model verify DIR\n") != std::string::npos);
    BOOST_TEST(help.out.find("--published") != std::string::npos);
    BOOST_TEST(help.out.find("model fetch") == std::string::npos);
  }
  const Run noun = tfctl({"model", "--help"});
  BOOST_TEST(noun.code == kExitOk);
  BOOST_TEST(noun.out.find("  model fetch\n") != std::string::npos);
  BOOST_TEST(noun.out.find("  status\n") == std::string::npos);
  BOOST_TEST(tfctl({"status", "--help"}).out.find("  status\n") != std::string::npos);

  const Run bare = tfctl({"cache"});
  BOOST_TEST(bare.code == kExitUsage);
  BOOST_TEST(bare.err.find("'cache' needs one of: status, flush") != std::string::npos);
  const Run wrong = tfctl({"cache", "clear"});
  BOOST_TEST(wrong.code == kExitUsage);
  BOOST_TEST(wrong.err.find("unknown verb 'cache clear'; there is: status, flush") !=
             std::string::npos);
  for (const char* word : {"nope", "-x"}) {
    BOOST_TEST(tfctl({"help", word}).code == kExitUsage);
    BOOST_TEST(tfctl({word, "--help"}).code == kExitUsage);
  }
  // A value is no question.
  BOOST_TEST(tfctl({"model", "verify", "--", "--help"}).code != kExitOk);
}
