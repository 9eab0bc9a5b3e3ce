// What little free memory makes the service do, and reading it.
#include "daemon/service/memory_watch.h"

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

#include "tests/temp_folder.h"

using namespace tensorfold;
using namespace tensorfold::service;

namespace {
constexpr int64_t kMib = 1 << 20, kGib = int64_t{1} << 30, kSecond = 1'000'000;
}

BOOST_AUTO_TEST_CASE(the_floor_follows_the_machine_unless_it_is_set) {
  BOOST_TEST(memory_floor_bytes(0, 119 * kGib) == 119 * kGib / 64);
  BOOST_TEST(memory_floor_bytes(0, 512 * kGib) == 2 * kGib);
  BOOST_TEST(memory_floor_bytes(0, 4 * kGib) == 64 * kMib);
  BOOST_TEST(memory_floor_bytes(300, 4 * kGib) == 300 * kMib);
  BOOST_TEST(memory_floor_bytes(-1, 119 * kGib) == 0);
}

BOOST_AUTO_TEST_CASE(below_the_floor_it_holds_below_half_it_cuts_and_above_it_lets_go) {
  MemoryWatch watch;
  const int64_t floor = kGib;
  int64_t now = 5 * kSecond;
  BOOST_TEST((watch.look(floor, floor, now) == MemoryAct::kNone));
  BOOST_TEST((watch.look(floor - 1, floor, now) == MemoryAct::kHold));
  BOOST_TEST(watch.holds());
  // Once only, and neither cut nor let go on either side of the floor.
  for (const int64_t room : {floor - 1, floor + 1, floor / 2, floor + floor / 4 - 1})
    BOOST_TEST((watch.look(room, floor, now += kSecond) == MemoryAct::kNone));
  // The newest goes, then after a while the next.
  now += kCutEveryUs;
  BOOST_TEST((watch.look(floor / 2 - 1, floor, now) == MemoryAct::kCutNewest));
  BOOST_TEST((watch.look(0, floor, now + kCutEveryUs - 1) == MemoryAct::kNone));
  BOOST_TEST((watch.look(0, floor, now + kCutEveryUs) == MemoryAct::kCutNewest));
  BOOST_TEST((watch.look(floor + floor / 4, floor, now) == MemoryAct::kRelease));
  BOOST_TEST(!watch.holds());
  // A drop to nothing holds before it cuts.
  BOOST_TEST((watch.look(0, floor, now) == MemoryAct::kHold));
  BOOST_TEST((watch.look(0, floor, now + 1) == MemoryAct::kNone));
  // No floor (any more): whatever held lets go.
  BOOST_TEST((watch.look(0, 0, now) == MemoryAct::kRelease));
  BOOST_TEST((watch.look(0, 0, now) == MemoryAct::kNone));
}

BOOST_AUTO_TEST_CASE(free_memory_is_read_or_nothing_is_known) {
  const TempFolder folder;
  BOOST_TEST(!host_room(folder.path()).has_value());
  std::filesystem::create_directories(folder.path("proc"));
  const auto write = [&](const char* text) { std::ofstream(folder.path("proc/meminfo")) << text; };
  write("MemTotal:       125000000 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\n");
  const auto room = host_room(folder.path());
  BOOST_REQUIRE(room.has_value());
  BOOST_TEST(room->total_bytes == 125000000 * int64_t{1024});
  BOOST_TEST(room->available_bytes == 2 * kMib);
  for (const char* text :
       {"", "MemTotal: 5 kB\n", "MemTotal: x kB\nMemAvailable: y\n", "\x01\xff"}) {
    write(text);
    BOOST_TEST(!host_room(folder.path()).has_value());
  }
  BOOST_TEST(host_room().has_value());
}
