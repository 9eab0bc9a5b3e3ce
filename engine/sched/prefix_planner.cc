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
  query.head_tokens = spec.head_tokens;
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
  return cache_.ready(query_of(spec, spec.prompt, static_cast<int64_t>(spec.prompt.size())),
  if (spec.sampling.prompt_logprobs >= 0) return true;  // it starts from nothing
                      ledger_, commands_);
}

// Promises the sequence its blocks and lets it start behind the longest match.
void Planner::start_behind_match(Sequence& s, int64_t reserve, SlotId slot) {
  const PrefixQuery query = query_of(s.spec, s.ids, s.prompt_tokens);
  PrefixMatch match = cache_.match(query);
  TF_CHECK_LT(match.positions, static_cast<int64_t>(s.ids.size()));
  s.promised = reserve - static_cast<int64_t>(match.blocks.size());
  if (scores(s)) match = {};  // every row of its prompt is looked at
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
    const auto cut = static_cast<BlockId>(match.snapshot_positions - match.positions);
    commands.push_back({CacheCommand::Kind::kRestore, slot, cut, match.snapshot});
  }
  s.computed = match.positions;
  cache_.open(slot, query, match);
}

}  // namespace tensorfold
