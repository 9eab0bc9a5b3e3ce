// The planner alone: chunks, rows, blocks and order, over random lives of many sequences, with a
// model of the slot state that refuses what a real one could not do.
#include "engine/sched/planner.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <random>
#include <set>

#include "engine/sched/admission.h"
#include "tests/engine/sched/planner_support.h"

using namespace tensorfold;

namespace {

// What a device would know, built from plans alone.
class SlotModel {
 public:
  explicit SlotModel(int64_t blocks) : owner_(static_cast<size_t>(blocks), -1) {}

  void apply(const StepPlan& plan) {
    for (const CacheCommand& c : plan.commands) command(c);
    std::set<SlotId> seen;
    for (const Slice& s : plan.slices) {
      BOOST_REQUIRE(seen.insert(s.slot).second);
      Slot& slot = slots_[s.slot];
      BOOST_REQUIRE(slot.open);
      BOOST_REQUIRE(s.first_position == slot.length);
      slot.length += s.rows;
      BOOST_REQUIRE(slot.length <= static_cast<int64_t>(slot.blocks.size()) * kBlockPositions);
    }
  }
  void accept(SlotId slot, int64_t length) { slots_[slot].length = length; }
  int64_t length(SlotId slot) { return slots_[slot].length; }
  int open() const {
    int n = 0;
    for (const auto& [id, s] : slots_) n += s.open;
    return n;
  }
  int64_t owned() const {
    return std::count_if(owner_.begin(), owner_.end(), [](int o) { return o >= 0; });
  }

 private:
  struct Slot {
    bool open = false;
    int64_t length = 0;
    std::vector<BlockId> blocks;
  };
  void command(const CacheCommand& c) {
    Slot& slot = slots_[c.slot];
    switch (c.kind) {
      case CacheCommand::Kind::kOpenSlot:
        BOOST_REQUIRE(!slot.open);
        slot = Slot{};
        slot.open = true;
        break;
      case CacheCommand::Kind::kCloseSlot:
        BOOST_REQUIRE(slot.open);
        for (const BlockId b : slot.blocks) owner_[static_cast<size_t>(b)] = -1;
        slot = Slot{};
        break;
      case CacheCommand::Kind::kAppendBlock:
        BOOST_REQUIRE(slot.open);
        BOOST_REQUIRE(owner_[static_cast<size_t>(c.block)] == -1);  // no writable block is shared
        owner_[static_cast<size_t>(c.block)] = c.slot;
        slot.blocks.push_back(c.block);
        break;
      default:
        BOOST_REQUIRE(false);
    }
  }
  std::map<SlotId, Slot> slots_;
  std::vector<int> owner_;
};

PlannerOptions random_options(std::mt19937_64& rng) {
  PlannerOptions options;
  options.slots = 1 + static_cast<int>(rng() % 6);
  options.prefill_rows = 1 + static_cast<int>(rng() % 600);
  options.pool_blocks = 4 + static_cast<int64_t>(rng() % 12);
  options.decoder_span = 1 + static_cast<int64_t>(rng() % 400);
  options.draft_rows = static_cast<int>(rng() % 6);
  return options;
}

// Many sequences through one planner, from a seed.
class RandomLife {
 public:
  explicit RandomLife(uint64_t seed)
      : rng_(seed),
        options_(random_options(rng_)),
        planner_(options_, cache_),
        model_(options_.pool_blocks) {}

  std::vector<std::string> run(int steps) {
    for (int step = 0; step < steps || planner_.has_work() || planner_.waiting() > 0; ++step) {
      if (step < steps) arrive();
      if (!queued_.empty() && rng_() % 9 == 0) {
        BOOST_REQUIRE(planner_.remove(*queued_.begin()));
        queued_.erase(queued_.begin());
      }
      admit();
      if (planner_.has_work()) one_step();
    }
    BOOST_REQUIRE(active_.empty() && queued_.empty());
    BOOST_REQUIRE(model_.open() == 0 && model_.owned() == 0);
    BOOST_REQUIRE(planner_.ledger().used() == 0 && planner_.ledger().promised() == 0);
    return digests_;
  }

