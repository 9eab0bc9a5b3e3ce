// The planner's state machine. See the header for the policy; owner: the engine thread.
#include "engine/sched/planner.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {

Planner::Planner(const PlannerOptions& options, CacheIndex& cache)
    : options_(options), cache_(cache), ledger_(options.pool_blocks) {
  TF_CHECK(options.slots >= 1 && options.slots <= kSequencesMax);
  TF_CHECK(options.prefill_rows >= 1 && options.prefill_rows <= kPrefillRowsMax);
  TF_CHECK(options.draft_rows >= 0 && options.draft_rows <= kDraftRowsMax);
  TF_CHECK_GE(options.decoder_span, 1);
}

const Planner::Sequence& Planner::at(SlotId slot) const {
  TF_CHECK(slot >= 0 && slot < options_.slots);
  const Sequence& s = sequences_[static_cast<size_t>(slot)];
  TF_CHECK_MSG(s.open, "the slot is not open");
  return s;
}

Planner::Sequence& Planner::at(SlotId slot) {
  return const_cast<Sequence&>(std::as_const(*this).at(slot));
}

// ---------------------------------------------------------------- queue and admission

void Planner::enqueue(SequenceSpec spec) {
  TF_CHECK(!spec.prompt.empty());
  TF_CHECK_LE(blocks_for(static_cast<int64_t>(spec.prompt.size()) + spec.reply_tokens),
              spec.blocks);
  TF_CHECK_LE(spec.blocks, ledger_.total());
  (spec.background ? background_ : foreground_).push_back(std::move(spec));
}

bool Planner::remove(uint64_t request) {
  const auto is_it = [&](const SequenceSpec& s) { return s.request == request; };
  return std::erase_if(foreground_, is_it) + std::erase_if(background_, is_it) > 0;
}

std::vector<Admitted> Planner::admit() {
  std::vector<Admitted> out;
  while (admit_first(foreground_, out)) {
  }
  while (foreground_.empty() && admit_first(background_, out)) {
  }
  return out;
}

bool Planner::admit_first(std::deque<SequenceSpec>& queue, std::vector<Admitted>& out) {
  if (queue.empty()) return false;
  const auto begin = sequences_.begin();
  const auto slot_at =
      std::find_if(begin, begin + options_.slots, [](const Sequence& s) { return !s.open; });
  if (slot_at == begin + options_.slots || !ledger_.promise(queue.front().blocks)) return false;
  const auto slot = static_cast<SlotId>(slot_at - begin);
  Sequence& s = *slot_at;
  s = Sequence{};
  s.open = true;
  s.spec = std::move(queue.front());
  queue.pop_front();
  s.ids = std::move(s.spec.prompt);
  s.prompt_tokens = static_cast<int64_t>(s.ids.size());
  s.promised = s.spec.blocks;
  commands_.push_back({CacheCommand::Kind::kOpenSlot, slot, 0, 0});
  PrefixMatch match = cache_.match(s.ids, s.spec.cache_salt);
  TF_CHECK_LT(match.positions, s.prompt_tokens);
  if (match.positions > 0) {
    for (const BlockId b : match.blocks)
      commands_.push_back({CacheCommand::Kind::kAppendBlock, slot, b, 0});
    commands_.push_back({CacheCommand::Kind::kRestore, slot, 0, match.snapshot});
    s.shared = match.blocks.size();
    ledger_.release_promise(static_cast<int64_t>(s.shared));
    s.promised -= static_cast<int64_t>(s.shared);
    s.blocks = std::move(match.blocks);
    s.computed = match.positions;
  }
  out.push_back({s.spec.request, slot, s.computed});
  return true;
}

void Planner::close(SlotId slot) {
  Sequence& s = at(slot);
  commands_.push_back({CacheCommand::Kind::kCloseSlot, slot, 0, 0});
  for (size_t i = s.blocks.size(); i > s.shared; --i) ledger_.give_back(s.blocks[i - 1]);
  ledger_.release_promise(s.promised);
  s = Sequence{};
}

// ---------------------------------------------------------------- planning

bool Planner::generating(SlotId slot) const {
  const Sequence& s = at(slot);
  return s.computed >= s.prompt_tokens;
}

