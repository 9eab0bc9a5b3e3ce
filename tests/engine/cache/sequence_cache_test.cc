// Cache commands, reference counts, rollback and snapshots of engine/cache.
#include "engine/cache/sequence_cache.h"

#include <boost/test/unit_test.hpp>

#include "kernels/formats.h"

namespace tensorfold {
namespace {

using Kind = CacheCommand::Kind;

ModelConfig small_config() {
  ModelConfig c;
  c.layers = 4;
  c.decoder_start = 2;
  c.head_dim = 64;
  c.index_head_dim = 32;
  c.window = 32;
  c.max_positions = 2048;
  c.dspark.stages = 1;
  c.roles.resize(4);
  c.roles[1].ratio = 2;
  c.roles[1].kv_source = 1;
  c.roles[2].ratio = c.roles[3].ratio = 1;
  c.roles[2].kv_source = c.roles[3].kv_source = 2;
  return c;
}

SequenceCache make_cache(int slots = 2, int64_t blocks = 6) {
  Result<CacheLayout> layout = make_cache_layout(small_config(), slots, 1024, blocks, 1 << 20);
  BOOST_REQUIRE(layout.ok());
  Result<SequenceCache> cache = SequenceCache::create(*layout);
  BOOST_REQUIRE(cache.ok());
  return std::move(*cache);
}

void grow(SequenceState& state, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) state.append(static_cast<int32_t>(state.length()), 7);
  state.note_ring_writes();
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_block_holds_the_entries_of_256_positions) {
  const Result<CacheLayout> l = make_cache_layout(small_config(), 2, 1000, 0);
  BOOST_REQUIRE(l.ok());
  BOOST_CHECK_EQUAL(l->pool_blocks, 8);
  BOOST_REQUIRE_EQUAL(l->sources.size(), 2u);
  BOOST_CHECK_EQUAL(l->sources[0].entries_per_block, 128);
  BOOST_CHECK_EQUAL(l->sources[1].entries_per_block, 256);
  const int64_t entries = 128 + 256;
  BOOST_CHECK_EQUAL(l->block_bytes, entries * (main_entry_bytes(64) + index_key_bytes(32)));
  BOOST_CHECK_EQUAL(l->ring_rows, 32 + kRingSpareRows);
  BOOST_CHECK_GE(l->sources[0].pair_offset, 0);
  BOOST_CHECK_EQUAL(l->sources[1].pair_offset, -1);
  BOOST_CHECK_EQUAL(main_entry_bytes(512), 288);  // the packed sizes of the published model
  BOOST_CHECK_EQUAL(index_key_bytes(128), 68);
  BOOST_CHECK_EQUAL(window_row_bytes(512), 528);
}

BOOST_AUTO_TEST_CASE(bounds_are_refused_by_name) {
  BOOST_CHECK(!make_cache_layout(small_config(), kCacheSlotsMax + 1, 1024, 0).ok());
  BOOST_CHECK(!make_cache_layout(small_config(), 0, 1024, 0).ok());
  BOOST_CHECK(!make_cache_layout(small_config(), 1, kCacheContextMax + 1, 0).ok());
  const auto layout = make_cache_layout(small_config(), 1, 1024, kPoolBlocksMax + 1);
  BOOST_REQUIRE(!layout.ok());
  BOOST_CHECK(layout.status().message().find("pool") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(blocks_are_counted_per_sequence) {
  SequenceCache cache = make_cache();
  for (SlotId slot = 0; slot < 2; ++slot) {
    BOOST_CHECK(cache.apply({Kind::kOpenSlot, slot, 0, 0}).ok());
    BOOST_CHECK(cache.apply({Kind::kAppendBlock, slot, 3, 0}).ok());
  }
  BOOST_CHECK(cache.apply({Kind::kAppendBlock, 0, 4, 0}).ok());
  BOOST_CHECK_EQUAL(cache.pool().references(3), 2);
  BOOST_CHECK_EQUAL(cache.pool().used(), 2);
  BOOST_CHECK(!cache.check_writable(*cache.find(0), 0, 1).ok());      // shared
  BOOST_CHECK(cache.check_writable(*cache.find(0), 256, 512).ok());   // its own
  BOOST_CHECK(!cache.check_writable(*cache.find(0), 500, 513).ok());  // no block
  BOOST_CHECK(cache.apply({Kind::kCloseSlot, 1, 0, 0}).ok());
  BOOST_CHECK_EQUAL(cache.pool().references(3), 1);
  BOOST_CHECK(cache.check_writable(*cache.find(0), 0, 1).ok());
  BOOST_CHECK(cache.find(1) == nullptr);
}

BOOST_AUTO_TEST_CASE(wrong_commands_change_nothing) {
  SequenceCache cache = make_cache();
  BOOST_CHECK(!cache.apply({Kind::kAppendBlock, 0, 0, 0}).ok());  // not open
  BOOST_CHECK(!cache.apply({Kind::kOpenSlot, 2, 0, 0}).ok());     // no such slot
  BOOST_CHECK(!cache.apply({Kind::kOpenSlot, -1, 0, 0}).ok());
  BOOST_CHECK(cache.apply({Kind::kOpenSlot, 0, 0, 0}).ok());
  BOOST_CHECK(!cache.apply({Kind::kOpenSlot, 0, 0, 0}).ok());     // open already
  BOOST_CHECK(!cache.apply({Kind::kAppendBlock, 0, 6, 0}).ok());  // no such block
  BOOST_CHECK(!cache.apply({Kind::kRestore, 0, 0, 1}).ok());      // no such snapshot
  BOOST_CHECK(!cache.apply({Kind::kDropSnapshot, 0, 0, 1}).ok());
  BOOST_CHECK(!cache.apply({Kind::kTruncate, 0, 0, 1}).ok());  // longer than it is
  const Status spill = cache.apply({Kind::kSpillBlock, 0, 0, 0});
  BOOST_CHECK(spill.code() == StatusCode::kUnsupported);
  for (int i = 0; i < 4; ++i) BOOST_CHECK(cache.apply({Kind::kAppendBlock, 0, i, 0}).ok());
  BOOST_CHECK(!cache.apply({Kind::kAppendBlock, 0, 4, 0}).ok());  // past the context
  BOOST_CHECK_EQUAL(cache.pool().used(), 4);
}

BOOST_AUTO_TEST_CASE(rollback_reaches_as_far_as_the_rings) {
  SequenceCache cache = make_cache();
  BOOST_REQUIRE(cache.apply({Kind::kOpenSlot, 0, 0, 0}).ok());
  SequenceState& state = *cache.find(0);
  grow(state, 100);
  // Ring rows 52..99 are whole; a row at position p needs p - 31.
  BOOST_CHECK(state.truncate(99 - kRingSpareRows, 32).ok());
  BOOST_CHECK_EQUAL(state.length(), 83);
  BOOST_CHECK_EQUAL(state.ids().back(), 82);
  BOOST_CHECK(!state.truncate(82, 32).ok());
  BOOST_CHECK_EQUAL(state.length(), 83);
  grow(state, 6);  // overwrites rolled-back rows only
  BOOST_CHECK(state.truncate(84, 32).ok());
  BOOST_CHECK(!state.truncate(90, 32).ok());
}

BOOST_AUTO_TEST_CASE(decoder_rows_after_a_gap_start_anew) {
  SequenceCache cache = make_cache();
  BOOST_REQUIRE(cache.apply({Kind::kOpenSlot, 0, 0, 0}).ok());
  SequenceState& state = *cache.find(0);
  state.note_decoder_rows(0, 10);
  state.note_decoder_rows(10, 20);
  BOOST_CHECK_EQUAL(state.decoder_low(), 0);
  state.note_decoder_rows(50, 60);
  BOOST_CHECK_EQUAL(state.decoder_low(), 50);
}

BOOST_AUTO_TEST_CASE(snapshots_say_which_rings_they_hold) {
  SequenceCache cache = make_cache();
  for (const CacheCommand& c :
       {CacheCommand{Kind::kOpenSlot, 0, 0, 0}, CacheCommand{Kind::kAppendBlock, 0, 0, 0}})
    BOOST_REQUIRE(cache.apply(c).ok());
  SequenceState& state = *cache.find(0);
  grow(state, 40);
  state.note_decoder_rows(0, 40);
  for (int ring = 0; ring < 5; ++ring) state.ring(ring)[5] = static_cast<uint8_t>(10 + ring);
  BOOST_REQUIRE(cache.apply({Kind::kSnapshot, 0, 0, 1}).ok());  // full
  const int64_t full = cache.snapshot_bytes();
  BOOST_REQUIRE(cache.apply({Kind::kSnapshot, 0, 1, 2}).ok());  // the encoder's
  BOOST_CHECK_LT(cache.snapshot_bytes() - full, full);

  BOOST_REQUIRE(cache.apply({Kind::kOpenSlot, 1, 0, 0}).ok());
  BOOST_CHECK(!cache.apply({Kind::kRestore, 1, 0, 1}).ok());  // its blocks hold nothing yet
  BOOST_REQUIRE(cache.apply({Kind::kAppendBlock, 1, 0, 0}).ok());
  BOOST_REQUIRE(cache.apply({Kind::kRestore, 1, 0, 2}).ok());
  SequenceState& other = *cache.find(1);
  BOOST_CHECK_EQUAL(other.length(), 40);
  BOOST_CHECK_EQUAL(other.ids()[39], 39);
  BOOST_CHECK_EQUAL(other.ring(1)[5], 11);
  BOOST_CHECK_EQUAL(other.ring(2)[5], 0);      // a decoder ring
  BOOST_CHECK_EQUAL(other.decoder_low(), 40);  // nothing of the decoder can be read
  BOOST_REQUIRE(cache.apply({Kind::kRestore, 1, 0, 1}).ok());
  BOOST_CHECK_EQUAL(other.ring(4)[5], 14);
  BOOST_CHECK_EQUAL(other.decoder_low(), 0);
  BOOST_CHECK(cache.apply({Kind::kDropSnapshot, 0, 0, 1}).ok());
  BOOST_CHECK(cache.apply({Kind::kDropSnapshot, 0, 0, 2}).ok());
  BOOST_CHECK_EQUAL(cache.snapshot_bytes(), 0);
}

BOOST_AUTO_TEST_CASE(a_copied_block_carries_entries_and_ids) {
  SequenceCache cache = make_cache();
  for (const CacheCommand& c :
       {CacheCommand{Kind::kOpenSlot, 0, 0, 0}, CacheCommand{Kind::kAppendBlock, 0, 0, 0},
        CacheCommand{Kind::kAppendBlock, 0, 1, 0}})
    BOOST_REQUIRE(cache.apply(c).ok());
  SequenceState& state = *cache.find(0);
  grow(state, 300);
  cache.pool().bytes(1)[9] = 77;
  BOOST_REQUIRE(cache.apply({Kind::kSnapshot, 0, 0, 5}).ok());
  grow(state, 20);  // the sequence goes on behind its snapshot

  BOOST_REQUIRE(cache.apply({Kind::kOpenSlot, 1, 0, 0}).ok());
  BOOST_REQUIRE(cache.apply({Kind::kAppendBlock, 1, 0, 0}).ok());
  BOOST_CHECK(!cache.apply({Kind::kCopyBlock, 1, 0, 1}).ok());  // a block that both hold
  BOOST_REQUIRE(cache.apply({Kind::kAppendBlock, 1, 4, 0}).ok());
  BOOST_CHECK(!cache.apply({Kind::kCopyBlock, 1, 4, 6}).ok());  // from no block
  BOOST_REQUIRE(cache.apply({Kind::kCopyBlock, 1, 4, 1}).ok());
  BOOST_REQUIRE(cache.apply({Kind::kRestore, 1, 3, 5}).ok());  // three positions less
  const SequenceState& other = *cache.find(1);
  BOOST_CHECK_EQUAL(other.length(), 297);
  BOOST_CHECK_EQUAL(other.ids()[255], 255);
  BOOST_CHECK_EQUAL(other.ids()[296], 296);
  BOOST_CHECK_EQUAL(other.engram_ids()[296], 7);
  BOOST_CHECK_EQUAL(cache.pool().bytes(4)[9], 77);
  BOOST_CHECK(cache.check_writable(other, 297, 400).ok());
  BOOST_CHECK(!cache.check_writable(other, 255, 400).ok());    // shared
  BOOST_CHECK(!cache.apply({Kind::kRestore, 1, 18, 5}).ok());  // the rings don't reach
}

BOOST_AUTO_TEST_CASE(a_snapshot_as_bytes_comes_back_or_is_refused) {
  SequenceCache cache = make_cache();
  const CacheLayout& layout = cache.layout();
  auto store = SnapshotStore::create(layout);
  BOOST_REQUIRE(store.ok());
  BOOST_REQUIRE(cache.apply({Kind::kOpenSlot, 0, 0, 0}).ok());
  BOOST_REQUIRE(cache.apply({Kind::kAppendBlock, 0, 0, 0}).ok());
  SequenceState& state = *cache.find(0);
  grow(state, 100);
  for (const bool encoder_only : {false, true}) {
    for (int ring = 0; ring < 5; ++ring) state.ring(ring)[5] = static_cast<uint8_t>(10 + ring);
    BOOST_REQUIRE(store->save(layout, state, encoder_only, 1).ok());
    std::vector<std::byte> bytes;
    BOOST_REQUIRE(store->export_record(layout, 1, bytes).ok());
    BOOST_REQUIRE(store->import_record(layout, 2, bytes).ok());
    for (int ring = 0; ring < 5; ++ring) state.ring(ring)[5] = 0;
    BOOST_REQUIRE(store->restore(layout, 2, 0, state).ok());
    BOOST_CHECK_EQUAL(state.ring(1)[5], 11);
    BOOST_CHECK_EQUAL(state.ring(4)[5], encoder_only ? 0 : 14);
    for (size_t cut = 0; cut < bytes.size(); cut += 61)
      BOOST_CHECK(!store->import_record(layout, 3, std::span(bytes).first(cut)).ok());
    bytes[8] = std::byte{255};  // its length
    bytes[12] = std::byte{1};
    BOOST_CHECK(!store->import_record(layout, 3, bytes).ok());
  }
  // More than the store has room for is refused and changes nothing.
  const int64_t units = layout.snapshot_units;
  int64_t number = 10;
  while (store->save(layout, state, true, number).ok()) ++number;
  BOOST_CHECK_LE(store->bytes(), units * layout.snapshot_unit_bytes());
  BOOST_CHECK_GT(number, 10);
  BOOST_CHECK(store->drop(10).ok());
  BOOST_CHECK(store->save(layout, state, true, number).ok());
}

}  // namespace tensorfold
