// The disks of three ranks as one: whatever each of them takes, refuses, loses and cannot read, and
// however often the ranks lose each other, the head never says that a record is there, or ready,
// when one rank lacks it; and once all is told, it says so of every record that all have. Likewise
// whether what came from it is what every rank computes.
#include <boost/test/unit_test.hpp>
#include <map>
#include <random>
#include <set>

#include "engine/group/group_tier.h"
#include "engine/group/tier_news.h"

using namespace tensorfold;

namespace {

constexpr int kRecords = 12;
constexpr int kWorld = 3;

CacheNote note_of(int record) {
  CacheNote note;
  note.name.bytes[0] = static_cast<uint8_t>(record + 1);
  note.positions = 1;
  return note;
}
int record_of(const BlockDigest& name) { return name.bytes[0] - 1; }

// A rank's disk that does what the test says.
class ScriptedTier final : public CacheTier {
 public:
  std::set<int> there;
  std::map<int, Staged> reading;
  bool takes = true;

  bool spill(const CacheNote& note, std::span<const int32_t>, std::span<const int32_t>,
             std::span<const std::byte>) override {
    const bool has = takes || there.count(record_of(note.name)) != 0;
    if (has) there.insert(record_of(note.name));
    events_.push_back({has ? TierEvent::Kind::kStored : TierEvent::Kind::kGone, note, 1, 1});
    return has;
  }
  void lose(int record) {
    there.erase(record);
    events_.push_back({TierEvent::Kind::kGone, note_of(record), 0, 0});
  }
  void stage(const CacheNote& note) override {
    const int record = record_of(note.name);
    if (there.count(record) != 0) reading[record] = Staged::kReading;
  }
  Staged staged(const BlockDigest& name, CacheNote::Kind) const override {
    const auto at = reading.find(record_of(name));
    return at == reading.end() ? Staged::kMissing : at->second;
  }
  const CacheRecord* record(const BlockDigest&, CacheNote::Kind) const override { return nullptr; }
  void unstage(const BlockDigest& name, CacheNote::Kind) override {
    reading.erase(record_of(name));
  }
  void forget(const CacheNote& note) override { lose(record_of(note.name)); }
  void compared(const CacheNote& note, bool equal) override {
    const auto kind = equal ? TierEvent::Kind::kProved : TierEvent::Kind::kUntrue;
    events_.push_back({kind, note, 0, 0});
    if (!equal) lose(record_of(note.name));
  }
  std::vector<TierEvent> take_events() override { return std::exchange(events_, {}); }
  void flush() override {
    for (int r = 0; r < kRecords; ++r)
      if (there.count(r) != 0) lose(r);
  }

 private:
  std::vector<TierEvent> events_;
};

struct Ranks {
  Ranks() : group(own, kWorld), news{TierNews(&workers[0]), TierNews(&workers[1])} { join(); }

  void join() {
    for (size_t w = 0; w < 2; ++w) {
      news[w].forget_staged();
      for (const News& part : news[w].everything()) group.take_news(static_cast<int>(w) + 1, part);
    }
  }
  void tell(size_t worker) { group.take_news(static_cast<int>(worker) + 1, news[worker].take()); }
  // A plan with commands of one kind for one record, carried out everywhere.
  void plan(CacheCommand::Kind kind, int record) {
    StepPlan plan;
    plan.commands.push_back({kind, 0, 0, 0});
    plan.notes.push_back(note_of(record));
    StepOrder order;
    group.note_plan(plan);
    group.take_orders(order);
    const auto carry_out = [&](CacheTier& tier) {
      if (kind == CacheCommand::Kind::kStage) tier.stage(plan.notes[0]);
      if (kind == CacheCommand::Kind::kSpillBlock) (void)tier.spill(plan.notes[0], {}, {}, {});
      if (kind == CacheCommand::Kind::kCompareRings) tier.compared(plan.notes[0], &tier != untrue);
    };
    carry_out(own);
    for (size_t w = 0; w < 2; ++w) {
      news[w].take_order(order);
      carry_out(workers[w]);
      news[w].watch(plan);
    }
  }
  // The rank `wrong` (nullptr: none) computes something else than its record has.
  void compare(int record, const CacheTier* wrong) {
    untrue = wrong;
    plan(CacheCommand::Kind::kCompareRings, record);
    untrue = nullptr;
    verdicts[record] = wrong == nullptr;
  }
  void hear() {
    for (const TierEvent& e : group.take_events()) {
      const int record = record_of(e.note.name);
      if (e.kind == TierEvent::Kind::kProved || e.kind == TierEvent::Kind::kUntrue) {
        BOOST_REQUIRE(verdicts.count(record) == 1);
        BOOST_TEST((e.kind == TierEvent::Kind::kProved) == verdicts[record]);
        verdicts.erase(record);
        ++heard;
        continue;
      }
      e.kind == TierEvent::Kind::kGone ? said.erase(record) : said.insert(record).second;
    }
  }
  bool everywhere(int record) const {
    return own.there.count(record) != 0 && workers[0].there.count(record) != 0 &&
           workers[1].there.count(record) != 0;
  }

