// A hit equals a cold run bit for bit, over the real forward pass: the golden mini model with its
// own window (128) and with one of 32, which makes its cone short and its cases cheap, and the
// embedded model. Prefixes of every parity, around the block, the window and the cone; branches,
// edits, next turns, company, eviction and filling again; exact and replayed prefill.
#include <map>

#include "tests/engine/cache_serving.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

const char* const kMiniPath = TF_TEST_DATA "/golden/mini_native";
const char* const kTinyPath = TF_SOURCE_DIR "/packaging/tiny-model/model";
constexpr int kSmallWindow = 32;
constexpr int kHistories = 40;  // of ten requests each
constexpr int kReplyTokens = 4;

// Two instances: cold runs leave the cached one's blocks alone.
struct Pair {
  explicit Pair(const std::string& folder)
      : collective(make_single_collective()),
        cached(load_model(folder, *collective)),
        cold(load_model(folder, *collective)) {}
  Reply cold_run(const Request& request, const ServingOptions& o) {
    ServingOptions none = o;
    none.snapshot_units = 0;
    none.slots = 1;
    none.pool_blocks = 24;
    none.heads = false;
    return Serving(*cold, none).run_one(request);
  }
  int vocab() const { return cached->config().vocab_size; }
  int64_t cone() const { return cached->config().cone_rows(); }

  std::unique_ptr<Collective> collective;
  std::unique_ptr<Model> cached, cold;
};

Pair& small() {
  static const WindowFolder folder(kMiniPath, kSmallWindow);
  static Pair pair(folder.path);
  return pair;
}

struct Counts {
  int compared = 0, hits = 0;
  int odd = 0, edges = 0;  // hits at odd lengths, at block edges
};

// What a request gives with the cache, against a cold run.
bool right(Serving& serving, const Request& request, const Reply& cold, Counts& counts) {
  const Reply got = serving.run_one(request);
  const int cached = got.stats.usage.cached_tokens;
  ++counts.compared;
  counts.hits += cached > 0;
  counts.odd += cached % 2;
  counts.edges += cached > 0 && cached % kBlockPositions == 0;
  return equal_replies(got, cold);
}

std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Lengths at which something changes, and others.
int64_t length_of(std::mt19937_64& rng, const Pair& p) {
  const int64_t w = p.cached->config().window;
  const int64_t marks[] = {w, p.cone(), kBlockPositions, w + kBlockPositions};
  const int64_t most = p.cone() + 150;
  if (rng() % 6 == 0) return kBlockPositions;
  if (rng() % 4 == 0) return 17 + static_cast<int64_t>(rng() % static_cast<uint64_t>(most));
  return std::max<int64_t>(17,
                           marks[rng() % std::size(marks)] - 2 + static_cast<int64_t>(rng() % 5));
}

// A prompt; others that share its first positions and differ behind; itself again; its next turn.
bool history(std::mt19937_64& rng, Pair& p, const ServingOptions& o, Counts& counts) {
  Serving serving(*p.cached, o);
  const auto vocab = p.vocab();
  const std::vector<TokenId> first = random_text(rng, length_of(rng, p), vocab);
  const auto check = [&](const std::vector<TokenId>& ids) {
    const Request request = cache_request(ids, kReplyTokens, rng);
    const Reply cold = p.cold_run(request, o);
    // And again: all but its last row is there.
    return right(serving, request, cold, counts) && right(serving, request, cold, counts);
  };
  const Request a = cache_request(first, kReplyTokens, rng);
  const Reply reply = p.cold_run(a, o);
  bool same = right(serving, a, reply, counts);

  std::vector<TokenId> branch = first;  // leaves at any length, also in the middle
  const auto n = static_cast<int64_t>(first.size());
  const int64_t lengths[] = {n, n - static_cast<int64_t>(rng() % 12), n / 2};
  branch.resize(static_cast<size_t>(lengths[rng() % 3]));
  for (int i = 0; i < 2; ++i)
    same &= check(joined(branch, random_text(rng, 1 + static_cast<int64_t>(rng() % 160), vocab)));
  std::vector<TokenId> edited = first;
  edited[edited.size() - 1 - rng() % (edited.size() / 2)] ^= 1;
  same &= check(edited);
  same &= right(serving, a, reply, counts);
  const auto next = random_text(rng, 1 + static_cast<int64_t>(rng() % 60), vocab);
  return same && check(joined(joined(first, reply.ids), next));
}

