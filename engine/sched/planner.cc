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
  queue_.push(std::move(spec));
}

bool Planner::remove(uint64_t request) { return queue_.remove(request); }

std::vector<Admitted> Planner::admit() {
  std::vector<Admitted> out;
  set_aside_.clear();
  restart_untrue();
  grow();
  bool by_right = false;
  while (const SequenceSpec* head = queue_.next(by_right)) {
    if (!room_for(*head) && (head->background || !make_room(*head))) break;
    const bool stays = by_right || head->set_aside >= kSetAsideMax;
    out.push_back(open(queue_.pop(), stays));
  }
  return out;
}

bool Planner::room_for(const SequenceSpec& spec) const {
  return busy() < options_.slots && pool_has(spec);
}

Admitted Planner::open(SequenceSpec spec, bool stays) {
  const auto at =
      std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& x) { return !x.open; });
  const auto slot = static_cast<SlotId>(at - sequences_.begin());
  TF_CHECK_LT(slot, options_.slots);
  const int64_t reserve = reserve_of(spec);
  Sequence& s = *at;
  s = Sequence{};
  s.open = true;
  s.stays = stays;
  s.spec = std::move(spec);
  s.ids = std::move(s.spec.prompt);
  s.prompt_tokens = static_cast<int64_t>(s.ids.size());
  s.ids.insert(s.ids.end(), s.spec.reply.begin(), s.spec.reply.end());
  s.spec.reply.clear();
  start_behind_match(s, reserve, slot);
  return {s.spec.request, slot, s.computed, s.spec.set_aside > 0};
}

void Planner::close(SlotId slot, bool spoiled) {
  Sequence& s = at(slot);
  const SequenceEnd unspoiled = s.planned_rows == 0 ? SequenceEnd::kWhole : SequenceEnd::kCut;
  cache_.close(view(slot), spoiled ? SequenceEnd::kSpoiled : unspoiled, ledger_, commands_);
  commands_.commands.push_back({CacheCommand::Kind::kCloseSlot, slot, 0, 0});
  for (size_t i = s.blocks.size(); i > 0; --i) ledger_.give_back(s.blocks[i - 1]);
  ledger_.release_promise(s.promised);
  s = Sequence{};
}

// ---------------------------------------------------------------- setting aside

int64_t Planner::blocks_held(const Sequence& s) const {
  const auto sole = [&](BlockId block) { return ledger_.held_by_one(block); };
  return std::count_if(s.blocks.begin(), s.blocks.end(), sole) + s.promised;
}

bool Planner::make_room(const SequenceSpec& spec) {
  const std::vector<SlotId> slots = least_to_set_aside(spec);
  for (const SlotId slot : slots) set_aside(slot);
  return !slots.empty();
}

// Background sequences whose room is enough, newest first; none when all of it would not be.
std::vector<SlotId> Planner::least_to_set_aside(const SequenceSpec& spec) const {
  std::vector<SlotId> slots;
  for (SlotId slot = 0; slot < options_.slots; ++slot) {
    const Sequence& s = sequences_[static_cast<size_t>(slot)];
    if (s.open && s.spec.background && !s.stays) slots.push_back(slot);
  }
  // First those that lose least.
  std::sort(slots.begin(), slots.end(), [&](SlotId a, SlotId b) {
    return at(a).computed != at(b).computed ? at(a).computed < at(b).computed
                                            : at(a).spec.request > at(b).spec.request;
  });
  const size_t least = busy() < options_.slots ? 0 : 1;
  int64_t wanted = reserve_of(spec) + growing();
  int64_t blocks = ledger_.unpromised() + ledger_.cached();
  size_t taken = 0;
  for (; taken < slots.size() && (taken < least || blocks < wanted); ++taken) {
    blocks += blocks_held(at(slots[taken]));
    wanted -= grows(at(slots[taken])) ? 1 : 0;
  }
  if (taken < least || blocks < wanted) return {};
  slots.resize(taken);
  // Without those that turned out not to be needed: they would only have to come back.
  std::erase_if(slots, [&](SlotId slot) {
    const int64_t held = blocks_held(at(slot));
    const int64_t more = grows(at(slot)) ? 1 : 0;
    if (taken <= least || blocks - held < wanted + more) return false;
    blocks -= held;
    wanted += more;
    --taken;
    return true;
  });
  std::sort(slots.begin(), slots.end(),
            [&](SlotId a, SlotId b) { return at(a).spec.request > at(b).spec.request; });
  return slots;
}

