// A storm of equal warnings in the journal: the first cause is there, and the rest is counted.
#include <fcntl.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "daemon/log/journal_log.h"
#include "tests/temp_folder.h"

namespace tensorfold::log {
namespace {

constexpr int kStormErrors = 100'000;

// A log whose lines are read back.
class Kept {
 public:
  Kept()
      : path_(folder_.path("log")), fd_(open(path_.c_str(), O_CREAT | O_APPEND | O_WRONLY, 0600)) {
    BOOST_REQUIRE(fd_ >= 0);
  }
  ~Kept() { close(fd_); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  std::vector<std::string> lines() const {
    std::ifstream in(path_);
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  }

 private:
  TempFolder folder_;
  std::string path_;
  int fd_;

 public:
  ManualClock clock;
  JournalLog log{Form::kPrefixed, fd_, clock};
};

// What the numbers of lines left out add up to, with the lines that are there.
int64_t accounted(const std::vector<std::string>& lines) {
  int64_t out = 0;
  for (const std::string& line : lines) {
    ++out;
    const size_t at = line.find("(and ");
    if (at != std::string::npos) out += std::stoll(line.substr(at + 5));
  }
  return out;
}

BOOST_AUTO_TEST_CASE(an_error_in_each_of_100000_steps_makes_fewer_than_100_lines) {
  for (const int64_t gap_us : {int64_t{0}, int64_t{100}, int64_t{50'000}}) {
    Kept kept;
    for (int step = 0; step < kStormErrors; ++step) {
      kept.log.error("step " + std::to_string(step) + " failed: an illegal address was used");
      kept.clock.advance_us(gap_us);
    }
    const auto lines = kept.lines();
    BOOST_TEST(lines.size() < 100U);
    BOOST_REQUIRE(lines.size() >= static_cast<size_t>(kStormLines));
    BOOST_TEST(lines.front() == "<3>step 0 failed: an illegal address was used");
    // Everything is accounted for once it is calm again.
    kept.clock.advance_us(2 * kStormWindowMsMax * 1000);
    kept.log.error("step 1 failed: an illegal address was used");
    BOOST_TEST(accounted(kept.lines()) == kStormErrors + 1);
  }
}

BOOST_AUTO_TEST_CASE(a_storm_hides_no_other_line) {
  Kept kept;
  for (int step = 0; step < 1000; ++step) kept.log.error("step " + std::to_string(step));
  kept.log.error("the link is down", {{"TF_EVENT", "group_lost"}});
  kept.log.warning("the disk is slow");
  for (int i = 0; i < 500; ++i) kept.log.info("request " + std::to_string(i) + " done");
  const auto lines = kept.lines();
  BOOST_TEST(lines.size() == static_cast<size_t>(kStormLines) + 2 + 500);
  BOOST_TEST(lines[static_cast<size_t>(kStormLines)] == "<3>the link is down");
  // As many again after a while.
  kept.clock.advance_us(3 * kStormWindowMs * 1000);
  for (int step = 0; step < 1000; ++step) kept.log.error("step " + std::to_string(step));
  BOOST_TEST(kept.lines().size() == lines.size() + static_cast<size_t>(kStormLines));
}

// More kinds than are remembered: each is still written, and memory stays bounded.
BOOST_AUTO_TEST_CASE(many_kinds) {
  Kept kept;
  for (int i = 0; i < 2000; ++i) {
    kept.clock.advance_us(1000);
    kept.log.warning(std::string(1, static_cast<char>('a' + i % 26)) +
                     static_cast<char>('a' + i / 26 % 26) + static_cast<char>('a' + i / 676));
  }
  BOOST_TEST(kept.lines().size() == 2000U);
}

BOOST_AUTO_TEST_CASE(threads_count_together) {
  Kept kept;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&kept] {
      for (int i = 0; i < 1000; ++i) kept.log.error("the same");
    });
  }
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(kept.lines().size() == static_cast<size_t>(kStormLines));
}

}  // namespace
}  // namespace tensorfold::log
