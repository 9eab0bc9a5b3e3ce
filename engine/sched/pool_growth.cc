// How much of the pool a sequence has while it runs, and what happens when the pool is short
// (engine/sched/planner.h). Owner: the engine thread.
//
// A sequence is admitted with blocks for what is known of it and an allowance for its reply, and
// gets more as it grows. When there are none, sequences that are junior to it are set aside, the
// most junior first; when there is none of those, it is set aside itself. Foreground is senior to
// background, and who came first is senior to who came later. So the most senior one always goes
// on, alone it has all that it was priced at, and nothing ever fails for lack of blocks.
#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/sched/planner.h"

namespace tensorfold {

// Who was set aside comes back with room for more, so that it is not pushed out again at once.
int64_t Planner::reserve_of(const SequenceSpec& spec) const {
  const auto known = static_cast<int64_t>(spec.prompt.size() + spec.reply.size());
  const int64_t doubled = std::min(spec.set_aside, kAllowanceDoublingsMax);
  const int64_t allowance = std::max<int64_t>(options_.reply_allowance, 1 + kDraftRowsMax)
                            << doubled;
  const int64_t most = static_cast<int64_t>(spec.prompt.size()) + spec.reply_tokens;
  return std::min(spec.blocks, blocks_for(std::min(most, known + allowance)));
}

bool Planner::grows(const Sequence& s) {
  return s.open && static_cast<int64_t>(s.blocks.size()) + s.promised < s.spec.blocks;
}

// Each of them should find one block at least when others come.
int64_t Planner::growing() const {
  return std::count_if(sequences_.begin(), sequences_.end(), grows);
}

// Blocks that the sequence lacks for the next step, whatever it will be.
int64_t Planner::lacking(const Sequence& s) const {
  const int64_t next = static_cast<int64_t>(s.ids.size()) + options_.draft_rows;
  const int64_t most = s.prompt_tokens + s.spec.reply_tokens;
  const int64_t held = static_cast<int64_t>(s.blocks.size()) + s.promised;
  return std::max<int64_t>(0, blocks_for(std::min(next, most)) - held);
}

bool Planner::junior(const Sequence& a, const Sequence& b) {
  // Background that stays has given way often enough.
  const bool low_a = a.spec.background && !a.stays;
  const bool low_b = b.spec.background && !b.stays;
  return low_a != low_b ? low_a : a.spec.request > b.spec.request;
}

void Planner::grow() {
  std::vector<SlotId> order;
  for (SlotId slot = 0; slot < options_.slots; ++slot) {
    const Sequence& s = sequences_[static_cast<size_t>(slot)];
    if (s.open) order.push_back(slot);
  }
  std::sort(order.begin(), order.end(), [&](SlotId a, SlotId b) { return junior(at(b), at(a)); });
  // The most senior first; those set aside are taken from the end.
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t blocks = lacking(at(order[i]));
    if (blocks == 0) continue;
    while (!extend(at(order[i]), blocks)) {
      const SlotId last = order.back();
      order.pop_back();
      set_aside(last);
      if (order.size() == i) break;  // it was itself the most junior
    }
  }
}

bool Planner::extend(Sequence& s, int64_t blocks) {
  if (!cache_.reclaim(blocks, {}, ledger_, commands_)) return false;
  TF_CHECK(ledger_.promise(blocks));
  s.promised += blocks;
  return true;
}

}  // namespace tensorfold