ServingOptions random_options(std::mt19937_64& rng) {
  ServingOptions o;
  o.prefill_rows = rng() % 2 ? 1024 : 40 + static_cast<int>(rng() % 300);
  o.depth = static_cast<int>(rng() % 4);
  o.exact = rng() % 4 != 0;
  o.reuse_replies = rng() % 2 != 0;
  o.heads = rng() % 2 != 0;
  return o;
}

}  // namespace

BOOST_AUTO_TEST_CASE(hits_equal_cold_runs) {
  std::mt19937_64 rng(11);
  Counts counts;
  for (int i = 0; i < kHistories; ++i) {
    const ServingOptions o = random_options(rng);
    BOOST_REQUIRE_MESSAGE(history(rng, small(), o, counts), "history " << i);
  }
  BOOST_TEST_MESSAGE(counts.hits << " hits of " << counts.compared);
  BOOST_TEST(counts.hits > 200);
  BOOST_TEST(counts.odd > 50);
  BOOST_TEST(counts.edges > 3);
}

BOOST_AUTO_TEST_CASE(hits_equal_cold_runs_with_the_models_own_windows) {
  for (const char* folder : {kMiniPath, kTinyPath}) {
    Pair pair(folder);
    std::mt19937_64 rng(12);
    Counts counts;
    for (int i = 0; i < 3; ++i) {
      ServingOptions o = random_options(rng);
      o.exact = i > 0;
      BOOST_REQUIRE_MESSAGE(history(rng, pair, o, counts), folder << ", history " << i);
    }
    BOOST_TEST(counts.hits > 6);
  }
}

