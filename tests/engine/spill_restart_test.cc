// A process that starts again goes on from the disk: its replies are those of before and those of
// cold runs, bit for bit, over the real forward pass; also after power failed at any moment. Each
// "process" is another instance of the model, so nothing but the files connects them. A record
// that comes back changed must show.
#include "tests/engine/restarts.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

constexpr int kHistories = 40;  // five comparisons each

// Rows that are not numbers, injected: from a number of rounds on in one sequence.
class NanRows final : public StepRunner {
 public:
  explicit NanRows(Model& model) : inner_(model) {}
  int good_rounds = -1;  // -1: all of them
  Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
    TF_RETURN_IF_ERROR(inner_.run(plan, results));
    if (results.empty() || good_rounds < 0 || good_rounds-- > 0) return ok_status();
    results[0].accepted.clear();
    results[0].status =
        Status(StatusCode::kInternal, "injected", "", std::string(kReasonNonFinite));
    return ok_status();
  }

 private:
  StepExecutor inner_;
};

struct Counts {
  int compared = 0, from_disk = 0;
};

// Whether it is the cold run's reply.
bool right(Machines& m, Process& p, const ServingOptions& o, const Request& request, Counts& counts,
           Reply* reply = nullptr) {
  const Reply got = p.serving->run_one(request);
  ++counts.compared;
  if (reply != nullptr) *reply = got;
  return equal_replies(got, m.cold_run(request, o));
}

ServingOptions random_options(std::mt19937_64& rng) {
  ServingOptions o;
  o.prefill_rows = rng() % 2 ? 1024 : 40 + static_cast<int>(rng() % 300);
  o.depth = static_cast<int>(rng() % 4);
  o.exact = rng() % 4 != 0;
  o.reuse_replies = rng() % 2 != 0;
  return o;
}

// Requests before, the same and others after a restart. `crash`: power fails in between. `spoil`:
// what is read comes back changed, once a record was proved.
bool history(std::mt19937_64& rng, bool crash, Counts& counts, bool spoil = false) {
  Machines& m = machines();
  FaultFileSystem files("/spill");
  ManualClock clock;
  clock.advance_us(1'000'000);
  const ServingOptions o = random_options(rng);
  const auto text = [&](int64_t n) { return random_text(rng, n, m.vocab()); };
  const int64_t length = rng() % 4 ? 257 + static_cast<int64_t>(rng() % 160)
                                   : 512 + static_cast<int64_t>(rng() % 5) - 2;
  const auto first = text(length);
  const Request a = cache_request(first, kReplyTokens, rng);
  Reply reply, again;
  bool same = true;
  std::vector<TokenId> branch(first.begin(), first.end() - static_cast<ptrdiff_t>(rng() % 12));
  std::vector<TokenId> half(first.begin(), first.begin() + length / 2);
  {
    Process before(m.one, o, files, clock);
    if (crash) {
      const auto stop = static_cast<int64_t>(rng() % 60);
      files.set_hook([stop](int64_t number, FaultFileSystem::Op, const std::string& path) {
        return number < stop ? ok_status() : file_error(path, EIO);
      });
    }
    same &= right(m, before, o, a, counts, &reply);
    (void)before.serving->run_one(cache_request(joined(half, text(130)), 2, rng));
  }
  if (crash) files.crash(rng(), 0.5);
  Process after(m.two, o, files, clock);
  const auto hits = [&] { return after.tier.stats().read_records; };
  const auto check = [&](const Request& request, const Reply* known = nullptr) {
    const int64_t read = hits();
    again = after.serving->run_one(request);
    ++counts.compared;
    const bool ok = equal_replies(again, known != nullptr ? *known : m.cold_run(request, o));
    counts.from_disk += hits() > read && again.stats.usage.cached_tokens > 0 ? 1 : 0;
    return ok;
  };
  same &= check(a, &reply);
  if (spoil) {
    after.serving->flush();
    m.two.tier.change = spoil_block;
  }
  same &= check(cache_request(joined(branch, text(30)), kReplyTokens, rng));
  same &= check(cache_request(joined(half, text(100)), kReplyTokens, rng));
  same &= check(cache_request(joined(joined(first, reply.ids), text(40)), kReplyTokens, rng));
  BOOST_TEST((spoil || after.log.warnings().empty()));
  return same;
}

}  // namespace

