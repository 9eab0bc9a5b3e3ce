// Power fails at every file operation, and what was not synced is lost in any order: afterwards
// everything that was reported as stored is there, every record that comes back is right, nothing
// is left behind, and the tier goes on. With TF_PLANTED_FAULT the files are not synced, which must
// be found.
#include <boost/test/unit_test.hpp>

#include "tests/engine/cache/spill/fault_file_system.h"
#include "tests/engine/cache/spill/spill_world.h"

namespace tensorfold {
namespace {

using Op = FaultFileSystem::Op;

// Two users, a branch, growing conversations, evictions, reads and a flush.
struct Story {
  Conversations conversations;
  std::vector<Turn> turns;
  size_t flush_before = 0;

  Story() {
    conversations.set_salt(1, "another user");
    turns.push_back(conversations.turn(0, 5 * 256 + 100));
    turns.push_back(conversations.turn(1, 2 * 256));
    flush_before = turns.size();
    turns.push_back(conversations.turn(0, 400));
    turns.push_back(conversations.turn(2, 300, 4 * 256, 0));
    turns.push_back(conversations.turn(1, 30));
    turns.push_back(conversations.turn(3, 1200));
    turns.push_back(conversations.turn(0, 1500));
    turns.push_back(conversations.turn(4, 700));
    turns.push_back(conversations.turn(2, 900));
    turns.push_back(conversations.turn(5, 256));
    turns.push_back(conversations.turn(4, 1));
  }

  SpillOptions options() const { return small_options("/spill/root", 70'000); }

  void tell(World& world, FaultFileSystem& files) const {
    for (size_t i = 0; i < turns.size(); ++i) {
      world.clock.advance_us(1'000'000);
      files.set_time_us(world.clock.unix_us());
      if (i == flush_before) world.tier->flush();
      world.offer(turns[i]);
      if (i % 3 == 2) (void)world.read_all(conversations);
    }
  }
};

struct Outcome {
  int64_t wrong = 0, lost = 0, left_behind = 0, noisy = 0, stuck = 0, read = 0;
};

// Of a snapshot and every block that it stands on.
int64_t missing_of(const Story& story, const RecordKey& snapshot, const KeySet& stored) {
  int64_t missing = stored.count(snapshot) == 0 ? 1 : 0;
  RecordKey block{snapshot.name, CacheNote::Kind::kBlock};
  while (const CacheRecord* r = story.conversations.find(block)) {
    if (stored.count(block) == 0) ++missing;
    block.name = r->note.before;
  }
  return missing;
}

// What a new process finds.
void look(const Story& story, FaultFileSystem& files, ManualClock& clock, const KeySet& durable,
          Outcome& out) {
  clock.advance_us(1'000'000);
  World world(files, clock, story.options());
  if (world.tier->stats().evicted_files == 0) {
    for (const RecordKey& key : durable) {
      if (key.kind != CacheNote::Kind::kBlock) out.lost += missing_of(story, key, world.stored);
    }
  }
  int64_t bytes = 0;
  for (const std::string& path : files.paths()) {
    if (path.ends_with(".tmp")) ++out.left_behind;
    bytes += files.file_bytes(path);
  }
  if (bytes != world.tier->stats().bytes) ++out.left_behind;
  out.wrong += world.read_all(story.conversations);
  out.lost += world.missing;
  out.read += world.read;
  if (world.log.warnings().size() > 1) ++out.noisy;
  Conversations more;
  world.offer(more.turn(9, 600));
  if (world.stored.count(key_of(more.all().begin()->second.note)) == 0) ++out.stuck;
}

int64_t count_operations(const Story& story) {
  FaultFileSystem files("/spill");
  ManualClock clock;
  clock.advance_us(1'000'000);
  World world(files, clock, story.options());
  story.tell(world, files);
  BOOST_TEST(world.log.warnings().empty());
  BOOST_TEST(world.tier->stats().evicted_files > 0);
  BOOST_TEST(world.stored.size() > 5u);
  BOOST_TEST(world.refused == 0);
  return files.operations();
}

Outcome crash_everywhere(const Story& story, int64_t operations, int64_t seeds) {
  Outcome out;
  for (int64_t at = 0; at < operations; ++at) {
    for (int64_t seed = 0; seed < seeds; ++seed) {
      FaultFileSystem files("/spill");
      ManualClock clock;
      clock.advance_us(1'000'000);
      KeySet durable;
      {
        files.set_hook([&](int64_t number, Op, const std::string& path) {
          return number < at ? ok_status() : file_error(path, EIO);
        });
        World world(files, clock, story.options());
        story.tell(world, files);
        durable = world.stored;
        if (world.log.warnings().size() > 3) ++out.noisy;  // off, not readable, not removable
      }
      const double keep = seed == 0 ? 0.0 : seed == 1 ? 1.0 : 0.5;
      files.crash(static_cast<uint64_t>(at * 100 + seed), keep);
      look(story, files, clock, durable, out);
    }
  }
  return out;
}

BOOST_AUTO_TEST_CASE(power_fails_at_every_operation) {
  const Story story;
  const int64_t operations = count_operations(story);
  const int64_t seeds = 4;
  const Outcome out = crash_everywhere(story, operations, seeds);
  BOOST_TEST_MESSAGE(operations << " operations, " << operations * seeds << " crashes, " << out.read
                                << " records read back");
  BOOST_TEST(operations > 200);
  BOOST_TEST(out.wrong == 0);
  BOOST_TEST(out.noisy == 0);
  BOOST_TEST(out.stuck == 0);
  BOOST_TEST(out.left_behind == 0);
  BOOST_TEST(out.read > operations);
#ifdef TF_PLANTED_FAULT
  BOOST_TEST(out.lost > 0);
#else
  BOOST_TEST(out.lost == 0);
#endif
}

}  // namespace
}  // namespace tensorfold
