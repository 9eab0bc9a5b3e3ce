// The engine loop without threads: a scripted model, a clock that moves only when told to, and
// requests handed over as a worker would. Every run is a function of its inputs.
#pragma once

#include <memory>
#include <vector>

#include "engine/engine_loop.h"
#include "tests/engine/scripted_text.h"

namespace tensorfold::scripted {

// Keeps the digests of all plans, and checks that each survives its binary form.
class LoggingRunner final : public StepRunner {
 public:
  explicit LoggingRunner(StepRunner& inner) : inner_(inner) {}
  Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
    const auto decoded = decode_step_plan(encode_step_plan(plan));
    BOOST_REQUIRE_MESSAGE(decoded.ok(), decoded.status().message());
    digests.push_back(step_plan_digest(plan));
    rows += plan.total_rows();
    return inner_.run(*decoded, results);
  }
  std::vector<std::string> digests;
  int64_t rows = 0;

 private:
  StepRunner& inner_;
};

struct LoopScript {
  ScriptedModel::Script model;
  int slots = 4;
  int prefill_rows = 64;
  int draft_rows = 5;
  int fixed_depth = -1;  // -1: the expected-gain policy
  int64_t context = 2048;
  int64_t queue_deadline_us = 30'000'000;
  int64_t reply_allowance = kReplyAllowanceTokens;
  int64_t snapshot_units = 0;  // of the prefix cache; a full snapshot takes two
  bool exact = true;
  bool reuse_replies = true;
  uint64_t fingerprint_mask = ~uint64_t{0};
  MaskOptions masks = {};
};

class LoopHarness {
 public:
  explicit LoopHarness(const LoopScript& script)
      : model(script.model),
        executor(model),
        runner(executor),
        policy(script.fixed_depth >= 0 ? make_fixed_depth_policy(script.fixed_depth)
                                       : make_expected_gain_policy({})),
        capacity{script.context, script.model.pool_blocks},
        loop(options(script), {runner, text, *policy, clock, null_log(), board}) {}

  // Hands a request over; what a worker would refuse is refused.
  std::shared_ptr<KeepingSink> submit(Request request) {
    auto sink = std::make_shared<KeepingSink>();
    Submission s;
    s.ticket = book.open(sink, SIZE_MAX);
    s.request = std::move(request);
    s.submitted_us = clock.monotonic_us();
    last_id = s.ticket->id();
    Status status = check_request(s.request, kVocab);
    if (status.ok()) {
      s.prompt = *text.encode(s.request.prompt);
      auto price = price_request(capacity, static_cast<int64_t>(s.prompt.ids.size()),
                                 s.request.max_tokens, true);
      status = price.status();
      if (price.ok()) s.price = *price;
    }
    if (!status.ok()) {
      s.ticket->finish(status, FinishReason::kFailed, {});
      return sink;
    }
    if (!s.request.allowed_tokens.empty())
      s.mask = make_allow_list(kVocab, s.request.allowed_tokens);
    loop.take(std::move(s));
    return sink;
  }

  void run_dry() {
    int turns = 0;
    while (!loop.idle() && !loop.failed()) {
      clock.advance_us(1000);
      loop.turn();
      BOOST_REQUIRE(++turns < 200000);
    }
  }

  Reply run_one(Request request) {
    auto sink = submit(std::move(request));
    run_dry();
    return sink->reply();
  }

  ManualClock clock;
  ScriptedText text;
  ScriptedModel model;
  StepExecutor executor;
  LoggingRunner runner;
  std::unique_ptr<DepthPolicy> policy;
  Capacity capacity;
  StatsBoard board;
  TicketBook book;
  EngineLoop loop;
  RequestId last_id = 0;

 private:
  static LoopOptions options(const LoopScript& script) {
    LoopOptions o;
    o.planner.slots = script.slots;
    o.planner.prefill_rows = script.prefill_rows;
    o.planner.pool_blocks = script.model.pool_blocks;
    o.planner.decoder_span = 16;
    o.planner.draft_rows = script.draft_rows;
    o.planner.reply_allowance = script.reply_allowance;
    o.prefix.window = 8;
    o.prefix.decoder_span = 16;
    o.prefix.exact = script.exact;
    o.prefix.reuse_replies = script.reuse_replies;
    o.prefix.snapshot_units = script.snapshot_units;
    o.prefix.fingerprint_mask = script.fingerprint_mask;
    o.vocab = kVocab;
    o.queue_deadline_us = script.queue_deadline_us;
    o.masks = script.masks;
    return o;
  }
};

}  // namespace tensorfold::scripted
