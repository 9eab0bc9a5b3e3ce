// When the engine finds itself at fault: the canary and the two signs, alone and together, over a
// clock that is moved; then whole engines whose drafter or model falls ill while they serve.
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "engine/engine_core.h"
#include "tests/engine/cache/spill/spill_world.h"
#include "tests/engine/passing_model.h"
#include "tests/engine/scripted_text.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

using Action = HealthWatch::Action;
constexpr int64_t kSecond = 1'000'000;

const std::vector<TokenId> kRight = {1, 2, 3};
const std::vector<TokenId> kWrong = {1, 2, 4};

// A watch whose canary was right once.
struct Watched {
  Watched() {
    watch.set_canary({5, 6, 7});
    BOOST_TEST((watch.next(now) == Action::kAskCanary));
    say(kRight);
    BOOST_TEST((watch.next(now) == Action::kNone));
  }
  void say(const std::vector<TokenId>& tokens) {
    watch.canary_began();
    BOOST_TEST((watch.next(now) == Action::kNone));  // one at a time
    watch.canary_said(now, tokens);
  }
  // Seconds of work; asks are answered. What else came.
  std::vector<Action> pass(int64_t seconds, int64_t right_of_100, bool empty,
                           const std::vector<TokenId>& answer = kRight) {
    std::vector<Action> out;
    for (int64_t s = 0; s < seconds; ++s) {
      now += kSecond;
      watch.drafts(now, 100, right_of_100);
      watch.answered(empty);
      for (Action a = watch.next(now); a != Action::kNone; a = watch.next(now)) {
        if (a == Action::kAskCanary) {
          ++asked;
          say(answer);
        } else {
          out.push_back(a);
        }
      }
    }
    return out;
  }
  HealthWatch watch;
  int64_t now = 0;
  int asked = 0;
};

}  // namespace

BOOST_AUTO_TEST_CASE(few_right_drafts_alone_raise_no_alarm) {
  Watched w;
  BOOST_TEST(w.pass(1200, 0, false).empty());
  BOOST_TEST(w.asked >= 15);  // about once a minute
  BOOST_TEST(w.asked <= 20);
  BOOST_TEST(!w.watch.alarm());
}

BOOST_AUTO_TEST_CASE(empty_answers_alone_raise_no_alarm) {
  Watched w;
  BOOST_TEST(w.pass(1200, 60, true).empty());
  BOOST_TEST(w.asked >= 15);
  BOOST_TEST(!w.watch.alarm());
}

BOOST_AUTO_TEST_CASE(both_together_do_and_drafts_come_back) {
  Watched w;
  const auto first = w.pass(kSignWindowUs / kSecond - 1, 0, true);
  BOOST_TEST(first.empty());  // not yet for a minute
  const auto second = w.pass(30, 0, true);
  BOOST_REQUIRE(second.size() == 1U);
  BOOST_TEST((second[0] == Action::kAlarm));
  BOOST_TEST(w.watch.alarm());
  BOOST_TEST(w.watch.reason().find("3%") != std::string::npos);
  const auto third = w.pass(kAlarmUs / kSecond, 50, false);
  BOOST_REQUIRE(third.size() == 1U);
  BOOST_TEST((third[0] == Action::kAllClear));
  BOOST_TEST(!w.watch.alarm());
  BOOST_TEST(w.watch.figures().new_starts == 0U);
}

// Three of a hundred are enough, and so is one answer that is not empty.
BOOST_AUTO_TEST_CASE(the_signs_have_their_edges) {
  Watched at_the_edge;
  BOOST_TEST(at_the_edge.pass(300, 3, true).empty());
  Watched answers;
  for (int i = 0; i < 60; ++i) {
    BOOST_TEST(answers.pass(kSignEmptyAnswers - 1, 0, true).empty());
    BOOST_TEST(answers.pass(1, 0, false).empty());
  }
}

BOOST_AUTO_TEST_CASE(a_wrong_canary_leads_to_a_new_start_and_then_to_failure) {
  Watched w;
  auto seen = w.pass(kCanaryEveryUs / kSecond + 1, 70, false, kWrong);
  BOOST_REQUIRE(seen.size() == 2U);
  BOOST_TEST((seen[0] == Action::kAlarm));
  BOOST_TEST((seen[1] == Action::kNewStart));
  BOOST_TEST(w.watch.begins_anew());
  // It helped.
  w.watch.began_anew(w.now);
  BOOST_TEST(!w.watch.begins_anew());
  BOOST_TEST(w.pass(1000, 70, false).empty());
  BOOST_TEST(w.watch.figures().new_starts == 1U);
  BOOST_TEST(!w.watch.alarm());
  // Now it never does.
  std::vector<Action> all;
  for (int i = 0; i < 8 && (all.empty() || all.back() != Action::kFail); ++i) {
    for (const Action a : w.pass(kCanaryEveryUs / kSecond + 1, 70, false, kWrong)) all.push_back(a);
    if (w.watch.begins_anew()) w.watch.began_anew(w.now);
  }
  BOOST_REQUIRE(!all.empty());
  BOOST_TEST((all.back() == Action::kFail));
  BOOST_TEST(w.watch.figures().new_starts == static_cast<uint64_t>(kNewStartsMax));
  BOOST_TEST(!w.watch.begins_anew());
  BOOST_TEST(w.pass(2000, 70, false).empty());
}

