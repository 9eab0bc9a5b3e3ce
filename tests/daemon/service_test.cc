// Keys, the control socket's file, the port's owner, and log lines.
#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "daemon/api/api_keys.h"
#include "daemon/control/socket.h"
#include "daemon/log/events.h"
#include "daemon/log/journal_log.h"
#include "daemon/service/notifier.h"
#include "daemon/service/oom_score.h"
#include "daemon/service/port_owner.h"
#include "daemon/service/time_slice.h"

using namespace tensorfold;

namespace {

// A folder that goes with the test.
struct Folder {
  Folder() {
    char name[] = "/tmp/tf-service-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::system(("rm -rf " + path).c_str()); }
  std::string path;
};

void write_file(const std::string& path, const std::string& text, mode_t mode) {
  std::ofstream(path) << text;
  chmod(path.c_str(), mode);
}

http::Request with_header(const std::string& name, const std::string& value) {
  http::Request request;
  request.headers.push_back({name, value});
  return request;
}

}  // namespace

BOOST_AUTO_TEST_CASE(bounds_of_keys) {
  const auto keys = api::ApiKeys::parse(
      "a: key-of-a running=2 waiting=8\nb: key-of-b  background\t running=4096\nc: key-of-c\n",
      "k");
  BOOST_REQUIRE_MESSAGE(keys.ok(), keys.status().message());
  const auto a = keys->identify(with_header("x-api-key", "key-of-a"));
  const auto b = keys->identify(with_header("x-api-key", "key-of-b"));
  const auto c = keys->identify(with_header("x-api-key", "key-of-c"));
  BOOST_REQUIRE((a && b && c));
  BOOST_TEST((a->running == 2 && a->waiting == 8 && !a->background));
  BOOST_TEST((b->running == 4096 && b->waiting == 0 && b->background));
  BOOST_TEST((c->running == 0 && !c->background));
  BOOST_TEST(!keys->identify(with_header("x-api-key", "key-of-a running=2 waiting=8")));
}

BOOST_AUTO_TEST_CASE(keys_file) {
  const auto keys = api::ApiKeys::parse(
      "# people\n\nalice: sk-alice-secret\r\nsk-nameless-key\n  bob :  sk-bob-secret  \n", "k");
  BOOST_REQUIRE_MESSAGE(keys.ok(), keys.status().message());
  BOOST_TEST(keys->size() == 3);
  const auto label = [&](const std::string& name, const std::string& value) {
    const auto key = keys->identify(with_header(name, value));
    return key ? key->label : "-";
  };
  BOOST_TEST(label("authorization", "Bearer sk-alice-secret") == "alice");
  BOOST_TEST(label("authorization", "bearer sk-bob-secret") == "bob");
  BOOST_TEST(label("x-api-key", "sk-nameless-key") == "file-2");
  BOOST_TEST(label("authorization", "Bearer sk-alice-secre") == "-");
  BOOST_TEST(label("authorization", "Bearer ") == "-");
  BOOST_TEST(label("authorization", "Basic sk-alice-secret") == "-");
  BOOST_TEST(label("cookie", "sk-alice-secret") == "-");
  struct Case {
    const char* text;
    const char* message;
  };
  for (const Case& c : {Case{"", "k holds no key"}, Case{"# x\n", "k holds no key"},
                        Case{"ok-key-123\nshort\n", "k:2: a key is"},
                        Case{"bad label: sk-something\n", "k:1: a label is"},
                        Case{"a: key-with space in\n", "k:1: after a key may stand"},
                        Case{"a: key-of-a running=0\n", "k:1: after a key may stand"},
                        Case{"a: key-of-a running=4097\n", "k:1: after a key may stand"},
                        Case{"a: key-of-a running=x\n", "k:1: after a key may stand"},
                        Case{"a: key-of-a running\n", "k:1: after a key may stand"},
                        Case{"a: key-of-a waiting=3\n", "k:1: waiting= needs running="}}) {
    const auto bad = api::ApiKeys::parse(c.text, "k");
    BOOST_REQUIRE(!bad.ok());
    BOOST_TEST(bad.status().message().rfind(c.message, 0) == 0, bad.status().message());
  }
  std::string many;
  for (size_t i = 0; i < api::kApiKeysMax; ++i) many += "sk-number-" + std::to_string(i) + "\n";
  BOOST_TEST(api::ApiKeys::parse(many, "k").ok());
  BOOST_TEST(!api::ApiKeys::parse(many + "sk-one-more\n", "k").ok());
}

BOOST_AUTO_TEST_CASE(keys_file_must_be_private) {
  const Folder folder;
  const std::string path = folder.path + "/keys";
  write_file(path, "sk-some-secret\n", 0600);
  BOOST_TEST(api::ApiKeys::load(path).ok());
  for (const mode_t mode : {0640, 0604, 0620, 0666}) {
    chmod(path.c_str(), mode);
    const auto keys = api::ApiKeys::load(path);
    BOOST_REQUIRE(!keys.ok());
    BOOST_TEST(keys.status().message().find("chmod 0600") != std::string::npos);
    BOOST_TEST(keys.status().message().find("sk-") == std::string::npos);
  }
  BOOST_TEST(!api::ApiKeys::load(folder.path).ok());
  BOOST_TEST(!api::ApiKeys::load(folder.path + "/none").ok());
}

BOOST_AUTO_TEST_CASE(control_socket_file) {
  const Folder folder;
  const std::string path = folder.path + "/run/control.sock";
  {
    auto socket = control::ControlSocket::bind(path);
    BOOST_REQUIRE_MESSAGE(socket.ok(), socket.status().message());
    struct stat info {};
    BOOST_REQUIRE(stat(path.c_str(), &info) == 0);
    BOOST_TEST((info.st_mode & 0777) == 0660);
    // Bound and not yet listening counts as stale only for connect(); listen to be "answering".
    const int fd = socket->release_fd();
    BOOST_REQUIRE(listen(fd, 4) == 0);
    const auto second = control::ControlSocket::bind(path);
    BOOST_REQUIRE(!second.ok());
    BOOST_TEST(second.status().reason() == "in_use");
    close(fd);
  }
  BOOST_TEST(access(path.c_str(), F_OK) != 0);
  // A file that a killed process left behind is taken over.
  const int dead = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  BOOST_REQUIRE(bind(dead, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  close(dead);
  BOOST_TEST(control::ControlSocket::bind(path).ok());
  write_file(path, "text", 0600);
  const auto file = control::ControlSocket::bind(path);
  BOOST_REQUIRE(!file.ok());
  BOOST_TEST(file.status().message().find("not a socket") != std::string::npos);
  BOOST_TEST(!control::ControlSocket::bind("relative.sock").ok());
  BOOST_TEST(!control::ControlSocket::bind("/tmp/" + std::string(200, 'x')).ok());
}

BOOST_AUTO_TEST_CASE(port_owner_is_found) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  BOOST_REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  BOOST_REQUIRE(listen(fd, 1) == 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const int port = ntohs(address.sin_port);
  const auto owner = service::find_port_owner(port);
  BOOST_REQUIRE(owner.has_value());
  BOOST_TEST(owner->pid == getpid());
  BOOST_TEST(service::describe_port(port).find("pid " + std::to_string(getpid())) !=
             std::string::npos);
  close(fd);
  BOOST_TEST(!service::find_port_owner(port).has_value());
}

BOOST_AUTO_TEST_CASE(port_owner_from_a_recorded_tree) {
  const Folder folder;
  std::system(("mkdir -p " + folder.path + "/proc/net " + folder.path + "/proc/812/fd").c_str());
  write_file(folder.path + "/proc/net/tcp",
             "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  "
             "timeout inode\n"
             "   0: 0100007F:22B8 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0"
             "        0 111 1 0 20 4 30 10 -1\n"
             "   1: 00000000:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0"
             "        0 222 1 0 100 0 0 10 0\n",
             0644);
  BOOST_TEST(service::describe_port(0x22B8, folder.path) ==
             "taken by another process (run as root to see which)");
  write_file(folder.path + "/proc/812/comm", "nginx\n", 0644);
  BOOST_REQUIRE(symlink("socket:[222]", (folder.path + "/proc/812/fd/6").c_str()) == 0);
  BOOST_TEST(service::describe_port(0x22B8, folder.path) == "taken by nginx (pid 812)");
  BOOST_TEST(service::describe_port(0x22B9, folder.path) == "taken");
}

BOOST_AUTO_TEST_CASE(log_lines) {
  using log::Form;
  using log::JournalLog;
  BOOST_TEST(JournalLog::line(Form::kPrefixed, LogLevel::kWarning, "a\nb") == "<4>a b\n");
  BOOST_TEST(JournalLog::line(Form::kPlain, LogLevel::kInfo, "x") == "x\n");
  BOOST_TEST(JournalLog::line(Form::kPlain, LogLevel::kError, "x") == "error: x\n");
  const std::string longest(log::kLogLineBytesMax, 'x');
  BOOST_TEST(JournalLog::line(Form::kPlain, LogLevel::kInfo, longest) == longest + "\n");
  BOOST_TEST(JournalLog::line(Form::kPlain, LogLevel::kInfo, longest + "y") == longest + "...\n");
  int fds[2];
  BOOST_REQUIRE(pipe(fds) == 0);
  BOOST_TEST((log::detect_form(fds[1], nullptr) == Form::kPrefixed));
  struct stat info {};
  fstat(fds[1], &info);
  const std::string stream = std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
  BOOST_TEST((log::detect_form(fds[1], stream.c_str()) == Form::kJournal));
  BOOST_TEST((log::detect_form(fds[1], "1:2") == Form::kPrefixed));
  JournalLog sink(Form::kPrefixed, fds[1]);
  sink.set_level(LogLevel::kWarning);
  sink.info("not shown");
  sink.error("shown");
  char buffer[64];
  const ssize_t n = read(fds[0], buffer, sizeof buffer);
  BOOST_TEST(std::string(buffer, static_cast<size_t>(n)) == "<3>shown\n");
  close(fds[0]);
  close(fds[1]);
  for (const char* name : {"error", "warning", "notice", "info", "debug"}) {
    BOOST_TEST(static_cast<int>(log::level_of(name)) >= 3);
  }
  BOOST_TEST((log::level_of("notice") == LogLevel::kNotice));
}

namespace {

// What a service manager would receive.
class NotifySocket {
 public:
  NotifySocket() : path_(folder_.path + "/notify") {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    BOOST_REQUIRE(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  }
  ~NotifySocket() {
    unsetenv("NOTIFY_SOCKET");
    close(fd_);
  }
  NotifySocket(const NotifySocket&) = delete;
  NotifySocket& operator=(const NotifySocket&) = delete;
  std::string take() const {
    char buffer[4096];
    const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
    return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
  }

 private:
  Folder folder_;
  std::string path_;
  int fd_ = -1;
};

}  // namespace

BOOST_AUTO_TEST_CASE(the_service_manager_is_told_in_its_own_words) {
  const NotifySocket manager;
  ManualClock clock;
  clock.advance_us(5'000'000);
  service::Notifier notifier(clock);
  notifier.status("loading");
  BOOST_TEST(manager.take() == "STATUS=loading");
  notifier.extend_timeout();
  BOOST_TEST(manager.take() == "EXTEND_TIMEOUT_USEC=80000000");
  notifier.extend_timeout();
  BOOST_TEST(manager.take() == "");  // asked for already
  clock.advance_us(service::kExtendAgainMs * 1000);
  notifier.extend_timeout();
  BOOST_TEST(manager.take() == "EXTEND_TIMEOUT_USEC=80000000");
  notifier.ready("ready: tiny");
  BOOST_TEST(manager.take() == "READY=1\nSTATUS=ready: tiny");
  notifier.reloading();
  BOOST_TEST(manager.take() == "RELOADING=1\nMONOTONIC_USEC=25000000");
  notifier.stopping("draining: 2 left");
  BOOST_TEST(manager.take() == "STOPPING=1\nSTATUS=draining: 2 left");
  notifier.extend_timeout();  // at once, although the load has just asked
  BOOST_TEST(manager.take() == "EXTEND_TIMEOUT_USEC=80000000");
}

BOOST_AUTO_TEST_CASE(each_event_has_an_identity_of_its_own) {
  std::set<std::string_view> names, ids;
  for (const log::Event& event : log::event_table()) {
    BOOST_TEST(names.insert(event.name).second, event.name);
    BOOST_TEST(ids.insert(event.message_id).second, event.name);
    BOOST_TEST(event.message_id.size() == 32u);
    BOOST_TEST(event.message_id.find_first_not_of("0123456789abcdef") == std::string_view::npos);
    BOOST_TEST(log::message_id_of(event.name) == event.message_id);
  }
  BOOST_TEST(names.size() >= 12u);
  BOOST_TEST(log::message_id_of("no_such_event").empty());
}

// In a thread of its own, which has a priority that must stay.
BOOST_AUTO_TEST_CASE(the_loop_asks_for_short_slices_and_keeps_its_priority) {
  std::thread([] {
    setpriority(PRIO_PROCESS, 0, 3);
    const int nice = getpriority(PRIO_PROCESS, 0);
    if (!service::take_short_slice()) {
      BOOST_TEST_MESSAGE("this machine refuses sched_setattr");
      return;
    }
    BOOST_TEST(getpriority(PRIO_PROCESS, 0) == nice);
    uint64_t attr[8] = {};  // the fourth is the slice
    BOOST_TEST(syscall(SYS_sched_getattr, 0, attr, sizeof attr, 0U) == 0);
    BOOST_TEST((attr[3] == service::kLoopSliceNs || attr[3] == 0));  // 0: before Linux 6.12
  }).join();
}

BOOST_AUTO_TEST_CASE(only_on_a_gb10_the_service_offers_itself_to_the_oom_killer) {
  const Folder folder;
  const std::string gpu = folder.path + "/proc/driver/nvidia/gpus/000f:01:00.0";
  std::filesystem::create_directories(gpu);
  std::filesystem::create_directories(folder.path + "/proc/self");
  const std::string score = folder.path + "/proc/self/oom_score_adj";
  write_file(score, "0\n", 0644);
  const auto read_score = [&] {
    std::ifstream in(score);
    std::string line;
    std::getline(in, line);
    return line;
  };
  BOOST_TEST(!service::offer_to_oom_killer(folder.path));
  write_file(gpu + "/information", "Model: \t NVIDIA H200\n", 0644);
  BOOST_TEST(!service::offer_to_oom_killer(folder.path));
  BOOST_TEST(read_score() == "0");
  write_file(gpu + "/information", "Model: \t NVIDIA GB10\n", 0644);
  BOOST_TEST(service::offer_to_oom_killer(folder.path));
  BOOST_TEST(read_score() == "1000");
}
