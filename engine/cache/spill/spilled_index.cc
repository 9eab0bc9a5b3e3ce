// Writing behind and reading before (see spilled_index.h).
#include "engine/cache/spill/spilled_index.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/cache/prefix_notes.h"

namespace tensorfold {
namespace {

using Kind = CacheCommand::Kind;

void put(CacheCommands& out, Kind kind, BlockId block, const CacheNote& note) {
  out.commands.push_back({kind, 0, block, static_cast<int64_t>(out.notes.size())});
  out.notes.push_back(note);
}

const PrefixNode* child_named(const PrefixNode& node, const BlockDigest& name) {
  for (const auto& [key, child] : node.children)
    if (child->name == name) return child.get();
  return nullptr;
}

}  // namespace

SpilledIndex::SpilledIndex(PrefixIndex& memory, CacheTier* tier) : memory_(memory), tier_(tier) {}

void SpilledIndex::poll() {
  if (tier_ == nullptr) return;
  for (const TierEvent& event : tier_->take_events()) {
    if (event.kind == TierEvent::Kind::kProved || event.kind == TierEvent::Kind::kUntrue) {
      judge(event);
      continue;
    }
    const auto pending = pending_.find(key_of(event.note));
    if (event.kind == TierEvent::Kind::kGone) {
      disk_.remove(event.note);
      // A snapshot that was not written, or whose blocks were not, is offered again.
      if (pending != pending_.end() && event.note.kind != CacheNote::Kind::kBlock &&
          pending->second.tries < kSpillWriteTriesMax)
        to_write_.push_back(pending->second);
    } else {
      disk_.add(event);
    }
    if (pending != pending_.end()) pending_.erase(pending);
  }
  // So that has_commands() means something.
  while (!to_write_.empty()) {
    const PrefixSnapshot* s = memory_.tree().by_number(to_write_.front().number);
    const bool gone = s == nullptr || s->name != to_write_.front().name;
    if (!gone && !on_its_way(key_of(rings_note(*s)))) break;
    if (gone) ++counts_.unwritten;
    to_write_.pop_front();
  }
}

// ---------------------------------------------------------------- out

void SpilledIndex::note_kept(const CacheCommands& out, size_t first) {
  if (tier_ == nullptr) return;
  for (size_t i = first; i < out.commands.size(); ++i) {
    const CacheCommand& c = out.commands[i];
    if (c.kind != Kind::kSnapshot) continue;
    const PrefixSnapshot* s = memory_.tree().by_number(c.value);
    if (s == nullptr || s->length < kSpilledPositionsMin) continue;
    to_write_.push_back({c.value, s->name, 0});
    if (to_write_.size() <= kSpillWaitingMax) continue;
    to_write_.pop_front();
    ++counts_.unwritten;
  }
}

void SpilledIndex::advanced(const SequenceView& sequence, BlockLedger& ledger, CacheCommands& out) {
  const size_t first = out.commands.size();
  memory_.advanced(sequence, ledger, out);
  note_kept(out, first);
}

void SpilledIndex::close(const SequenceView& sequence, SequenceEnd end, BlockLedger& ledger,
                         CacheCommands& out) {
  const auto proof = std::exchange(proofs_[static_cast<size_t>(sequence.slot)], std::nullopt);
  if (end == SequenceEnd::kSpoiled) {
    forget(sequence, ledger, out);
    if (proof && proof->trust == Trust::kNo) distrust(*proof, ledger, out);
    end = SequenceEnd::kCut;
  }
  const size_t first = out.commands.size();
  memory_.close(sequence, end, ledger, out);
  note_kept(out, first);
}

void SpilledIndex::forget(const SequenceView& sequence, BlockLedger& ledger, CacheCommands& out) {
  std::vector<CacheNote> gone = memory_.spoil(sequence, ledger, out);
  if (tier_ == nullptr) return;
  const auto let_go = [&](const CacheNote& note) {
    disk_.remove(note);
    pending_.erase(key_of(note));
    to_forget_.push_back(note);
  };
  for (const CacheNote& note : gone) let_go(note);
  // What the same prompt would start from on disk alone.
  PrefixQuery query;
  query.ids = sequence.ids;
  query.prompt_tokens = sequence.prompt_tokens;
  query.images = memory_.images(sequence.slot);
  const BlockDigest root = memory_.root(sequence.slot);
  while (true) {
    const DiskPrefix prefix = disk_.find(root, query, memory_.options());
    if (prefix.positions == 0) return;
    let_go(prefix.snapshot);
  }
}

bool SpilledIndex::on_its_way(const RecordKey& key) const {
  return disk_.has(key) || pending_.count(key) != 0;
}

// `where`: the pool block, or the number of the snapshot.
void SpilledIndex::offer(const CacheNote& note, int64_t where, const Kept& kept,
                         CacheCommands& out) {
  const bool block = note.kind == CacheNote::Kind::kBlock;
  put(out, block ? Kind::kSpillBlock : Kind::kSpillSnapshot, static_cast<BlockId>(where), note);
  pending_[key_of(note)] = {kept.number, kept.name, kept.tries + 1};
}

// False: no room left in this step for all of it.
bool SpilledIndex::write(const Kept& kept, int& room, CacheCommands& out) {
  const PrefixSnapshot* s = memory_.tree().by_number(kept.number);
  if (s == nullptr || s->name != kept.name) {
    ++counts_.unwritten;
    return true;
  }
  const CacheNote rings = rings_note(*s);
  if (on_its_way(key_of(rings))) return true;
  std::vector<const PrefixNode*> missing;
  for (const PrefixNode* n = s->at; n->parent != nullptr; n = n->parent) {
    if (on_its_way({n->name, CacheNote::Kind::kBlock})) break;
    missing.push_back(n);
  }
  for (; !missing.empty() && room > 0; missing.pop_back(), --room)
    offer(block_note(*missing.back()), missing.back()->block, kept, out);
  if (s->tail_block >= 0 && room > 0 && !on_its_way({s->name, CacheNote::Kind::kBlock})) {
    offer(tail_note(*s), s->tail_block, kept, out);
    --room;
  }
  if (room <= 0) return false;
  offer(rings, s->number, kept, out);
  --room;
  return true;
}

bool SpilledIndex::has_commands() const {
  return memory_.has_commands() || !to_forget_.empty() || (!to_write_.empty() && tier_->accepts());
}

void SpilledIndex::take_commands(CacheCommands& out) {
  memory_.take_commands(out);
  for (auto& [request, waiting] : waiting_) waiting.asked = true;
  filled_.clear();
  for (int n = 0; n < kForgetsPerStep && !to_forget_.empty(); ++n) {
    put(out, Kind::kForget, 0, to_forget_.front());
    to_forget_.pop_front();
  }
  // A name may come again: what is forgotten must be gone before it is written anew.
  if (!to_forget_.empty() || to_write_.empty() || !tier_->accepts()) return;
  int room = kSpillRecordsPerStep;
  while (!to_write_.empty() && room > 0 && write(to_write_.front(), room, out))
    to_write_.pop_front();
}

void SpilledIndex::flush(bool disk, BlockLedger& ledger, CacheCommands& out) {
  memory_.flush(disk, ledger, out);
  to_write_.clear();
  if (!disk || tier_ == nullptr) return;
  pending_.clear();
  to_forget_.clear();
  tier_->flush();
  poll();
}

// ---------------------------------------------------------------- in

bool SpilledIndex::ready(const PrefixQuery& query, BlockLedger& ledger, CacheCommands& out) {
  if (tier_ == nullptr) return true;
  const auto known = waiting_.find(query.request);
  if (known == waiting_.end()) {
    Waiting waiting;
    if (!begin_staging(query, waiting, out)) return true;
    wait_for(query.request, std::move(waiting));
    return false;
  }
  const Waiting& waiting = known->second;
  if (!waiting.asked) return false;
  bool missing = false;
  for (const CacheNote& note : waiting.staged) {
    // Another request took it: this plan's fill lets go of the record.
    if (filled_.count(key_of(note)) != 0) return false;
    const auto state = tier_->staged(note.name, note.kind);
    if (state == CacheTier::Staged::kReading) return false;
    missing = missing || state == CacheTier::Staged::kMissing;
  }
  const bool had = memory_.match(query).positions >= waiting.prefix.positions;
  const bool done = had || (!missing && fill(waiting, query, ledger, out));
  const int tries = waiting.tries + 1;
  stop_waiting(query.request);
  if (done) return true;
  ++counts_.failed;
  Waiting next;
  next.tries = tries;
  if (tries >= kStageTriesMax || !begin_staging(query, next, out)) return true;
  wait_for(query.request, std::move(next));
  return false;
}

void SpilledIndex::wait_for(uint64_t request, Waiting waiting) {
  for (const CacheNote& note : waiting.staged) ++wanted_[key_of(note)];
  waiting_.emplace(request, std::move(waiting));
}

// Lets go of the records that nobody else waits for and no command of this plan fills in.
void SpilledIndex::stop_waiting(uint64_t request) {
  const auto at = waiting_.find(request);
  if (at == waiting_.end()) return;
  for (const CacheNote& note : at->second.staged) {
    const RecordKey key = key_of(note);
    if (--wanted_[key] > 0) continue;
    wanted_.erase(key);
    if (filled_.count(key) == 0) tier_->unstage(key.name, key.kind);
  }
  waiting_.erase(at);
}

void SpilledIndex::forget_request(uint64_t request) {
  memory_.forget_request(request);
  stop_waiting(request);
}

std::vector<CacheNote> SpilledIndex::lacking(const DiskPrefix& prefix,
                                             const PrefixQuery& query) const {
  std::vector<CacheNote> out;
  const PrefixNode* node = memory_.tree().find_root(root_digest(query.salt));
  for (const CacheNote& note : prefix.chain) {
    if (node != nullptr) node = child_named(*node, note.name);
    if (node == nullptr || node->block < 0) out.push_back(note);
  }
  return out;
}

// False: memory has as much as the disk.
bool SpilledIndex::begin_staging(const PrefixQuery& query, Waiting& waiting, CacheCommands& out) {
  waiting.prefix = disk_.find(query, memory_.options());
  if (waiting.prefix.positions == 0) return false;
  const int64_t there = memory_.match(query).positions;
  if (waiting.prefix.positions < there + kSpilledGainMin) return false;
  waiting.staged = lacking(waiting.prefix, query);
  waiting.staged.push_back(waiting.prefix.snapshot);
  for (const CacheNote& note : waiting.staged) put(out, Kind::kStage, 0, note);
  return true;
}

// The nodes of the whole blocks, from the root on; the last one is held for the caller. nullptr: a
// record is not what its name says.
PrefixNode* SpilledIndex::enter_nodes(const DiskPrefix& prefix, const PrefixQuery& query) {
  PrefixTree& tree = memory_.tree();
  PrefixNode* node = tree.root(root_digest(query.salt));
  tree.hold(node);
  for (const CacheNote& note : prefix.chain) {
    if (note.positions < kBlockPositions) break;
    const PrefixNode* known = child_named(*node, note.name);
    const CacheRecord* record = tier_->record(note.name, note.kind);
    BlockText text;
    text.first_position = note.first_position;
    if (known != nullptr) {
      text.ids = known->text.ids;
    } else if (record != nullptr) {
      text.ids = record->ids;
    }
    text.generated = note.generated;
    text.images = note.images;
    PrefixNode* next = nullptr;
    if (text.ids.size() == static_cast<size_t>(kBlockPositions) &&
        block_digest(node->name, text) == note.name)
      next = tree.child(*node, text);
    if (next != nullptr) tree.hold(next);
    tree.release(node);
    if (next == nullptr) return nullptr;
    node = next;
  }
  return node;
}

bool SpilledIndex::fill(const Waiting& waiting, const PrefixQuery& query, BlockLedger& ledger,
                        CacheCommands& out) {
  const DiskPrefix& prefix = waiting.prefix;
  const CacheNote& rings = prefix.snapshot;
  PrefixSnapshot made;
  made.full = rings.kind == CacheNote::Kind::kFullSnapshot;
  made.length = rings.length();
  made.cut_low = made.full ? rings.cut_low : made.length;
  made.exact_low =
      made.full ? std::max<int64_t>(0, rings.cut_low - memory_.options().window + 1) : made.length;
  made.name = rings.name;
  // Room first: making it may take blocks of this very prefix from memory.
  if (!memory_.make_room(made.full, ledger, out)) return false;
  const PrefixMatch match = memory_.match(query);
  auto blocks = static_cast<int64_t>(lacking(prefix, query).size());
  if (!memory_.reclaim(blocks, match, ledger, out)) return false;
  const std::vector<CacheNote> lack = lacking(prefix, query);
  const auto staged = [&](const CacheNote& n) { return tier_->record(n.name, n.kind) != nullptr; };
  if (!std::all_of(lack.begin(), lack.end(), staged) || !staged(rings)) return false;
  blocks = static_cast<int64_t>(lack.size());
  if (!ledger.promise(blocks)) return false;
  PrefixNode* node = enter_nodes(prefix, query);
  if (node == nullptr) {
    ledger.release_promise(blocks);
    return false;
  }
  std::vector<BlockId> table(prefix.chain.size(), -1);
  for (const CacheNote& note : lack) {
    const BlockId block = ledger.take();
    table[static_cast<size_t>(note.first_position / kBlockPositions)] = block;
    put(out, Kind::kFillBlock, block, note);
    filled_.insert(key_of(note));
  }
  made.at = node;
  if (prefix.chain.back().positions < kBlockPositions) {
    const CacheNote& tail = prefix.chain.back();
    made.tail = {tier_->record(tail.name, tail.kind)->ids, tail.generated, tail.images};
    made.tail_block = table.back();
  }
  const bool entered = memory_.enter(made, table, ledger, out);
  TF_CHECK_MSG(entered, "room that was made is gone");
  put(out, Kind::kFillSnapshot, static_cast<BlockId>(made.number), rings);
  filled_.insert(key_of(rings));
  for (const BlockId block : table)
    if (block >= 0) ledger.give_back(block);  // the cache alone holds it
  memory_.tree().release(node);
  ++counts_.restored;
  counts_.restored_positions +=
      static_cast<uint64_t>(std::max<int64_t>(0, memory_.match(query).positions - match.positions));
  return true;
}

}  // namespace tensorfold
