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
};

// Counts the steps behind which the drafter runs, once `from` steps are done.
class DrafterRuns final : public StepRunner {
 public:
  DrafterRuns(StepRunner& inner, int from) : inner_(inner), from_(from) {}
  int late = 0;
  Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
    const bool drafts = !plan.samples.empty() && plan.samples[0].draft_rows > 0;
    late += ++steps_ > from_ && drafts ? 1 : 0;
    return inner_.run(plan, results);
  }

 private:
  StepRunner& inner_;
  const int from_;
  int steps_ = 0;
};

Outcome run(unsigned skill, bool draft, int tokens) {
  ScriptedModel::Script script;
  script.skill = skill;
  script.eos_weight = 0;
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
  s.request.prompt.ids = std::vector<TokenId>{10, 11, 12};
  s.request.sampling.temperature = 0;
  s.request.ignore_eos = true;
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
