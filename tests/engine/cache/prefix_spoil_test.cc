// The head of a prompt, which serves the next conversation; and what a sequence whose rows were not
// numbers has left in the prefix index: gone, with what came of it, and nothing else.
#include <random>

#include "tests/engine/cache/index_bench.h"

namespace tensorfold {

BOOST_AUTO_TEST_CASE(the_second_conversation_starts_behind_the_head_of_the_first) {
  // Near the prompt's end and further behind than the cone; short heads, long ones, block edges.
  for (const int64_t head : {16, 90, 156, 255, 256, 257, 700}) {
    for (const int64_t own : {5, 100, 400}) {
      Bench b(small());
      b.head = head;
      b.run(joined(text(1, head), text(2, own)));
      BOOST_TEST(b.match(joined(text(1, head), text(3, 4))).positions == head);
      BOOST_TEST(b.match(joined(text(1, head), text(3, 300))).positions == head);
      BOOST_TEST(b.match(joined(text(1, head), text(2, own))).positions == head + own - 1);
      BOOST_TEST(b.run(joined(text(1, head), text(4, own))) == head);
      b.require_empty();
    }
  }
  Bench b(small());
  b.head = 15;
  b.run(joined(text(1, 15), text(2, 100)));
  BOOST_TEST(b.match(joined(text(1, 15), text(3, 100))).positions == 0);
}

BOOST_AUTO_TEST_CASE(a_spoiled_prompt_leaves_nothing) {
  for (const int64_t n : {20, 255, 256, 300, 1000, 4096 + 700}) {
    Bench b(small());
    const Ids prompt = text(1, n);
    for (const int64_t replied : {0, 40}) {
      b.run(prompt, text(9, replied), "", {}, SequenceEnd::kSpoiled);
      BOOST_TEST(b.match(prompt).positions == 0);
      BOOST_TEST(b.match(joined(prompt, text(9, 300))).positions == 0);
      BOOST_TEST(b.index.stats().snapshots == 0);
      BOOST_TEST(b.ledger.cached() == 0);
    }
    BOOST_TEST(b.run(prompt) == 0);
    BOOST_TEST(b.match(prompt).positions == n - 1);
    b.require_empty();
  }
}

BOOST_AUTO_TEST_CASE(others_that_only_begin_alike_stay) {
  Bench b(small());
  const Ids common = text(1, 300);
  const Ids good = joined(common, text(2, 200));
  b.run(good);
  b.run(text(7, 500));
  b.run(joined(common, text(3, 200)), {}, "", {}, SequenceEnd::kSpoiled);
  BOOST_TEST(b.match(good).positions == 499);
  BOOST_TEST(b.match(text(7, 500)).positions == 499);
  BOOST_TEST(b.match(joined(common, text(3, 200))).positions == 0);
  b.require_empty();
}

BOOST_AUTO_TEST_CASE(what_came_of_a_spoiled_sequence_goes_too) {
  for (const int64_t n : {100, 300, 512}) {  // within a block: the next one copies it
    Bench b(small());
    const Ids prompt = text(1, n);
    // The spoiled one is still running when another starts from its snapshot, and ends first.
    const PrefixQuery q = b.query(prompt, "", {});
    Ids ids = joined(prompt, text(9, 20));
    std::vector<BlockId> blocks;
    BOOST_REQUIRE(b.ledger.promise(3));
    for (int i = 0; i < 3; ++i) blocks.push_back(b.ledger.take());
    b.index.open(1, q, b.index.match(q));
    SequenceView view{1, ids, n, n, blocks};
    b.index.advanced(view, b.ledger, b.out);
    view.computed = n + 20;

    const Ids next = joined(prompt, text(4, 100));
    const PrefixQuery other_query = b.query(next, "", {});
    const PrefixMatch m = b.index.match(other_query);
    BOOST_REQUIRE_EQUAL(m.positions, n);
    std::vector<BlockId> other = m.blocks;
    for (const BlockId block : other) b.ledger.share(block);
    BOOST_REQUIRE(b.ledger.promise(2));
    for (int i = 0; i < 2; ++i) other.push_back(b.ledger.take());
    b.index.open(0, other_query, m);
    SequenceView running{0, next, n + 100, n + 100, other};
    b.index.advanced(running, b.ledger, b.out);
    BOOST_TEST(b.match(next).positions == n + 99);

    b.index.close(view, SequenceEnd::kSpoiled, b.ledger, b.out);
    BOOST_TEST(b.match(next).positions == 0);
    BOOST_TEST(b.index.stats().snapshots == 0);
    // Nor does it leave anything at its end.
    b.index.close(running, SequenceEnd::kWhole, b.ledger, b.out);
    BOOST_TEST(b.index.stats().snapshots == 0);
    for (const auto* table : {&blocks, &other})
      for (const BlockId block : *table) b.ledger.give_back(block);
    BOOST_TEST(b.ledger.used() == 0);
    b.require_empty();
  }
}

BOOST_AUTO_TEST_CASE(random_lives_with_spoiled_sequences_keep_their_accounts) {
  std::mt19937_64 rng(3);
  for (int life = 0; life < 40; ++life) {
    PrefixOptions o = small();
    o.snapshot_units = 2 + static_cast<int64_t>(rng() % 30);
    o.exact = rng() % 4 != 0;
    if (!o.exact) o.decoder_span = o.window;
    Bench b(o, 24);
    for (int i = 0; i < 40; ++i) {
      Ids ids =
          joined(text(static_cast<int32_t>(rng() % 3), static_cast<int64_t>(rng() % 700)),
                 text(static_cast<int32_t>(10 + rng() % 5), 1 + static_cast<int64_t>(rng() % 80)));
      b.head = static_cast<int64_t>(rng() % ids.size());
      const bool spoiled = rng() % 4 == 0;
      b.run(ids, text(40, static_cast<int64_t>(rng() % 60)), "", {},
            spoiled ? SequenceEnd::kSpoiled : SequenceEnd::kWhole);
      if (spoiled) BOOST_TEST(b.match(ids).positions == 0);
    }
    BOOST_TEST(b.index.stats().spoiled > 0U);
    b.require_empty();
  }
}

}  // namespace tensorfold
