// The prefix index without a planner: sequences that run one after another, and accounts that must
// come out even.
#pragma once

#include <boost/test/unit_test.hpp>
#include <string_view>
#include <vector>

#include "engine/cache/prefix_index.h"

namespace tensorfold {

using Ids = std::vector<int32_t>;

inline Ids text(int32_t seed, int64_t n) {
  Ids ids;
  for (int64_t i = 0; i < n; ++i)
    ids.push_back(static_cast<int32_t>((seed * 7919 + i * 31) % 5000));
  return ids;
}

inline PrefixOptions small() {
  PrefixOptions o;
  o.window = 32;
  o.decoder_span = 156;
  o.snapshot_units = 64;
  return o;
}

// Plays the planner for one sequence after another.
struct Bench {
  explicit Bench(const PrefixOptions& options, int64_t blocks = 64)
      : index(options), ledger(blocks) {}

  PrefixQuery query(const Ids& ids, std::string_view salt, std::span<const ImageSpan> images) {
    return {1, ids, static_cast<int64_t>(ids.size()), salt, images};
  }
  PrefixMatch match(const Ids& ids, std::string_view salt = "",
                    std::span<const ImageSpan> images = {}) {
    return index.match(query(ids, salt, images));
  }
  // Runs the prompt in one chunk (but for where the index wants it cut), replies, ends.
  int64_t run(const Ids& prompt, const Ids& reply = {}, std::string_view salt = "",
              std::span<const ImageSpan> images = {}, SequenceEnd end = SequenceEnd::kWhole) {
    PrefixQuery q = query(prompt, salt, images);
    q.head_tokens = head;
    PrefixMatch m = index.match(q);
    Ids ids = prompt;
    ids.insert(ids.end(), reply.begin(), reply.end());
    const auto wanted = blocks_for(static_cast<int64_t>(ids.size()));
    int64_t own = wanted - static_cast<int64_t>(m.blocks.size());
    if (!index.reclaim(own, m, ledger, out)) {
      m = {};
      own = wanted;
      BOOST_REQUIRE(index.reclaim(own, m, ledger, out));
    }
    BOOST_REQUIRE(ledger.promise(own));
    std::vector<BlockId> blocks = m.blocks;
    for (const BlockId b : blocks) ledger.share(b);
    while (static_cast<int64_t>(blocks.size()) < wanted) blocks.push_back(ledger.take());
    index.open(0, q, m);
    SequenceView view{0, ids, static_cast<int64_t>(prompt.size()), m.positions, blocks};
    while (view.computed < view.prompt_tokens) {
      view.computed = index.chunk_end(0, view.computed, view.prompt_tokens);
      index.advanced(view, ledger, out);
    }
    view.computed = static_cast<int64_t>(ids.size());
    index.close(view, end, ledger, out);
    for (const BlockId b : blocks) ledger.give_back(b);
    BOOST_REQUIRE_EQUAL(ledger.used(), 0);
    BOOST_REQUIRE_EQUAL(ledger.promised(), 0);
    return m.positions;
  }
  void require_empty() {
    index.flush(false, ledger, out);
    BOOST_TEST(ledger.cached() == 0);
    BOOST_TEST(ledger.unpromised() == ledger.total());
    BOOST_TEST(index.stats().snapshots == 0);
    BOOST_TEST(index.stats().snapshot_bytes == 0);
    BOOST_TEST(index.stats().blocks == 0);
  }

  int64_t head = 0;  // of the prompts that run
  PrefixIndex index;
  BlockLedger ledger;
  CacheCommands out;
};

inline Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace tensorfold