BOOST_AUTO_TEST_CASE(replies_after_a_restart_are_those_of_before) {
  std::mt19937_64 rng(21);
  Counts counts;
  for (int i = 0; i < kHistories; ++i)
    BOOST_REQUIRE_MESSAGE(history(rng, false, counts), "history " << i);
  BOOST_TEST_MESSAGE(counts.from_disk << " of " << counts.compared << " began on disk");
  BOOST_TEST(counts.compared >= 200);
  BOOST_TEST(counts.from_disk >= kHistories / 2);
}

BOOST_AUTO_TEST_CASE(replies_after_power_failed_are_those_of_before) {
  std::mt19937_64 rng(22);
  Counts counts;
  for (int i = 0; i < kHistories / 5; ++i)
    BOOST_REQUIRE_MESSAGE(history(rng, true, counts), "history " << i);
  BOOST_TEST_MESSAGE(counts.from_disk << " of " << counts.compared << " began on disk");
  BOOST_TEST(counts.from_disk > 0);
}

BOOST_AUTO_TEST_CASE(a_record_that_comes_back_changed_is_caught) {
  Machines& m = machines();
  std::mt19937_64 rng(23);
  Counts counts;
  int caught = 0;
  for (int i = 0; i < 3; ++i) {
    caught += history(rng, false, counts, true) ? 0 : 1;
    m.two.tier.change = nullptr;
  }
  BOOST_TEST(caught > 0);
}

// A prompt whose rows fail leaves nothing that it could start from again: not in memory, not on
// disk, not after a restart, not after power failed. Other texts stay.
BOOST_AUTO_TEST_CASE(a_prompt_whose_rows_fail_is_computed_from_cold) {
  Machines& m = machines();
  std::mt19937_64 rng(26);
  int compared = 0;
  // Long enough for a snapshot in its middle, too. `rounds`: good ones before.
  for (const int64_t length : {300, 515, 4096 + 190}) {
    for (const int rounds : {0, 2, 6}) {
      if (length > 4096 && rounds != 0) continue;
      FaultFileSystem files("/spill");
      ManualClock clock;
      clock.advance_us(1'000'000);
      ServingOptions o;
      o.prefill_rows = 2048;
      const auto common = random_text(rng, 280, m.vocab());
      const auto prompt = [&](int64_t n) {
        return cache_request(joined(common, random_text(rng, n - 280, m.vocab())), 8, rng);
      };
      const Request good = prompt(400);
      const Request failing = prompt(length);
      const Reply cold = m.cold_run(failing, o);
      const auto from_cold = [&](Process& p) {
        const Reply got = p.serving->run_one(failing);
        ++compared;
        BOOST_TEST(got.stats.usage.cached_tokens == 0);
        BOOST_TEST(equal_replies(got, cold));
      };
      const bool restart = rounds != 2;
      {
        NanRows nan(*m.one.model);
        Process p(m.one, o, files, clock, &nan);
        (void)p.serving->run_one(good);
        nan.good_rounds = rounds;
        const auto sink = p.serving->submit(failing);
        p.serving->run_dry();
        BOOST_TEST(sink->reply().status.reason() == kReasonNonFinite);
        p.serving->turns(3);
        nan.good_rounds = -1;
        if (!restart) from_cold(p);
      }
      if (rounds == 6) files.crash(rng(), 0.5);
      Process after(m.two, o, files, clock);
      if (restart) from_cold(after);
      const Reply kept = after.serving->run_one(good);
      BOOST_TEST(kept.stats.usage.cached_tokens >= 280);
      BOOST_TEST(equal_replies(kept, m.cold_run(good, o)));
      BOOST_TEST(after.log.warnings().empty());
    }
  }
  BOOST_TEST(compared == 7);
}

// A prefix from disk whose request fails must not be tried again for ever.
BOOST_AUTO_TEST_CASE(a_restored_prefix_whose_rows_fail_is_forgotten) {
  Machines& m = machines();
  std::mt19937_64 rng(27);
  for (const int64_t length : {300, 512, 700}) {
    FaultFileSystem files("/spill");
    ManualClock clock;
    clock.advance_us(1'000'000);
    const ServingOptions o;
    const auto text = random_text(rng, length, m.vocab());
    const Request request = cache_request(joined(text, random_text(rng, 20, m.vocab())), 4, rng);
    {
      Process before(m.one, o, files, clock);
      (void)before.serving->run_one(cache_request(text, 4, rng));
    }
    {
      NanRows nan(*m.two.model);
      Process after(m.two, o, files, clock, &nan);
      nan.good_rounds = 0;
      const auto sink = after.serving->submit(request);
      after.serving->run_dry();
      BOOST_TEST(sink->reply().status.reason() == kReasonNonFinite);
      BOOST_TEST(after.tier.stats().read_records > 0);
      after.serving->turns(3);
      nan.good_rounds = -1;
    }
    Process last(m.one, o, files, clock);
    const Reply got = last.serving->run_one(request);
    BOOST_TEST(got.stats.usage.cached_tokens == 0);
    BOOST_TEST(equal_replies(got, m.cold_run(request, o)));
  }
}

