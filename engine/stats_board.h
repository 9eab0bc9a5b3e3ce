// StatsBoard: the engine's counters. Written by the engine thread (and the two that count
// submissions), read by any thread without stopping it: every number is an atomic of its own.
// A reader may see one counter ahead of another; none goes back.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "engine/base/clock.h"
#include "engine/engine.h"

namespace tensorfold {

// Tokens per second of work over the last seconds: tokens divided by the time of the steps that
// made them, so that an idle engine shows the speed of its last work and not a decaying average.
class RateWindow {
 public:
  void add(int64_t now_us, int64_t tokens, int64_t busy_us);  // one writer
  double tokens_per_second(int64_t now_us) const;

 private:
  static constexpr int64_t kBucketUs = 1'000'000;
  static constexpr int64_t kBuckets = 10;  // the window: 10 s
  struct Bucket {
    std::atomic<int64_t> second{-1};
    std::atomic<int64_t> tokens{0};
    std::atomic<int64_t> busy_us{0};
  };
  std::array<Bucket, kBuckets> buckets_;
};

// SpillFigures, written by one thread and read by others, a field at a time.
class SpillBoard {
 public:
  void store(const SpillFigures& figures);
  SpillFigures load() const;

 private:
  std::array<std::atomic<int64_t>, 17> fields_{};
};

// ClusterStats, written and read under a mutex, a few times a second.
class ClusterBoard {
 public:
  void store(ClusterStats stats) {
    const std::lock_guard lock(mutex_);
    stats_ = std::move(stats);
  }
  ClusterStats load() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  mutable std::mutex mutex_;
  ClusterStats stats_;
};

struct StatsBoard {
  std::atomic<EngineStats::State> state{EngineStats::State::kLoading};
  std::atomic<StatusCode> failure{StatusCode::kOk};  // set before state is kFailed
  std::atomic<int> slots_total{0}, slots_busy{0}, prefilling{0}, waiting{0};
  std::atomic<int64_t> context{0}, pool_tokens_total{0}, pool_tokens_used{0};
  std::atomic<int64_t> weight_bytes{0}, cache_bytes{0};
  std::atomic<int64_t> pool_tokens_cached{0}, cache_blocks{0}, cache_snapshots{0};
  std::atomic<int64_t> cache_snapshot_bytes{0}, cache_snapshot_bytes_max{0};
  std::atomic<uint64_t> cache_lookups{0}, cache_hits{0}, cache_kept{0}, cache_evicted{0};
  std::atomic<uint64_t> cache_flushes{0};
  SpillBoard spill;
  std::atomic<uint64_t> requests{0}, prompt_tokens{0}, cached_tokens{0}, completion_tokens{0};
  std::atomic<uint64_t> rounds{0}, drafted{0}, accepted{0}, draft_pauses{0}, steps{0};
  std::atomic<uint64_t> forced_drafted{0}, forced_accepted{0}, masks_put_off{0};
  std::atomic<uint64_t> loops_closed{0}, loops_ended{0};
  std::atomic<uint64_t> preemptions{0};
  std::atomic<uint64_t> canaries{0}, canaries_wrong{0}, health_alarms{0}, new_starts{0};
  std::atomic<bool> health_alarm{false};
  std::atomic<int> drafts_paused{0};
  std::atomic<int64_t> prefill_us{0}, decode_us{0};
  RateWindow prefill, decode;
  ClusterBoard cluster;

  void set_state(EngineStats::State to, std::string detail);
  std::string detail() const;
  EngineStats snapshot(const Clock& clock) const;

 private:
  mutable std::mutex detail_mutex_;  // while loading and failing only
  std::string detail_;
};

}  // namespace tensorfold
