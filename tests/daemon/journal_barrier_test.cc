// A process that ends waits until the journal has read its last words.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "daemon/log/journal_barrier.h"
#include "tests/temp_folder.h"

namespace tensorfold::log {
namespace {

constexpr int kWords = 3;  // fewer than a datagram socket queues anywhere
constexpr int64_t kPatienceMs = 60'000;

// A datagram socket in place of the journal's.
class StandIn {
 public:
  StandIn() : path_(folder_.path("socket")), fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_un at = address();
    BOOST_REQUIRE(fd_ >= 0);
    BOOST_REQUIRE(bind(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
  }
  ~StandIn() { close(fd_); }
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  const std::string& path() const { return path_; }

  void say(const std::string& words) const {
    const int from = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const sockaddr_un at = address();
    BOOST_REQUIRE(sendto(from, words.data(), words.size(), 0,
                         reinterpret_cast<const sockaddr*>(&at),
                         sizeof at) == static_cast<ssize_t>(words.size()));
    close(from);
  }
  std::string hear() const {
    char text[64];
    const ssize_t n = recv(fd_, text, sizeof text, 0);
    return n > 0 ? std::string(text, static_cast<size_t>(n)) : std::string();
  }

 private:
  sockaddr_un address() const {
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    BOOST_REQUIRE(path_.size() < sizeof at.sun_path);
    std::memcpy(at.sun_path, path_.c_str(), path_.size() + 1);
    return at;
  }
  TempFolder folder_;
  std::string path_;
  int fd_;
};

BOOST_AUTO_TEST_CASE(all_that_was_said_is_read_first) {
  const StandIn journal;
  for (int i = 0; i < kWords; ++i) journal.say("word " + std::to_string(i));
  std::atomic<int> heard = 0;
  std::thread reader([&] {
    for (int i = 0; i < kWords; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      heard += journal.hear() == "word " + std::to_string(i);
    }
    (void)journal.hear();  // the barrier's own
  });
  const bool read = wait_for_journal(journal.path(), kPatienceMs);
  BOOST_TEST(heard.load() == kWords);
  reader.join();
  BOOST_TEST(read);
}

BOOST_AUTO_TEST_CASE(a_journal_that_does_not_read_is_not_waited_for_long) {
  const StandIn journal;
  journal.say("word");
  BOOST_TEST(!wait_for_journal(journal.path(), 20));
  BOOST_TEST(journal.hear() == "word");
}

BOOST_AUTO_TEST_CASE(no_journal_is_no_error) {
  const TempFolder folder;
  BOOST_TEST(!wait_for_journal(folder.path("none"), kPatienceMs));
  BOOST_TEST(!wait_for_journal(std::string(4096, 'x'), kPatienceMs));
}

}  // namespace
}  // namespace tensorfold::log
