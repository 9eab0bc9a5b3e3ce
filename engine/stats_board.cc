// Counters of the engine. See the header for who writes.
#include "engine/stats_board.h"

#include <utility>

namespace tensorfold {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr double kSecondUs = 1e6;

}  // namespace

void RateWindow::add(int64_t now_us, int64_t tokens, int64_t busy_us) {
  const int64_t second = now_us / kBucketUs;
  Bucket& b = buckets_[static_cast<size_t>(second % kBuckets)];
  if (b.second.load(kRelaxed) != second) {
    b.tokens.store(0, kRelaxed);
    b.busy_us.store(0, kRelaxed);
    b.second.store(second, kRelaxed);
  }
  b.tokens.fetch_add(tokens, kRelaxed);
  b.busy_us.fetch_add(busy_us, kRelaxed);
}

double RateWindow::tokens_per_second(int64_t now_us) const {
  const int64_t oldest = now_us / kBucketUs - kBuckets + 1;
  int64_t tokens = 0;
  int64_t busy_us = 0;
  for (const Bucket& b : buckets_) {
    if (b.second.load(kRelaxed) < oldest) continue;
    tokens += b.tokens.load(kRelaxed);
    busy_us += b.busy_us.load(kRelaxed);
  }
  return busy_us > 0 ? static_cast<double>(tokens) * kSecondUs / static_cast<double>(busy_us) : 0;
}

void StatsBoard::set_state(EngineStats::State to, std::string detail) {
  {
    std::lock_guard lock(detail_mutex_);
    detail_ = std::move(detail);
  }
  state.store(to, std::memory_order_release);
}

std::string StatsBoard::detail() const {
  std::lock_guard lock(detail_mutex_);
  return detail_;
}

namespace {

constexpr int64_t SpillFigures::*kSpillFields[] = {
    &SpillFigures::files,
    &SpillFigures::records,
    &SpillFigures::bytes,
    &SpillFigures::bytes_max,
    &SpillFigures::written_bytes_total,
    &SpillFigures::read_bytes_total,
    &SpillFigures::read_us_total,
    &SpillFigures::restored_total,
    &SpillFigures::restored_tokens_total,
    &SpillFigures::damaged_total,
    &SpillFigures::proved_total,
    &SpillFigures::untrue_total,
    &SpillFigures::errors_total,
    &SpillFigures::missed_total,
    &SpillFigures::not_taken_total,
    &SpillFigures::times_off_total,
};

}  // namespace

void SpillBoard::store(const SpillFigures& figures) {
  fields_[0].store(static_cast<int64_t>(figures.state), std::memory_order_relaxed);
  for (size_t i = 0; i < std::size(kSpillFields); ++i)
    fields_.at(i + 1).store(figures.*kSpillFields[i], std::memory_order_relaxed);
}

SpillFigures SpillBoard::load() const {
  SpillFigures figures;
  figures.state = static_cast<SpillFigures::State>(fields_[0].load(std::memory_order_relaxed));
  for (size_t i = 0; i < std::size(kSpillFields); ++i)
    figures.*kSpillFields[i] = fields_.at(i + 1).load(std::memory_order_relaxed);
  return figures;
}

EngineStats StatsBoard::snapshot(const Clock& clock) const {
  EngineStats s;
  s.state = state.load(std::memory_order_acquire);
  s.state_detail = detail();
  s.failure = failure.load(kRelaxed);
  s.slots_total = slots_total.load(kRelaxed);
  s.slots_busy = slots_busy.load(kRelaxed);
  s.prefilling = prefilling.load(kRelaxed);
  s.waiting = waiting.load(kRelaxed);
  s.context = context.load(kRelaxed);
  s.pool_tokens_total = pool_tokens_total.load(kRelaxed);
  s.pool_tokens_used = pool_tokens_used.load(kRelaxed);
  s.pool_tokens_cached = pool_tokens_cached.load(kRelaxed);
  s.cache_blocks = cache_blocks.load(kRelaxed);
  s.cache_snapshots = cache_snapshots.load(kRelaxed);
  s.cache_snapshot_bytes = cache_snapshot_bytes.load(kRelaxed);
  s.cache_snapshot_bytes_max = cache_snapshot_bytes_max.load(kRelaxed);
  s.cache_lookups_total = cache_lookups.load(kRelaxed);
  s.cache_hits_total = cache_hits.load(kRelaxed);
  s.cache_kept_total = cache_kept.load(kRelaxed);
  s.cache_evicted_total = cache_evicted.load(kRelaxed);
  s.cache_flushes_total = cache_flushes.load(kRelaxed);
  s.spill = spill.load();
  s.weight_bytes = weight_bytes.load(kRelaxed);
  s.cache_bytes = cache_bytes.load(kRelaxed);
  s.preemptions_total = preemptions.load(kRelaxed);
  s.requests_total = requests.load(kRelaxed);
  s.prompt_tokens_total = prompt_tokens.load(kRelaxed);
  s.cached_tokens_total = cached_tokens.load(kRelaxed);
  s.completion_tokens_total = completion_tokens.load(kRelaxed);
  s.rounds_total = rounds.load(kRelaxed);
  s.drafted_total = drafted.load(kRelaxed);
  s.accepted_total = accepted.load(kRelaxed);
  s.draft_pauses_total = draft_pauses.load(kRelaxed);
  s.forced_drafted_total = forced_drafted.load(kRelaxed);
  s.forced_accepted_total = forced_accepted.load(kRelaxed);
  s.masks_put_off_total = masks_put_off.load(kRelaxed);
  s.loops_closed_total = loops_closed.load(kRelaxed);
  s.loops_ended_total = loops_ended.load(kRelaxed);
  s.drafts_paused = drafts_paused.load(kRelaxed);
  s.canaries_total = canaries.load(kRelaxed);
  s.canaries_wrong_total = canaries_wrong.load(kRelaxed);
  s.health_alarms_total = health_alarms.load(kRelaxed);
  s.new_starts_total = new_starts.load(kRelaxed);
  s.health_alarm = health_alarm.load(kRelaxed);
  s.steps_total = steps.load(kRelaxed);
  s.prefill_seconds_total = static_cast<double>(prefill_us.load(kRelaxed)) / kSecondUs;
  s.decode_seconds_total = static_cast<double>(decode_us.load(kRelaxed)) / kSecondUs;
  const int64_t now = clock.monotonic_us();
  s.decode_tokens_per_second = decode.tokens_per_second(now);
  s.prefill_tokens_per_second = prefill.tokens_per_second(now);
  s.cluster = cluster.load();
  return s;
}

}  // namespace tensorfold
