// What the tier does when nothing fails: incremental by turn, shared by branches, oldest use first
// and never under what stands on it, by age, bounded queues that never make the caller wait, flush,
// and the real disk with its modes.
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tests/engine/cache/spill/fault_file_system.h"
#include "tests/engine/cache/spill/spill_world.h"
#include "tests/temp_folder.h"

namespace tensorfold {
namespace {

using Op = FaultFileSystem::Op;
using Staged = CacheTier::Staged;
constexpr int64_t kSecondUs = 1'000'000;
const std::string kRoot = "/spill/root";

struct Fixture {
  Conversations conversations;
  FaultFileSystem files{"/spill"};
  ManualClock clock;

  Fixture() { clock.advance_us(kSecondUs); }
  World open(SpillOptions options = small_options(kRoot)) {
    return World(files, clock, std::move(options));
  }
  void later(World& world) {
    world.clock.advance_us(kSecondUs);
    files.set_time_us(clock.unix_us());
  }
};

bool all_there(const World& world, const Turn& turn) {
  for (const CacheRecord& r : turn)
    if (world.stored.count(key_of(r.note)) == 0) return false;
  return true;
}

BOOST_AUTO_TEST_CASE(a_turn_writes_only_what_is_new) {
  Fixture f;
  World world = f.open();
  world.offer(f.conversations.turn(0, 10 * 256));
  const SpillStats first = world.tier->stats();
  BOOST_TEST(first.written_files == 3);  // blocks, rings of both kinds
  world.offer(f.conversations.turn(0, 256));
  const SpillStats second = world.tier->stats();
  BOOST_TEST(second.written_files - first.written_files == 2);
  // One block, one snapshot, two headers: 4 KiB each.
  BOOST_TEST(second.written_bytes - first.written_bytes == 4 * kSpillPageBytes);
  // A branch shares the blocks before it.
  world.offer(f.conversations.turn(1, 256, 4 * 256, 0));
  BOOST_TEST(world.tier->stats().written_bytes - second.written_bytes == 4 * kSpillPageBytes);
  // What is offered again is known.
  const auto turn = f.conversations.turn(2, 300);
  world.offer(turn);
  const int64_t written = world.tier->stats().written_files;
  world.stored.clear();
  world.offer(turn);
  BOOST_TEST(world.tier->stats().written_files == written);
  BOOST_TEST(all_there(world, turn));
}

BOOST_AUTO_TEST_CASE(the_index_comes_back_in_order) {
  Fixture f;
  KeySet stored;
  {
    World world = f.open();
    world.offer(f.conversations.turn(0, 3000));
    world.offer(f.conversations.turn(1, 900, 1024, 0));
    world.offer(f.conversations.turn_with_images(5));
    stored = world.stored;
  }
  KeptLog log;
  SpillTier tier(small_options(kRoot), f.files, f.clock, log, make_inline_io);
  std::vector<TierEvent> events;
  for (int i = 0; i < 3; ++i)
    for (TierEvent& e : tier.take_events()) events.push_back(std::move(e));
  BOOST_TEST(events.size() == stored.size());
  KeySet seen;
  for (const TierEvent& e : events) {
    BOOST_TEST((e.kind == TierEvent::Kind::kFound));
    const CacheRecord* r = f.conversations.find(key_of(e.note));
    BOOST_REQUIRE(r != nullptr);
    BOOST_TEST((e.note == r->note));
    if (e.note.kind != CacheNote::Kind::kBlock) {
      BOOST_TEST(seen.count({e.note.name, CacheNote::Kind::kBlock}) == 1u);
      continue;
    }
    BlockText text;
    text.first_position = r->note.first_position;
    text.ids = r->ids;
    text.images = r->note.images;
    BOOST_TEST(e.fingerprint == text_fingerprint(text));
    if (e.note.first_position > 0)
      BOOST_TEST(seen.count({e.note.before, CacheNote::Kind::kBlock}) == 1u);
    seen.insert(key_of(e.note));
  }
  BOOST_TEST((tier.stats().state == SpillStats::State::kOn));
}

BOOST_AUTO_TEST_CASE(oldest_use_goes_first_and_nothing_under_what_stands) {
  Fixture f;
  // Room for about four conversations of 600 tokens.
  World world = f.open(small_options(kRoot, 100'000));
  std::vector<Turn> turns;
  for (int i = 0; i < 4; ++i) {
    f.later(world);
    world.offer(turns.emplace_back(f.conversations.turn(i, 600)));
  }
  BOOST_TEST(world.tier->stats().evicted_files == 0);
  f.later(world);
  // The first is used again, the second goes on: the third is the oldest now.
  world.clock.advance_us(120 * kSecondUs);
  world.tier->stage(turns[0].back().note);
  world.take();
  world.tier->unstage(turns[0].back().note.name, turns[0].back().note.kind);
  world.offer(f.conversations.turn(1, 200));
  f.later(world);
  world.offer(f.conversations.turn(7, 600));
  BOOST_TEST(world.tier->stats().evicted_files > 0);
  BOOST_TEST(all_there(world, turns[0]));
  BOOST_TEST(!all_there(world, turns[2]));
  BOOST_TEST(world.tier->stats().bytes <= 100'000);
  BOOST_TEST(world.read_all(f.conversations) == 0);
  BOOST_TEST(world.missing == 0);
  // The use survives a restart.
  world.tier.reset();
  World next = f.open(small_options(kRoot, 100'000));
  f.later(next);
  next.offer(f.conversations.turn(8, 600));
  BOOST_TEST(all_there(next, turns[0]));
}

// 500 random turns into little room: the index stays whole and within its bytes.
BOOST_AUTO_TEST_CASE(random_turns_into_little_room) {
  Fixture f;
  World world = f.open(small_options(kRoot, 150'000));
  std::mt19937 random(11);
  for (int i = 0; i < 500; ++i) {
    f.later(world);
    const int conversation = static_cast<int>(random() % 12);
    const int other = static_cast<int>(random() % 12);
    const int64_t tokens = 1 + static_cast<int64_t>(random() % 900);
    const bool branch = random() % 4 == 0 && i > 50 && other != conversation;
    // Long ones start anew.
    world.offer(branch ? f.conversations.turn(conversation, tokens, 256, other)
                       : f.conversations.turn(conversation, tokens, i % 5 == 0 ? 0 : -1));
    BOOST_REQUIRE(world.tier->stats().bytes <= 150'000);
    for (const RecordKey& key : world.stored) {
      const CacheNote& note = world.notes.at(key);
      const bool first = note.kind == CacheNote::Kind::kBlock && note.first_position == 0;
      const BlockDigest under = note.kind == CacheNote::Kind::kBlock ? note.before : note.name;
      if (!first) BOOST_REQUIRE(world.stored.count({under, CacheNote::Kind::kBlock}) == 1u);
    }
    if (i % 50 == 0) BOOST_TEST(world.read_all(f.conversations) == 0);
  }
  BOOST_TEST(world.tier->stats().evicted_files > 200);
  BOOST_TEST(world.missing == 0);
  int64_t bytes = 0;
  for (const std::string& p : f.files.paths()) bytes += f.files.file_bytes(p);
  BOOST_TEST(bytes == world.tier->stats().bytes);
  BOOST_TEST(world.tier->stats().records == static_cast<int64_t>(world.stored.size()));
  const KeySet stored = world.stored;
  world.tier.reset();
  World next = f.open(small_options(kRoot, 150'000));
  BOOST_TEST((next.stored == stored));
  BOOST_TEST(next.tier->stats().orphans == 0);
}

BOOST_AUTO_TEST_CASE(what_was_not_used_for_long_goes) {
  Fixture f;
  SpillOptions options = small_options(kRoot);
  World world = f.open(options);
  const Turn old = f.conversations.turn(0, 600);
  world.offer(old);
  world.clock.advance_us(options.age_max_us);
  f.later(world);
  const Turn fresh = f.conversations.turn(1, 600);
  world.offer(fresh);
  BOOST_TEST(!all_there(world, old));
  BOOST_TEST(all_there(world, fresh));
  world.tier.reset();
  world.clock.advance_us(options.age_max_us);
  f.later(world);
  World next = f.open(options);
  BOOST_TEST(next.stored.empty());
  BOOST_TEST(f.files.paths().empty());
}

BOOST_AUTO_TEST_CASE(flush_removes_everything) {
  Fixture f;
  World world = f.open();
  world.offer(f.conversations.turn(0, 600));
  const Turn open_group = f.conversations.turn(1, 512);
  world.tier->spill(open_group[0].note, open_group[0].ids, open_group[0].engram_ids,
                    open_group[0].bytes);
  world.tier->flush();
  world.take();
  world.take();
  BOOST_TEST(world.stored.empty());
  BOOST_TEST(world.tier->stats().files == 0);
  BOOST_TEST(world.tier->stats().queued_bytes == 0);
  BOOST_TEST(f.files.paths().empty());
  world.offer(f.conversations.turn(0, 1));
  // Its first blocks are gone, so it does not stand; a whole one does.
  BOOST_TEST(world.stored.empty());
  BOOST_TEST(f.files.paths().empty());
  world.offer(open_group);
  BOOST_TEST(all_there(world, open_group));
}

BOOST_AUTO_TEST_CASE(too_large_is_not_taken) {
  Fixture f;
  World world = f.open(small_options(kRoot, 12'000));
  const Turn turn = f.conversations.turn(0, 100);
  world.offer(turn);
  BOOST_TEST(world.refused == 1);  // the rings; 4 of them would not fit
  BOOST_TEST(world.tier->stats().not_taken == 1);
}

BOOST_AUTO_TEST_CASE(off_when_it_may_hold_nothing) {
  Fixture f;
  World world = f.open(small_options(kRoot, 0));
  world.offer(f.conversations.turn(0, 600));
  world.tier->flush();
  BOOST_TEST(world.stored.empty());
  BOOST_TEST(f.files.operations() == 0);
  BOOST_TEST(world.log.warnings().empty());
  BOOST_TEST((world.tier->stats().state == SpillStats::State::kOff));
}

BOOST_AUTO_TEST_CASE(staged_bytes_are_bounded) {
  Fixture f;
  SpillOptions options = small_options(kRoot);
  options.staged_bytes_max = 2 * kSpillPageBytes;  // two blocks of the test
  World world = f.open(options);
  const Turn turn = f.conversations.turn(0, 4 * 256);
  world.offer(turn);
  for (int i = 0; i < 4; ++i) world.tier->stage(turn[static_cast<size_t>(i)].note);
  world.take();
  int ready = 0;
  for (const CacheRecord& r : turn)
    ready += world.tier->staged(r.note.name, r.note.kind) == Staged::kReady ? 1 : 0;
  BOOST_TEST(ready == 2);
  world.tier->unstage(turn[0].note.name, turn[0].note.kind);
  world.tier->stage(turn[3].note);
  world.take();
  BOOST_TEST((world.tier->staged(turn[3].note.name, turn[3].note.kind) == Staged::kReady));
  // What nobody fetches is dropped.
  world.clock.advance_us(kSpillStagedKeptUs + 1);
  world.take();
  BOOST_TEST(world.tier->stats().staged_bytes == 0);
  BOOST_TEST(world.tier->record(turn[3].note.name, turn[3].note.kind) == nullptr);
}

// ---------------------------------------------------------------- io threads

// A disk that does nothing until it is let go.
class Gate {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    waits_ = true;
    ready_.notify_all();
    ready_.wait(lock, [&] { return open_; });
  }
  void somebody_waits() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return waits_; });
  }
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    ready_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  bool open_ = false;
  bool waits_ = false;
};

BOOST_AUTO_TEST_CASE(a_disk_that_hangs_never_makes_the_caller_wait) {
  Fixture f;
  Gate gate;
  SpillOptions options = small_options(kRoot);
  options.queue_bytes_max = 10 * kSpillPageBytes;
  World world(f.files, f.clock, options, make_spill_threads);
  while (world.tier->stats().state != SpillStats::State::kOn) world.take();
  const Turn before = f.conversations.turn(0, 100);
  world.offer(before);
  while (!all_there(world, before)) world.take();
  f.files.set_hook([&](int64_t, Op, const std::string&) {
    gate.wait();
    return ok_status();
  });
  const Turn turn = f.conversations.turn(1, 20 * 256);
  world.offer(turn);  // returns, though nothing is written
  BOOST_TEST(world.refused > 0);
  BOOST_TEST(world.tier->stats().queued_bytes <= options.queue_bytes_max);
  gate.somebody_waits();  // the thread that writes
  world.tier->stage(before[0].note);
  world.take();
  BOOST_TEST((world.tier->staged(before[0].note.name, before[0].note.kind) == Staged::kReading));
  // Given up after a while; one line.
  world.clock.advance_us(kSpillStuckUs + 1);
  world.take();
  BOOST_TEST((world.tier->staged(before[0].note.name, before[0].note.kind) == Staged::kMissing));
  BOOST_TEST((world.tier->stats().state == SpillStats::State::kPaused));
  BOOST_TEST(world.log.warnings().size() == 1u);
  world.clock.advance_us(kSpillRetryFirstUs + 1);
  world.take();
  BOOST_TEST((world.tier->stats().state == SpillStats::State::kPaused));  // it still hangs
  gate.open();
  while (world.tier->stats().queued_bytes > 0) world.take();
  world.clock.advance_us(kSpillRetryMostUs);
  world.take();
  const Turn after = f.conversations.turn(2, 600);
  world.offer(after);
  while (!all_there(world, after)) world.take();
  BOOST_TEST(world.log.warnings().size() == 1u);
  BOOST_TEST(world.log.said("on again"));
}

BOOST_AUTO_TEST_CASE(on_the_real_disk_with_threads) {
  const TempFolder folder;
  const std::string root = folder.path("spill");
  Conversations conversations;
  SpillOptions options = small_options(root);
  options.free_bytes_min = 0;
  ManualClock clock;
  KeySet stored;
  {
    std::filesystem::create_directory(root);
    std::filesystem::permissions(root, std::filesystem::perms::all);
    World world(disk_file_system(), clock, options, make_spill_threads);
    BOOST_REQUIRE(world.tier->wait_for_index(1));
    for (int i = 0; i < 20; ++i)
      for (const CacheRecord& r : conversations.turn(i % 6, 700))
        BOOST_REQUIRE(world.tier->spill(r.note, r.ids, r.engram_ids, r.bytes));
    BOOST_REQUIRE(world.tier->finish_writing(INT64_MAX / 2));
    world.take();
    stored = world.stored;
    BOOST_TEST(stored.size() == conversations.all().size());
    BOOST_TEST(world.log.warnings().empty());
    World second(disk_file_system(), clock, options, make_spill_threads);
    BOOST_TEST(second.log.said("another process uses"));
  }
  for (const auto& e : std::filesystem::recursive_directory_iterator(root)) {
    struct stat info = {};
    BOOST_REQUIRE(::stat(e.path().c_str(), &info) == 0);
    BOOST_TEST((info.st_mode & 07777) == (e.is_directory() ? 0700u : 0600u), e.path().string());
    if (e.path().extension() == ".tfs") BOOST_TEST(info.st_size % kSpillPageBytes == 0);
    BOOST_TEST(e.path().extension() != ".tmp");
  }
  struct stat info = {};
  BOOST_REQUIRE(::stat(root.c_str(), &info) == 0);
  BOOST_TEST((info.st_mode & 07777) == 0700u);

  World world(disk_file_system(), clock, options, make_spill_threads);
  BOOST_REQUIRE(world.tier->wait_for_index(INT64_MAX / 2));
  world.take();
  BOOST_TEST((world.stored == stored));
  for (const RecordKey& key : stored) world.tier->stage(world.notes.at(key));
  for (const RecordKey& key : stored) {
    while (world.tier->staged(key.name, key.kind) == Staged::kReading) world.take();
    const CacheRecord* got = world.tier->record(key.name, key.kind);
    BOOST_REQUIRE(got != nullptr);
    BOOST_TEST(same_record(*got, *conversations.find(key)));
  }
  world.tier->flush();
  BOOST_TEST(world.tier->finish_writing(INT64_MAX / 2));
  int64_t left = 0;
  for (const auto& e : std::filesystem::recursive_directory_iterator(root))
    left += e.is_regular_file() ? 1 : 0;
  BOOST_TEST(left == 1);  // the lock
}

}  // namespace
}  // namespace tensorfold