 private:
  void arrive() {
    if (rng_() % 3 != 0) return;
    const int64_t most = options_.pool_blocks * kBlockPositions;
    const auto prompt = 1 + static_cast<int64_t>(rng_() % static_cast<uint64_t>(most - 1));
    const auto reply = static_cast<int64_t>(rng_() % static_cast<uint64_t>(most - prompt + 1)) % 40;
    if (reply == 0) return;
    planner_.enqueue(spec(next_, prompt, reply, rng_() % 4 == 0));
    queued_.insert(next_++);
  }

  void admit() {
    const std::vector<Admitted> admitted = planner_.admit();
    for (const SetAside& s : planner_.set_aside()) {
      BOOST_REQUIRE(active_.erase(s.slot) == 1);
      BOOST_REQUIRE(queued_.insert(s.request).second);
    }
    for (const Admitted& a : admitted) {
      BOOST_REQUIRE(queued_.erase(a.request) == 1);
      BOOST_REQUIRE(active_.emplace(a.slot, a.request).second);
    }
  }

  void one_step() {
    std::vector<DraftChoice> choices;
    for (const auto& [slot, request] : active_) {
      if (rng_() % 4)
        choices.push_back(
            {slot, static_cast<int32_t>(rng_() % 6), static_cast<int32_t>(rng_() % 6)});
    }
    const StepPlan plan = planner_.plan(choices, {}, 0);
    const auto decoded = decode_step_plan(encode_step_plan(plan));
    BOOST_REQUIRE_MESSAGE(decoded.ok(), decoded.status().message());
    digests_.push_back(step_plan_digest(plan));
    model_.apply(plan);
    int filled = 0;  // prompts, and replies that are fed again
    for (const Slice& s : plan.slices) {
      const bool replayed = s.source == TokenSource::kGiven && s.rows > kGivenRowsMax;
      if (s.row_class == RowClass::kPrompt || replayed) filled += s.rows;
    }
    BOOST_REQUIRE(filled <= options_.prefill_rows);
    for (const auto& [slot, request] : active_)
      BOOST_REQUIRE(slice_of(plan, slot) || !planner_.generating(slot));
    for (const Slice& s : plan.slices) commit(plan, s.slot);
    if (!active_.empty() && rng_() % 10 == 0) close(active_.begin()->first);
  }

  void commit(const StepPlan& plan, SlotId slot) {
    const auto sample = std::find_if(plan.samples.begin(), plan.samples.end(),
                                     [&](const SampleSpec& x) { return x.slot == slot; });
    if (sample == plan.samples.end()) return planner_.advance(slot, {}, 0);
    BOOST_REQUIRE(sample->verify_rows <= planner_.reply_left(slot));
    const auto accepted =
        1 + static_cast<int64_t>(rng_() % static_cast<uint64_t>(sample->verify_rows));
    const std::vector<int32_t> tokens(static_cast<size_t>(accepted), 5);
    model_.accept(slot, sample->position - 1 + accepted);
    planner_.advance(slot, tokens, sample->draft_rows);
    BOOST_REQUIRE(model_.length(slot) == planner_.computed(slot));
    if (planner_.reply_left(slot) > 0 && rng_() % 8 == 0) planner_.force(slot, 9);
    if (planner_.reply_left(slot) == 0 || rng_() % 20 == 0) close(slot);
  }

  void close(SlotId slot) {
    planner_.close(slot);
    active_.erase(slot);
  }

  std::mt19937_64 rng_;
  const PlannerOptions options_;
  EmptyCacheIndex cache_;
  Planner planner_;
  SlotModel model_;
  std::map<SlotId, uint64_t> active_;
  std::set<uint64_t> queued_;
  std::vector<std::string> digests_;
  uint64_t next_ = 1;
};

std::vector<std::string> random_life(uint64_t seed, int steps) {
  return RandomLife(seed).run(steps);
}

}  // namespace

BOOST_AUTO_TEST_CASE(random_lives_leak_nothing_and_repeat_exactly) {
  size_t plans = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    const auto first = random_life(seed, 60);
    plans += first.size();
    if (seed % 4 == 0) BOOST_REQUIRE(random_life(seed, 60) == first);
  }
  BOOST_TEST(plans > 20000U);
}

