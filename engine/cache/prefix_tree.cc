// The tree of cached prefixes (engine/cache/prefix_tree.h).
#include "engine/cache/prefix_tree.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

bool same_text(const HeldText& held, const BlockText& text) {
  return std::equal(held.ids.begin(), held.ids.end(), text.ids.begin(), text.ids.end()) &&
         held.images == text.images;
}

}  // namespace

PrefixNode* PrefixTree::find_root(const BlockDigest& root) {
  const auto at = roots_.find(root);
  return at == roots_.end() ? nullptr : at->second.get();
}

PrefixNode* PrefixTree::root(const BlockDigest& root) {
  std::unique_ptr<PrefixNode>& node = roots_[root];
  if (node == nullptr) {
    node = std::make_unique<PrefixNode>();
    node->name = root;
  }
  return node.get();
}

void PrefixTree::children_with(PrefixNode& node, const BlockText& text,
                               std::vector<PrefixNode*>& out) {
  const auto [begin, end] = node.children.equal_range(text_fingerprint(text) & mask_);
  for (auto at = begin; at != end; ++at) {
    if (same_text(at->second->text, text)) out.push_back(at->second.get());
  }
}

PrefixNode* PrefixTree::child(PrefixNode& node, const BlockText& text) {
  const uint64_t key = text_fingerprint(text) & mask_;
  const auto [begin, end] = node.children.equal_range(key);
  for (auto at = begin; at != end; ++at) {
    const HeldText& held = at->second->text;
    if (same_text(held, text) && held.generated == text.generated) return at->second.get();
  }
  auto made = std::make_unique<PrefixNode>();
  made->parent = &node;
  made->end = node.end + kBlockPositions;
  made->key = key;
  made->text.ids.assign(text.ids.begin(), text.ids.end());
  made->text.generated = text.generated;
  made->text.images = text.images;
  made->name = block_digest(node.name, text);
  ++nodes_;
  return node.children.emplace(key, std::move(made))->second.get();
}

PrefixSnapshot* PrefixTree::add(PrefixSnapshot snapshot, std::span<const BlockId> blocks,
                                BlockLedger& ledger) {
  for (PrefixNode* n = snapshot.at; n != nullptr; n = n->parent) {
    if (n->snapshots_below++ > 0 || n->parent == nullptr) continue;
    n->block = blocks[static_cast<size_t>(n->end / kBlockPositions - 1)];
    ledger.keep(n->block);
  }
  if (snapshot.tail_block >= 0) ledger.keep(snapshot.tail_block);
  by_age_.push_back(std::move(snapshot));
  PrefixSnapshot* added = &by_age_.back();
  added->at->snapshots.push_back(added);
  TF_CHECK(numbers_.emplace(added->number, std::prev(by_age_.end())).second);
  return added;
}

PrefixSnapshot* PrefixTree::same_place(PrefixNode& node, const HeldText& tail) {
  for (PrefixSnapshot* s : node.snapshots) {
    if (s->tail == tail) return s;
  }
  return nullptr;
}

PrefixSnapshot* PrefixTree::by_number(int64_t number) {
  const auto at = numbers_.find(number);
  return at == numbers_.end() ? nullptr : &*at->second;
}

void PrefixTree::drop(PrefixSnapshot* snapshot, BlockLedger& ledger) {
  PrefixNode* node = snapshot->at;
  if (snapshot->tail_block >= 0) ledger.forget(snapshot->tail_block);
  for (PrefixNode* n = node; n != nullptr; n = n->parent) {
    if (--n->snapshots_below > 0 || n->parent == nullptr) continue;
    ledger.forget(n->block);
    n->block = -1;
  }
  std::erase(node->snapshots, snapshot);
  const auto at = numbers_.find(snapshot->number);
  TF_CHECK(at != numbers_.end());
  by_age_.erase(at->second);
  numbers_.erase(at);
  prune(node);
}

bool PrefixTree::frees_blocks(const PrefixSnapshot& snapshot, const BlockLedger& ledger) const {
  if (snapshot.tail_block >= 0 && ledger.last_entry(snapshot.tail_block)) return true;
  const PrefixNode& node = *snapshot.at;
  return node.parent != nullptr && node.snapshots_below == 1 && ledger.last_entry(node.block);
}

void PrefixTree::release(PrefixNode* node) {
  TF_CHECK_LT(0, node->users);
  --node->users;
  prune(node);
}

// Removes nodes that hold nothing and on which nothing stands.
void PrefixTree::prune(PrefixNode* node) {
  while (node->snapshots_below == 0 && node->users == 0 && node->children.empty()) {
    PrefixNode* parent = node->parent;
    if (parent == nullptr) {
      roots_.erase(node->name);
      return;
    }
    const auto [begin, end] = parent->children.equal_range(node->key);
    const auto at =
        std::find_if(begin, end, [&](const auto& entry) { return entry.second.get() == node; });
    TF_CHECK(at != end);
    parent->children.erase(at);
    --nodes_;
    node = parent;
  }
}

void PrefixTree::touch(PrefixSnapshot* snapshot) {
  by_age_.splice(by_age_.end(), by_age_, numbers_.at(snapshot->number));
}

}  // namespace tensorfold