BOOST_AUTO_TEST_CASE(a_canary_that_is_right_without_drafts_costs_only_the_drafts) {
  Watched w;
  w.now += kCanaryEveryUs;
  w.watch.answered(false);
  BOOST_TEST((w.watch.next(w.now) == Action::kAskCanary));
  w.say(kWrong);
  BOOST_TEST((w.watch.next(w.now) == Action::kAlarm));
  BOOST_TEST((w.watch.next(w.now) == Action::kAskCanary));
  w.say(kRight);
  BOOST_TEST((w.watch.next(w.now) == Action::kNone));
  BOOST_TEST(w.watch.alarm());
  BOOST_TEST(!w.watch.begins_anew());
}

BOOST_AUTO_TEST_CASE(no_answer_is_no_wrong_answer) {
  HealthWatch none;
  BOOST_TEST((none.next(0) == Action::kNone));  // without a canary nothing is watched
  Watched w;
  w.now += kCanaryEveryUs;
  w.watch.answered(false);
  BOOST_TEST((w.watch.next(w.now) == Action::kAskCanary));
  w.watch.canary_began();
  w.watch.canary_failed(w.now);
  BOOST_TEST((w.watch.next(w.now) == Action::kNone));
  BOOST_TEST(w.watch.figures().canaries_wrong == 0U);
  // The first one of all is asked again until it is heard.
  HealthWatch first;
  first.set_canary({5});
  for (int64_t now = 0; now < 5 * kSecond; now += kCanaryRetryUs) {
    BOOST_TEST((first.next(now) == Action::kAskCanary));
    first.canary_began();
    first.canary_failed(now);
    BOOST_TEST((first.next(now) == Action::kNone));
  }
}

BOOST_AUTO_TEST_CASE(whatever_happens_the_rules_hold) {
  std::mt19937_64 rng(31);
  int alarms = 0;
  int starts = 0;
  for (int life = 0; life < 200; ++life) {
    Watched w;
    int wrong_in_a_row = 0;
    bool without_drafts = false;                  // was the last wrong one asked so
    std::vector<std::pair<int64_t, int>> rounds;  // bucket of ten seconds, right of 50
    int empty_in_a_row = 0;
    bool poor = rng() % 2;
    bool empty = rng() % 2;
    for (int s = 0; s < 1500; ++s) {
      if (rng() % 100 == 0) poor = rng() % 2;
      if (rng() % 30 == 0) empty = rng() % 2;
      w.now += kSecond;
      w.watch.drafts(w.now, 50, poor ? 0 : 40);
      w.watch.answered(empty);
      rounds.emplace_back(w.now / (10 * kSecond), poor ? 0 : 40);
      empty_in_a_row = empty ? empty_in_a_row + 1 : 0;
      for (Action a = w.watch.next(w.now); a != Action::kNone; a = w.watch.next(w.now)) {
        if (a == Action::kAskCanary) {
          const bool wrong = rng() % 6 == 0;
          without_drafts = w.watch.alarm();
          w.say(wrong ? kWrong : kRight);
          wrong_in_a_row = wrong ? wrong_in_a_row + 1 : 0;
          if (!wrong) empty_in_a_row = 0;
        } else if (a == Action::kAlarm) {
          ++alarms;
          int right = 0;
          int known = 0;
          for (const auto& [bucket, n] : rounds) {
            if (bucket < w.now / (10 * kSecond) - 6) continue;
            right += n;
            known += 50;
          }
          const bool signs =
              known >= 60 * 50 && 100 * right < 3 * known && empty_in_a_row >= kSignEmptyAnswers;
          BOOST_REQUIRE((wrong_in_a_row > 0 || signs));
        } else if (a == Action::kNewStart) {
          ++starts;
          BOOST_REQUIRE(wrong_in_a_row >= 1);
          BOOST_REQUIRE(without_drafts);
          w.watch.began_anew(w.now);
          rounds.clear();
          empty_in_a_row = 0;
        } else if (a == Action::kAllClear) {
          rounds.clear();
          empty_in_a_row = 0;
        }
      }
    }
  }
  BOOST_TEST(alarms > 100);
  BOOST_TEST(starts > 20);
}

