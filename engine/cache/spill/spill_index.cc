// What lies on the disk (see spill_index.h).
#include "engine/cache/spill/spill_index.h"

#include <algorithm>
#include <tuple>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

// The block that a file stands on; false: it begins its chain.
bool base_of(const SpillHeader& header, BlockDigest& base) {
  const CacheNote& first = header.entries.front().note;
  if (!header.blocks()) {
    base = first.name;  // of the block that the snapshot ends in
    return true;
  }
  base = first.before;
  return first.first_position > 0;
}

}  // namespace

const SpillIndex::Place* SpillIndex::find(const RecordKey& key) const {
  const auto at = places_.find(key);
  return at == places_.end() ? nullptr : &at->second;
}

std::string SpillIndex::path_of(const File& file) const {
  return file.foreign ? file.path : file.header.file_name();
}

void SpillIndex::set_evictable(SpillFileId id, bool evictable) {
  const std::pair<int64_t, SpillFileId> place(files_.at(id).used_us, id);
  if (evictable) {
    by_use_.insert(place);
  } else {
    by_use_.erase(place);
  }
}

bool SpillIndex::stood_on(const File& file) const {
  return std::any_of(file.header.entries.begin(), file.header.entries.end(),
                     [&](const SpillEntry& e) { return standing_.count(e.note.name) != 0; });
}

void SpillIndex::stand_on(const BlockDigest& name) {
  ++standing_[name];
  const Place* at = find({name, CacheNote::Kind::kBlock});
  if (at != nullptr) set_evictable(at->file, false);
}

bool SpillIndex::add(SpillHeader header, int64_t used_us) {
  for (const SpillEntry& e : header.entries)
    if (find(key_of(e.note)) != nullptr) return false;
  const SpillFileId id = next_++;
  File& file = files_[id];
  file.bytes = header.file_bytes();
  file.used_us = used_us;
  file.header = std::move(header);
  bytes_ += file.bytes;
  for (size_t i = 0; i < file.header.entries.size(); ++i)
    places_.emplace(key_of(file.header.entries[i].note), Place{id, i});
  set_evictable(id, !file.header.blocks() || !stood_on(file));
  BlockDigest base;
  if (base_of(file.header, base)) stand_on(base);
  return true;
}

void SpillIndex::add_foreign(std::string path, int64_t bytes, int64_t used_us) {
  const SpillFileId id = next_++;
  File& file = files_[id];
  file.foreign = true;
  file.bytes = bytes;
  file.used_us = used_us;
  file.path = std::move(path);
  bytes_ += bytes;
  set_evictable(id, true);
}

bool SpillIndex::complete(const CacheNote& note) const {
  BlockDigest name = note.name;
  int64_t length = note.length();
  while (true) {
    const Place* place = find({name, CacheNote::Kind::kBlock});
    if (place == nullptr) return false;
    const SpillHeader& h = header(place->file);
    if (h.entries[place->entry].note.length() != length) return false;
    const CacheNote& first = h.entries.front().note;
    if (first.first_position == 0) return true;
    name = first.before;
    length = first.first_position;
  }
}

void SpillIndex::use(SpillFileId id, int64_t used_us) {
  File& file = files_.at(id);
  const bool evictable = by_use_.count({file.used_us, id}) != 0;
  set_evictable(id, false);
  file.used_us = std::max(file.used_us, used_us);
  if (evictable) set_evictable(id, true);
}

// ---------------------------------------------------------------- going

void SpillIndex::erase(SpillFileId id, SpillGone& gone) {
  set_evictable(id, false);
  const auto at = files_.find(id);
  const File& file = at->second;
  gone.files.push_back(path_of(file));
  for (const SpillEntry& e : file.header.entries) {
    const auto place = places_.find(key_of(e.note));
    if (place == places_.end() || place->second.file != id) continue;
    places_.erase(place);
    gone.notes.push_back(e.note);
  }
  bytes_ -= file.bytes;
  files_.erase(at);
}

