// The planner and the prefix cache: what a sequence needs of the pool, how it starts behind a match
// (engine/sched/planner.h, engine/sched/cache_index.h). Owner: the engine thread.
#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/sched/planner.h"

namespace tensorfold {

namespace {

PrefixQuery query_of(const SequenceSpec& spec, std::span<const int32_t> ids,
                     int64_t prompt_tokens) {
  PrefixQuery query;
  query.request = spec.request;
  query.ids = ids;
  query.prompt_tokens = prompt_tokens;
  query.salt = spec.cache_salt;
  query.head_tokens = spec.cold ? 0 : spec.head_tokens;
  query.cold = spec.cold;
  return query;
}

std::vector<int32_t> known_ids(const SequenceSpec& spec) {
  std::vector<int32_t> ids = spec.prompt;
  ids.insert(ids.end(), spec.reply.begin(), spec.reply.end());
  return ids;
}

}  // namespace

SequenceView Planner::view(SlotId slot) const {
  const Sequence& s = at(slot);
  return {slot, s.ids, s.prompt_tokens, s.computed, s.blocks};
}

// Whether the pool has what the sequence needs at first, entries of the cache given up if need be.
// Blocks that it would share with running sequences cost nothing.
bool Planner::pool_has(const SequenceSpec& spec) const {
  const int64_t reserve = reserve_of(spec);
  const int64_t available = ledger_.unpromised() + ledger_.cached() - growing();
  if (available >= reserve) return true;
  if (ledger_.used() == 0 || spec.sampling.prompt_logprobs >= 0) return false;
  const std::vector<int32_t> ids = known_ids(spec);
  const PrefixMatch match =
      cache_.match(query_of(spec, ids, static_cast<int64_t>(spec.prompt.size())));
  return available - kept_blocks(match, ledger_) >=
         reserve - static_cast<int64_t>(match.blocks.size());
}

bool Planner::prefix_ready(const SequenceSpec& spec) {
  if (spec.cold) return true;
  if (spec.sampling.prompt_logprobs >= 0) return true;  // it starts from nothing
  return cache_.ready(query_of(spec, spec.prompt, static_cast<int64_t>(spec.prompt.size())),
                      ledger_, commands_);
}

// Promises the sequence its blocks and lets it start behind the longest match.
void Planner::start_behind_match(Sequence& s, int64_t reserve, SlotId slot) {
  const PrefixQuery query = query_of(s.spec, s.ids, s.prompt_tokens);
  PrefixMatch match = cache_.match(query);
  if (scores(s)) match = {};  // every row of its prompt is looked at
  TF_CHECK_LT(match.positions, static_cast<int64_t>(s.ids.size()));
  s.promised = reserve - static_cast<int64_t>(match.blocks.size());
  if (!cache_.reclaim(s.promised, match, ledger_, commands_)) {
    // The pool is too small to keep the match beside the sequence: it starts from nothing.
    match = {};
    s.promised = reserve;
    TF_CHECK_MSG(cache_.reclaim(s.promised, match, ledger_, commands_),
                 "a sequence was admitted that the pool has no room for");
  }
  TF_CHECK(ledger_.promise(s.promised));
  std::vector<CacheCommand>& commands = commands_.commands;
  commands.push_back({CacheCommand::Kind::kOpenSlot, slot, 0, 0});
  for (const BlockId b : match.blocks) {
    ledger_.share(b);
    commands.push_back({CacheCommand::Kind::kAppendBlock, slot, b, 0});
  }
  s.blocks = match.blocks;
  if (match.tail >= 0) {
    --s.promised;
    s.blocks.push_back(ledger_.take());
    commands.push_back({CacheCommand::Kind::kAppendBlock, slot, s.blocks.back(), 0});
    commands.push_back({CacheCommand::Kind::kCopyBlock, slot, s.blocks.back(), match.tail});
  }
  if (match.positions > 0) {
    s.recheck_rows = match.recheck_rows;
    s.recheck_class = match.recheck_class;
    const auto cut = static_cast<BlockId>(match.snapshot_positions - match.positions +
                                          int64_t{match.recheck_rows});
    commands.push_back({CacheCommand::Kind::kRestore, slot, cut, match.snapshot});
  }
  s.computed = match.positions;
  cache_.open(slot, query, match);
}

// Whether the sequence waits for its proof in this step. Its rows, when they are still to come,
// take the place of those that it could generate.
bool Planner::unproved(SlotId slot, StepPlan& plan) {
  Sequence& s = at(slot);
  if (s.recheck_rows == 0) {
    if (cache_.trust(slot) == CacheIndex::Trust::kYes) return false;
    held_.push_back(slot);
    return true;
  }
  Slice slice;
  slice.slot = slot;
  slice.first_position = s.computed - s.recheck_rows;
  slice.rows = slice.decoder_rows = s.recheck_rows;
  slice.row_class = s.recheck_class;
  give_tokens(s, slice, plan);
  s.planned_rows = s.recheck_rows;
  plan.slices.push_back(slice);
  held_.push_back(slot);
  return true;
}

// What came from disk was not what this process computes: the cache drops it, and the sequence
// begins anew, at the head of its line.
void Planner::restart_untrue() {
  for (SlotId slot = 0; slot < options_.slots; ++slot) {
    if (sequences_[static_cast<size_t>(slot)].open && cache_.trust(slot) == CacheIndex::Trust::kNo)
      set_aside(slot, true);
  }
}

}  // namespace tensorfold
