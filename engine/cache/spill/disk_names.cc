// Which prefix of a text is on disk (see disk_names.h).
#include "engine/cache/spill/disk_names.h"

#include <algorithm>

namespace tensorfold {
namespace {

static_assert(kStemCutPositions == kCutPositionsMax);

// Positions of a query as the text of a block.
BlockText text_of(const PrefixQuery& query, int64_t first, int64_t positions) {
  BlockText text;
  text.first_position = first;
  text.ids = query.ids.subspan(static_cast<size_t>(first), static_cast<size_t>(positions));
  text.images = images_in(query.images, first, first + positions);
  return text;
}

}  // namespace

struct DiskNames::Search {
  const PrefixQuery& query;
  const PrefixOptions& options;
  int64_t positions = 0;
  const Block* block = nullptr;  // where the best snapshot ends
  CacheNote snapshot;
};

void DiskNames::add(const TierEvent& event) {
  const CacheNote& note = event.note;
  Block& block = blocks_[note.name];
  if (note.kind != CacheNote::Kind::kBlock) {
    const auto same = [&](const CacheNote& n) { return n.kind == note.kind; };
    if (std::none_of(block.snapshots.begin(), block.snapshots.end(), same))
      block.snapshots.push_back(note);
    return;
  }
  if (block.there) return;
  ++count_;
  block.there = true;
  block.note = note;
  block.fingerprint = event.fingerprint;
  block.stem = event.stem;
  blocks_[note.before].children.push_back(note.name);
}

void DiskNames::remove(const CacheNote& note) {
  const auto at = blocks_.find(note.name);
  if (at == blocks_.end()) return;
  Block& block = at->second;
  BlockDigest parent = note.name;
  if (note.kind != CacheNote::Kind::kBlock) {
    std::erase_if(block.snapshots, [&](const CacheNote& n) { return n.kind == note.kind; });
  } else if (block.there) {
    --count_;
    block.there = false;
    parent = block.note.before;
    std::erase(blocks_[parent].children, note.name);
  }
  // Places that hold nothing any more.
  for (const BlockDigest& name : {note.name, parent}) {
    const auto place = blocks_.find(name);
    if (place == blocks_.end()) continue;
    const Block& b = place->second;
    if (!b.there && b.children.empty() && b.snapshots.empty()) blocks_.erase(place);
  }
}

std::optional<CacheNote> DiskNames::first_block(BlockDigest name) const {
  while (true) {
    const auto at = blocks_.find(name);
    if (at == blocks_.end() || !at->second.there) return std::nullopt;
    if (at->second.note.first_position == 0) return at->second.note;
    name = at->second.note.before;
  }
}

bool DiskNames::has(const RecordKey& key) const {
  const auto at = blocks_.find(key.name);
  if (at == blocks_.end()) return false;
  const Block& block = at->second;
  if (key.kind == CacheNote::Kind::kBlock) return block.there;
  return std::any_of(block.snapshots.begin(), block.snapshots.end(),
                     [&](const CacheNote& n) { return n.kind == key.kind; });
}

// `equal`: so many positions of the query are surely the snapshot's text. Prompt rows only: a reply
// that is fed again is in memory or computed.
void DiskNames::consider(const Block& block, int64_t equal, Search& search) const {
  const PrefixQuery& q = search.query;
  for (const CacheNote& s : block.snapshots) {
    int64_t positions =
        std::min({equal, s.length(), static_cast<int64_t>(q.ids.size()) - 1, q.prompt_tokens});
    const bool full = s.kind == CacheNote::Kind::kFullSnapshot && search.options.exact;
    if (full) {
      // Cut back it serves from cut_low on; how far the text agrees shows when it is read.
      positions = std::max(positions, std::min(s.cut_low, q.prompt_tokens - 1));
      if (positions < s.cut_low) continue;
    } else if (positions != s.length() ||
               q.prompt_tokens - positions < search.options.decoder_span) {
      continue;
    }
    if (positions < search.positions || positions < 1) continue;
    if (positions == search.positions && search.block != nullptr &&
        search.snapshot.kind == CacheNote::Kind::kFullSnapshot)
      continue;
    search.positions = positions;
    search.block = &block;
    search.snapshot = s;
  }
}

void DiskNames::look_at(const Block& block, Search& search, std::vector<BlockDigest>& next) const {
  const CacheNote& n = block.note;
  const PrefixQuery& q = search.query;
  const auto there = static_cast<int64_t>(q.ids.size()) - n.first_position;
  if (there >= n.positions) {
    BlockText text = text_of(q, n.first_position, n.positions);
    if (text_fingerprint(text) == block.fingerprint) {
      text.generated = n.generated;
      if (block_digest(n.before, text) != n.name) return;
      consider(block, n.length(), search);
      if (n.positions == kBlockPositions) next.push_back(n.name);
      return;
    }
  }
  const int64_t stem = n.positions - kStemCutPositions;
  if (stem <= 0 || there < stem || block.snapshots.empty()) return;
  if (text_fingerprint(text_of(q, n.first_position, stem)) == block.stem)
    consider(block, n.first_position + stem, search);
}

DiskPrefix DiskNames::find(const BlockDigest& root, const PrefixQuery& query,
                           const PrefixOptions& options) const {
  Search search{query, options, 0, nullptr, {}};
  std::vector<BlockDigest> level = {root};
  while (!level.empty()) {
    std::vector<BlockDigest> next;
    for (const BlockDigest& name : level) {
      const auto parent = blocks_.find(name);
      if (parent == blocks_.end()) continue;
      for (const BlockDigest& child : parent->second.children) {
        const auto at = blocks_.find(child);
        if (at != blocks_.end() && at->second.there) look_at(at->second, search, next);
      }
    }
    level = std::move(next);
  }
  DiskPrefix out;
  if (search.block == nullptr) return out;
  for (const Block* b = search.block;;) {
    out.chain.push_back(b->note);
    if (b->note.first_position == 0) break;
    const auto at = blocks_.find(b->note.before);
    if (at == blocks_.end() || !at->second.there) return {};
    b = &at->second;
  }
  std::reverse(out.chain.begin(), out.chain.end());
  out.positions = search.positions;
  out.snapshot = search.snapshot;
  return out;
}

}  // namespace tensorfold
