// GroupTier: the disks of all ranks as one CacheTier, for the head's index: a record is there when
// every rank has it, and ready when every rank has read it. What one of them lacks is a miss.
//
// The head's own tier is asked directly; workers tell (TierNews). The model's own cache keeps using
// its rank's tier, by plans. Owner: the head's engine thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/cache/cache_tier.h"
#include "engine/group/messages.h"

namespace tensorfold {

class GroupTier final : public CacheTier {
 public:
  GroupTier(CacheTier& own, int world_size);

  // The ranks are apart: nothing is known of the workers' records any more.
  void apart();
  void take_news(int rank, const News& news);
  // The plan that goes out next: what it stages is asked anew, what it fills in is done with.
  void note_plan(const StepPlan& plan);
  // What goes ahead of its commands.
  void take_orders(StepOrder& order);

  bool accepts() const override;
  bool spill(const CacheNote& note, std::span<const int32_t> ids,
             std::span<const int32_t> engram_ids, std::span<const std::byte> bytes) override {
    return own_.spill(note, ids, engram_ids, bytes);
  }
  void stage(const CacheNote& note) override { own_.stage(note); }
  Staged staged(const BlockDigest& name, CacheNote::Kind kind) const override;
  const CacheRecord* record(const BlockDigest& name, CacheNote::Kind kind) const override {
    return own_.record(name, kind);
  }
  void unstage(const BlockDigest& name, CacheNote::Kind kind) override;
  void forget(const CacheNote& note) override { own_.forget(note); }
  void compared(const CacheNote& note, bool equal) override { own_.compared(note, equal); }
  std::vector<TierEvent> take_events() override;
  void settle(int64_t wait_us) override { own_.settle(wait_us); }
  void flush() override;
  TierFigures figures() const override { return own_.figures(); }

 private:
  using Keys = std::unordered_set<RecordKey, RecordKeyHash>;
  struct Worker {
    Keys there;
    std::unordered_map<RecordKey, bool, RecordKeyHash> staged;    // answers: ready or not
    std::unordered_map<RecordKey, bool, RecordKeyHash> compared;  // answers: equal or not
    bool told_all = false;
    bool accepts = false;
  };
  bool everywhere(const RecordKey& key) const;
  bool all_told() const;
  void tell(const TierEvent& event);
  void tell_gone(const RecordKey& key);
  void compare_all();
  void tell_verdicts();

  CacheTier& own_;
  std::vector<Worker> workers_;                                   // ranks 1..
  std::unordered_map<RecordKey, TierEvent, RecordKeyHash> have_;  // by the head's own tier
  Keys told_;                                                     // said to be there
  std::vector<TierEvent> events_;
  std::vector<CacheNote> proved_;  // here; workers have not yet said whether there, too
  std::vector<RecordKey> dropped_;
  bool flush_ = false;
};

}  // namespace tensorfold