// Room on disk for the text, none in memory: it comes and goes while others run.
BOOST_AUTO_TEST_CASE(prefixes_come_from_disk_while_others_run) {
  Machines& m = machines();
  std::mt19937_64 rng(24);
  FaultFileSystem files("/spill");
  ManualClock clock;
  clock.advance_us(1'000'000);
  ServingOptions o;
  o.slots = 3;
  o.pool_blocks = 16;
  o.snapshot_units = 8;
  std::vector<std::vector<TokenId>> bases;
  for (int i = 0; i < 6; ++i)
    bases.push_back(random_text(rng, 300 + 40 * static_cast<int64_t>(i), m.vocab()));
  Process p(m.one, o, files, clock);
  std::vector<std::pair<Request, std::shared_ptr<KeepingSink>>> past;
  int64_t cached = 0;
  for (int i = 0; i < 30; ++i) {
    const auto own = random_text(rng, 1 + static_cast<int64_t>(rng() % 30), m.vocab());
    const Request r = cache_request(joined(bases[rng() % bases.size()], own), 3, rng);
    past.push_back({r, p.serving->submit(r)});
    p.serving->turns(rng() % 6);
    if (rng() % 10 == 0) p.serving->cancel_last();
  }
  p.serving->run_dry();
  for (const auto& [request, sink] : past) {
    const Reply got = sink->reply();
    if (got.reason == FinishReason::kCancelled) continue;
    cached += got.stats.usage.cached_tokens > 0 ? 1 : 0;
    BOOST_REQUIRE(equal_replies(got, m.cold_run(request, o)));
  }
  BOOST_TEST(p.tier.stats().read_records > 10);
  BOOST_TEST(p.tier.stats().staged_bytes == 0);
  BOOST_TEST(cached > 10);
  BOOST_TEST(p.serving->stats().pool_tokens_used == 0);
  BOOST_TEST(p.log.warnings().empty());
}

// Reads that fail, files that vanish while a request waits for them, a flush in between: the reply
// is the cold run's, and the engine goes on.
BOOST_AUTO_TEST_CASE(a_disk_that_fails_while_it_is_read_costs_only_time) {
  Machines& m = machines();
  std::mt19937_64 rng(25);
  const ServingOptions o;
  const auto text = random_text(rng, 600, m.vocab());
  const Request request = cache_request(text, 2, rng);
  const Reply cold = m.cold_run(request, o);
  int whole = 0;
  for (int64_t failing = -2; failing < 8; ++failing) {
    FaultFileSystem files("/spill");
    ManualClock clock;
    clock.advance_us(1'000'000);
    {
      Process before(m.one, o, files, clock);
      BOOST_TEST(equal_replies(before.serving->run_one(request), cold));
    }
    Process after(m.two, o, files, clock);
    int64_t reads = 0;
    files.set_hook([&](int64_t, FaultFileSystem::Op op, const std::string& path) {
      const bool read = op == FaultFileSystem::Op::kRead || op == FaultFileSystem::Op::kOpen;
      return read && reads++ == failing ? file_error(path, EIO) : ok_status();
    });
    const auto sink = after.serving->submit(request);
    if (failing == -2) after.tier.flush();
    after.serving->run_dry();
    BOOST_TEST(equal_replies(sink->reply(), cold));
    whole += sink->reply().stats.usage.cached_tokens == 599 ? 1 : 0;
    const SpillStats s = after.tier.stats();
    BOOST_TEST((failing < 0 || reads <= failing || s.read_errors + s.damaged > 0));
    BOOST_TEST(after.log.warnings().size() <= 1u);
    // What was lost is written again.
    BOOST_TEST(equal_replies(after.serving->run_one(request), cold));
  }
  BOOST_TEST(whole > 0);
  BOOST_TEST(whole < 10);
}
