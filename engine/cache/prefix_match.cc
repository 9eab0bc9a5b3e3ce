// The longest cached prefix of a text (engine/cache/prefix_index.h).
//
// Block by block down the tree, along every branch with equal text; at each node the snapshots that
// hang there, compared position by position. Where the text leaves the tree, children that begin
// like it are looked at too: a full snapshot just behind an edge may be cut back to before it.
#include <algorithm>

#include "engine/cache/prefix_index.h"

namespace tensorfold {

int64_t equal_positions(const HeldText& held, int64_t first, const PrefixQuery& query) {
  const auto there = static_cast<int64_t>(query.ids.size()) - first;
  const int64_t most = std::min(there, static_cast<int64_t>(held.ids.size()));
  int64_t n = 0;
  while (n < most && held.ids[static_cast<size_t>(n)] == query.ids[static_cast<size_t>(first + n)])
    ++n;
  const auto cut = [&](const std::vector<ImageSpan>& mine, std::span<const ImageSpan> other) {
    for (const ImageSpan& image : mine) {
      if (image.first_position >= first + n || image.first_position + image.rows <= first) continue;
      if (std::find(other.begin(), other.end(), image) == other.end())
        n = std::max<int64_t>(0, image.first_position - first);
    }
  };
  cut(held.images, query.images);
  cut({query.images.begin(), query.images.end()}, held.images);
  return n;
}

namespace {

int64_t first_generated(const HeldText& held) {
  for (int i = 0; i < static_cast<int>(held.ids.size()); ++i) {
    if (held.generated.get(i)) return i;
  }
  return static_cast<int64_t>(held.ids.size());
}

// Whether rows [from, to) of the text that ends in `snapshot` are generated ones.
bool all_generated(const PrefixSnapshot& snapshot, int64_t from, int64_t to) {
  const PrefixNode* node = snapshot.at;
  int64_t first = node->end;
  const HeldText* text = &snapshot.tail;
  while (true) {
    for (int64_t p = std::max(from, first); p < to; ++p) {
      const int64_t i = p - first;
      if (i < static_cast<int64_t>(text->ids.size()) && !text->generated.get(static_cast<int>(i)))
        return false;
    }
    if (first <= from || node->parent == nullptr) return true;
    to = first;
    text = &node->text;
    node = node->parent;
    first = node->end;
  }
}

}  // namespace

struct PrefixIndex::Walk {
  PrefixSnapshot* best = nullptr;
  int64_t positions = 0;  // that `best` serves
  int64_t common = 0;     // prompt rows equal to something that is kept
};

bool PrefixIndex::may_serve(const PrefixSnapshot& s, int64_t positions,
                            const PrefixQuery& query) const {
  if (positions < 1 || positions >= static_cast<int64_t>(query.ids.size())) return false;
  if (positions > query.prompt_tokens) {
    // In a reply that is fed again: its rows must be the generated ones that they were.
    return s.full && options_.exact && positions >= s.cut_low &&
           all_generated(s, query.prompt_tokens, positions);
  }
  if (s.full && options_.exact && positions >= s.cut_low) return true;
  return positions == s.length && query.prompt_tokens - positions >= options_.decoder_span;
}

// `equal`: positions of the query that equal the snapshot's text.
void PrefixIndex::consider(PrefixSnapshot& s, const PrefixQuery& query, int64_t equal,
                           Walk& walk) const {
  const int64_t known = static_cast<int64_t>(query.ids.size());
  const int64_t positions = std::min({equal, s.length, known - 1});
  if (positions < walk.positions || !may_serve(s, positions, query)) return;
  if (positions == walk.positions && walk.best != nullptr && walk.best->full) return;
  walk.best = &s;
  walk.positions = positions;
}

void PrefixIndex::consider_node(PrefixNode& node, const PrefixQuery& query, Walk& walk) const {
  for (PrefixSnapshot* s : node.snapshots) {
    const int64_t equal = equal_positions(s->tail, node.end, query);
    walk.common = std::max(walk.common, node.end + std::min(equal, first_generated(s->tail)));
    consider(*s, query, node.end + equal, walk);
  }
}

void PrefixIndex::consider_children(PrefixNode& node, const PrefixQuery& query, Walk& walk) const {
  for (const auto& [key, child] : node.children) {
    if (child->snapshots_below == 0) continue;
    const int64_t equal = equal_positions(child->text, node.end, query);
    walk.common = std::max(walk.common, node.end + std::min(equal, first_generated(child->text)));
    if (equal < kBlockPositions - kCutPositionsMax) continue;
    for (PrefixSnapshot* s : child->snapshots) consider(*s, query, node.end + equal, walk);
  }
}

PrefixIndex::Walk PrefixIndex::walk(const PrefixQuery& query) {
  Walk walk;
  PrefixNode* root = tree_.find_root(root_digest(query.salt));
  if (root == nullptr) return walk;
  std::vector<PrefixNode*> level = {root};
  while (!level.empty()) {
    const int64_t end = level.front()->end;
    std::vector<PrefixNode*> next;
    if (end + kBlockPositions <= static_cast<int64_t>(query.ids.size())) {
      BlockText text;
      text.first_position = end;
      text.ids = query.ids.subspan(static_cast<size_t>(end), kBlockPositions);
      text.images = images_in(query.images, end, end + kBlockPositions);
      for (PrefixNode* node : level) tree_.children_with(*node, text, next);
    }
    for (PrefixNode* node : level) {
      consider_node(*node, query, walk);
      if (next.empty()) consider_children(*node, query, walk);
    }
    level = std::move(next);
  }
  return walk;
}

PrefixMatch PrefixIndex::match(const PrefixQuery& query) {
  const Walk found = query.cold ? Walk{} : walk(query);
  last_common_ = found.common;
  PrefixMatch match;
  if (found.best == nullptr) return match;
  match.positions = found.positions;
  match.snapshot = found.best->number;
  match.snapshot_positions = found.best->length;
  const PrefixNode* node = found.best->at;
  const int64_t whole = found.positions / kBlockPositions * kBlockPositions;
  // Not needed when the match is cut back to the edge before it or further.
  (found.positions > node->end ? match.tail : match.behind) = found.best->tail_block;
  for (; node->parent != nullptr; node = node->parent) {
    if (node->end > whole) {
      // Cut back over an edge: the block that was whole for the snapshot is now the last.
      match.tail = node->end - kBlockPositions < found.positions ? node->block : -1;
    } else {
      match.blocks.push_back(node->block);
    }
  }
  std::reverse(match.blocks.begin(), match.blocks.end());
  return match;
}

}  // namespace tensorfold