int64_t Planner::reply_left(SlotId slot) const {
  const Sequence& s = at(slot);
  return s.spec.reply_tokens - (static_cast<int64_t>(s.ids.size()) - s.prompt_tokens);
}

bool Planner::has_work() const { return !commands_.empty() || busy() > 0; }

StepPlan Planner::plan(std::span<const DraftChoice> choices, std::span<const SlotId> constrained,
                       int32_t mask_words) {
  StepPlan plan;
  plan.step = next_step_++;
  plan.commands = std::move(commands_);
  commands_.clear();
  for (SlotId slot = 0; slot < options_.slots; ++slot) {
    if (!sequences_[static_cast<size_t>(slot)].open) continue;
    TF_CHECK_MSG(at(slot).planned_rows == 0, "the last plan was not committed");
    if (!generating(slot)) continue;
    const auto choice = std::find_if(choices.begin(), choices.end(),
                                     [&](const DraftChoice& c) { return c.slot == slot; });
    add_generated(slot, choice == choices.end() ? DraftChoice{} : *choice, plan);
  }
  int64_t budget = options_.prefill_rows;
  for (const SlotId slot : prefill_order()) {
    Sequence& s = at(slot);
    const int64_t rows = std::min(budget, s.prompt_tokens - s.computed);
    if (rows == 0) {
      ++s.waited_steps;
      continue;
    }
    budget -= rows;
    add_chunk(slot, rows, plan);
  }
  const auto by_slot = [](const auto& a, const auto& b) { return a.slot < b.slot; };
  std::sort(plan.slices.begin(), plan.slices.end(), by_slot);
  std::sort(plan.samples.begin(), plan.samples.end(), by_slot);
  int32_t mask_rows = 0;
  for (SampleSpec& sample : plan.samples) {
    if (std::find(constrained.begin(), constrained.end(), sample.slot) == constrained.end())
      continue;
    sample.mask_slot = mask_rows;
    mask_rows += sample.verify_rows;
  }
  plan.mask_words = mask_rows > 0 ? mask_words : 0;
  plan.masks.resize(static_cast<size_t>(mask_rows) * static_cast<size_t>(mask_words));
  return plan;
}

std::vector<SlotId> Planner::prefill_order() const {
  struct Entry {
    int64_t key;
    uint64_t request;
    SlotId slot;
  };
  std::vector<Entry> entries;
  for (SlotId slot = 0; slot < options_.slots; ++slot) {
    if (!sequences_[static_cast<size_t>(slot)].open || generating(slot)) continue;
    const Sequence& s = at(slot);
    const int64_t left = s.prompt_tokens - s.computed;
    entries.push_back({left - s.waited_steps * options_.prefill_rows, s.spec.request, slot});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.key != b.key ? a.key < b.key : a.request < b.request;
  });
  std::vector<SlotId> order;
  order.reserve(entries.size());
  for (const Entry& e : entries) order.push_back(e.slot);
  return order;
}

void Planner::add_generated(SlotId slot, const DraftChoice& choice, StepPlan& plan) {
  Sequence& s = at(slot);
  const auto pending = static_cast<int32_t>(static_cast<int64_t>(s.ids.size()) - s.computed);
  const int64_t left = reply_left(slot);
  TF_CHECK(pending >= 1 && left >= 1);
  Slice slice;
  slice.slot = slot;
  slice.first_position = s.computed;
  slice.row_class = RowClass::kGenerated;
  int32_t verify_rows = 1;
  if (s.on_device) {
    const auto most = static_cast<int32_t>(std::min<int64_t>(s.drafts, left - 1));
    verify_rows += std::clamp(choice.verify, 0, most);
    slice.rows = verify_rows;
    slice.source = TokenSource::kDevice;
  } else {
    slice.rows = pending;
    give_tokens(s, slice, plan);
  }
  slice.decoder_rows = slice.rows;
  add_sample(s, slice, verify_rows, choice.propose, plan);
  cover(s, slot, slice.first_position + slice.rows, plan);
  s.planned_rows = slice.rows;
  plan.slices.push_back(slice);
}

