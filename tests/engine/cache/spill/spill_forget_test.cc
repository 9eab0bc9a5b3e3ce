// Records that must not be used again: wherever they are (written, being written, not yet written,
// not yet known), they are gone, what stands on them is gone, and neither a restart nor a power
// failure brings them back. The same names may be written anew.
#include <boost/test/unit_test.hpp>
#include <deque>

#include "tests/engine/cache/spill/spill_fixture.h"

namespace tensorfold {
namespace {

// Jobs run when a test says so, in order.
class HeldIo final : public SpillIo {
 public:
  HeldIo(FileSystem& files, SpillPlace place, const Clock& clock)
      : files_(files), place_(std::move(place)), clock_(clock) {}
  void submit(SpillJob job) override {
    jobs_.push_back(std::move(job));
    if (!held) run();
  }
  std::vector<SpillDone> take_done() override { return std::exchange(done_, {}); }
  void drop_writes() override {}
  int64_t waiting() const override { return static_cast<int64_t>(jobs_.size()); }
  void run() {
    for (; !jobs_.empty(); jobs_.pop_front())
      done_.push_back(run_spill_job(files_, place_, clock_, std::move(jobs_.front())));
  }
  static inline bool held = false;
  static inline HeldIo* last = nullptr;

 private:
  FileSystem& files_;
  const SpillPlace place_;
  const Clock& clock_;
  std::deque<SpillJob> jobs_;
  std::vector<SpillDone> done_;
};

std::unique_ptr<SpillIo> make_held_io(FileSystem& files, SpillPlace place, const Clock& clock) {
  auto io = std::make_unique<HeldIo>(files, std::move(place), clock);
  HeldIo::last = io.get();
  return io;
}

World open_held(Fixture& f) { return World(f.files, f.clock, small_options(kRoot), make_held_io); }

void require_gone(const World& world, const Turn& turn) {
  for (const CacheRecord& r : turn) BOOST_TEST(world.stored.count(key_of(r.note)) == 0u);
}

// All of what is stored comes back right, and all of `turn` is among it.
void require_whole(World& world, Fixture& f, const Turn& turn) {
  for (const CacheRecord& r : turn) BOOST_TEST(world.stored.count(key_of(r.note)) == 1u);
  const int64_t missing = world.missing;
  BOOST_TEST(world.read_all(f.conversations) == 0);
  BOOST_TEST(world.missing == missing);
}

BOOST_AUTO_TEST_CASE(a_block_and_what_stands_on_it) {
  for (const bool power_fails : {false, true}) {
    Fixture f;
    const Turn first = f.conversations.turn(0, 600);
    const Turn next = f.conversations.turn(0, 300);
    const Turn other = f.conversations.turn(5, 400);
    {
      World world = f.open();
      world.offer(first);
      world.offer(next);
      world.offer(other);
      world.tier->forget(next[0].note);
      world.take();
      require_gone(world, next);
      require_whole(world, f, first);
      require_whole(world, f, other);
    }
    if (power_fails) f.files.crash(7, 0.5);
    World again = f.open();
    require_gone(again, next);
    require_whole(again, f, first);
    BOOST_TEST(again.log.warnings().empty());
    again.offer(next);
    require_whole(again, f, next);
  }
}

BOOST_AUTO_TEST_CASE(every_record_of_a_turn_by_itself) {
  const size_t records = Fixture().conversations.turn(0, 1200).size();
  for (size_t i = 0; i < records; ++i) {
    Fixture f;
    const Turn turn = f.conversations.turn(0, 1200);
    const bool block = turn[i].note.kind == CacheNote::Kind::kBlock;
    World world = f.open();
    world.offer(turn);
    world.tier->forget(turn[i].note);
    world.take();
    BOOST_TEST(world.stored.count(key_of(turn[i].note)) == 0u);
    // Without one of its blocks nothing can start there; without one snapshot the other serves.
    BOOST_TEST(world.stored.empty() == block);
    BOOST_TEST(world.read_all(f.conversations) == 0);
    BOOST_TEST(world.missing == 0);
    world.offer(turn);
    require_whole(world, f, turn);
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_written_yet) {
  Fixture f;
  const Turn turn = f.conversations.turn(0, 700);
  World world = f.open();
  for (size_t i = 0; i < 2; ++i)  // whole blocks wait for more of them
    BOOST_TEST(world.tier->spill(turn[i].note, turn[i].ids, turn[i].engram_ids, turn[i].bytes));
  BOOST_TEST(world.tier->stats().queued_bytes > 0);
  world.tier->forget(turn[0].note);
  BOOST_TEST(world.tier->stats().queued_bytes == 0);
  f.clock.advance_us(kSpillGroupWaitUs);
  world.take();
  BOOST_TEST(f.spilled().empty());
  world.offer(turn);
  require_whole(world, f, turn);
}

BOOST_AUTO_TEST_CASE(what_is_being_written) {
  for (const bool anew : {false, true}) {
    Fixture f;
    const Turn turn = f.conversations.turn(0, 700);
    {
      World world = open_held(f);
      HeldIo::held = true;
      for (const CacheRecord& r : turn)
        BOOST_TEST(world.tier->spill(r.note, r.ids, r.engram_ids, r.bytes));
      for (const CacheRecord& r : turn) world.tier->forget(r.note);
      if (anew)
        for (const CacheRecord& r : turn)
          BOOST_TEST(world.tier->spill(r.note, r.ids, r.engram_ids, r.bytes));
      HeldIo::held = false;
      HeldIo::last->run();
      for (int i = 0; i < 3; ++i) world.take();
      BOOST_TEST(world.tier->stats().queued_bytes == 0);
      if (anew) {
        require_whole(world, f, turn);
      } else {
        require_gone(world, turn);
        BOOST_TEST(f.spilled().empty());
      }
    }
    World again = f.open();
    if (anew) {
      require_whole(again, f, turn);
    } else {
      require_gone(again, turn);
    }
    BOOST_TEST(again.log.warnings().empty());
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_known_yet) {
  Fixture f;
  const Turn turn = f.conversations.turn(0, 700);
  const Turn other = f.conversations.turn(3, 300);
  {
    World world = f.open();
    world.offer(turn);
    world.offer(other);
  }
  HeldIo::held = true;
  World world = open_held(f);
  world.tier->forget(turn[1].note);
  HeldIo::held = false;
  for (int i = 0; i < 4; ++i) {
    HeldIo::last->run();
    world.take();
  }
  require_gone(world, turn);
  require_whole(world, f, other);
}

// A disk that refuses leaves the files; what is in them is not known any more.
BOOST_AUTO_TEST_CASE(a_disk_that_refuses_to_remove) {
  Fixture f;
  const Turn turn = f.conversations.turn(0, 600);
  World world = f.open();
  world.offer(turn);
  f.files.set_hook([](int64_t, Op op, const std::string& path) {
    return op == Op::kRemove ? file_error(path, EIO) : ok_status();
  });
  for (const CacheRecord& r : turn) world.tier->forget(r.note);
  world.take();
  require_gone(world, turn);
  world.tier->stage(turn[0].note);
  BOOST_TEST(
      (world.tier->staged(turn[0].note.name, turn[0].note.kind) == CacheTier::Staged::kMissing));
  BOOST_TEST(world.tier->stats().write_errors > 0);
  f.files.set_hook(nullptr);
  world.offer(turn);
  require_whole(world, f, turn);
}

}  // namespace
}  // namespace tensorfold
