// The prefix index alone: which snapshot serves whom, what names and trees tell apart, what is
// dropped when room is short, and that every block is accounted for.
#include <random>
#include <string>

#include "tests/engine/cache/index_bench.h"

namespace tensorfold {
BOOST_AUTO_TEST_CASE(the_whole_prompt_is_never_a_hit) {
  for (const int64_t n : {16, 255, 256, 257, 512, 1000}) {
    Bench b(small());
    b.run(text(1, n));
    const PrefixMatch m = b.match(text(1, n));
    BOOST_TEST(m.positions == n - 1);
    BOOST_TEST(m.snapshot_positions == n);
    BOOST_TEST(static_cast<int64_t>(m.blocks.size()) == (n - 1) / kBlockPositions);
    BOOST_TEST((m.tail >= 0) == ((n - 1) % kBlockPositions != 0));
    b.require_empty();
  }
}

BOOST_AUTO_TEST_CASE(any_length_serves_a_longer_prompt) {
  for (int64_t n = 16; n < 600; n += 7) {
    Bench b(small());
    b.run(text(1, n));
    BOOST_TEST(b.match(joined(text(1, n), text(2, 1))).positions == n);
    b.require_empty();
  }
}

BOOST_AUTO_TEST_CASE(a_full_snapshot_is_cut_back_as_far_as_its_decoder_rows_are_exact) {
  Bench short_one(small());  // its decoder ran over every row
  short_one.run(text(1, 150));
  Bench long_one(small());  // over the cone: one window of rows is exact
  long_one.run(text(1, 400));
  for (int64_t cut = 1; cut < 12; ++cut) {
    Ids ids = text(1, 150 - cut);
    ids.push_back(4999);
    BOOST_TEST(short_one.match(ids).positions == (cut <= kCutPositionsMax ? 150 - cut : 0));
    ids = text(1, 400 - cut);
    ids.push_back(4999);
    BOOST_TEST(long_one.match(ids).positions == (cut == 1 ? 399 : 0));
  }
}

BOOST_AUTO_TEST_CASE(an_encoder_snapshot_serves_from_the_cone_on) {
  for (const bool exact : {true, false}) {
    PrefixOptions o = small();
    o.exact = exact;
    if (!exact) o.decoder_span = o.window;
    Bench b(o);
    const Ids shared = text(1, kKeptSpacingPositions);
    const PrefixQuery q = b.query(shared, "", {});
    (void)q;
    // A prompt that was left after one chunk of 4,096 rows.
    Ids whole = joined(shared, text(2, 1000));
    const PrefixQuery query = b.query(whole, "", {});
    BOOST_REQUIRE(b.ledger.promise(20));
    std::vector<BlockId> blocks;
    for (int i = 0; i < 20; ++i) blocks.push_back(b.ledger.take());
    b.index.open(0, query, b.index.match(query));
    const SequenceView view{0, whole, static_cast<int64_t>(whole.size()), kKeptSpacingPositions,
                            blocks};
    b.index.close(view, SequenceEnd::kWhole, b.ledger, b.out);
    for (const BlockId block : blocks) b.ledger.give_back(block);
    const int64_t span = o.decoder_span;
    BOOST_TEST(b.match(joined(shared, text(3, span - 1))).positions == 0);
    BOOST_TEST(b.match(joined(shared, text(3, span))).positions == kKeptSpacingPositions);
    b.require_empty();
  }
}

BOOST_AUTO_TEST_CASE(replayed_prefill_serves_from_one_window_on_and_none_nearer) {
  PrefixOptions o = small();
  o.exact = false;
  o.decoder_span = o.window;
  Bench b(o);
  b.run(text(1, 300));
  BOOST_TEST(b.match(text(1, 300)).positions == 0);
  BOOST_TEST(b.match(joined(text(1, 300), text(2, 31))).positions == 0);
  BOOST_TEST(b.match(joined(text(1, 300), text(2, 32))).positions == 300);
}

BOOST_AUTO_TEST_CASE(replies_are_kept_or_not) {
  for (const bool reuse : {true, false}) {
    PrefixOptions o = small();
    o.reuse_replies = reuse;
    Bench b(o);
    const Ids reply = text(9, 40);
    b.run(text(1, 300), reply);
    const Ids next = joined(joined(text(1, 300), reply), text(3, 10));
    BOOST_TEST(b.match(next).positions == (reuse ? 340 : 300));
    b.require_empty();
  }
}

BOOST_AUTO_TEST_CASE(salts_images_and_row_classes_are_told_apart) {
  Bench b(small());
  ImageSpan image;
  image.first_position = 40;
  image.rows = 20;
  image.digest.bytes[0] = 1;
  const ImageSpan a[] = {image};
  image.digest.bytes[0] = 2;
  const ImageSpan other[] = {image};
  const Ids ids = text(1, 300);
  b.run(ids, {}, "x", a);
  BOOST_TEST(b.match(ids, "x", a).positions == 299);
  BOOST_TEST(b.match(ids, "x", other).positions == 0);
  BOOST_TEST(b.match(ids, "x").positions == 0);
  BOOST_TEST(b.match(ids, "", a).positions == 0);
  BOOST_TEST(b.match(ids, "y", a).positions == 0);

  // The names of the same text: every field counts, and none can pass for another.
  BlockText t;
  t.ids = ids;
  t.ids = t.ids.first(200);
  const BlockDigest plain = block_digest(root_digest(""), t);
  BOOST_TEST((plain != block_digest(root_digest("img"), t)));
  t.images = {image};
  BOOST_TEST((plain != block_digest(root_digest(""), t)));
  t.images.clear();
  t.generated.set(5);
  BOOST_TEST((plain != block_digest(root_digest(""), t)));
  t.generated = {};
  t.first_position = 256;
  BOOST_TEST((plain != block_digest(root_digest(""), t)));
  t.first_position = 0;
  BOOST_TEST((plain == block_digest(root_digest(""), t)));
  BOOST_TEST(plain.hex().size() == 64U);
}

BOOST_AUTO_TEST_CASE(hashes_that_collide_give_no_false_hit) {
  PrefixOptions o = small();
  o.fingerprint_mask = 0;
  o.snapshot_units = 512;
  Bench b(o, 400);
  for (int32_t i = 0; i < 40; ++i) b.run(text(i, 300 + i));
  for (int32_t i = 0; i < 40; ++i) {
    BOOST_TEST(b.match(text(i, 300 + i)).positions == 299 + i);
    BOOST_TEST(b.match(text(1000 + i, 300 + i)).positions == 0);
  }
  b.require_empty();
}

BOOST_AUTO_TEST_CASE(what_is_used_stays_when_room_is_short) {
  PrefixOptions o = small();
  o.snapshot_units = 2 * 6;
  Bench b(o, 12);
  const Ids system = text(1, 500);
  b.run(joined(system, text(100, 5)));
  b.run(joined(system, text(101, 5)));  // leaves a snapshot where they part
  for (int32_t i = 0; i < 60; ++i) {
    // One-off texts come and go; the shared one is used between them.
    b.run(text(5000 + i, 300 + i));
    BOOST_TEST(b.run(joined(system, text(200 + i, 5))) == 500);
    BOOST_TEST(b.index.stats().snapshot_bytes <= b.index.stats().snapshot_bytes_max);
  }
  BOOST_TEST(b.index.stats().evicted > 50U);
  b.require_empty();
}

BOOST_AUTO_TEST_CASE(a_pool_of_just_the_prompt_still_takes_it) {
  Bench b(small(), 3);
  BOOST_TEST(b.run(text(1, 700)) == 0);
  BOOST_TEST(b.run(text(2, 768)) == 0);
  BOOST_TEST(b.run(text(1, 700)) == 0);
  // Its own entry needs one block more than there are: it starts from nothing.
  BOOST_TEST(b.run(text(1, 700)) == 0);
  b.require_empty();
}

BOOST_AUTO_TEST_CASE(a_match_keeps_every_block_of_its_snapshot) {
  // Cut back over a block edge: the block behind it stays with the snapshot, of no use to the
  // match.
  Bench b(small(), 4);
  b.run(text(1, 515));
  Ids ids = text(1, 514);
  const PrefixMatch at_end = b.match(joined(ids, {4999}));
  BOOST_TEST(at_end.positions == 514);
  BOOST_TEST(kept_blocks(at_end, b.ledger) == 3);
  Bench c(small(), 4);
  c.run(text(1, 513));
  const PrefixMatch cut = c.match(joined(text(1, 512), {4999}));
  BOOST_TEST(cut.positions == 512);
  BOOST_TEST((cut.tail < 0 && cut.behind < 0) == false);
  BOOST_TEST(kept_blocks(cut, c.ledger) == 3);
  CacheCommands out;
  BOOST_TEST(c.index.reclaim(1, cut, c.ledger, out));
  BOOST_TEST(!c.index.reclaim(2, cut, c.ledger, out));
  BOOST_TEST(out.empty());
  c.require_empty();
}

BOOST_AUTO_TEST_CASE(without_room_for_snapshots_there_is_no_cache) {
  PrefixOptions o = small();
  o.snapshot_units = 0;
  Bench b(o);
  BOOST_TEST(b.run(text(1, 300)) == 0);
  BOOST_TEST(b.run(text(1, 300)) == 0);
  BOOST_TEST(b.ledger.cached() == 0);
  BOOST_TEST(b.out.empty());
}

BOOST_AUTO_TEST_CASE(a_block_is_free_when_nobody_holds_it) {
  BlockLedger ledger(2);
  BOOST_REQUIRE(ledger.promise(2));
  const BlockId a = ledger.take();
  ledger.keep(a);
  ledger.share(a);
  ledger.give_back(a);
  BOOST_TEST(ledger.held_by_one(a));
  ledger.give_back(a);
  BOOST_TEST(ledger.used() == 0);
  BOOST_TEST(ledger.cached() == 1);
  BOOST_TEST(ledger.last_entry(a));
  BOOST_TEST(ledger.unpromised() == 0);
  ledger.share(a);  // a hit
  BOOST_TEST(ledger.cached() == 0);
  ledger.forget(a);  // the entry goes, the sequence stays
  BOOST_TEST(ledger.used() == 1);
  ledger.give_back(a);
  BOOST_TEST(ledger.used() == 0);
  BOOST_TEST(ledger.unpromised() == 1);
}

}  // namespace tensorfold
