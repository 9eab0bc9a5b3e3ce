// What a reply is must not depend on how it was made: drafts of any depth and quality, other
// requests in the batch, how the prompt was cut into chunks. Over random requests, greedy and
// seeded, with penalties, biases, stop strings, log-probabilities, masks and thinking budgets.
#include <random>

#include "tests/engine/random_requests.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

Reply serial(Request request, const ScriptedModel::Script& model) {
  LoopScript script;
  script.model = model;
  script.slots = 1;
  request.draft = false;
  LoopHarness h(script);
  const Reply r = h.run_one(std::move(request));
  BOOST_REQUIRE(r.stats.drafted == 0);
  return r;
}

}  // namespace

BOOST_AUTO_TEST_CASE(drafted_equals_serial) {
  std::mt19937_64 rng(100);
  std::map<FinishReason, int> reasons;
  int accepted = 0;
  int budgets = 0;
  int greedy = 0;
  for (int round = 0; round < 400; ++round) {
    const Request request = random_request(rng);
    LoopScript script;
    script.slots = 1;
    script.model.skill = static_cast<unsigned>(rng() % 101);
    const Reply plain = serial(request, script.model);
    for (const int depth : {-1, 0, 1, 3, 5}) {
      script.fixed_depth = depth;
      LoopHarness h(script);
      const Reply drafted = h.run_one(request);
      require_equal(drafted, plain);
      accepted += drafted.stats.accepted;
    }
    ++reasons[plain.reason];
    budgets += request.prompt.thinking.budget.has_value();
    greedy += request.sampling.temperature == 0;
  }
  BOOST_TEST(greedy > 100);
  BOOST_TEST(greedy < 300);
  BOOST_TEST(accepted > 2000);
  BOOST_TEST(budgets > 50);
  BOOST_TEST(reasons[FinishReason::kStop] > 40);
  BOOST_TEST(reasons[FinishReason::kLength] > 40);
  BOOST_TEST(reasons[FinishReason::kToolCalls] > 5);
}

BOOST_AUTO_TEST_CASE(batched_equals_alone_and_any_chunking_equals_any_other) {
  std::mt19937_64 rng(200);
  for (int round = 0; round < 100; ++round) {
    LoopScript script;
    script.slots = 1 + static_cast<int>(rng() % 8);
    script.prefill_rows = 1 + static_cast<int>(rng() % 200);
    script.fixed_depth = static_cast<int>(rng() % 7) - 1;
    script.model.skill = static_cast<unsigned>(rng() % 101);
    std::vector<Request> requests;
    for (int i = 0; i < 6; ++i) requests.push_back(random_request(rng));
    LoopHarness h(script);
    std::vector<std::shared_ptr<KeepingSink>> sinks;
    for (const Request& r : requests) {
      sinks.push_back(h.submit(r));
      for (uint64_t turns = rng() % 6; turns > 0; --turns) h.loop.turn();
    }
    h.run_dry();
    for (size_t i = 0; i < requests.size(); ++i)
      require_equal(sinks[i]->reply(), serial(requests[i], script.model));
  }
}

BOOST_AUTO_TEST_CASE(a_model_that_is_not_row_invariant_is_caught) {
  // The planted fault: logits that depend on how many rows share the step.
  std::mt19937_64 rng(300);
  int drafted = 0;
  int batched = 0;
  int cut = 0;
  for (int round = 0; round < 40; ++round) {
    Request request = random_request(rng);
    request.max_tokens = 40;
    request.ignore_eos = true;
    request.allowed_tokens.clear();
    request.stop.clear();
    LoopScript script;
    script.slots = 1;
    script.fixed_depth = 5;
    script.model.plant_leak = true;
    const Reply alone = serial(request, script.model);
    drafted += LoopHarness(script).run_one(request).ids != alone.ids;
    script.fixed_depth = 0;
    script.slots = 4;
    LoopHarness together(script);
    std::vector<std::shared_ptr<KeepingSink>> sinks;
    for (int i = 0; i < 4; ++i) sinks.push_back(together.submit(request));
    together.run_dry();
    batched += sinks[0]->reply().ids != alone.ids;
    script.slots = 1;
    script.prefill_rows = 7;
    cut += LoopHarness(script).run_one(request).ids != alone.ids;
  }
  BOOST_TEST(drafted > 20);
  BOOST_TEST(batched > 20);
  BOOST_TEST(cut > 20);
}

BOOST_AUTO_TEST_CASE(two_ranks_give_the_same_results_from_the_same_plans) {
  // The second rank sees nothing but the plans.
  class TwoRanks final : public StepRunner {
   public:
    TwoRanks(StepRunner& head, StepRunner& worker) : head_(head), worker_(worker) {}
    Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
      const auto sent = decode_step_plan(encode_step_plan(plan));
      std::vector<SampledTokens> other;
      TF_RETURN_IF_ERROR(head_.run(plan, results));
      TF_RETURN_IF_ERROR(worker_.run(*sent, other));
      BOOST_REQUIRE(other.size() == results.size());
      for (size_t i = 0; i < results.size(); ++i) {
        BOOST_REQUIRE(other[i].accepted == results[i].accepted);
        BOOST_REQUIRE(other[i].drafts == results[i].drafts);
        BOOST_REQUIRE(other[i].status.code() == results[i].status.code());
      }
      return ok_status();
    }

   private:
    StepRunner& head_;
    StepRunner& worker_;
  };
  std::mt19937_64 rng(400);
  ScriptedModel head({});
  ScriptedModel worker({});
  StepExecutor head_executor(head);
  StepExecutor worker_executor(worker);
  TwoRanks ranks(head_executor, worker_executor);
  ScriptedText text;
  StatsBoard board;
  TicketBook book;
  const auto policy = make_fixed_depth_policy(4);
  LoopOptions options;
  options.planner.pool_blocks = 64;
  options.planner.draft_rows = 5;
  options.vocab = kVocab;
  options.queue_deadline_us = INT64_MAX;
  EngineLoop loop(options, {ranks, text, *policy, system_clock(), null_log(), board});
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  for (int i = 0; i < 40; ++i) {
    Submission s;
    sinks.push_back(std::make_shared<KeepingSink>());
    s.ticket = book.open(sinks.back(), 1000);
    s.request = random_request(rng);
    s.request.max_tokens = 30;
    s.prompt = *text.encode(s.request.prompt);
    s.price = {30, blocks_for(static_cast<int64_t>(s.prompt.ids.size()) + 30)};
    if (!s.request.allowed_tokens.empty())
      s.mask = make_allow_list(kVocab, s.request.allowed_tokens);
    loop.take(std::move(s));
  }
  while (!loop.idle() && !loop.failed()) loop.turn();
  for (const auto& sink : sinks) BOOST_TEST(sink->reply().finished == 1);
  BOOST_TEST(worker.open_slots() == 0);
}
