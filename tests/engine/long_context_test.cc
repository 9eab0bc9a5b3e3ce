// A sequence of 1,048,576 positions, through everything but the arithmetic itself: what it costs in
// the published model, its price, its plans to the very last position, its blocks, rings, snapshots
// and step rows. Memory is sparse: pages that nobody writes cost nothing.
#include <boost/test/unit_test.hpp>
#include <numeric>

#include "engine/cache/cache_layout.h"
#include "engine/cache/sequence_cache.h"
#include "engine/model/config.h"
#include "engine/sched/admission.h"
#include "engine/sched/planner.h"

using namespace tensorfold;

namespace {

constexpr int64_t kPositions = int64_t{1} << 20;
constexpr int64_t kBlocks = kPositions / kBlockPositions;

ModelConfig published() {
  auto config = load_model_config(TF_TEST_DATA "/weights/config_published.json");
  BOOST_REQUIRE_MESSAGE(config.ok(), config.status().message());
  return std::move(*config);
}

// A quarter of the published model's heads: rings and blocks small enough to be touched.
ModelConfig narrow() {
  ModelConfig c = published();
  c.head_dim = 64;
  c.index_head_dim = 32;
  return c;
}

SequenceSpec long_spec(int64_t prompt, int64_t reply) {
  SequenceSpec s;
  s.request = 1;
  s.prompt.resize(static_cast<size_t>(prompt));
  for (size_t i = 0; i < s.prompt.size(); ++i)
    s.prompt[i] = static_cast<int32_t>(i * 2'654'435'761U % 129'000);
  s.reply_tokens = reply;
  s.blocks = blocks_for(prompt + reply);
  return s;
}

}  // namespace

BOOST_AUTO_TEST_CASE(memory_per_token_of_the_published_model) {
  const ModelConfig config = published();
  const auto layout = make_cache_layout(config, 4, 0, 0);
  BOOST_REQUIRE(layout.ok());
  BOOST_TEST(layout->context == kPositions);
  BOOST_TEST(layout->pool_blocks == 4 * kBlocks);
  // 2.5 entries a position (three sources of one a pair, one of one each) of 288 + 68 bytes.
  BOOST_TEST(static_cast<double>(layout->block_bytes) / kBlockPositions == 890.0);
  const int64_t fixed =
      layout->rings() * layout->ring_bytes + layout->pair_floats * int64_t{sizeof(float)};
  BOOST_TEST_MESSAGE("890 bytes a position; " << fixed << " fixed a sequence; " << layout->bytes()
                                              << " for four of 1,048,576");
  BOOST_TEST(fixed < 5'000'000);
  BOOST_TEST(layout->bytes() == 4 * (kPositions * 890 + fixed));
}

BOOST_AUTO_TEST_CASE(a_million_tokens_and_not_one_more_have_a_price) {
  const Capacity capacity{kPositions, 4 * kBlocks};
  const auto whole = price_request(capacity, kPositions - 1, std::nullopt, false);
  BOOST_REQUIRE(whole.ok());
  BOOST_TEST(whole->reply_tokens == 1);
  BOOST_TEST(whole->blocks == kBlocks);
  BOOST_TEST(price_request(capacity, kPositions, 0, false).ok());
  const auto over = price_request(capacity, kPositions, 1, false);
  BOOST_TEST(over.status().reason() == "context_length_exceeded");
  BOOST_TEST(over.status().message().find("maximum context length is 1048576 tokens. However, you "
                                          "requested 1048577 tokens") != std::string::npos);
  // Sums that would not fit in 32 bits.
  const auto absurd = price_request(capacity, int64_t{1} << 40, INT32_MAX, true);
  BOOST_TEST(absurd.status().reason() == "context_length_exceeded");
}

