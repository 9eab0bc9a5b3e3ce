// See the header.
#include "engine/group/tier_news.h"

#include <algorithm>
#include <utility>

namespace tensorfold {

void TierNews::poll() {
  if (tier_ == nullptr) return;
  for (const TierEvent& event : tier_->take_events()) {
    const RecordKey key = key_of(event.note);
    if (event.kind == TierEvent::Kind::kProved || event.kind == TierEvent::Kind::kUntrue) {
      verdicts_.push_back({key, event.kind == TierEvent::Kind::kProved});
      continue;
    }
    if (event.kind == TierEvent::Kind::kGone) {
      there_.erase(key);
    } else {
      there_.insert(key);
    }
    changed_.push_back(key);
  }
}

void TierNews::take_order(const StepOrder& order) {
  if (tier_ == nullptr) return;
  for (const RecordKey& key : order.dropped) {
    tier_->unstage(key.name, key.kind);
    watched_.erase(key);
  }
  if (order.flush) tier_->flush();
}

void TierNews::watch(const StepPlan& plan) {
  if (tier_ == nullptr) return;
  for (const CacheCommand& c : plan.commands) {
    if (c.kind != CacheCommand::Kind::kStage) continue;
    if (c.value >= 0 && static_cast<size_t>(c.value) < plan.notes.size())
      watched_.insert(key_of(plan.notes[static_cast<size_t>(c.value)]));
  }
}

void TierNews::forget_staged() {
  for (const RecordKey& key : watched_) tier_->unstage(key.name, key.kind);
  watched_.clear();
}

News TierNews::take() {
  poll();
  News news;
  if (tier_ == nullptr) return news;
  const size_t count = std::min(changed_.size(), static_cast<size_t>(kNewsKeysMax));
  for (size_t i = 0; i < count; ++i)
    (there_.count(changed_[i]) != 0 ? news.there : news.gone).push_back(changed_[i]);
  changed_.erase(changed_.begin(), changed_.begin() + static_cast<ptrdiff_t>(count));
  news.compared = std::exchange(verdicts_, {});  // at most one a slot and step
  for (auto at = watched_.begin(); at != watched_.end();) {
    const CacheTier::Staged state = tier_->staged(at->name, at->kind);
    if (state == CacheTier::Staged::kReading ||
        news.staged.size() == static_cast<size_t>(kNewsKeysMax)) {
      ++at;
      continue;
    }
    news.staged.push_back({*at, state == CacheTier::Staged::kReady});
    at = watched_.erase(at);
  }
  news.accepts = tier_->accepts();
  return news;
}

std::vector<News> TierNews::everything() {
  poll();
  changed_.clear();
  verdicts_.clear();
  std::vector<News> parts(1);
  for (const RecordKey& key : there_) {
    if (parts.back().there.size() == static_cast<size_t>(kNewsKeysAtOnceMax)) parts.emplace_back();
    parts.back().there.push_back(key);
  }
  for (News& part : parts) part.whole = true;
  parts.back().last = true;
  if (tier_ != nullptr) parts.back().accepts = tier_->accepts();
  return parts;
}

}  // namespace tensorfold
