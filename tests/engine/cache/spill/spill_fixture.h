// A file system with faults, conversations and worlds over it, for tests of what goes wrong.
#pragma once

#include <boost/test/unit_test.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/cache/spill/fault_file_system.h"
#include "tests/engine/cache/spill/spill_world.h"

namespace tensorfold {

using Op = FaultFileSystem::Op;
inline constexpr int64_t kSecondUs = 1'000'000;
inline const std::string kRoot = "/spill/root";

struct Fixture {
  Conversations conversations;
  FaultFileSystem files{"/spill"};
  ManualClock clock;

  Fixture() { clock.advance_us(kSecondUs); }
  World open(int64_t bytes_max = int64_t{1} << 30) {
    return World(files, clock, small_options(kRoot, bytes_max));
  }
  void fill() {
    World world = open();
    conversations.set_salt(1, "another user");
    world.offer(conversations.turn(0, 2 * 256 + 77));
    world.offer(conversations.turn(1, 256));
    world.offer(conversations.turn(0, 300));
    BOOST_REQUIRE(world.log.warnings().empty());
  }
  std::vector<std::string> spilled() const {
    std::vector<std::string> out;
    for (const std::string& p : files.paths())
      if (p.ends_with(".tfs")) out.push_back(p);
    return out;
  }
};

// A new conversation can be stored and read back.
inline void check_works(World& world, Conversations& conversations) {
  const Turn turn = conversations.turn(77, 520);
  world.offer(turn);
  const KeySet all = world.stored;
  world.stored.clear();
  for (const CacheRecord& r : turn) {
    BOOST_TEST(all.count(key_of(r.note)) == 1u);
    world.stored.insert(key_of(r.note));
  }
  const int64_t missing = world.missing;
  BOOST_TEST(world.read_all(conversations) == 0);
  BOOST_TEST(world.missing == missing);
  world.stored = all;
}

}  // namespace tensorfold