void SpillIndex::leave(BlockDigest name, SpillGone& gone) {
  while (true) {
    const auto count = standing_.find(name);
    TF_CHECK(count != standing_.end());
    if (--count->second > 0) return;
    standing_.erase(count);
    const Place* at = find({name, CacheNote::Kind::kBlock});
    if (at == nullptr) return;
    const SpillFileId id = at->file;
    const File& file = files_.at(id);
    if (stood_on(file)) return;
    const bool more = base_of(file.header, name);
    erase(id, gone);
    if (!more) return;
  }
}

void SpillIndex::drop(SpillFileId id, SpillGone& gone) {
  const File& file = files_.at(id);
  BlockDigest base;
  const bool stands = !file.foreign && base_of(file.header, base);
  erase(id, gone);
  if (stands) leave(base, gone);
}

void SpillIndex::evict(int64_t bytes_max, int64_t oldest_us, SpillGone& gone) {
  while (!by_use_.empty()) {
    const auto [used_us, id] = *by_use_.begin();
    if (bytes_ <= bytes_max && used_us >= oldest_us) break;
    drop(id, gone);
  }
}

void SpillIndex::drop_over_holes(SpillGone& gone) {
  // From the start of the chains on, so that each file is looked at once.
  std::vector<std::pair<int64_t, SpillFileId>> order;
  for (const auto& [id, file] : files_) {
    if (file.foreign) continue;
    const CacheNote& first = file.header.entries.front().note;
    order.emplace_back(2 * first.first_position + (file.header.blocks() ? 0 : 1), id);
  }
  std::sort(order.begin(), order.end());
  std::set<SpillFileId> whole;
  for (const auto& [position, id] : order) {
    const CacheNote& first = files_.at(id).header.entries.front().note;
    BlockDigest base;
    const bool stands = base_of(files_.at(id).header, base);
    const Place* under = find({base, CacheNote::Kind::kBlock});
    const int64_t length =
        first.kind == CacheNote::Kind::kBlock ? first.first_position : first.length();
    if (!stands || (under != nullptr && whole.count(under->file) != 0 &&
                    header(under->file).entries[under->entry].note.length() == length))
      whole.insert(id);
  }
  for (const auto& [position, id] : order) {
    if (whole.count(id) == 0 && files_.count(id) != 0) drop(id, gone);
  }
}

void SpillIndex::drop_bare(SpillGone& gone) {
  std::vector<SpillFileId> bare;
  for (const auto& [used_us, id] : by_use_) {
    const File& file = files_.at(id);
    if (!file.foreign && file.header.blocks()) bare.push_back(id);
  }
  for (const SpillFileId id : bare) {
    if (files_.count(id) != 0) drop(id, gone);
  }
}

void SpillIndex::clear(SpillGone& gone) {
  for (const auto& [id, file] : files_) {
    gone.files.push_back(path_of(file));
    for (const SpillEntry& e : file.header.entries) gone.notes.push_back(e.note);
  }
  *this = SpillIndex();
}

std::vector<SpillIndex::Place> SpillIndex::in_order() const {
  struct Item {
    int64_t length;
    bool snapshot;
    Place place;
  };
  std::vector<Item> items;
  for (const auto& [id, file] : files_) {
    for (size_t i = 0; i < file.header.entries.size(); ++i) {
      const CacheNote& n = file.header.entries[i].note;
      items.push_back({n.length(), n.kind != CacheNote::Kind::kBlock, {id, i}});
    }
  }
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::tuple(a.length, a.snapshot, a.place.file, a.place.entry) <
           std::tuple(b.length, b.snapshot, b.place.file, b.place.entry);
  });
  std::vector<Place> out;
  out.reserve(items.size());
  for (const Item& i : items) out.push_back(i.place);
  return out;
}

}  // namespace tensorfold