BOOST_AUTO_TEST_CASE(decoder_rows_cover_the_span_and_no_more_however_chunked) {
  for (const int chunk : {1, 7, 64, 100, 1000}) {
    for (const int64_t prompt : {1, 99, 100, 101, 163, 640}) {
      PlannerOptions options;
      options.slots = 1;
      options.prefill_rows = chunk;
      options.pool_blocks = 4;
      options.decoder_span = 100;
      EmptyCacheIndex cache;
      Planner planner(options, cache);
      planner.enqueue(spec(1, prompt, 1));
      BOOST_REQUIRE(planner.admit().size() == 1U);
      std::vector<int> runs(static_cast<size_t>(prompt), 0);
      int samples = 0;
      while (!planner.generating(0)) {
        const StepPlan plan = planner.plan({}, {}, 0);
        const Slice& s = plan.slices.at(0);
        BOOST_TEST(s.decoder_floor == std::max<int64_t>(0, prompt - 100));
        for (int r = s.rows - s.decoder_rows; r < s.rows; ++r)
          ++runs[static_cast<size_t>(s.first_position + r)];
        samples += static_cast<int>(plan.samples.size());
        BOOST_TEST((s.logits_rows == 1) == (s.first_position + s.rows == prompt));
        commit_plain(planner, plan);
      }
      BOOST_TEST(samples == 1);
      for (int64_t p = 0; p < prompt; ++p)
        BOOST_REQUIRE(runs[static_cast<size_t>(p)] == (p >= prompt - 100 ? 1 : 0));
    }
  }
}

BOOST_AUTO_TEST_CASE(short_prompts_jump_ahead_and_long_ones_do_not_starve) {
  PlannerOptions options;
  options.slots = 3;
  options.prefill_rows = 100;
  options.pool_blocks = 40;
  EmptyCacheIndex cache;
  Planner planner(options, cache);
  planner.enqueue(spec(1, 2000, 5));
  planner.admit();
  commit_plain(planner, planner.plan({}, {}, 0));
  planner.enqueue(spec(2, 90, 5));
  planner.admit();
  const StepPlan mixed = planner.plan({}, {}, 0);
  BOOST_REQUIRE(slice_of(mixed, 1));
  BOOST_TEST(slice_of(mixed, 1)->rows == 90);
  BOOST_TEST(slice_of(mixed, 0)->rows == 10);
  commit_plain(planner, mixed);
  planner.close(1);
  // Now a full chunk of short prompts arrives with every step: the long one has 1,890 rows left,
  // 19 chunks; it may wait 19 steps in a row, not for ever.
  uint64_t next = 3;
  int waited = 0;
  int longest = 0;
  int steps = 0;
  while (!planner.generating(0)) {
    BOOST_REQUIRE(++steps < 1000);
    planner.enqueue(spec(next++, 100, 1));
    planner.admit();
    const StepPlan plan = planner.plan({}, {}, 0);
    waited = slice_of(plan, 0) ? 0 : waited + 1;
    longest = std::max(longest, waited);
    commit_plain(planner, plan);
    for (const Slice& s : plan.slices) {
      if (s.slot != 0 && s.logits_rows > 0) planner.close(s.slot);
    }
  }
  BOOST_TEST(longest <= 19);
  BOOST_TEST(longest > 5);
}