void Planner::set_aside(SlotId slot, bool spoiled) {
  const Sequence& s = at(slot);
  SequenceSpec spec = s.spec;
  const auto reply = s.ids.begin() + static_cast<ptrdiff_t>(s.prompt_tokens);
  spec.prompt.assign(s.ids.begin(), reply);
  spec.reply.assign(reply, s.ids.end());
  ++spec.set_aside;
  close(slot, spoiled);  // else the cache may keep what it has: it still sees its ids
  set_aside_.push_back({spec.request, slot});
  queue_.push_front(std::move(spec));
}

// ---------------------------------------------------------------- planning

int64_t Planner::fill_left(SlotId slot) const {
  const Sequence& s = at(slot);
  const int64_t left = static_cast<int64_t>(s.ids.size()) - s.computed;
  return s.computed < s.prompt_tokens || left > kGivenRowsMax ? left : 0;
}

int64_t Planner::reply_left(SlotId slot) const {
  const Sequence& s = at(slot);
  return s.spec.reply_tokens - (static_cast<int64_t>(s.ids.size()) - s.prompt_tokens);
}

bool Planner::has_work() const { return !commands_.empty() || busy() > 0 || cache_.has_commands(); }

StepPlan Planner::plan(std::span<const DraftChoice> choices, std::span<const SlotId> constrained,
                       int32_t mask_words) {
  StepPlan plan;
  plan.step = next_step_++;
  cache_.take_commands(commands_);
  plan.commands = std::move(commands_.commands);
  plan.notes = std::move(commands_.notes);
  commands_ = {};
  held_.clear();
  for (const DraftChoice& c : choices) {
    if (c.held) held_.push_back(c.slot);
  }
  for (SlotId slot = 0; slot < options_.slots; ++slot) {
    if (!sequences_[static_cast<size_t>(slot)].open) continue;
    TF_CHECK_MSG(at(slot).planned_rows == 0, "the last plan was not committed");
    const auto choice = std::find_if(choices.begin(), choices.end(),
                                     [&](const DraftChoice& c) { return c.slot == slot; });
    at(slot).propose = choice == choices.end() ? options_.draft_rows : choice->propose;
    if (unproved(slot, plan) || !generating(slot) || held(slot)) continue;
    add_generated(slot, choice == choices.end() ? DraftChoice{} : *choice, plan);
  }
  fill(plan);
  const auto by_slot = [](const auto& a, const auto& b) { return a.slot < b.slot; };
  std::sort(plan.slices.begin(), plan.slices.end(), by_slot);
  std::sort(plan.samples.begin(), plan.samples.end(), by_slot);
  int32_t mask_rows = 0;
  for (SampleSpec& sample : plan.samples) {
    if (sample.verify_rows == 0 ||
        std::find(constrained.begin(), constrained.end(), sample.slot) == constrained.end())
      continue;
    sample.mask_slot = mask_rows;
    mask_rows += sample.verify_rows;
  }
  plan.mask_words = mask_rows > 0 ? mask_words : 0;
  plan.masks.resize(static_cast<size_t>(mask_rows) * static_cast<size_t>(mask_words));
  return plan;
}

bool Planner::held(SlotId slot) const {
  return std::find(held_.begin(), held_.end(), slot) != held_.end();
}

