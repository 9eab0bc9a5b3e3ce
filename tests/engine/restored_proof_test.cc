// What comes from disk is whole, but not what this process computes: a restored prefix is proved
// once by computing its last rows anew. Over the real forward pass: a right record passes, whatever
// class its rows have and wherever it ends; one that lacks any kind of state is dropped with all
// that stands on it, and the reply is the cold run's.
#include "tests/engine/restarts.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

struct Files {
  Files() { clock.advance_us(1'000'000); }
  FaultFileSystem files{"/spill"};
  ManualClock clock;
};

Request request_of(std::vector<TokenId> ids, int max_tokens, uint64_t seed) {
  std::mt19937_64 rng(seed);
  return cache_request(std::move(ids), max_tokens, rng);
}

void store(Files& f, const ServingOptions& o, const Request& request, Reply* reply = nullptr) {
  Process before(machines().one, o, f.files, f.clock);
  const Reply got = before.serving->run_one(request);
  if (reply != nullptr) *reply = got;
}

struct Seen {
  int64_t proved = 0, untrue = 0;
  size_t warnings = 0;
  int cached = 0;
  bool right = false;
};

// The reply of a process that begins with those files.
Seen answer(Files& f, const ServingOptions& o, const Request& request) {
  Machines& m = machines();
  Process after(m.two, o, f.files, f.clock);
  const Reply got = after.serving->run_one(request);
  Seen seen;
  seen.proved = after.tier.stats().proved;
  seen.untrue = after.tier.stats().untrue;
  seen.warnings = after.log.warnings().size();
  seen.cached = got.stats.usage.cached_tokens;
  seen.right = equal_replies(got, m.cold_run(request, o));
  BOOST_TEST(after.serving->stats().pool_tokens_used == 0);
  return seen;
}

// Kinds of state, as a record has them.
struct Part {
  const char* name;
  CacheNote::Kind kind;
  int64_t first = 0, bytes = 0;
};

