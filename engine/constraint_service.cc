// The compile cache. See the header for the threads.
#include "engine/constraint_service.h"

#include <openssl/sha.h>

#include "engine/grammar/constraint.h"

namespace tensorfold {
namespace {

using grammar::ConstraintSpec;

// Keys may be megabytes of schema: what stands for them is their hash.
std::string digest_of(const ConstraintSpec& spec) {
  const std::string key = grammar::spec_key(spec);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest);
  return std::string(reinterpret_cast<const char*>(digest), sizeof digest);
}

}  // namespace

ConstraintService::ConstraintService(std::shared_ptr<const grammar::VocabImage> vocab,
                                     size_t cache_bytes)
    : vocab_(std::move(vocab)), cache_bytes_(cache_bytes) {}

Result<Constraint> ConstraintService::compile(const ConstraintSpec& spec, bool in_reasoning) {
  bool mine = false;
  const std::string key = digest_of(spec);
  const std::shared_ptr<Entry> entry = find_or_begin(key, mine);
  if (mine) {
    make(spec, *entry);
    const std::lock_guard lock(mutex_);
    entry->ready = true;
    ready_.notify_all();
    shrink();
  }
  if (!entry->status.ok()) return entry->status;
  Constraint out{entry->matcher, entry->ignored};
  if (in_reasoning) {
    TF_ASSIGN_OR_RETURN(out.source, grammar::after_reasoning(std::move(out.source), vocab_));
  }
  return out;
}

std::shared_ptr<ConstraintService::Entry> ConstraintService::find_or_begin(const std::string& key,
                                                                           bool& mine) {
  std::unique_lock lock(mutex_);
  auto it = entries_.find(key);
  if (it != entries_.end() && it->second->ready && bytes_of(*it->second) > kConstraintOneMaxBytes) {
    order_.erase(it->second->place);
    entries_.erase(it);
    ++counters_.forgotten;
    it = entries_.end();
  }
  if (it == entries_.end()) {
    ++counters_.misses;
    mine = true;
    auto entry = std::make_shared<Entry>();
    order_.push_front(key);
    entry->place = order_.begin();
    entries_.emplace(key, entry);
    return entry;
  }
  const std::shared_ptr<Entry> entry = it->second;
  order_.splice(order_.begin(), order_, entry->place);
  ++(entry->ready ? counters_.hits : counters_.waits);
  ready_.wait(lock, [&] { return entry->ready; });
  return entry;
}

void ConstraintService::make(const ConstraintSpec& spec, Entry& entry) const {
  auto matcher = grammar::compile_matcher(spec, vocab_, &entry.ignored);
  if (!matcher.ok()) {
    entry.status = matcher.status();
    return;
  }
  entry.matcher = std::move(*matcher);
  // The first mask is made here, not in the engine's loop.
  std::vector<uint32_t> bits(vocab_->words());
  (void)entry.matcher->mask(entry.matcher->start(), bits);
}

// Entries that are being made are never forgotten: somebody waits for them.
void ConstraintService::shrink() {
  size_t total = 0;
  for (auto place = order_.begin(); place != order_.end();) {
    const auto it = entries_.find(*place);
    const bool ready = it->second->ready;
    const size_t bytes = ready ? bytes_of(*it->second) : 0;
    const bool over = total + bytes > cache_bytes_ || entries_.size() > kConstraintEntriesMax;
    if (ready && over && place != order_.begin()) {
      entries_.erase(it);
      place = order_.erase(place);
      ++counters_.forgotten;
      continue;
    }
    total += bytes;
    ++place;
  }
}

size_t ConstraintService::bytes_of(const Entry& entry) {
  constexpr size_t kEntryBytes = 512;
  size_t total = kEntryBytes + entry.status.message().size();
  for (const std::string& s : entry.ignored) total += s.size();
  if (entry.matcher) total += entry.matcher->memory_bytes();
  return total;
}

ConstraintService::Counters ConstraintService::counters() const {
  const std::lock_guard lock(mutex_);
  Counters out = counters_;
  out.entries = entries_.size();
  for (const auto& [key, entry] : entries_) out.bytes += entry->ready ? bytes_of(*entry) : 0;
  return out;
}

}  // namespace tensorfold
