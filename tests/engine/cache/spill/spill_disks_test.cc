// The disk as a whole fails: writing is off with one line, however much is offered, and comes back
// when the disk is well; requests only miss something.
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <functional>
#include <memory>

#include "tests/engine/cache/spill/spill_fixture.h"

namespace tensorfold {
namespace {

// Off with one line, however much is offered; on again when the disk is well.
void check_off_and_on(Fixture& f, const char* reason, const std::function<void()>& begin,
                      const std::function<void()>& end) {
  World world = f.open();
  world.offer(f.conversations.turn(0, 600));
  BOOST_TEST(world.stored.size() == 4u);
  begin();
  for (int i = 0; i < 50; ++i) {
    world.clock.advance_us(60 * kSecondUs);
    world.offer(f.conversations.turn(1 + i % 5, 300));
  }
  BOOST_TEST(world.read_all(f.conversations) == 0);
  const SpillStats s = world.tier->stats();
  BOOST_TEST((s.state == SpillStats::State::kPaused));
  BOOST_TEST(s.times_off == 1);
  BOOST_TEST(s.not_taken > 0);
  BOOST_TEST(world.log.warnings().size() == 1u);
  BOOST_TEST(world.log.warnings()[0].find(reason) != std::string::npos, world.log.warnings()[0]);
  end();
  world.clock.advance_us(kSpillRetryMostUs);
  world.take();
  check_works(world, f.conversations);
  BOOST_TEST(world.log.said("on again"));
  BOOST_TEST(world.log.warnings().size() == 1u);
  for (const std::string& p : f.files.paths()) BOOST_TEST(!p.ends_with(".tmp"));
}

BOOST_AUTO_TEST_CASE(a_full_disk) {
  Fixture f;
  check_off_and_on(
      f, "No space left",
      [&] {
        f.files.set_hook([](int64_t, Op op, const std::string& path) {
          return op == Op::kWrite ? file_error(path, ENOSPC) : ok_status();
        });
      },
      [&] { f.files.set_hook(nullptr); });
}

BOOST_AUTO_TEST_CASE(a_disk_that_others_fill) {
  Fixture f;
  check_off_and_on(
      f, "are free", [&] { f.files.set_free_bytes(kSpillFreeBytesMin); },
      [&] { f.files.set_free_bytes(int64_t{1} << 40); });
}

BOOST_AUTO_TEST_CASE(a_read_only_disk) {
  Fixture f;
  check_off_and_on(
      f, "Read-only",
      [&] {
        f.files.set_hook([](int64_t, Op op, const std::string& path) {
          return FaultFileSystem::changes(op) ? file_error(path, EROFS) : ok_status();
        });
      },
      [&] { f.files.set_hook(nullptr); });
}

BOOST_AUTO_TEST_CASE(a_disk_that_fails) {
  Fixture f;
  check_off_and_on(
      f, "Input/output error",
      [&] {
        f.files.set_hook([](int64_t, Op op, const std::string& path) {
          return op == Op::kSync ? file_error(path, EIO) : ok_status();
        });
      },
      [&] { f.files.set_hook(nullptr); });
}

BOOST_AUTO_TEST_CASE(a_slow_disk) {
  Fixture f;
  check_off_and_on(
      f, "too slow",
      [&] {
        f.files.set_hook([&](int64_t, Op op, const std::string&) {
          if (op == Op::kSync) f.clock.advance_us(kSpillStuckUs + 1);
          return ok_status();
        });
      },
      [&] { f.files.set_hook(nullptr); });
}

// Space is made by dropping the oldest, once; then it fits.
BOOST_AUTO_TEST_CASE(a_full_disk_with_old_files_of_ours) {
  Fixture f;
  World world = f.open();
  for (int i = 0; i < 4; ++i) {
    world.offer(f.conversations.turn(i, 600));
    world.clock.advance_us(kSecondUs);
  }
  const auto total = [&] {
    int64_t bytes = 0;
    for (const std::string& p : f.files.paths()) bytes += f.files.file_bytes(p);
    return bytes;
  };
  const int64_t room = total() + 1000;
  f.files.set_hook([&](int64_t, Op op, const std::string& path) {
    return op == Op::kWrite && total() > room ? file_error(path, ENOSPC) : ok_status();
  });
  const Turn turn = f.conversations.turn(9, 600);
  world.offer(turn);
  BOOST_TEST(world.log.warnings().empty());
  BOOST_TEST(world.tier->stats().evicted_files > 0);
  for (const CacheRecord& r : turn) BOOST_TEST(world.stored.count(key_of(r.note)) == 1u);
  BOOST_TEST(world.read_all(f.conversations) == 0);
  BOOST_TEST(world.missing == 0);
}

// Reads that take too long are misses.
BOOST_AUTO_TEST_CASE(a_disk_that_is_slow_to_read) {
  Fixture f;
  f.fill();
  World world = f.open();
  f.files.set_hook([&](int64_t, Op op, const std::string&) {
    if (op == Op::kRead) f.clock.advance_us(60 * kSecondUs);
    return ok_status();
  });
  BOOST_TEST(world.read_all(f.conversations) == 0);
  BOOST_TEST(world.read == 0);
  BOOST_TEST(world.missing > 0);
  BOOST_TEST(world.log.warnings().size() == 1u);
  BOOST_TEST(world.tier->stats().staged_bytes == 0);
}

BOOST_AUTO_TEST_CASE(two_processes_on_one_folder) {
  Fixture f;
  {
    World first = f.open();
    World second = f.open();
    BOOST_TEST(first.log.warnings().empty());
    BOOST_TEST(second.log.warnings().size() == 1u);
    BOOST_TEST(second.log.said("another process uses"));
    BOOST_TEST((second.tier->stats().state == SpillStats::State::kOff));
    const Turn turn = f.conversations.turn(0, 600);
    second.offer(turn);
    BOOST_TEST(second.stored.empty());
    first.offer(turn);
    BOOST_TEST(first.stored.size() == turn.size());
    second.tier->stage(turn[0].note);
    BOOST_TEST(
        (second.tier->staged(turn[0].note.name, turn[0].note.kind) == CacheTier::Staged::kMissing));
    second.tier->flush();
    BOOST_TEST(first.read_all(f.conversations) == 0);
    BOOST_TEST(first.missing == 0);
  }
  World third = f.open();
  BOOST_TEST(third.log.warnings().empty());
  BOOST_TEST(third.stored.size() == 4u);
}

// The second process takes over when the first one is gone, by itself, and says so in one line.
BOOST_AUTO_TEST_CASE(the_second_process_takes_over) {
  for (const bool read_only_meanwhile : {false, true}) {
    Fixture f;
    auto first = std::make_unique<World>(f.files, f.clock, small_options(kRoot));
    const Turn turn = f.conversations.turn(0, 600);
    first->offer(turn);
    World second = f.open();
    const auto wait = [&](int64_t us) {
      f.clock.advance_us(us);
      for (int i = 0; i < 4; ++i) second.take();
    };
    for (int i = 0; i < 100; ++i) wait(kSpillLockEveryUs);
    BOOST_TEST((second.tier->stats().state == SpillStats::State::kOff));
    BOOST_TEST(second.log.warnings().size() == 1u);
    first.reset();
    wait(kSpillLockEveryUs / 2);
    BOOST_TEST((second.tier->stats().state == SpillStats::State::kOff));
    if (read_only_meanwhile) {  // it cannot take the lock at once either
      f.files.set_hook([](int64_t, Op op, const std::string& path) {
        return op == Op::kLock ? file_error(path, EROFS) : ok_status();
      });
      for (int i = 0; i < 10; ++i) wait(kSpillLockEveryUs);
      BOOST_TEST((second.tier->stats().state == SpillStats::State::kOff));
      f.files.set_hook(nullptr);
    }
    wait(kSpillLockEveryUs);
    BOOST_TEST((second.tier->stats().state == SpillStats::State::kOn));
    BOOST_TEST(second.log.said("on again"));
    BOOST_TEST(second.log.warnings().size() == 1u);
    BOOST_TEST(second.stored.size() == turn.size());
    BOOST_TEST(second.read_all(f.conversations) == 0);
    BOOST_TEST(second.missing == 0);
    check_works(second, f.conversations);
    World third = f.open();  // and it has the lock
    BOOST_TEST(third.log.said("another process uses"));
  }
}

}  // namespace
}  // namespace tensorfold
