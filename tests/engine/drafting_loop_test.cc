// Drafting that never gives anything turns itself off, in the engine's own loop: counters, one line
// in the log, the same reply, and it is tried again.
#include "tests/engine/loop_harness.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

class Lines final : public LogSink {
 public:
  void write(LogLevel, std::string_view message, std::initializer_list<LogField> fields) override {
    for (const LogField& f : fields) events += f.name == "TF_EVENT" && f.value == "drafts_paused";
    lines.emplace_back(message);
  }
  int events = 0;
  std::vector<std::string> lines;
};

struct Outcome {
  Reply reply;
  EngineStats stats;
  Lines log;
  int most_paused = 0;
  int late_drafter_runs = 0;
  int64_t ends_seen = 0, ends_verified = 0;
};

// Counts the steps behind which the drafter runs, once `from` steps are done.
class DrafterRuns final : public StepRunner {
 public:
  DrafterRuns(StepRunner& inner, int from) : inner_(inner), from_(from) {}
  int late = 0;
  int64_t ends_seen = 0, ends_verified = 0;  // drafts that are the end token
  Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
    const bool drafts = !plan.samples.empty() && plan.samples[0].draft_rows > 0;
    late += ++steps_ > from_ && drafts ? 1 : 0;
    for (const SampleSpec& s : plan.samples) {
      const auto verified = std::span(last_).first(static_cast<size_t>(s.verify_rows - 1));
      ends_verified += std::count(verified.begin(), verified.end(), kEos);
    }
    ends_seen += std::count(last_.begin(), last_.end(), kEos);
    const Status status = inner_.run(plan, results);
    last_ = results.empty() ? std::vector<TokenId>() : results[0].drafts;
    return status;
  }

 private:
  StepRunner& inner_;
  const int from_;
  int steps_ = 0;
  std::vector<TokenId> last_;
};

// `ends`: of 100 rows so many favor the end token, and that ends the reply.
Outcome run(unsigned skill, bool draft, int tokens, unsigned ends = 0, TokenId first = 10) {
  ScriptedModel::Script script;
  script.skill = skill;
  script.eos_weight = ends;
  ScriptedModel model(script);
  StepExecutor executor(model);
  ScriptedText text;
  ManualClock clock;
  StatsBoard board;
  TicketBook book;
  Outcome out;
  const auto policy = make_expected_gain_policy(CostTable::linear(1, 0.2, 0.4));
  LoopOptions options;
  options.planner.pool_blocks = script.pool_blocks;
  options.planner.draft_rows = 5;
  options.vocab = kVocab;
  options.queue_deadline_us = INT64_MAX;
  DrafterRuns runs(executor, 100);
  EngineLoop loop(options, {runs, text, *policy, clock, out.log, board});
  auto sink = std::make_shared<KeepingSink>();
  Submission s;
  s.ticket = book.open(sink, 10);
  s.request.prompt.ids = std::vector<TokenId>{first, 11, 12};
  s.request.sampling.temperature = 0;
  s.request.ignore_eos = ends == 0;
  s.request.max_tokens = tokens;
  s.request.draft = draft;
  s.prompt = *text.encode(s.request.prompt);
  s.price = {tokens, blocks_for(3 + tokens)};
  loop.take(std::move(s));
  while (!loop.idle() && !loop.failed()) {
    clock.advance_us(1000);
    loop.turn();
    out.most_paused = std::max(out.most_paused, board.snapshot(clock).drafts_paused);
  }
  out.reply = sink->reply();
  out.stats = board.snapshot(clock);
  out.late_drafter_runs = runs.late;
  out.ends_seen = runs.ends_seen;
  out.ends_verified = runs.ends_verified;
  return out;
}

}  // namespace

BOOST_AUTO_TEST_CASE(useless_drafts_are_turned_off_and_tried_again) {
  constexpr int kTokens = 3000;
  const Outcome plain = run(0, false, kTokens);
  const Outcome drafted = run(0, true, kTokens);
  BOOST_TEST(plain.stats.draft_pauses_total == 0U);
  BOOST_TEST(drafted.reply.ids == plain.reply.ids);
  BOOST_TEST(drafted.stats.accepted_total == 0U);
  // Looked at again, seldom: a confidence that promises nothing ends it there.
  BOOST_TEST(drafted.stats.draft_pauses_total >= 1U);
  BOOST_TEST(drafted.stats.draft_pauses_total <= 12U);
  BOOST_TEST(plain.late_drafter_runs == 0);
  BOOST_TEST(drafted.late_drafter_runs >= 5);
  BOOST_TEST(drafted.late_drafter_runs < kTokens / 30);
  BOOST_TEST(drafted.stats.drafted_total < kTokens / 10U);
  BOOST_TEST(drafted.most_paused == 1);
  BOOST_TEST(drafted.stats.drafts_paused == 0);  // the reply is over
  // Three seconds on the loop's clock: one line.
  BOOST_TEST(drafted.log.events == 1);
}

BOOST_AUTO_TEST_CASE(good_drafts_stay_on) {
  const Outcome plain = run(95, false, 1000);
  const Outcome drafted = run(95, true, 1000);
  BOOST_TEST(drafted.reply.ids == plain.reply.ids);
  BOOST_TEST(drafted.stats.draft_pauses_total == 0U);
  BOOST_TEST(drafted.stats.accepted_total > 600U);
  BOOST_TEST(drafted.log.events == 0);
}

BOOST_AUTO_TEST_CASE(nothing_is_verified_at_the_end_of_a_reply_or_behind_it) {
  // The end token comes of the row before it, whether or not a draft says so.
  int64_t seen = 0;
  for (TokenId first = 1; first <= 40; ++first) {
    const Outcome plain = run(95, false, 200, 6, first);
    const Outcome drafted = run(95, true, 200, 6, first);
    BOOST_TEST(drafted.reply.ids == plain.reply.ids);
    BOOST_TEST(drafted.ends_verified == 0);
    seen += drafted.ends_seen;
  }
  BOOST_TEST(seen >= 20);
}
