// A process is killed while it writes, again and again on one folder: what it reported as stored is
// there afterwards, everything that comes back is right, and the folder does not grow.
//
// TF_KILLS: how many times (30; docs/testing.md says how often and when more were run).
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/engine/cache/spill/spill_world.h"
#include "tests/temp_folder.h"

namespace tensorfold {
namespace {

constexpr int64_t kTightBytes = 600'000;  // so that killed processes were evicting too
constexpr int64_t kWideBytes = int64_t{1} << 30;
constexpr int kTurnsKnown = 1500;  // more than any life gets to

SpillOptions options_in(const std::string& root) {
  SpillOptions o = small_options(root, root.ends_with("wide") ? kWideBytes : kTightBytes);
  o.free_bytes_min = 0;
  return o;
}

// The conversations of all lives of the process, so that any of its records is known.
Turn turn_number(Conversations& conversations, int number) {
  const int conversation = number % 9;
  return conversations.turn(conversation, 1 + (number * 397) % 900, number % 7 == 0 ? 0 : -1);
}

struct Report {
  BlockDigest name;
  uint8_t kind = 0;
  uint8_t gone = 0;
};

// Writes turns from `first` on until it is killed; reports what the tier says to `pipe`.
[[noreturn]] void live(const std::string& root, int first, int pipe) {
  Conversations conversations;
  for (int i = 0; i < first; ++i) (void)turn_number(conversations, i);
  KeptLog log;
  SpillTier tier(options_in(root), disk_file_system(), system_clock(), log);
  tier.wait_for_index(10'000'000);
  const auto report = [&] {
    for (const TierEvent& e : tier.take_events()) {
      Report r;
      r.name = e.note.name;
      r.kind = static_cast<uint8_t>(e.note.kind);
      r.gone = e.kind == TierEvent::Kind::kGone ? 1 : 0;
      if (::write(pipe, &r, sizeof(r)) != static_cast<ssize_t>(sizeof(r))) std::_Exit(1);
    }
  };
  for (int i = first;; ++i) {
    for (const CacheRecord& r : turn_number(conversations, i)) {
      while (!tier.spill(r.note, r.ids, r.engram_ids, r.bytes)) report();
      report();
    }
  }
}

// Lets a process live for `us` microseconds; gives what it reported.
KeySet kill_one(const std::string& root, int first, int64_t us) {
  int ends[2];
  BOOST_REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    ::close(ends[0]);
    live(root, first, ends[1]);
  }
  ::close(ends[1]);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::microseconds(us));
    ::kill(child, SIGKILL);
  });
  KeySet stored;
  Report r;
  while (::read(ends[0], &r, sizeof(r)) == static_cast<ssize_t>(sizeof(r))) {
    const RecordKey key{r.name, static_cast<CacheNote::Kind>(r.kind)};
    if (r.gone != 0) {
      stored.erase(key);
    } else {
      stored.insert(key);
    }
  }
  killer.join();
  ::close(ends[0]);
  int state = 0;
  BOOST_REQUIRE(::waitpid(child, &state, 0) == child);
  BOOST_TEST((WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL));
  return stored;
}

BOOST_AUTO_TEST_CASE(killed_at_any_time) {
  const char* wanted = std::getenv("TF_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 30;
  const TempFolder folder;
  std::mt19937 random(5);
  Conversations conversations;
  for (int i = 0; i < kTurnsKnown; ++i) (void)turn_number(conversations, i);
  int64_t read = 0, reported = 0;
  for (int life = 0; life < kills; ++life) {
    const bool wide = life % 2 == 0;
    const std::string root = folder.path(wide ? "wide" : "tight");
    if (life % 20 == 0) std::filesystem::remove_all(root);
    const KeySet stored =
        kill_one(root, (life % 5) * 7, 2'000 + static_cast<int64_t>(random() % 60'000));
    ManualClock clock;
    clock.advance_us(system_clock().unix_us());
    World world(disk_file_system(), clock, options_in(root));
    const SpillStats stats = world.tier->stats();
    BOOST_TEST(stats.damaged == 0);
    BOOST_TEST(world.log.warnings().empty());
    for (const RecordKey& key : stored) {
      if (!wide || key.kind == CacheNote::Kind::kBlock) continue;
      ++reported;
      BOOST_TEST(world.stored.count(key) == 1u);
    }
    BOOST_TEST(world.read_all(conversations) == 0);
    BOOST_TEST(world.missing == 0);
    read += world.read;
    int64_t bytes = 0;
    for (const auto& e : std::filesystem::recursive_directory_iterator(root)) {
      BOOST_TEST(e.path().extension() != ".tmp");
      if (e.is_regular_file()) bytes += static_cast<int64_t>(e.file_size());
    }
    BOOST_TEST(bytes == world.tier->stats().bytes);
    BOOST_TEST(bytes <= (wide ? kWideBytes : kTightBytes));
  }
  BOOST_TEST_MESSAGE(kills << " kills, " << reported << " snapshots reported, " << read
                           << " records read back");
  BOOST_TEST(read > kills);
  BOOST_TEST(reported > 0);
}

}  // namespace
}  // namespace tensorfold