// ---------------------------------------------------------------- engines

namespace {

enum class Illness : int { kNone = 0, kDrafter = 1, kModel = 2 };

class IllModel final : public PassingModel {
 public:
  IllModel(Model& inner, const std::atomic<Illness>& illness)
      : PassingModel(inner), illness_(illness) {}
  Status forward(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                 StepLogits& logits, ForwardProbe* probe) override {
    TF_RETURN_IF_ERROR(inner_.forward(plan, device_tokens, logits, probe));
    if (illness_.load() != Illness::kModel) return ok_status();
    for (size_t row = 0; row < logits.rows.size(); ++row) logits.values[row * kVocab + kEos] = 1e4F;
    return ok_status();
  }
  Status draft(std::span<const DraftRequest> requests, std::vector<DraftResult>& results,
               ForwardProbe* probe) override {
    TF_RETURN_IF_ERROR(inner_.draft(requests, results, probe));
    if (illness_.load() != Illness::kDrafter) return ok_status();
    for (DraftResult& r : results)
      for (int32_t& token : r.tokens) token = (token + 1) % kVocab;
    return ok_status();
  }

 private:
  const std::atomic<Illness>& illness_;
};

struct Patient {
  struct Owned {
    Owned(const ScriptedModel::Script& script, const std::atomic<Illness>& illness)
        : model(script), ill(model, illness), executor(ill) {}
    ScriptedModel model;
    IllModel ill;
    StepExecutor executor;
  };
  class Borrowed final : public StepRunner {
   public:
    explicit Borrowed(StepRunner& r) : r_(r) {}
    Status run(const StepPlan& p, std::vector<SampledTokens>& o) override { return r_.run(p, o); }

   private:
    StepRunner& r_;
  };

  std::atomic<Illness> illness{Illness::kNone};
  std::atomic<bool> heals{true};  // by loading
  std::atomic<int> loads{0};
  ManualClock clock;
  KeptLog log;
  std::shared_ptr<ScriptedText> text = std::make_shared<ScriptedText>();
  std::unique_ptr<Engine> engine;

  Patient() {
    clock.advance_us(kSecond);
    EngineOptions options;
    options.slots = 2;
    auto started = start_engine(options, clock, log, [this](const EngineOptions& o, const auto&) {
      if (++loads > 1 && heals.load()) illness.store(Illness::kNone);
      ScriptedModel::Script script;
      script.eos_weight = 0;
      auto owned = std::make_shared<Owned>(script, illness);
      EngineParts parts;
      parts.runner = std::make_unique<Borrowed>(owned->executor);
      parts.keep = owned;
      parts.text = text;
      parts.canary = {11, 12, 13, 14};
      parts.depth_policy = make_fixed_depth_policy(3);
      parts.loop.planner.slots = o.slots;
      parts.loop.planner.prefill_rows = 16;
      parts.loop.planner.pool_blocks = 64;
      parts.loop.planner.draft_rows = 5;
      parts.loop.vocab = kVocab;
      parts.loop.queue_deadline_us = 3600 * kSecond;
      parts.capacity = {int64_t{1} << 20, 64};
      parts.info = {"print", "Scripted", parts.capacity.context, 7, kVocab};
      return Result<EngineParts>(std::move(parts));
    });
    BOOST_REQUIRE(started.ok());
    engine = std::move(started).value();
    until([this] { return engine->stats().state == EngineStats::State::kReady; });
  }

