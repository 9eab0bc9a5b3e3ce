// What a sequence whose rows were not numbers has left in the cache goes (see prefix_index.h).
//
// Where the fault began is not known: it may lie in any row that the sequence computed, or in what
// it started from. So three kinds of snapshots are dropped: those that stand on a block which the
// sequence wrote; those of later sequences that may have started from one that it took; and those
// that the same prompt would start from. Others that merely begin alike stay.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "engine/base/check.h"
#include "engine/cache/prefix_index.h"
#include "engine/cache/prefix_notes.h"

namespace tensorfold {
namespace {

// How much of the tree a text shares; each node is compared once.
class SharedText {
 public:
  SharedText(const PrefixNode& root, const PrefixQuery& query) : query_(query) {
    known_[&root] = 0;
  }

  // Leading positions that the text of the snapshot has in common with the query's; -1: it hangs
  // under another root.
  int64_t with(const PrefixSnapshot& s) {
    const int64_t common = at(s.at);
    if (common < s.at->end) return common;
    return common + equal_positions(s.tail, s.at->end, query_);
  }

 private:
  int64_t at(const PrefixNode* node) {
    std::vector<const PrefixNode*> unknown;
    while (known_.count(node) == 0) {
      if (node->parent == nullptr) return -1;
      unknown.push_back(node);
      node = node->parent;
    }
    int64_t common = known_.at(node);
    for (; !unknown.empty(); unknown.pop_back()) {
      const PrefixNode* n = unknown.back();
      if (common == n->parent->end) common += equal_positions(n->text, common, query_);
      known_[n] = common;
    }
    return common;
  }

  const PrefixQuery& query_;
  std::unordered_map<const PrefixNode*, int64_t> known_;
};

bool stands_on(const PrefixSnapshot& s, const std::unordered_set<BlockId>& blocks) {
  if (blocks.count(s.tail_block) != 0) return true;
  for (const PrefixNode* n = s.at; n->parent != nullptr; n = n->parent)
    if (blocks.count(n->block) != 0) return true;
  return false;
}

}  // namespace

std::vector<CacheNote> PrefixIndex::spoil(const SequenceView& s, BlockLedger& ledger,
                                          CacheCommands& out) {
  Live& l = live_[static_cast<size_t>(s.slot)];
  TF_CHECK_MSG(l.node != nullptr, "the slot is not open");
  const PrefixNode& root = root_of(*l.node);
  const int64_t first_own = l.resumed / kBlockPositions;
  std::vector<CacheNote> gone = std::move(l.kept);
  const int64_t first_kept = l.first_kept - kCutPositionsMax;
  std::unordered_set<BlockId> own;
  for (size_t b = static_cast<size_t>(first_own); b < s.blocks.size(); ++b) own.insert(s.blocks[b]);
  PrefixQuery query;
  query.ids = s.ids;
  query.prompt_tokens = s.prompt_tokens;
  query.images = l.images;
  SharedText shared(root, query);
  std::vector<PrefixSnapshot*> drops;
  for (PrefixSnapshot& p : tree_.by_age()) {
    const int64_t common = shared.with(p);
    const bool serves = common >= 0 && common >= p.length - kCutPositionsMax;
    const bool came_of_it = p.maker > l.opened && common >= first_kept;
    if (serves || came_of_it || p.maker == l.opened || stands_on(p, own)) drops.push_back(&p);
  }
  for (PrefixSnapshot* p : drops) {
    gone.push_back(rings_note(*p));
    if (p->tail_block >= 0) gone.push_back(tail_note(*p));
    drop(p, ledger, out);
    ++counts_.spoiled;
  }
  // Sequences that may have started from what is now gone leave nothing either.
  for (Live& other : live_) {
    const bool later = other.node != nullptr && other.opened > l.opened && other.resumed > 0;
    if (later && &root_of(*other.node) == &root) other.keeps = false;
  }
  return gone;
}

}  // namespace tensorfold