BOOST_AUTO_TEST_CASE(plans_reach_the_last_position) {
  constexpr int64_t kReply = 40;
  for (const int prefill_rows : {2048, 8192}) {
    PlannerOptions options;
    options.slots = 1;
    options.prefill_rows = prefill_rows;
    options.pool_blocks = kBlocks;
    options.decoder_span = 128 + 127 * 19;
    options.draft_rows = 5;
    EmptyCacheIndex cache;
    Planner planner(options, cache);
    const SequenceSpec asked = long_spec(kPositions - kReply, kReply);
    planner.enqueue(asked);
    BOOST_REQUIRE(planner.admit().size() == 1U);
    std::vector<BlockId> table;
    int64_t length = 0;
    int64_t decoder_rows = 0;
    while (planner.reply_left(0) > 0) {
      const DraftChoice choice{0, 5, 5};
      const StepPlan plan = planner.plan(std::span(&choice, 1), {}, 0);
      const auto decoded = decode_step_plan(encode_step_plan(plan));
      BOOST_REQUIRE_MESSAGE(decoded.ok(), decoded.status().message());
      BOOST_REQUIRE(step_plan_digest(*decoded) == step_plan_digest(plan));
      for (const CacheCommand& c : decoded->commands)
        if (c.kind == CacheCommand::Kind::kAppendBlock) table.push_back(c.block);
      BOOST_REQUIRE(decoded->slices.size() == 1U);
      const Slice& s = decoded->slices[0];
      BOOST_REQUIRE(s.first_position == length);
      length += s.rows;
      BOOST_REQUIRE(length <= static_cast<int64_t>(table.size()) * kBlockPositions);
      if (s.row_class == RowClass::kPrompt) {
        decoder_rows += s.decoder_rows;
        BOOST_REQUIRE(decoded->tokens[0] == asked.prompt[static_cast<size_t>(s.first_position)]);
        BOOST_REQUIRE(s.decoder_floor == kPositions - kReply - options.decoder_span);
      }
      if (decoded->samples.empty()) {
        planner.advance(0, {}, 0);
        continue;
      }
      const SampleSpec& sample = decoded->samples[0];
      BOOST_REQUIRE(sample.position == length - sample.verify_rows + 1);
      const std::vector<int32_t> tokens(static_cast<size_t>(sample.verify_rows), 9);
      planner.advance(0, tokens, sample.draft_rows);
    }
    BOOST_TEST(length == kPositions - 1);  // the last token is not computed any more
    BOOST_TEST(decoder_rows == options.decoder_span);
    BOOST_TEST(static_cast<int64_t>(table.size()) == kBlocks);
    planner.close(0);
    BOOST_TEST(planner.ledger().used() == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_sequence_holds_a_million_positions_and_no_more) {
  const auto layout = make_cache_layout(narrow(), 1, kPositions, kBlocks, int64_t{8} << 20);
  BOOST_REQUIRE(layout.ok());
  auto cache = SequenceCache::create(*layout);
  BOOST_REQUIRE_MESSAGE(cache.ok(), cache.status().message());
  using Kind = CacheCommand::Kind;
  BOOST_REQUIRE(cache->apply({Kind::kOpenSlot, 0, 0, 0}).ok());
  for (int64_t b = kBlocks - 1; b >= 0; --b)
    BOOST_REQUIRE(cache->apply({Kind::kAppendBlock, 0, static_cast<BlockId>(b), 0}).ok());
  BOOST_TEST(!cache->apply({Kind::kAppendBlock, 0, 0, 0}).ok());
  SequenceState& state = *cache->find(0);
  for (int64_t p = 0; p < kPositions; ++p) state.append(static_cast<int32_t>(p % 1000), 7);
  state.note_ring_writes();
  BOOST_TEST(state.length() == kPositions);
  BOOST_TEST(cache->check_writable(state, kPositions - 1, kPositions).ok());
  const Status past = cache->check_writable(state, kPositions, kPositions + 1);
  BOOST_TEST(past.message().find("position 1048576 is past the context") != std::string::npos);
  // Bytes of the last position's block: the first of the pool, as the table is turned around.
  const auto last = state.blocks()[static_cast<size_t>(kBlocks - 1)];
  BOOST_TEST(last == 0);
  BOOST_TEST(layout->pool_blocks * layout->block_bytes > int64_t{100} << 20);
  // Rollback by length and rings saved at the end.
  BOOST_REQUIRE(cache->apply({Kind::kTruncate, 0, 0, kPositions - 5}).ok());
  BOOST_TEST(!cache->apply({Kind::kTruncate, 0, 0, kPositions / 2}).ok());
  BOOST_REQUIRE(cache->apply({Kind::kSnapshot, 0, 0, 77}).ok());
  BOOST_REQUIRE(cache->apply({Kind::kCloseSlot, 0, 0, 0}).ok());
  BOOST_REQUIRE(cache->apply({Kind::kOpenSlot, 0, 0, 0}).ok());
  for (int64_t b = kBlocks - 1; b >= 0; --b)
    BOOST_REQUIRE(cache->apply({Kind::kAppendBlock, 0, static_cast<BlockId>(b), 0}).ok());
  const Status restored = cache->apply({Kind::kRestore, 0, 0, 77});
  BOOST_REQUIRE_MESSAGE(restored.ok(), restored.message());
  BOOST_TEST(state.length() == kPositions - 5);
  BOOST_TEST(state.ids()[static_cast<size_t>(kPositions - 6)] == (kPositions - 6) % 1000);
}