  ScriptedTier own;
  ScriptedTier workers[2];
  GroupTier group;
  TierNews news[2];
  std::set<int> said;  // to be there, as the head's index would know it
  const CacheTier* untrue = nullptr;
  std::map<int, bool> verdicts;  // still to be heard of
  int heard = 0;
};

void settle(Ranks& ranks) {
  ranks.tell(0);
  ranks.tell(1);
  ranks.hear();
  BOOST_TEST(ranks.verdicts.empty());
  for (int r = 0; r < kRecords; ++r) {
    BOOST_TEST((ranks.said.count(r) != 0) == ranks.everywhere(r), "record " << r);
    const bool ready =
        ranks.group.staged(note_of(r).name, CacheNote::Kind::kBlock) == CacheTier::Staged::kReady;
    if (!ready) continue;
    for (const ScriptedTier* t : {&ranks.own, &ranks.workers[0], &ranks.workers[1]})
      BOOST_TEST((t->staged(note_of(r).name, CacheNote::Kind::kBlock) == CacheTier::Staged::kReady),
                 "record " << r);
  }
}

void act(Ranks& ranks, std::mt19937_64& rng) {
  const int record = static_cast<int>(rng() % kRecords);
  ScriptedTier& some = rng() % 3 == 0 ? ranks.own : ranks.workers[rng() % 2];
  switch (rng() % 10) {
    case 0:
    case 1:
      for (ScriptedTier* t : {&ranks.own, &ranks.workers[0], &ranks.workers[1]})
        t->takes = rng() % 5 != 0;
      return ranks.plan(CacheCommand::Kind::kSpillBlock, record);
    case 2:
      if (some.there.count(record) != 0) some.lose(record);
      return;
    case 3:
      return ranks.plan(CacheCommand::Kind::kStage, record);
    case 4:
      for (auto& [r, state] : some.reading)
        if (state == CacheTier::Staged::kReading)
          state = rng() % 5 == 0 ? CacheTier::Staged::kMissing : CacheTier::Staged::kReady;
      return;
    case 5:
      return ranks.tell(rng() % 2);
    case 6:
      return ranks.hear();
    case 7:
      return ranks.group.unstage(note_of(record).name, CacheNote::Kind::kBlock);
    case 8:
      if (ranks.verdicts.count(record) != 0) return;
      return ranks.compare(record, rng() % 2 ? nullptr : &some);
    default:
      if (rng() % 8 != 0) return;
      ranks.group.apart();
      ranks.hear();
      ranks.verdicts.clear();
      if (rng() % 2 == 0) some.flush();  // another disk, or an empty one
      ranks.join();
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(only_what_all_ranks_have) {
  int verdicts = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 rng(seed);
    Ranks ranks;
    for (int i = 0; i < 120; ++i) {
      act(ranks, rng);
      // In between the head may know less, never more than was there when it was told.
      if (i % 10 == 9) settle(ranks);
    }
    verdicts += ranks.heard;
  }
  BOOST_TEST(verdicts > 1000);
}

BOOST_AUTO_TEST_CASE(apart_nothing_is_there) {
  Ranks ranks;
  ranks.plan(CacheCommand::Kind::kSpillBlock, 3);
  settle(ranks);
  BOOST_REQUIRE(ranks.said.count(3) == 1);
  ranks.group.apart();
  ranks.hear();
  BOOST_TEST(ranks.said.empty());
  BOOST_TEST(!ranks.group.accepts());
  ranks.workers[1].there.clear();  // a worker with an empty disk
  TierNews fresh(&ranks.workers[1]);
  ranks.news[1] = std::move(fresh);
  ranks.join();
  ranks.hear();
  BOOST_TEST(ranks.said.empty());
  // Written again, it is there again: on the ranks that had it at once.
  ranks.plan(CacheCommand::Kind::kSpillBlock, 3);
  settle(ranks);
  BOOST_TEST(ranks.said.count(3) == 1);
}

BOOST_AUTO_TEST_CASE(a_record_that_one_rank_cannot_read_is_missing) {
  Ranks ranks;
  ranks.plan(CacheCommand::Kind::kSpillBlock, 1);
  settle(ranks);
  const BlockDigest name = note_of(1).name;
  const auto state = [&] { return ranks.group.staged(name, CacheNote::Kind::kBlock); };
  ranks.plan(CacheCommand::Kind::kStage, 1);
  ranks.own.reading[1] = CacheTier::Staged::kReady;
  ranks.workers[0].reading[1] = CacheTier::Staged::kReady;
  settle(ranks);
  BOOST_TEST((state() == CacheTier::Staged::kReading));
  ranks.workers[1].reading[1] = CacheTier::Staged::kMissing;
  settle(ranks);
  BOOST_TEST((state() == CacheTier::Staged::kMissing));
  // Asked anew, the old answers do not count.
  ranks.plan(CacheCommand::Kind::kStage, 1);
  ranks.own.reading[1] = CacheTier::Staged::kReady;
  BOOST_TEST((state() == CacheTier::Staged::kReading));
}

BOOST_AUTO_TEST_CASE(without_a_disk_there_are_no_news) {
  TierNews none(nullptr);
  const std::vector<News> all = none.everything();
  BOOST_REQUIRE_EQUAL(all.size(), 1u);
  BOOST_TEST((all[0].whole && all[0].last && all[0].empty()));
  BOOST_TEST(none.take().empty());
}