void Planner::fill(StepPlan& plan) {
  std::vector<FillDemand> demands;
  const SlotId scored = next_scored();
  for (SlotId slot = 0; slot < options_.slots; ++slot) {
    const Sequence& s = sequences_[static_cast<size_t>(slot)];
    if (!s.open || generating(slot) || held(slot)) continue;
    if (scores(s) && s.computed < s.prompt_tokens && slot != scored) {
      ++at(slot).waited_steps;
      continue;
    }
    FillDemand d;
    d.slot = slot;
    d.request = s.spec.request;
    d.client = s.spec.client;
    d.left = fill_left(slot);
    d.generated = s.computed >= s.prompt_tokens;
    // A chunk ends where the cache wants to save its state; the rest of the rows is for others.
    d.most =
        d.generated ? d.left : cache_.chunk_end(slot, s.computed, s.prompt_tokens) - s.computed;
    if (slot == scored) d.most = std::min<int64_t>(d.most, kScoredRowsMax);
    d.waited_steps = s.waited_steps;
    demands.push_back(std::move(d));
  }
  shares_.deal(demands, options_.prefill_rows, kGeneratedRowsMax - plan.total_rows());
  for (const FillDemand& d : demands) {
    if (d.rows == 0) {
      ++at(d.slot).waited_steps;
    } else if (d.generated) {
      add_replayed(d.slot, d.rows, plan);
    } else {
      add_chunk(d.slot, d.rows, plan);
    }
  }
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
  if (s.on_device && !choice.given.empty()) {
    const auto most = std::min<int64_t>(options_.draft_rows, left - 1);
    verify_rows += static_cast<int32_t>(std::min<int64_t>(std::ssize(choice.given), most));
    slice.rows = 1;
    give_tokens(s, slice, plan);  // the last known one
    slice.rows = verify_rows;
    plan.tokens.insert(plan.tokens.end(), choice.given.begin(),
                       choice.given.begin() + (verify_rows - 1));
  } else if (s.on_device) {
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
  if (scores(s)) return add_scored(slot, rows, plan);
  Slice slice;
  slice.slot = slot;
  slice.first_position = s.computed;
  slice.rows = static_cast<int32_t>(rows);
  give_tokens(s, slice, plan);
  const int64_t end = s.computed + rows;
  const int64_t until = cache_.decoder_until(slot, s.computed, s.prompt_tokens);
  slice.decoder_floor = std::max<int64_t>(0, until - options_.decoder_span);
  slice.decoder_rows =
      static_cast<int32_t>(std::max<int64_t>(0, end - std::max(s.computed, slice.decoder_floor)));
  // The prompt's last row is sampled from, unless the reply's first token is already decided.
  const bool last = end == static_cast<int64_t>(s.ids.size());
  if (last && s.spec.reply_tokens > 0) add_sample(s, slice, 1, s.propose, plan);
  cover(s, slot, end, plan);
  s.planned_rows = rows;
  plan.slices.push_back(slice);
}

// Rows of a reply that was there before: generated rows whose tokens are known.
void Planner::add_replayed(SlotId slot, int64_t rows, StepPlan& plan) {
  Sequence& s = at(slot);
  Slice slice;
  slice.slot = slot;
  slice.first_position = s.computed;
  slice.rows = static_cast<int32_t>(rows);
  slice.row_class = RowClass::kGenerated;
  slice.decoder_rows = slice.rows;
  give_tokens(s, slice, plan);
  const int64_t end = s.computed + rows;
  if (end == static_cast<int64_t>(s.ids.size())) add_sample(s, slice, 1, s.propose, plan);
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
  if (s.recheck_rows > 0) {
    s.planned_rows = s.recheck_rows = 0;
    return cache_.recomputed(slot, commands_);
  }
  const int64_t verified = s.on_device ? static_cast<int64_t>(tokens.size()) : s.planned_rows;
  TF_CHECK(verified >= 1 && verified <= s.planned_rows);
  s.computed += verified;
  s.planned_rows = 0;
  s.ids.insert(s.ids.end(), tokens.begin(), tokens.end());
  s.on_device = !tokens.empty();
  s.drafts = s.on_device ? drafts : 0;
  TF_CHECK_GE(reply_left(slot), 0);
  TF_CHECK(tokens.empty() || s.computed + 1 == static_cast<int64_t>(s.ids.size()));
  cache_.advanced(view(slot), ledger_, commands_);
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
  int n = 0;
  for (SlotId slot = 0; slot < options_.slots; ++slot)
    n += sequences_[static_cast<size_t>(slot)].open && !generating(slot);
  return n;
}

}  // namespace tensorfold
