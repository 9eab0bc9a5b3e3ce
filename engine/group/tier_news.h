// TierNews: a worker's disk cache as its head must know it: which records it has, and what became
// of those that plans staged. Owner: the worker's engine thread.
#pragma once

#include <unordered_set>
#include <vector>

#include "engine/cache/cache_tier.h"
#include "engine/group/messages.h"

namespace tensorfold {

class TierNews {
 public:
  explicit TierNews(CacheTier* tier) : tier_(tier) {}  // nullptr: no disk, no news

  // What a plan brings, ahead of its commands.
  void take_order(const StepOrder& order);
  void watch(const StepPlan& plan);  // its kStage commands
  void forget_staged();              // the requests that waited for them are gone

  bool watching() const { return !watched_.empty(); }
  // What happened since; at most kNewsKeysMax of a kind.
  News take();
  // All records, in parts; the last is marked. What happened before is in it.
  std::vector<News> everything();

 private:
  void poll();

  CacheTier* tier_;
  std::unordered_set<RecordKey, RecordKeyHash> there_;
  std::unordered_set<RecordKey, RecordKeyHash> watched_;
  std::vector<RecordKey> changed_;      // there or gone, to be told, oldest first
  std::vector<News::Staged> verdicts_;  // on what was compared, to be told
};

}  // namespace tensorfold
