// See the header.
#include "engine/group/group_tier.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {

GroupTier::GroupTier(CacheTier& own, int world_size)
    : own_(own), workers_(static_cast<size_t>(world_size - 1)) {}

bool GroupTier::everywhere(const RecordKey& key) const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [&](const Worker& w) { return w.there.count(key) != 0; });
}

bool GroupTier::all_told() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.told_all; });
}

void GroupTier::tell(const TierEvent& event) {
  if (told_.insert(key_of(event.note)).second) events_.push_back(event);
}

// Also of records that were never said to be there: the index may wait for them to be written.
void GroupTier::tell_gone(const RecordKey& key) {
  told_.erase(key);
  TierEvent event;
  event.kind = TierEvent::Kind::kGone;
  if (const auto at = have_.find(key); at != have_.end()) {
    event.note = at->second.note;
  } else {
    event.note.name = key.name;
    event.note.kind = key.kind;
  }
  events_.push_back(std::move(event));
}

void GroupTier::apart() {
  const Keys told = std::exchange(told_, {});
  for (const RecordKey& key : told) tell_gone(key);
  for (Worker& w : workers_) w = {};
  proved_.clear();
  dropped_.clear();
}

// Every rank has told all that it has.
void GroupTier::compare_all() {
  for (auto& [key, event] : have_) {
    if (everywhere(key)) {
      event.kind = TierEvent::Kind::kFound;
      tell(event);
    } else {
      tell_gone(key);
    }
  }
}

void GroupTier::take_news(int rank, const News& news) {
  TF_CHECK(rank >= 1 && static_cast<size_t>(rank) <= workers_.size());
  Worker& worker = workers_[static_cast<size_t>(rank - 1)];
  worker.accepts = news.accepts;
  const bool before = all_told();
  for (const RecordKey& key : news.there) {
    worker.there.insert(key);
    const auto own = have_.find(key);
    if (before && own != have_.end() && everywhere(key)) tell(own->second);
  }
  for (const RecordKey& key : news.gone) {
    worker.there.erase(key);
    if (before) tell_gone(key);
  }
  for (const News::Staged& s : news.staged) worker.staged[s.key] = s.ready;
  for (const News::Staged& s : news.compared) worker.compared[s.key] = s.ready;
  if (news.last) worker.told_all = true;
  if (!before && all_told()) compare_all();
}

void GroupTier::note_plan(const StepPlan& plan) {
  using Kind = CacheCommand::Kind;
  for (const CacheCommand& c : plan.commands) {
    if (c.kind == Kind::kCompareRings) {
      const RecordKey compared = key_of(plan.notes[static_cast<size_t>(c.value)]);
      for (Worker& w : workers_) w.compared.erase(compared);
    }
    const bool filled = c.kind == Kind::kFillBlock || c.kind == Kind::kFillSnapshot;
    if (c.kind != Kind::kStage && !filled) continue;
    const RecordKey key = key_of(plan.notes[static_cast<size_t>(c.value)]);
    for (Worker& w : workers_) w.staged.erase(key);
  }
}

void GroupTier::take_orders(StepOrder& order) {
  const auto most = static_cast<size_t>(kDroppedKeysMax);
  const size_t count = std::min(dropped_.size(), most);
  order.dropped.assign(dropped_.begin(), dropped_.begin() + static_cast<ptrdiff_t>(count));
  dropped_.erase(dropped_.begin(), dropped_.begin() + static_cast<ptrdiff_t>(count));
  order.flush = std::exchange(flush_, false);
}

bool GroupTier::accepts() const {
  return own_.accepts() && std::all_of(workers_.begin(), workers_.end(),
                                       [](const Worker& w) { return w.told_all && w.accepts; });
}

CacheTier::Staged GroupTier::staged(const BlockDigest& name, CacheNote::Kind kind) const {
  const Staged own = own_.staged(name, kind);
  if (own != Staged::kReady) return own;
  const RecordKey key = {name, kind};
  for (const Worker& w : workers_) {
    const auto at = w.staged.find(key);
    if (at == w.staged.end()) return Staged::kReading;
    if (!at->second) return Staged::kMissing;
  }
  return Staged::kReady;
}

void GroupTier::unstage(const BlockDigest& name, CacheNote::Kind kind) {
  own_.unstage(name, kind);
  const RecordKey key = {name, kind};
  for (Worker& w : workers_) w.staged.erase(key);
  dropped_.push_back(key);
}

std::vector<TierEvent> GroupTier::take_events() {
  for (TierEvent& event : own_.take_events()) {
    const RecordKey key = key_of(event.note);
    const bool proved = event.kind == TierEvent::Kind::kProved;
    if (proved || event.kind == TierEvent::Kind::kUntrue) {
      // One of before the ranks were apart may still be there.
      std::erase_if(proved_, [&](const CacheNote& n) { return key_of(n) == key; });
      proved ? proved_.push_back(std::move(event.note)) : events_.push_back(std::move(event));
      continue;
    }
    if (event.kind == TierEvent::Kind::kGone) {
      tell_gone(key);
      have_.erase(key);
      continue;
    }
    const TierEvent& kept = have_.insert_or_assign(key, std::move(event)).first->second;
    if (all_told() && everywhere(key)) tell(kept);
  }
  tell_verdicts();
  return std::exchange(events_, {});
}

// True when it is so on every rank.
void GroupTier::tell_verdicts() {
  std::erase_if(proved_, [&](const CacheNote& note) {
    bool all = true;
    bool none_against = true;
    for (const Worker& w : workers_) {
      const auto at = w.compared.find(key_of(note));
      all = all && at != w.compared.end();
      none_against = none_against && (at == w.compared.end() || at->second);
    }
    if (!all && none_against) return false;
    const auto kind = none_against ? TierEvent::Kind::kProved : TierEvent::Kind::kUntrue;
    events_.push_back({kind, note, 0, 0});
    return true;
  });
}

void GroupTier::flush() {
  own_.flush();
  flush_ = true;
}

}  // namespace tensorfold