// A second chat behind the system text of the first, near the prompt's end and further behind than
// the cone: bit for bit a cold run, from the head on.
BOOST_AUTO_TEST_CASE(the_head_of_a_prompt_serves_the_next_chat) {
  Pair& p = small();
  std::mt19937_64 rng(17);
  for (const int64_t own : {30, 200, 700}) {
    for (const bool exact : {true, false}) {
      ServingOptions o;
      o.prefill_rows = 250;
      o.depth = 2;
      o.exact = exact;
      o.heads = true;
      Serving serving(*p.cached, o);
      std::vector<TokenId> first = random_text(rng, 2 * own, p.vocab());
      const auto length = static_cast<int64_t>(first.size());
      const int64_t head = length * (first[0] % 16 + 1) / 17;
      const Request one = cache_request(first, 4, rng);
      BOOST_TEST(equal_replies(serving.run_one(one), p.cold_run(one, o)));
      std::vector<TokenId> second(first.begin(), first.begin() + head);
      second = joined(second, random_text(rng, length - head, p.vocab()));
      const Request two = cache_request(second, 4, rng);
      const Reply got = serving.run_one(two);
      BOOST_TEST(equal_replies(got, p.cold_run(two, o)));
      const bool serves = head >= 16 && (exact || length - head >= kSmallWindow);
      BOOST_TEST((got.stats.usage.cached_tokens >= head) == serves);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_snapshot_inside_a_long_prompt_serves_from_the_cone_on) {
  Pair& p = small();
  std::mt19937_64 rng(13);
  ServingOptions o;
  o.prefill_rows = 2048;
  const auto text = random_text(rng, 4096 + p.cone() + 60, p.vocab());
  for (const int64_t beyond : {p.cone() - 1, p.cone()}) {
    Serving serving(*p.cached, o);
    (void)serving.run_one(cache_request(text, 1, rng));
    auto other = text;
    other.resize(static_cast<size_t>(4096 + beyond));
    other[4100] ^= 1;
    const Request request = cache_request(other, 2, rng);
    const Reply got = serving.run_one(request);
    BOOST_TEST(equal_replies(got, p.cold_run(request, o)));
    BOOST_TEST(got.stats.usage.cached_tokens == (beyond < p.cone() ? 0 : 4096));
  }
}

namespace {

// Prompts that begin alike, many at once, with so little room that entries come and go.
Counts crowd(uint64_t seed, const ServingOptions& o) {
  Pair& p = small();
  std::mt19937_64 rng(seed);
  std::vector<std::vector<TokenId>> bases;
  for (int i = 0; i < 3; ++i) bases.push_back(random_text(rng, 500, p.vocab()));
  Serving serving(*p.cached, o);
  std::vector<std::pair<Request, std::shared_ptr<KeepingSink>>> past;
  for (int i = 0; i < 30; ++i) {
    std::vector<TokenId> ids = bases[rng() % bases.size()];
    ids.resize(20 + rng() % 480);
    if (rng() % 2) ids = joined(ids, random_text(rng, static_cast<int64_t>(rng() % 40), p.vocab()));
    Request r = cache_request(ids, 2 + static_cast<int>(rng() % 6), rng);
    r.background = rng() % 5 == 0;
    past.push_back({r, serving.submit(r)});
    serving.turns(rng() % 9);
    if (rng() % 8 == 0) serving.cancel_last();
    if (rng() % 12 == 0) serving.flush();
  }
  serving.run_dry();
  Counts counts;
  for (const auto& [request, sink] : past) {
    const Reply got = sink->reply();
    if (got.reason == FinishReason::kCancelled) continue;
    ++counts.compared;
    counts.hits += got.stats.usage.cached_tokens > 0;
    BOOST_REQUIRE(equal_replies(got, p.cold_run(request, o)));
  }
  const EngineStats s = serving.stats();
  BOOST_TEST(s.cache_evicted_total > 0U);
  BOOST_TEST(s.pool_tokens_used == 0);
  return counts;
}

}  // namespace

BOOST_AUTO_TEST_CASE(hits_equal_cold_runs_in_company_and_after_eviction) {
  int hits = 0;
  for (uint64_t seed = 21; seed < 24; ++seed) {
    ServingOptions o;
    o.slots = 3;
    o.prefill_rows = 90;
    o.depth = static_cast<int>(seed % 3);
    o.pool_blocks = 7;
    o.snapshot_units = 14;
    o.exact = seed != 23;
    hits += crowd(seed, o).hits;
  }
  BOOST_TEST(hits > 10);
}

namespace {

// Cuts prompt slices at class changes of a conversation and marks the replies' rows as generated:
// the turns replayed cold.
class ForcedReplies final : public StepRunner {
 public:
  ForcedReplies(StepRunner& inner, std::vector<std::pair<int64_t, int64_t>> replies)
      : inner_(inner), replies_(std::move(replies)) {}
  Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
    if (plan.slices.size() != 1 || plan.slices[0].row_class != RowClass::kPrompt)
      return inner_.run(plan, results);
    StepPlan part = plan;
    part.samples.clear();
    const Slice whole = plan.slices[0];
    const int64_t end = whole.first_position + whole.rows;
    for (int64_t first = whole.first_position; first < end;) {
      int64_t next = end;
      Slice s = whole;
      for (const auto& [from, to] : replies_) {
        if (first < from) next = std::min(next, from);
        if (first >= from && first < to) {
          next = std::min(next, to);
          s.row_class = RowClass::kGenerated;
          ++forced;
        }
      }
      s.first_position = first;
      s.rows = static_cast<int32_t>(next - first);
      s.token_offset = static_cast<int32_t>(first - whole.first_position);
      s.decoder_rows = std::min(
          s.rows,
          std::max(0, static_cast<int32_t>(next - std::max(first, end - whole.decoder_rows))));
      s.logits_rows = 0;
      if (next == end) {
        s.logits_rows = whole.logits_rows;
        part.samples = plan.samples;
      }
      part.slices = {s};
      TF_RETURN_IF_ERROR(inner_.run(part, results));
      part.commands.clear();
      first = next;
    }
    return ok_status();
  }
  int forced = 0;

 private:
  StepRunner& inner_;
  const std::vector<std::pair<int64_t, int64_t>> replies_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_conversation_over_kept_replies_equals_its_turns_replayed) {
  Pair& p = small();
  std::mt19937_64 rng(14);
  for (int round = 0; round < 4; ++round) {
    ServingOptions o;
    o.depth = round;
    Serving serving(*p.cached, o);
    std::vector<TokenId> ids = random_text(rng, 60 + 70 * round, p.vocab());
    std::vector<std::pair<int64_t, int64_t>> replies;
    for (int turn = 0; turn < 4; ++turn) {
      const Request request = cache_request(ids, 20, rng);
      const Reply got = serving.run_one(request);
      const auto n = static_cast<int64_t>(ids.size());
      // All but the new tokens, the last of the reply among them.
      const int64_t known = turn == 0 ? 0 : replies.back().second;
      BOOST_TEST(got.stats.usage.cached_tokens == known);
      StepExecutor executor(*p.cold);
      ForcedReplies forced(executor, replies);
      ServingOptions none = o;
      none.snapshot_units = 0;
      Serving replay(*p.cold, none, &forced);
      BOOST_REQUIRE(equal_replies(got, replay.run_one(request)));
      BOOST_TEST(forced.forced == turn);
      replies.push_back({n, n + static_cast<int64_t>(got.ids.size()) - 1});
      ids = joined(joined(ids, got.ids), random_text(rng, 15 + turn, p.vocab()));
    }
  }
}

// ---------------------------------------------------------------- planted faults

BOOST_AUTO_TEST_CASE(a_snapshot_that_serves_too_near_the_end_is_caught) {
  // The planted fault: the cache believes that the decoder needs one window, not the cone.
  Pair& p = small();
  std::mt19937_64 rng(15);
  int wrong = 0;
  int right_ones = 0;
  for (int i = 0; i < 6; ++i) {
    const auto text = random_text(rng, p.cone() + 200, p.vocab());
    const Request request = cache_request(text, 4, rng);
    for (const bool fault : {true, false}) {
      ServingOptions o;
      o.prefill_rows = 100;
      if (fault) o.decoder_span = p.cached->config().window;
      Serving serving(*p.cached, o);
      (void)serving.submit(request);
      serving.turns(3);  // 300 rows: less than a cone before the end
      serving.cancel_last();
      serving.run_dry();
      const Reply got = serving.run_one(request);
      BOOST_TEST((got.stats.usage.cached_tokens > 0) == fault);
      (fault ? wrong : right_ones) += !equal_replies(got, p.cold_run(request, o));
    }
  }
  BOOST_TEST(wrong > 0);
  BOOST_TEST(right_ones == 0);
}

BOOST_AUTO_TEST_CASE(a_tail_that_is_not_copied_is_caught) {
  class Forgetful final : public StepRunner {
   public:
    explicit Forgetful(Model& model) : inner_(model) {}
    Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
      StepPlan less = plan;
      std::erase_if(less.commands,
                    [](const CacheCommand& c) { return c.kind == CacheCommand::Kind::kCopyBlock; });
      return inner_.run(less, results);
    }

   private:
    StepExecutor inner_;
  };
  Pair& p = small();
  std::mt19937_64 rng(16);
  Forgetful forgetful(*p.cached);
  ServingOptions o;
  Serving serving(*p.cached, o, &forgetful);
  int wrong = 0;
  for (int i = 0; i < 4; ++i) {
    const Request request = cache_request(random_text(rng, 200, p.vocab()), 6, rng);
    (void)serving.run_one(request);
    wrong += !equal_replies(serving.run_one(request), p.cold_run(request, o));
  }
  BOOST_TEST(wrong > 0);
}