BOOST_AUTO_TEST_CASE(replies_get_rows_in_every_step_while_a_prompt_fills) {
  PlannerOptions options;
  options.slots = 2;
  options.prefill_rows = 64;
  options.pool_blocks = 20;
  options.draft_rows = 5;
  EmptyCacheIndex cache;
  Planner planner(options, cache);
  planner.enqueue(spec(1, 10, 200));
  planner.admit();
  StepPlan plan = planner.plan({}, {}, 0);
  planner.advance(0, std::vector<int32_t>{1}, 5);
  planner.enqueue(spec(2, 640, 5));
  planner.admit();
  for (int step = 0; step < 10; ++step) {
    const DraftChoice choice{0, 3, 5};
    plan = planner.plan(std::span(&choice, 1), {}, 0);
    BOOST_REQUIRE(slice_of(plan, 0) && slice_of(plan, 1));
    BOOST_TEST(slice_of(plan, 0)->rows == 4);
    BOOST_TEST((slice_of(plan, 0)->source == TokenSource::kDevice));
    BOOST_TEST(slice_of(plan, 1)->rows == 64);
    planner.advance(0, std::vector<int32_t>{1, 2}, 5);
    planner.advance(1, step == 9 ? std::vector<int32_t>{1} : std::vector<int32_t>{}, 0);
  }
  BOOST_TEST(planner.generating(1));
}

BOOST_AUTO_TEST_CASE(drafts_behind_a_prompt_are_as_chosen) {
  for (const int32_t propose : {-1, 0, 3}) {
    PlannerOptions options;
    options.slots = 1;
    options.prefill_rows = 64;
    options.pool_blocks = 4;
    options.draft_rows = 5;
    EmptyCacheIndex cache;
    Planner planner(options, cache);
    planner.enqueue(spec(1, 100, 50));
    planner.admit();
    const DraftChoice choice{0, 0, propose};
    const auto choices = std::span(&choice, propose < 0 ? 0U : 1U);  // none: as many as may be
    StepPlan plan = planner.plan(choices, {}, 0);
    BOOST_TEST(plan.samples.empty());
    planner.advance(0, {}, 0);
    plan = planner.plan(choices, {}, 0);
    BOOST_REQUIRE(plan.samples.size() == 1U);
    BOOST_TEST(plan.samples[0].draft_rows == (propose < 0 ? 5 : propose));
  }
}

BOOST_AUTO_TEST_CASE(forced_tokens_are_given_with_what_was_not_computed_yet) {
  PlannerOptions options;
  options.slots = 1;
  options.pool_blocks = 2;
  options.draft_rows = 5;
  EmptyCacheIndex cache;
  Planner planner(options, cache);
  planner.enqueue(spec(1, 3, 20));
  planner.admit();
  planner.plan({}, {}, 0);
  planner.advance(0, std::vector<int32_t>{50}, 5);
  planner.force(0, 60);
  const DraftChoice choice{0, 5, 5};
  const StepPlan plan = planner.plan(std::span(&choice, 1), {}, 0);
  BOOST_TEST((plan.tokens == std::vector<int32_t>{50, 60}));
  BOOST_TEST(plan.slices[0].first_position == 3);
  BOOST_TEST((plan.slices[0].row_class == RowClass::kGenerated));
  BOOST_TEST(plan.slices[0].logits_rows == 1);
  BOOST_TEST(plan.samples[0].position == 5);
  BOOST_TEST(plan.samples[0].reply_position == 3);
  planner.advance(0, std::vector<int32_t>{70}, 0);
  BOOST_TEST(planner.computed(0) == 5);
  BOOST_TEST(planner.reply_left(0) == 17);
}

// Keeps the whole blocks of the sequence that ended first, and the block behind them as a tail of
// 88 positions; says that they hold the prefix of every longer prompt of salt "a".
class OnePrefix final : public EmptyCacheIndex {
 public:
  PrefixMatch match(const PrefixQuery& query) override {
    if (query.ids.size() <= 601 || query.salt != "a" || blocks.empty()) return {};
    return {600, blocks, tail, 77, 601};
  }
  void close(const SequenceView& s, SequenceEnd end, BlockLedger& ledger, CacheCommands&) override {
    BOOST_TEST((end == SequenceEnd::kWhole));
    if (!blocks.empty()) return;
    blocks.assign(s.blocks.begin(), s.blocks.begin() + 2);
    tail = s.blocks[2];
    for (const BlockId b : s.blocks.first(3)) ledger.keep(b);
  }
  std::vector<BlockId> blocks;
  BlockId tail = -1;
};

