// One fault at a time: whatever the disk does, records that come back are right, the fault is
// counted, one line is written, and the tier goes on or comes back. With TF_PLANTED_FAULT nothing
// is checked in records, which must show.
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <functional>
#include <random>

#include "tests/engine/cache/spill/spill_fixture.h"

namespace tensorfold {
namespace {

// ---------------------------------------------------------------- one operation fails

struct Single {
  int64_t wrong = 0, uncounted = 0, noisy = 0, stuck = 0, left = 0, runs = 0;
};

int64_t fail_once(int64_t at, int error, bool stays, Single& out) {
  Fixture f;
  bool failed = false;
  f.files.set_hook([&](int64_t number, Op, const std::string& path) {
    if (number < at || (failed && !stays)) return ok_status();
    failed = true;
    return file_error(path, error);
  });
  World world = f.open(60'000);
  for (int i = 0; i < 6; ++i) {
    world.clock.advance_us(kSecondUs);
    f.files.set_time_us(world.clock.unix_us());
    world.offer(f.conversations.turn(i % 2, 500));
    if (i % 2 == 1) out.wrong += world.read_all(f.conversations);
  }
  if (!failed) return f.files.operations();
  ++out.runs;
  const SpillStats s = world.tier->stats();
  const int64_t counted =
      s.write_errors + s.read_errors + s.damaged + s.times_off + s.evicted_files;
  if (counted == 0) ++out.uncounted;
  if (world.log.warnings().size() > (stays ? 4u : 1u)) ++out.noisy;
  f.files.set_hook(nullptr);
  const bool for_good = s.state == SpillStats::State::kOff;  // it could not be opened
  for (int i = 0; i < 12 && world.tier->stats().state != SpillStats::State::kOn; ++i) {
    world.clock.advance_us(kSpillRetryMostUs);
    world.take();
    world.take();
    world.take();
  }
  if (for_good != (world.tier->stats().state != SpillStats::State::kOn)) ++out.stuck;
  if (!for_good) check_works(world, f.conversations);
  world.tier.reset();
  World next = f.open();
  out.wrong += next.read_all(f.conversations);
  for (const std::string& p : f.files.paths()) out.left += p.ends_with(".tmp") ? 1 : 0;
  return 0;
}

void check_single(const Single& out) {
  BOOST_TEST(out.wrong == 0);
  BOOST_TEST(out.uncounted == 0);
  BOOST_TEST(out.noisy == 0);
  BOOST_TEST(out.stuck == 0);
  BOOST_TEST(out.left == 0);
}

BOOST_AUTO_TEST_CASE(any_operation_fails_once_or_from_then_on) {
  for (const bool stays : {false, true}) {
    for (const int error : {EIO, ENOSPC, EROFS}) {
      Single out;
      int64_t at = 0;
      while (fail_once(at, error, stays, out) == 0) ++at;
      BOOST_TEST_MESSAGE("errno " << error << (stays ? " for long: " : " once: ") << out.runs
                                  << " operations");
      BOOST_TEST(out.runs > 100);
      check_single(out);
    }
  }
}

// ---------------------------------------------------------------- damaged files

// Offsets that matter: both ends of each region, and some between.
std::vector<int64_t> offsets_of(int64_t size, std::mt19937& random) {
  std::vector<int64_t> out = {0,       8, 12, 16, 32, 64, 70, kSpillPageBytes - 1, kSpillPageBytes,
                              size - 1};
  for (int i = 0; i < 12; ++i)
    out.push_back(static_cast<int64_t>(random() % static_cast<uint32_t>(size)));
  return out;
}

int64_t damage(const std::function<void(FaultFileSystem&, const std::string&)>& harm,
               const std::string& path, bool before_start) {
  Fixture f;
  f.fill();
  if (before_start) harm(f.files, path);
  World world = f.open();
  if (!before_start) harm(f.files, path);
  const int64_t wrong = world.read_all(f.conversations);
  // Planted fault: nothing is noticed in records.
#ifndef TF_PLANTED_FAULT
  BOOST_TEST(world.tier->stats().damaged == 1);
  BOOST_TEST(world.log.warnings().size() == 1u);
  BOOST_TEST(world.read >= 2);  // the other user's are not touched by it
  const auto left = f.files.paths();
  BOOST_TEST((std::find(left.begin(), left.end(), path) == left.end()));
#endif
  check_works(world, f.conversations);
  return wrong;
}

BOOST_AUTO_TEST_CASE(flipped_bits_in_every_region_of_every_file) {
  Fixture f;
  f.fill();
  std::mt19937 random(7);
  int64_t wrong = 0, flips = 0;
  for (const std::string& path : f.spilled()) {
    for (const int64_t at : offsets_of(f.files.file_bytes(path), random)) {
      const auto mask = static_cast<uint8_t>(1U << (random() % 8));
      const auto flip = [&](FaultFileSystem& files, const std::string& p) {
        files.flip(p, at, mask);
      };
      for (const bool before_start : {true, false}) wrong += damage(flip, path, before_start);
      flips += 2;
    }
  }
  BOOST_TEST_MESSAGE(flips << " flips");
  BOOST_TEST(flips > 200);
#ifdef TF_PLANTED_FAULT
  BOOST_TEST(wrong > 0);
#else
  BOOST_TEST(wrong == 0);
#endif
}

#ifndef TF_PLANTED_FAULT
BOOST_AUTO_TEST_CASE(files_that_are_cut_or_grew) {
  Fixture f;
  f.fill();
  for (const std::string& path : f.spilled()) {
    const int64_t size = f.files.file_bytes(path);
    for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{4095}, int64_t{4096}, size / 2,
                                size - 4096, size - 1, size + 1, size + 4096}) {
      if (bytes == size) continue;
      const auto cut = [&](FaultFileSystem& files, const std::string& p) { files.cut(p, bytes); };
      for (const bool before_start : {true, false})
        BOOST_TEST(damage(cut, path, before_start) == 0);
    }
  }
}

// Sectors of an old file of the same name in the place of new ones.
BOOST_AUTO_TEST_CASE(torn_files) {
  Fixture f;
  f.fill();
  std::mt19937 random(3);
  for (const std::string& path : f.spilled()) {
    for (int i = 0; i < 20; ++i) {
      const auto tear = [&](FaultFileSystem& files, const std::string& p) {
        std::vector<std::byte> bytes = files.contents(p);
        const size_t sector = random() % (bytes.size() / 512);
        // Zeros that were zeros already would be no damage.
        const auto at = bytes.begin() + static_cast<ptrdiff_t>(sector * 512);
        if (std::all_of(at, at + 512, [](std::byte b) { return b == std::byte{0}; }))
          std::fill_n(at, 512, std::byte{0xff});
        else
          std::fill_n(at, 512, std::byte{0});
        files.put(p, std::move(bytes));
      };
      BOOST_TEST(damage(tear, path, i % 2 == 0) == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_file_under_the_name_of_another) {
  Fixture f;
  f.fill();
  const auto paths = f.spilled();
  int64_t cases = 0;
  for (const std::string& path : paths) {
    for (const std::string& other : paths) {
      if (path == other) continue;
      const auto swap = [&](FaultFileSystem& files, const std::string& p) {
        files.put(p, files.contents(other));
      };
      for (const bool before_start : {true, false}) {
        BOOST_TEST(damage(swap, path, before_start) == 0);
        ++cases;
      }
    }
  }
  BOOST_TEST(cases > 10);
}

// ---------------------------------------------------------------- files of others

SpillOptions options_of(const std::function<void(SpillIdentity&)>& change) {
  SpillIdentity identity;
  identity.model_fingerprint = "test";
  change(identity);
  SpillOptions o = small_options(kRoot);
  o.identity = identity.digest();
  return o;
}

BOOST_AUTO_TEST_CASE(files_of_another_model_format_revision_device_mode_or_rank) {
  const std::vector<std::function<void(SpillIdentity&)>> others = {
      [](SpillIdentity& i) { i.model_fingerprint = "another"; },
      [](SpillIdentity& i) { i.formats = "another"; },
      [](SpillIdentity& i) { ++i.numeric_revision; },
      [](SpillIdentity& i) { i.device = "another"; },
      [](SpillIdentity& i) { i.prefill = "replay"; },
      [](SpillIdentity& i) { i.reuse_replies = false; },
      [](SpillIdentity& i) { i.world_size = 2; },
      [](SpillIdentity& i) { i.rank = 1; },
  };
  for (const auto& change : others) {
    Fixture f;
    {
      World other(f.files, f.clock, options_of(change));
      other.offer(f.conversations.turn(0, 600));
      BOOST_TEST(other.stored.size() == 4u);
    }
    const auto theirs = f.spilled();
    {  // in their own folder: not seen, but counted
      World world = f.open();
      BOOST_TEST(world.stored.empty());
      BOOST_TEST(world.tier->stats().files == static_cast<int64_t>(theirs.size()));
      BOOST_TEST(world.tier->stats().bytes > 0);
      BOOST_TEST(world.log.warnings().empty());
      check_works(world, f.conversations);
    }
    // In ours, under their names.
    const std::string ours = kRoot + "/v1-" + small_options(kRoot).identity.hex().substr(0, 16);
    for (const std::string& p : theirs)
      f.files.put(ours + p.substr(p.rfind('/')), f.files.contents(p));
    World world = f.open();
    BOOST_TEST(world.stored.size() == 4u);  // check_works()
    BOOST_TEST(world.tier->stats().damaged == static_cast<int64_t>(theirs.size()));
    BOOST_TEST(world.log.warnings().size() == 1u);
    BOOST_TEST(world.log.said("another model"));
  }
}

BOOST_AUTO_TEST_CASE(files_of_others_are_the_first_to_go) {
  Fixture f;
  {
    World other(f.files, f.clock, options_of([](SpillIdentity& i) { i.rank = 1; }));
    for (int i = 0; i < 5; ++i) other.offer(f.conversations.turn(i, 600));
  }
  f.files.set_time_us(f.clock.unix_us());
  World world = f.open(100'000);
  BOOST_TEST(world.tier->stats().bytes <= 100'000);
  BOOST_TEST(world.tier->stats().evicted_files > 0);
  const int64_t theirs = world.tier->stats().files;
  f.clock.advance_us(kSecondUs);
  std::vector<Turn> turns;
  for (int i = 0; i < 3; ++i) world.offer(turns.emplace_back(f.conversations.turn(10 + i, 600)));
  for (const Turn& turn : turns)
    for (const CacheRecord& r : turn) BOOST_TEST(world.stored.count(key_of(r.note)) == 1u);
  BOOST_TEST(world.tier->stats().files < theirs + 6);
}

// The same text under another salt has other names; a file of the one is never read for the other.
BOOST_AUTO_TEST_CASE(files_of_another_salt) {
  Fixture f;
  Conversations theirs;
  theirs.set_salt(0, "them");
  const Turn a = f.conversations.turn(0, 600);
  const Turn b = theirs.turn(0, 600);
  BOOST_REQUIRE(a[0].ids == b[0].ids);
  World world = f.open();
  world.offer(b);
  for (const CacheRecord& r : a) {
    world.tier->stage(r.note);
    world.take();
    BOOST_TEST((world.tier->staged(r.note.name, r.note.kind) == CacheTier::Staged::kMissing));
  }
  world.offer(a);
  BOOST_TEST(world.stored.size() == a.size() + b.size());
  BOOST_TEST(world.read_all(theirs) == static_cast<int64_t>(a.size()));  // others than theirs
}

BOOST_AUTO_TEST_CASE(other_things_in_the_folder) {
  Fixture f;
  f.fill();
  const std::string ours = f.spilled()[0].substr(0, f.spilled()[0].rfind('/'));
  f.files.put(ours + "/notes.txt", std::vector<std::byte>(10));
  f.files.put(ours + "/blocks-xyz.tfs", std::vector<std::byte>(5000));
  f.files.put(ours + "/empty.tfs", {});
  f.files.put(ours + "/left.tfs.tmp", std::vector<std::byte>(5000));
  f.files.put(kRoot + "/v1-0000/left.tfs.tmp", std::vector<std::byte>(5000));
  World world = f.open();
  BOOST_TEST(world.tier->stats().damaged == 2);
  BOOST_TEST(world.tier->stats().temporary == 2);
  BOOST_TEST(world.read_all(f.conversations) == 0);
  BOOST_TEST(world.missing == 0);
  const auto left = f.files.paths();
  for (const std::string& p : left) BOOST_TEST(!p.ends_with(".tmp"));
  BOOST_TEST((std::find(left.begin(), left.end(), ours + "/notes.txt") != left.end()));
}
#endif  // TF_PLANTED_FAULT

}  // namespace
}  // namespace tensorfold