std::vector<Part> parts() {
  const ModelConfig& config = machines().one.model->config();
  const CacheLayout l = *make_cache_layout(config, 1, 256, 1, int64_t{64} << 20);
  constexpr int64_t kFields = 7 * 8;
  const int64_t encoder = l.decoder_start * l.ring_bytes;
  const int64_t pairs = l.pair_floats * 4;
  const auto layers = static_cast<int64_t>(config.layers);
  return {{"block", CacheNote::Kind::kBlock, 0, l.block_bytes},
          {"encoder rings", CacheNote::Kind::kFullSnapshot, kFields, encoder},
          {"compressor inputs", CacheNote::Kind::kFullSnapshot, kFields + encoder, pairs},
          {"decoder rings", CacheNote::Kind::kFullSnapshot, kFields + encoder + pairs,
           (layers - l.decoder_start) * l.ring_bytes}};
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_right_record_is_proved_once) {
  std::mt19937_64 rng(41);
  const int vocab = machines().vocab();
  for (const int64_t length : {300, 511, 512, 514, 640}) {
    for (const int turn : {0, 1, 2}) {  // the same again, a longer prompt, the reply's next turn
      Files f;
      ServingOptions o;
      o.depth = turn == 2 ? 3 : 0;
      const auto text = random_text(rng, length, vocab);
      Reply reply;
      const Request first = request_of(text, 6, 7);
      store(f, o, first, &reply);
      auto ids = text;
      if (turn == 2) ids = joined(ids, reply.ids);
      if (turn > 0) ids = joined(ids, random_text(rng, 30, vocab));
      const Seen seen = answer(f, o, turn == 0 ? first : request_of(ids, 4, 8));
      BOOST_TEST_CONTEXT(length << " positions, turn " << turn) {
        BOOST_TEST(seen.right);
        BOOST_TEST(seen.untrue == 0);
        BOOST_TEST(seen.warnings == 0U);
        BOOST_TEST(seen.cached >= length - 1);
        // At a block's edge nothing is copied, so nothing may be written.
        const bool edge = seen.cached % kBlockPositions == 0;
        BOOST_TEST(seen.proved == (edge ? 0 : 1));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(it_is_proved_by_a_few_rows_and_only_once) {
  Machines& m = machines();
  std::mt19937_64 rng(42);
  Files f;
  const ServingOptions o;
  const auto one = random_text(rng, 300, m.vocab());
  const auto two = random_text(rng, 400, m.vocab());
  store(f, o, request_of(one, 2, 1));
  store(f, o, request_of(two, 2, 2));
  Process after(m.two, o, f.files, f.clock);
  const auto rows_of = [&](const Request& request) {
    const int64_t before = after.serving->rows();
    const Reply got = after.serving->run_one(request);
    BOOST_TEST(equal_replies(got, m.cold_run(request, o)));
    return after.serving->rows() - before - static_cast<int64_t>(request.prompt.ids->size()) +
           got.stats.usage.cached_tokens - (static_cast<int64_t>(got.ids.size()) - 1);
  };
  BOOST_TEST(rows_of(request_of(one, 2, 1)) == kRecheckRowsMax);
  BOOST_TEST(rows_of(request_of(two, 2, 2)) == 0);
  BOOST_TEST(after.tier.stats().proved == 1);
  BOOST_TEST(after.tier.stats().read_records >= 6);
}

BOOST_AUTO_TEST_CASE(a_record_without_one_kind_of_state_is_dropped) {
  Machines& m = machines();
  std::mt19937_64 rng(43);
  for (const Part& part : parts()) {
    for (const bool reply_end : {false, true}) {
      Files f;
      const ServingOptions o;
      const auto text = random_text(rng, 600, m.vocab());
      Reply reply;
      const Request first = request_of(text, 5, 3);
      store(f, o, first, &reply);
      const auto more = random_text(rng, 20, m.vocab());
      const Request next =
          reply_end ? request_of(joined(joined(text, reply.ids), more), 4, 4) : first;
      int changed = 0;
      m.two.tier.change = [&](CacheRecord& record) {
        if (record.note.kind != part.kind) return;
        ++changed;
        const auto at = record.bytes.begin() + static_cast<ptrdiff_t>(part.first);
        std::fill(at, at + static_cast<ptrdiff_t>(part.bytes), std::byte{0});
      };
      const Seen seen = answer(f, o, next);
      m.two.tier.change = nullptr;
      BOOST_TEST_CONTEXT(part.name << (reply_end ? ", behind the reply" : "")) {
        BOOST_TEST(changed > 0);
        BOOST_TEST(seen.right);
        BOOST_TEST(seen.cached == 0);
        BOOST_TEST(seen.untrue == 1);
        BOOST_TEST(seen.proved == 0);
        BOOST_TEST(seen.warnings == 1U);
        // What the cold run left is written anew, and right.
        const Seen again = answer(f, o, next);
        BOOST_TEST(again.right);
        BOOST_TEST(again.untrue == 0);
        BOOST_TEST(again.proved == 1);
        BOOST_TEST(again.cached >= 600 - 1);
      }
    }
  }
}

// The report: every request after a restart was wrong. Each is asked for proof until one passes.
BOOST_AUTO_TEST_CASE(no_request_of_many_is_answered_from_untrue_records) {
  Machines& m = machines();
  std::mt19937_64 rng(44);
  Files f;
  ServingOptions o;
  o.slots = 3;
  o.pool_blocks = 40;
  std::vector<Request> requests;
  const auto common = random_text(rng, 270, m.vocab());
  for (uint64_t i = 0; i < 9; ++i) {
    const auto own = random_text(rng, 40 + 30 * static_cast<int64_t>(i), m.vocab());
    requests.push_back(request_of(i % 3 == 0 ? joined(common, own) : joined(own, common), 3, i));
    store(f, o, requests.back());
  }
  m.two.tier.change = [](CacheRecord& record) {
    if (record.note.kind == CacheNote::Kind::kFullSnapshot)
      for (size_t i = 64; i < record.bytes.size(); i += 8) record.bytes[i] ^= std::byte{4};
  };
  Process after(m.two, o, f.files, f.clock);
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  for (const Request& request : requests) sinks.push_back(after.serving->submit(request));
  after.serving->run_dry();
  m.two.tier.change = nullptr;
  for (size_t i = 0; i < requests.size(); ++i) {
    BOOST_TEST_CONTEXT("request " << i) {
      const Reply got = sinks[i]->reply();
      BOOST_TEST(equal_replies(got, m.cold_run(requests[i], o)));
    }
  }
  BOOST_TEST(after.tier.stats().untrue >= 3);
  BOOST_TEST(after.tier.stats().proved == 0);
  BOOST_TEST(after.serving->stats().pool_tokens_used == 0);
}

BOOST_AUTO_TEST_CASE(a_request_that_is_left_meanwhile_leaves_nothing_behind) {
  Machines& m = machines();
  std::mt19937_64 rng(45);
  const auto text = random_text(rng, 330, m.vocab());
  const Request request = request_of(text, 3, 5);
  for (const bool untrue : {false, true}) {
    for (uint64_t turns = 1; turns < 8; ++turns) {
      Files f;
      ServingOptions o;
      o.slots = 2;
      store(f, o, request);
      if (untrue) m.two.tier.change = spoil_block;
      {
        Process after(m.two, o, f.files, f.clock);
        const auto other = after.serving->submit(request);
        const auto sink = after.serving->submit(request);
        after.serving->turns(turns);
        after.serving->cancel_last();
        after.serving->run_dry();
        BOOST_TEST(equal_replies(other->reply(), m.cold_run(request, o)));
        BOOST_TEST(after.serving->stats().pool_tokens_used == 0);
        BOOST_TEST((after.tier.stats().untrue > 0) == untrue);
      }
      m.two.tier.change = nullptr;
    }
  }
}

// Bounded replay computes other decoder rows: there is nothing to compare with.
BOOST_AUTO_TEST_CASE(replayed_prefixes_are_used_as_they_are) {
  Machines& m = machines();
  std::mt19937_64 rng(46);
  Files f;
  ServingOptions o;
  o.exact = false;
  const auto text = random_text(rng, 600, m.vocab());
  store(f, o, request_of(text, 3, 6));
  const Seen seen = answer(f, o, request_of(joined(text, random_text(rng, 90, m.vocab())), 3, 6));
  BOOST_TEST(seen.right);
  BOOST_TEST(seen.cached > 0);
  BOOST_TEST(seen.proved + seen.untrue == 0);
}