BOOST_AUTO_TEST_CASE(a_cached_prefix_is_not_computed_again) {
  OnePrefix cache;
  PlannerOptions options;
  options.slots = 1;
  options.pool_blocks = 8;
  Planner planner(options, cache);
  planner.enqueue(spec(1, 600, 10));
  BOOST_REQUIRE(planner.admit().size() == 1U);
  (void)planner.plan({}, {}, 0);
  planner.advance(0, std::vector<int32_t>{1}, 0);
  planner.close(0);
  BOOST_TEST(planner.ledger().used() == 0);
  BOOST_TEST(planner.ledger().cached() == 3);
  (void)planner.plan({}, {}, 0);

  SequenceSpec s = spec(2, 700, 10);
  s.cache_salt = "a";
  planner.enqueue(std::move(s));
  const auto admitted = planner.admit();
  BOOST_REQUIRE(admitted.size() == 1U);
  BOOST_TEST(admitted[0].cached_positions == 600);
  const StepPlan plan = planner.plan({}, {}, 0);
  using Kind = CacheCommand::Kind;
  const Kind kinds[] = {Kind::kOpenSlot,    Kind::kAppendBlock, Kind::kAppendBlock,
                        Kind::kAppendBlock, Kind::kCopyBlock,   Kind::kRestore};
  BOOST_REQUIRE(plan.commands.size() == std::size(kinds));
  for (size_t i = 0; i < std::size(kinds); ++i) BOOST_TEST((plan.commands[i].kind == kinds[i]));
  BOOST_TEST(plan.commands[1].block == cache.blocks[0]);
  BOOST_TEST(plan.commands[3].block == plan.commands[4].block);
  BOOST_TEST(plan.commands[4].block != cache.tail);
  BOOST_TEST(plan.commands[4].value == cache.tail);
  BOOST_TEST(plan.commands[5].value == 77);
  BOOST_TEST(plan.commands[5].block == 1);  // cut back by
  BOOST_TEST(plan.slices[0].first_position == 600);
  BOOST_TEST(plan.slices[0].rows == 100);
  BOOST_TEST(plan.tokens[0] == (31 * 2 + 600) % 1000);
  BOOST_TEST(planner.ledger().used() == 3);  // two shared, one its own
  planner.advance(0, std::vector<int32_t>{1}, 0);
  planner.close(0);
  BOOST_TEST(planner.ledger().used() == 0);
  BOOST_TEST(planner.ledger().cached() == 3);
  BOOST_TEST(planner.ledger().promised() == 0);
}

BOOST_AUTO_TEST_CASE(prices_and_what_never_fits) {
  const Capacity capacity{1000, 3};  // the pool is the tighter bound: 768
  BOOST_TEST(capacity.positions_max() == 768);
  const auto fits = price_request(capacity, 700, 68, false);
  BOOST_REQUIRE(fits.ok());
  BOOST_TEST(fits->blocks == 3);
  BOOST_TEST(fits->reply_tokens == 68);
  const auto over = price_request(capacity, 700, 69, false);
  BOOST_REQUIRE(!over.ok());
  BOOST_TEST((over.status().code() == StatusCode::kInvalidArgument));
  BOOST_TEST(over.status().reason() == "context_length_exceeded");
  BOOST_TEST(over.status().param() == "messages");
  BOOST_TEST(over.status().message().find(
                 "This server's maximum context length is 768 tokens. However, you requested 769 "
                 "tokens (700 in the messages, 69 in the completion).") == 0U);
  BOOST_TEST(price_request(capacity, 768, std::nullopt, true).status().param() == "prompt");
  const auto open = price_request(capacity, 760, std::nullopt, true);
  BOOST_REQUIRE(open.ok());
  BOOST_TEST(open->reply_tokens == 8);
  BOOST_TEST(price_request(capacity, 768, 0, true).ok());
  BOOST_TEST(price_request(capacity, 10, -1, true).status().param() == "max_tokens");
  BOOST_TEST(!price_request(capacity, 0, 5, true).ok());
  BOOST_TEST(price_request(Capacity{1000, 1 << 20}, 900, 100, true).ok());
  BOOST_TEST(!price_request(Capacity{1000, 1 << 20}, 900, 101, true).ok());
}
