// Whether what came from disk is what this process computes (see spilled_index.h).
//
// A snapshot is cut back by a few rows, those rows are computed from what it holds, and rings and
// last block must come out as they were: each row reads a window of every layer, the entries that
// its index picks, the compressor's inputs and the drafter's rows. Only full snapshots can be cut
// back, and only inside a block that the sequence has a copy of; others are used as they are. Rows
// have their class, so they are bit-equal on every device.
#include <algorithm>

#include "engine/base/check.h"
#include "engine/cache/prefix_notes.h"
#include "engine/cache/spill/spilled_index.h"

namespace tensorfold {
namespace {

using Kind = CacheCommand::Kind;

void put(CacheCommands& out, Kind kind, SlotId slot, int64_t where, const CacheNote& note) {
  const auto at = static_cast<int64_t>(out.notes.size());
  out.commands.push_back({kind, slot, static_cast<BlockId>(where), at});
  out.notes.push_back(note);
}

// The text of the block that position `last` lies in, as the snapshot has it.
const HeldText& block_text(const PrefixSnapshot& s, int64_t last) {
  if (last >= s.at->end) return s.tail;
  const PrefixNode* node = s.at;
  while (node->end - kBlockPositions > last) node = node->parent;
  return node->text;
}

}  // namespace

PrefixMatch SpilledIndex::match(const PrefixQuery& query) {
  PrefixMatch match = memory_.match(query);
  if (tier_ != nullptr && !proved_ && match.tail >= 0) ask_for_proof(query, match);
  return match;
}

void SpilledIndex::ask_for_proof(const PrefixQuery& query, PrefixMatch& match) const {
  const PrefixSnapshot* s = memory_.tree().by_number(match.snapshot);
  const bool from_disk = s != nullptr && s->maker == 0;
  if (!from_disk || !s->full || match.positions > query.prompt_tokens) return;
  const int64_t first = match.positions / kBlockPositions * kBlockPositions;
  // Not only down to where the decoder's rows are exact: rows whose windows were cut when they were
  // computed first are cut at the same place again, the decoder's first row.
  const int64_t low =
      std::max({first, s->length - kCutPositionsMax, match.positions - int64_t{kRecheckRowsMax}});
  const HeldText& text = block_text(*s, match.positions - 1);
  const auto generated = [&](int64_t p) { return text.generated.get(static_cast<int>(p - first)); };
  const auto image = [&](int64_t p) {
    return std::any_of(text.images.begin(), text.images.end(), [p](const ImageSpan& i) {
      return i.first_position <= p && p < i.first_position + i.rows;
    });
  };
  int64_t from = match.positions;
  while (from > low && generated(from - 1) == generated(match.positions - 1) && !image(from - 1))
    --from;
  match.recheck_rows = static_cast<int32_t>(match.positions - from);
  if (generated(match.positions - 1)) match.recheck_class = RowClass::kGenerated;
}

void SpilledIndex::open(SlotId slot, const PrefixQuery& query, const PrefixMatch& match) {
  memory_.open(slot, query, match);
  std::optional<Proof>& proof = proofs_[static_cast<size_t>(slot)];
  proof.reset();
  if (match.recheck_rows == 0) return;
  const PrefixSnapshot* s = memory_.tree().by_number(match.snapshot);
  TF_CHECK(s != nullptr);
  proof = {rings_note(*s), match.snapshot, match.tail, Trust::kWaiting, {}};
}

void SpilledIndex::recomputed(SlotId slot, CacheCommands& out) {
  std::optional<Proof>& proof = proofs_[static_cast<size_t>(slot)];
  TF_CHECK(proof);
  const PrefixSnapshot* s = memory_.tree().by_number(proof->number);
  if (s == nullptr || s->name != proof->rings.name || s->maker != 0) {
    proof.reset();  // dropped meanwhile: there is nothing left to compare with
    return;
  }
  put(out, Kind::kCompareBlock, slot, proof->block, proof->rings);
  put(out, Kind::kCompareRings, slot, proof->number, proof->rings);
}

CacheIndex::Trust SpilledIndex::trust(SlotId slot) const {
  const std::optional<Proof>& proof = proofs_[static_cast<size_t>(slot)];
  return proof ? proof->trust : Trust::kYes;
}

void SpilledIndex::judge(const TierEvent& event) {
  const bool proved = event.kind == TierEvent::Kind::kProved;
  for (std::optional<Proof>& proof : proofs_) {
    if (!proof || proof->trust != Trust::kWaiting || key_of(proof->rings) != key_of(event.note))
      continue;
    if (proved) {
      proof.reset();
      proved_ = true;
    } else {
      proof->trust = Trust::kNo;
      proof->first_block = disk_.first_block(event.note.name);
    }
  }
}

// Which block was wrong is not known: what stands on the first one goes from the disk, and from
// memory all that came from there.
void SpilledIndex::distrust(const Proof& proof, BlockLedger& ledger, CacheCommands& out) {
  memory_.drop_restored(ledger, out);
  if (!proof.first_block) return;
  disk_.remove(*proof.first_block);
  pending_.erase(key_of(*proof.first_block));
  to_forget_.push_back(*proof.first_block);
}

}  // namespace tensorfold