void Planner::add_chunk(SlotId slot, int64_t rows, StepPlan& plan) {
  Sequence& s = at(slot);
  Slice slice;
  slice.slot = slot;
  slice.first_position = s.computed;
  slice.rows = static_cast<int32_t>(rows);
  give_tokens(s, slice, plan);
  const int64_t end = s.computed + rows;
  slice.decoder_floor = std::max<int64_t>(0, s.prompt_tokens - options_.decoder_span);
  slice.decoder_rows =
      static_cast<int32_t>(std::max<int64_t>(0, end - std::max(s.computed, slice.decoder_floor)));
  // The prompt's last row is sampled from, unless the reply's first token is already decided.
  const bool last = end == static_cast<int64_t>(s.ids.size());
  if (last && s.spec.reply_tokens > 0) add_sample(s, slice, 1, options_.draft_rows, plan);
  cover(s, slot, end, plan);
  s.planned_rows = rows;
  plan.slices.push_back(slice);
}

void Planner::give_tokens(const Sequence& s, Slice& slice, StepPlan& plan) const {
  slice.source = TokenSource::kGiven;
  slice.token_offset = static_cast<int32_t>(plan.tokens.size());
  const auto first = s.ids.begin() + static_cast<ptrdiff_t>(slice.first_position);
  plan.tokens.insert(plan.tokens.end(), first, first + slice.rows);
}

void Planner::add_sample(const Sequence& s, Slice& slice, int32_t verify_rows, int32_t propose,
                         StepPlan& plan) {
  SampleSpec sample = s.spec.sampling;
  sample.slot = slice.slot;
  sample.verify_rows = verify_rows;
  sample.position = slice.first_position + slice.rows - verify_rows + 1;
  sample.reply_position = s.prompt_tokens;
  sample.mask_slot = -1;
  // At least one token comes of this step, and the next step samples one after its last draft.
  const int64_t useful = reply_left(slice.slot) - 2;
  const int64_t most = s.spec.draft ? std::min<int64_t>(options_.draft_rows, useful) : 0;
  sample.draft_rows =
      static_cast<int32_t>(std::clamp<int64_t>(propose, 0, std::max<int64_t>(most, 0)));
  slice.logits_rows = verify_rows;
  plan.samples.push_back(std::move(sample));
}

void Planner::cover(Sequence& s, SlotId slot, int64_t positions, StepPlan& plan) {
  while (static_cast<int64_t>(s.blocks.size()) < blocks_for(positions)) {
    TF_CHECK_MSG(s.promised > 0, "a sequence outgrew its price");
    --s.promised;
    s.blocks.push_back(ledger_.take());
    plan.commands.push_back({CacheCommand::Kind::kAppendBlock, slot, s.blocks.back(), 0});
  }
}

// ---------------------------------------------------------------- commit

void Planner::advance(SlotId slot, std::span<const int32_t> tokens, int32_t drafts) {
  Sequence& s = at(slot);
  TF_CHECK_LT(0, s.planned_rows);
  // A slice of 1 + k rows of which the first `tokens` count; every other slice counts whole.
  const int64_t verified = s.on_device ? static_cast<int64_t>(tokens.size()) : s.planned_rows;
  TF_CHECK(verified >= 1 && verified <= s.planned_rows);
  s.computed += verified;
  s.planned_rows = 0;
  s.ids.insert(s.ids.end(), tokens.begin(), tokens.end());
  s.on_device = !tokens.empty();
  s.drafts = s.on_device ? drafts : 0;
  TF_CHECK_GE(reply_left(slot), 0);
  TF_CHECK(tokens.empty() || s.computed + 1 == static_cast<int64_t>(s.ids.size()));
}

void Planner::force(SlotId slot, int32_t token) {
  Sequence& s = at(slot);
  TF_CHECK_GE(reply_left(slot), 1);
  s.ids.push_back(token);
  s.on_device = false;
  s.drafts = 0;
}

int Planner::busy() const {
  return static_cast<int>(std::count_if(sequences_.begin(), sequences_.end(),
                                        [](const Sequence& s) { return s.open; }));
}

int Planner::prefilling() const {
  return static_cast<int>(
      std::count_if(sequences_.begin(), sequences_.end(),
                    [](const Sequence& s) { return s.open && s.computed < s.prompt_tokens; }));
}

}  // namespace tensorfold
