// What is kept and what is dropped (engine/cache/prefix_index.h).
#include "engine/cache/prefix_index.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/check.h"
#include "engine/cache/prefix_notes.h"

namespace tensorfold {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

PrefixIndex::PrefixIndex(const PrefixOptions& options)
    : options_(options), tree_(options.fingerprint_mask) {
  TF_CHECK(options.window >= 1 && options.decoder_span >= 1 && options.full_units >= 1);
  TF_CHECK(options.snapshot_units >= 0 && options.snapshot_units <= INT32_MAX);
  for (int64_t n = options.snapshot_units; n > 0; --n) free_numbers_.push_back(n - 1);
}

bool PrefixIndex::ready(const PrefixQuery&, BlockLedger&, CacheCommands&) { return true; }

void PrefixIndex::forget_request(uint64_t) {}

const PrefixIndex::Live& PrefixIndex::live(SlotId slot) const {
  const Live& l = live_[static_cast<size_t>(slot)];
  TF_CHECK_MSG(l.node != nullptr, "the slot is not open");
  return l;
}

const BlockDigest& PrefixIndex::root(SlotId slot) const { return root_of(*live(slot).node).name; }

// ---------------------------------------------------------------- the life of a sequence

void PrefixIndex::open(SlotId slot, const PrefixQuery& query, const PrefixMatch& match) {
  Live& l = live_[static_cast<size_t>(slot)];
  TF_CHECK(l.node == nullptr);
  l.opened = ++opened_;
  l.resumed = l.last_kept = match.positions;
  l.images.assign(query.images.begin(), query.images.end());
  l.prompt_tokens = query.prompt_tokens;
  l.keeps = !query.cold;
  if (!query.cold) ++counts_.lookups;
  const int64_t whole = match.positions / kBlockPositions * kBlockPositions;
  PrefixSnapshot* from = nullptr;
  if (match.positions == 0) {
    l.node = tree_.root(root_digest(query.salt));
  } else {
    from = tree_.by_number(match.snapshot);
    TF_CHECK(from != nullptr);
    tree_.touch(from);
    ++counts_.hits;
    counts_.hit_positions += static_cast<uint64_t>(match.positions);
    l.resumed_tail = from->tail.generated;
    l.node = from->at;
    for (; l.node->end > whole; l.node = l.node->parent) l.resumed_tail = l.node->text.generated;
  }
  tree_.hold(l.node);

  const int64_t shared = last_common_ - match.positions;
  const int64_t head = std::min(query.head_tokens, query.prompt_tokens - 2);
  if (shared >= kBranchPositionsMin && last_common_ < query.prompt_tokens - 1) {
    l.branch = last_common_;
  } else if (head >= match.positions + kHeadPositionsMin) {
    // Nobody left it here yet, but the next conversation will.
    l.branch = head;
    l.branch_full = true;
  }
  const int64_t until = decoder_until(slot, match.positions, query.prompt_tokens);
  const int64_t floor = std::max<int64_t>(0, until - options_.decoder_span);
  const bool exact_start = match.positions == 0 || (from->full && options_.exact);
  // A window of the first row that reaches before the floor is cut there.
  if (exact_start && (match.positions >= query.prompt_tokens ||
                      floor <= std::max<int64_t>(0, match.positions - options_.window + 1))) {
    l.exact_from = match.positions == 0 ? 0 : from->exact_low;
  } else {
    l.exact_from = std::max(floor, match.positions) + options_.decoder_span - options_.window;
  }
  if (!options_.exact) l.exact_from = kNever;
}

int64_t PrefixIndex::chunk_end(SlotId slot, int64_t first, int64_t end) {
  const Live& l = live(slot);
  return l.branch > first && l.branch < end ? l.branch : end;
}

// With a branch near the prompt's end the decoder starts earlier, so that the snapshot there is a
// full one and serves the next prompt that branches off, however short its own end is. Before the
// end of a head it runs in any case, and starts once more before the prompt's end.
int64_t PrefixIndex::decoder_until(SlotId slot, int64_t first, int64_t prompt_tokens) {
  const Live& l = live(slot);
  if (!options_.exact || l.branch <= 0) return prompt_tokens;
  const bool near = prompt_tokens - l.branch <= options_.decoder_span;
  return near || (l.branch_full && first < l.branch) ? l.branch : prompt_tokens;
}

void PrefixIndex::advanced(const SequenceView& s, BlockLedger& ledger, CacheCommands& out) {
  Live& l = live_[static_cast<size_t>(s.slot)];
  const bool spaced = s.computed - l.last_kept >= kKeptSpacingPositions;
  if (s.computed == s.prompt_tokens ||
      (s.computed < s.prompt_tokens && (spaced || s.computed == l.branch)))
    keep(s, l, ledger, out);
  const bool again = options_.exact && l.branch_full && s.computed == l.branch &&
                     s.prompt_tokens - l.branch > options_.decoder_span;
  if (again) l.exact_from = s.prompt_tokens - options_.window;
}

void PrefixIndex::close(const SequenceView& s, SequenceEnd end, BlockLedger& ledger,
                        CacheCommands& out) {
  if (end == SequenceEnd::kSpoiled) (void)spoil(s, ledger, out);
  Live& l = live_[static_cast<size_t>(s.slot)];
  // A prompt that was left is worth going on with; a reply is the next turn's prompt.
  const bool left = s.computed < s.prompt_tokens && s.computed - l.last_kept >= kBranchPositionsMin;
  const bool replied = s.computed > s.prompt_tokens && options_.reuse_replies;
  if (end == SequenceEnd::kWhole && (left || replied)) keep(s, l, ledger, out);
  tree_.release(l.node);
  l = Live{};
}

// ---------------------------------------------------------------- keeping

BlockText PrefixIndex::text_of(const SequenceView& s, const Live& l, int64_t first,
                               int64_t end) const {
  BlockText text;
  text.first_position = first;
  text.ids = s.ids.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
  text.images = images_in(l.images, first, end);
  for (int64_t p = first; p < end; ++p) {
    const auto i = static_cast<int>(p - first);
    const bool generated = p < l.resumed ? l.resumed_tail.get(i) : p >= l.prompt_tokens;
    if (generated) text.generated.set(i);
  }
  return text;
}

// Enters the sequence up to what is computed and takes a snapshot there.
void PrefixIndex::keep(const SequenceView& s, Live& l, BlockLedger& ledger, CacheCommands& out) {
  const int64_t length = s.computed;
  if (length < kKeptPositionsMin || options_.snapshot_units == 0 || !l.keeps) return;
  PrefixSnapshot made;
  made.length = length;
  made.maker = l.opened;
  made.full = options_.exact && l.exact_from <= std::max<int64_t>(0, length - options_.window);
  made.exact_low = made.full ? l.exact_from : length;
  const int64_t cut = made.exact_low == 0 ? 0 : made.exact_low + options_.window - 1;
  made.cut_low = made.full ? std::max(cut, length - kCutPositionsMax) : length;
  const int32_t units = made.full ? options_.full_units : 1;
  if (units > options_.snapshot_units) return;

  PrefixNode* node = l.node;
  tree_.hold(node);
  while (node->end + kBlockPositions <= length) {
    PrefixNode* next = tree_.child(*node, text_of(s, l, node->end, node->end + kBlockPositions));
    tree_.hold(next);
    tree_.release(node);
    node = next;
  }
  tree_.release(l.node);
  l.node = node;  // holds it
  made.at = node;
  made.name = node->name;
  if (length > node->end) {
    const BlockText tail = text_of(s, l, node->end, length);
    made.tail = {{tail.ids.begin(), tail.ids.end()}, tail.generated, tail.images};
    made.tail_block = s.blocks[static_cast<size_t>(node->end / kBlockPositions)];
    made.name = block_digest(node->name, tail);
  }
  l.last_kept = length;
  if (PrefixSnapshot* same = tree_.same_place(*node, made.tail)) {
    tree_.touch(same);
    if (same->full || !made.full) return;
    drop(same, ledger, out);  // replaced by one that serves more
  }
  if (!make_units(units, ledger, out)) return;
  made.number = free_numbers_.back();
  free_numbers_.pop_back();
  units_used_ += units;
  ++counts_.kept;
  const auto number = made.number;
  out.commands.push_back({CacheCommand::Kind::kSnapshot, s.slot, made.full ? 0 : 1, number});
  l.first_kept = std::min(l.first_kept, length);
  l.kept.push_back(rings_note(made));
  if (made.tail_block >= 0) l.kept.push_back(tail_note(made));
  tree_.add(std::move(made), s.blocks, ledger);
  note_entered(s, l);
}

// Which blocks of the tree are the sequence's own: others may have entered the same text before.
void PrefixIndex::note_entered(const SequenceView& s, Live& l) const {
  l.entered.resize(s.blocks.size());
  for (const PrefixNode* n = l.node; n->end > l.resumed; n = n->parent) {
    const auto b = static_cast<size_t>(n->end / kBlockPositions - 1);
    if (l.entered[b] || n->block != s.blocks[b]) continue;
    l.entered[b] = true;
    l.kept.push_back(block_note(*n));
  }
}

bool PrefixIndex::make_units(int32_t units, BlockLedger& ledger, CacheCommands& out) {
  while (units_used_ + units > options_.snapshot_units) {
    if (tree_.by_age().empty()) return false;
    ++counts_.evicted;
    drop(&tree_.by_age().front(), ledger, out);
  }
  return true;
}

bool PrefixIndex::make_room(bool full, BlockLedger& ledger, CacheCommands& out) {
  const int32_t units = full ? options_.full_units : 1;
  return units <= options_.snapshot_units && make_units(units, ledger, out);
}

bool PrefixIndex::enter(PrefixSnapshot& made, std::span<const BlockId> blocks, BlockLedger& ledger,
                        CacheCommands& out) {
  if (!make_room(made.full, ledger, out)) return false;
  made.number = free_numbers_.back();
  free_numbers_.pop_back();
  units_used_ += made.full ? options_.full_units : 1;
  tree_.add(made, blocks, ledger);
  return true;
}

void PrefixIndex::drop_restored(BlockLedger& ledger, CacheCommands& out) {
  auto& by_age = tree_.by_age();
  for (auto at = by_age.begin(); at != by_age.end();) {
    PrefixSnapshot* s = &*at++;
    if (s->maker != 0) continue;
    drop(s, ledger, out);
    ++counts_.spoiled;
  }
}

void PrefixIndex::drop(PrefixSnapshot* s, BlockLedger& ledger, CacheCommands& out) {
  out.commands.push_back({CacheCommand::Kind::kDropSnapshot, 0, 0, s->number});
  free_numbers_.push_back(s->number);
  units_used_ -= s->full ? options_.full_units : 1;
  tree_.drop(s, ledger);
}

bool PrefixIndex::reclaim(int64_t blocks, const PrefixMatch& match, BlockLedger& ledger,
                          CacheCommands& out) {
  if (ledger.unpromised() >= blocks) return true;
  if (ledger.unpromised() + ledger.cached() - kept_blocks(match, ledger) < blocks) return false;
  auto& by_age = tree_.by_age();
  const auto spare = [&](const PrefixSnapshot& s) { return s.number != match.snapshot; };
  while (ledger.unpromised() < blocks) {
    // First those that give back blocks: the middle of a conversation whose end stays frees none.
    bool dropped = false;
    for (auto at = by_age.begin(); at != by_age.end() && ledger.unpromised() < blocks;) {
      PrefixSnapshot* s = &*at++;
      if (!spare(*s) || !tree_.frees_blocks(*s, ledger)) continue;
      drop(s, ledger, out);
      ++counts_.evicted;
      dropped = true;
    }
    if (dropped) continue;
    const auto oldest = std::find_if(by_age.begin(), by_age.end(), spare);
    if (oldest == by_age.end()) break;
    drop(&*oldest, ledger, out);
    ++counts_.evicted;
  }
  TF_CHECK_GE(ledger.unpromised(), blocks);
  return true;
}

void PrefixIndex::flush(bool /*disk*/, BlockLedger& ledger, CacheCommands& out) {
  while (!tree_.by_age().empty()) drop(&tree_.by_age().front(), ledger, out);
  ++counts_.flushes;
}

PrefixStats PrefixIndex::stats() const {
  PrefixStats s = counts_;
  s.snapshots = tree_.snapshots();
  s.snapshot_bytes = units_used_ * options_.unit_bytes;
  s.snapshot_bytes_max = options_.snapshot_units * options_.unit_bytes;
  s.blocks = tree_.nodes();
  return s;
}

}  // namespace tensorfold
