// PrefixTree: what the cache holds, by text. Under the root of each salt a tree of whole blocks;
// snapshots hang on the node of the last whole block before them and carry the text of the
// positions behind it. Owned by the engine thread of the head; pure bookkeeping, the bytes are with
// the ranks.
//
// Entries live by their snapshots: a node keeps its pool block while a snapshot hangs at it or
// under it, because only from a snapshot can a sequence start. Dropping a snapshot lets go of what
// it alone kept. Nodes that running sequences stand on stay, without a block if need be.
//
// Siblings may have equal text and different row classes (a prompt's row and a generated row of
// the same token are different bits), so a text may match several branches. Hashes only find
// candidates: text is compared.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/cache/block_digest.h"
#include "engine/sched/block_ledger.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

// Text with its classes, as a node or a snapshot's tail holds it.
struct HeldText {
  std::vector<int32_t> ids;  // whole block: kBlockPositions; tail: fewer, or none
  RowClassBits generated;
  std::vector<ImageSpan> images;  // that overlap it

  bool operator==(const HeldText&) const = default;
};

struct PrefixNode;

struct PrefixSnapshot {
  PrefixNode* at = nullptr;  // of the whole blocks before it
  HeldText tail;
  BlockId tail_block = -1;  // -1: it ends at a block edge
  int64_t number = -1;      // in the ranks' stores
  bool full = false;
  int64_t length = 0;     // positions
  int64_t exact_low = 0;  // full: decoder rows are those of an exact run from here on
  int64_t cut_low = 0;    // full: the shortest length that it can be cut back to
  BlockDigest name;       // of the (partial) block that it ends in
  uint64_t maker = 0;     // ascending: the sequence that took it; 0: it came from disk
};

struct PrefixNode {
  PrefixNode* parent = nullptr;  // nullptr: the root of a salt, which has no block
  int64_t end = 0;               // positions up to here
  uint64_t key = 0;              // its fingerprint
  HeldText text;
  BlockDigest name;
  BlockId block = -1;           // -1: no snapshot needs it
  int64_t snapshots_below = 0;  // at it or under it
  int32_t users = 0;            // running sequences
  std::unordered_multimap<uint64_t, std::unique_ptr<PrefixNode>> children;  // by text_fingerprint
  std::vector<PrefixSnapshot*> snapshots;
};

class PrefixTree {
 public:
  explicit PrefixTree(uint64_t fingerprint_mask = ~uint64_t{0}) : mask_(fingerprint_mask) {}
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // nullptr: nothing of that salt.
  PrefixNode* find_root(const BlockDigest& root);
  PrefixNode* root(const BlockDigest& root);
  // Children with this text, whatever their classes.
  void children_with(PrefixNode& node, const BlockText& text, std::vector<PrefixNode*>& out);
  // The child with this text and these classes; made when it isn't there.
  PrefixNode* child(PrefixNode& node, const BlockText& text);

  // Hangs a snapshot at its node. `blocks`: the sequence's table, for nodes that have no block yet.
  PrefixSnapshot* add(PrefixSnapshot snapshot, std::span<const BlockId> blocks,
                      BlockLedger& ledger);
  PrefixSnapshot* same_place(PrefixNode& node, const HeldText& tail);  // nullptr: none
  PrefixSnapshot* by_number(int64_t number);
  void drop(PrefixSnapshot* snapshot, BlockLedger& ledger);
  // Blocks that would be free without it, at least as far as one look tells: 0 when others need
  // all of its blocks.
  bool frees_blocks(const PrefixSnapshot& snapshot, const BlockLedger& ledger) const;

  void hold(PrefixNode* node) { ++node->users; }
  void release(PrefixNode* node);

  void touch(PrefixSnapshot* snapshot);
  // The oldest first.
  std::list<PrefixSnapshot>& by_age() { return by_age_; }
  int64_t snapshots() const { return static_cast<int64_t>(by_age_.size()); }
  int64_t nodes() const { return nodes_; }  // roots not counted

 private:
  void prune(PrefixNode* node);

  const uint64_t mask_;  // a planted weakness for tests: fewer bits of fingerprint
  std::map<BlockDigest, std::unique_ptr<PrefixNode>> roots_;
  std::list<PrefixSnapshot> by_age_;
  std::unordered_map<int64_t, std::list<PrefixSnapshot>::iterator> numbers_;
  int64_t nodes_ = 0;
};

}  // namespace tensorfold