  template <typename Condition>
  void until(const Condition& condition) {
    for (int i = 0; i < 60'000 && !condition(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    BOOST_REQUIRE(condition());
  }

  // While the engine loads again requests are refused; those are asked once more.
  Reply ask(uint64_t seed, bool empty = false) {
    for (int i = 0; i < 60'000; ++i) {
      Request r;
      r.prompt.ids = std::vector<TokenId>{20, 21, static_cast<TokenId>(22 + seed % 20)};
      r.max_tokens = 24;
      r.sampling.temperature = 0;
      if (empty) r.allowed_tokens = {kEos};
      auto sink = std::make_shared<KeepingSink>();
      if (engine->submit(r, sink).ok()) {
        return sink->wait_finished();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {};
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(the_canary_is_heard_before_the_first_request_and_not_counted) {
  Patient p;
  EngineStats s = p.engine->stats();
  BOOST_TEST(s.canaries_total == 1U);
  BOOST_TEST(s.requests_total == 0U);
  BOOST_TEST(s.completion_tokens_total == 0U);
  (void)p.ask(1);
  p.clock.advance_us(kCanaryEveryUs);
  p.until([&] { return p.engine->stats().canaries_total == 2U; });
  s = p.engine->stats();
  BOOST_TEST(s.requests_total == 1U);
  BOOST_TEST(s.canaries_wrong_total == 0U);
  BOOST_TEST(s.health_alarms_total == 0U);
  BOOST_TEST(p.loads.load() == 1);
}

// The report: drafts are never right and every answer is empty. Here only the drafter is ill and
// the clients ask for empty answers: nothing is drafted for a while, and nothing else happens.
BOOST_AUTO_TEST_CASE(an_ill_drafter_is_left_alone_for_a_while) {
  Patient p;
  const std::vector<TokenId> before = p.ask(1).ids;
  BOOST_TEST(!before.empty());
  p.illness.store(Illness::kDrafter);
  for (uint64_t i = 0; i < 120; ++i) {
    p.clock.advance_us(kSecond);
    BOOST_TEST(p.ask(1).ids == before);  // drafts change no text
  }
  BOOST_TEST(p.engine->stats().health_alarms_total == 0U);  // never on acceptance alone
  BOOST_TEST(p.engine->stats().canaries_total >= 2U);
  BOOST_TEST(p.engine->stats().canaries_wrong_total == 0U);
  // Together with answers that are empty because the clients want them so: a false alarm, which
  // costs the drafts for ten minutes and nothing else.
  for (int i = 0; i < kSignEmptyAnswers; ++i) BOOST_TEST(p.ask(1, true).ids.empty());
  p.until([&] { return p.engine->stats().health_alarms_total == 1U; });
  BOOST_TEST(p.engine->stats().health_alarm);
  const uint64_t drafted = p.engine->stats().drafted_total;
  BOOST_TEST(p.ask(1).ids == before);
  BOOST_TEST(p.engine->stats().drafted_total == drafted);
  p.illness.store(Illness::kNone);
  p.clock.advance_us(kAlarmUs);
  p.until([&] { return !p.engine->stats().health_alarm; });
  BOOST_TEST(p.ask(1).ids == before);
  BOOST_TEST(p.engine->stats().drafted_total > drafted);
  BOOST_TEST(p.engine->stats().canaries_wrong_total == 0U);
  BOOST_TEST(p.loads.load() == 1);
}

BOOST_AUTO_TEST_CASE(an_ill_model_is_loaded_again_and_answers_as_before) {
  Patient p;
  const std::vector<TokenId> before = p.ask(1).ids;
  BOOST_TEST(!before.empty());
  p.illness.store(Illness::kModel);
  BOOST_TEST(p.ask(1).ids.empty());
  int asked = 0;
  while (p.loads.load() < 2 && asked < 400) {
    p.clock.advance_us(kSecond);
    (void)p.ask(static_cast<uint64_t>(++asked));
  }
  BOOST_TEST(asked < 200);  // eight empty answers, and a minute since the last canary
  BOOST_TEST(p.ask(1).ids == before);
  p.until([&] { return p.engine->stats().canaries_total >= 4U; });
  const EngineStats s = p.engine->stats();
  BOOST_TEST((s.state == EngineStats::State::kReady));
  BOOST_TEST(s.new_starts_total == 1U);
  BOOST_TEST(s.canaries_wrong_total == 2U);
  BOOST_TEST(s.health_alarms_total == 1U);
  BOOST_TEST(!s.health_alarm);
  BOOST_TEST(p.log.said("alarm: the canary's answer is not what it was"));
  BOOST_TEST(p.log.said("the model is loaded again"));
}

BOOST_AUTO_TEST_CASE(one_that_stays_ill_fails) {
  Patient p;
  p.heals.store(false);
  (void)p.ask(1);
  p.illness.store(Illness::kModel);
  for (int i = 0; i < 2000 && p.engine->stats().state != EngineStats::State::kFailed; ++i) {
    p.clock.advance_us(10 * kSecond);
    Request r;
    r.prompt.ids = std::vector<TokenId>{20, 21};
    r.max_tokens = 4;
    auto sink = std::make_shared<KeepingSink>();
    if (p.engine->submit(r, sink).ok()) (void)sink->wait_finished();
  }
  BOOST_TEST((p.engine->stats().state == EngineStats::State::kFailed));
  BOOST_TEST(p.engine->stats().new_starts_total == static_cast<uint64_t>(kNewStartsMax));
  BOOST_TEST(p.loads.load() == 1 + kNewStartsMax);
}
