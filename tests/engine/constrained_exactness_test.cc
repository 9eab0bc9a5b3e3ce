// Replies of a given form: drafted, batched and thinking replies equal their serial references bit
// for bit, every finished one is of its form, and a dead end ends only itself. With two planted
// faults: masks of rows behind the first that are another state's, and a matcher that loses track.
#include <random>

#include "engine/constraint_service.h"
#include "engine/grammar/constraint.h"
#include "engine/grammar/text_match.h"
#include "tests/engine/loop_harness.h"
#include "tests/engine/scripted_vocabulary.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

std::string text_of(const std::vector<TokenId>& ids, bool thinking) {
  const auto vocab = scripted_vocabulary();
  std::string text;
  for (const TokenId id : ids) {
    if (thinking) {
      thinking = id != kThinkEnd;
      continue;
    }
    text += vocab->spec().bytes[static_cast<size_t>(id)];
  }
  return text;
}

std::vector<std::shared_ptr<const grammar::ConstraintSpec>> forms() {
  using grammar::ConstraintKind;
  std::vector<std::shared_ptr<const grammar::ConstraintSpec>> out;
  for (const char* rules :
       {"root ::= \"{\" (root | [a-c])* \"}\"", "root ::= [G-Z]{2,5} (\"_\" [a-z]+){1,3}",
        "root ::= (\"ab\" | \"a\" | \"b\"){4,30} \"z\""}) {
    grammar::ConstraintSpec spec;
    spec.kind = ConstraintKind::kEbnf;
    spec.text = rules;
    out.push_back(std::make_shared<grammar::ConstraintSpec>(spec));
  }
  grammar::ConstraintSpec spec;
  spec.kind = ConstraintKind::kChoice;
  spec.choices = {"a", "ab", "abc", "xyz"};
  out.push_back(std::make_shared<grammar::ConstraintSpec>(spec));
  spec.kind = ConstraintKind::kRegex;
  spec.text = "[a-z]*";
  out.push_back(std::make_shared<grammar::ConstraintSpec>(spec));
  return out;
}

// Masks behind a draft come from the state before it; or next() forgets a token now and then.
class Faulty final : public MaskSource {
 public:
  enum class Fault : unsigned char { kStaleRows, kLostToken };
  Faulty(std::shared_ptr<const MaskSource> inner, Fault fault)
      : inner_(std::move(inner)), fault_(fault) {}
  MaskState start() const override { return inner_->start(); }
  MaskState next(MaskState state, int32_t token) const override {
    ++nexts_;
    if (fault_ == Fault::kLostToken && nexts_ % 7 == 0) return state;
    return inner_->next(state, token);
  }
  bool mask(MaskState state, std::span<uint32_t> bits) const override {
    if (fault_ == Fault::kLostToken) return inner_->mask(state, bits);
    const bool again = masks_++ % 2 == 1 && last_ >= 0;
    const MaskState shown = again ? last_ : state;
    last_ = state;
    return inner_->mask(shown, bits);
  }

 private:
  std::shared_ptr<const MaskSource> inner_;
  const Fault fault_;
  mutable int nexts_ = 0, masks_ = 0;
  mutable MaskState last_ = -1;
};

struct Job {
  Request request;
  std::shared_ptr<const grammar::ConstraintSpec> form;
};

Job random_job(std::mt19937_64& rng) {
  static const auto kForms = forms();
  Job job;
  Request& r = job.request;
  r.prompt.ids.emplace();
  for (uint64_t n = 1 + rng() % 40; n > 0; --n)
    r.prompt.ids->push_back(static_cast<TokenId>(8 + rng() % 50));
  r.prompt.thinking.enabled = rng() % 2 == 0;
  if (r.prompt.thinking.enabled) r.prompt.thinking.budget = static_cast<int>(rng() % 12);
  r.sampling.temperature = rng() % 3 == 0 ? 0.0 : 1.0;
  r.sampling.top_p = rng() % 2 == 0 ? 1.0 : 0.9;
  r.sampling.seed = rng();
  r.sampling.repetition_penalty = rng() % 4 == 0 ? 1.3 : 1.0;
  r.max_tokens = static_cast<int>(1 + rng() % 60);
  job.form = kForms[rng() % kForms.size()];
  return job;
}

std::shared_ptr<KeepingSink> submit(LoopHarness& h, const Job& job, bool draft,
                                    const Faulty::Fault* fault = nullptr) {
  static ConstraintService service(scripted_vocabulary());
  const auto made = service.compile(*job.form, job.request.prompt.thinking.enabled);
  BOOST_REQUIRE_MESSAGE(made.ok(), made.status().message());
  auto sink = std::make_shared<KeepingSink>();
  Submission s;
  s.ticket = h.book.open(sink, SIZE_MAX);
  s.request = job.request;
  s.request.draft = draft;
  s.prompt = *h.text.encode(s.request.prompt);
  s.price = *price_request(h.capacity, static_cast<int64_t>(s.prompt.ids.size()),
                           s.request.max_tokens, true);
  s.mask = made->source;
  if (fault != nullptr) s.mask = std::make_shared<Faulty>(s.mask, *fault);
  h.loop.take(std::move(s));
  return sink;
}

Reply alone(const Job& job, const LoopScript& script, bool draft,
            const Faulty::Fault* fault = nullptr) {
  LoopHarness h(script);
  const auto sink = submit(h, job, draft, fault);
  h.run_dry();
  return sink->reply();
}

bool same(const Reply& a, const Reply& b) {
  return a.ids == b.ids && a.status.code() == b.status.code() && a.reason == b.reason;
}

bool of_its_form(const Job& job, const Reply& reply) {
  const auto compiled = grammar::compile_program(*job.form, -1);
  const auto verdict = grammar::match_text(*compiled->program,
                                           text_of(reply.ids, job.request.prompt.thinking.enabled));
  if (reply.reason == FinishReason::kStop) return verdict.accepted;
  return verdict.accepted || verdict.unfinished;
}

}  // namespace

BOOST_AUTO_TEST_CASE(drafted_and_batched_equal_serial_and_are_of_their_form) {
  std::mt19937_64 rng(11);
  int stopped = 0, drafted = 0;
  for (int round = 0; round < 90; ++round) {
    LoopScript script;
    script.model.skill = static_cast<unsigned>(rng() % 101);
    script.model.eos_weight = 30;
    script.fixed_depth = static_cast<int>(rng() % 6);
    LoopHarness batch(script);
    std::vector<Job> jobs;
    std::vector<std::shared_ptr<KeepingSink>> sinks;
    for (int i = 0; i < 6; ++i) {
      jobs.push_back(random_job(rng));
      sinks.push_back(submit(batch, jobs.back(), true));
    }
    batch.run_dry();
    for (size_t i = 0; i < jobs.size(); ++i) {
      const Reply serial = alone(jobs[i], script, false);
      const Reply together = sinks[i]->reply();
      BOOST_REQUIRE_MESSAGE(serial.status.ok(), serial.status.message());
      BOOST_REQUIRE(same(serial, together));
      BOOST_REQUIRE(of_its_form(jobs[i], together));
      stopped += together.reason == FinishReason::kStop ? 1 : 0;
      drafted += together.stats.drafted;
    }
  }
  BOOST_TEST(stopped > 60);
  BOOST_TEST(drafted > 1000);
}

BOOST_AUTO_TEST_CASE(planted_faults_are_seen) {
  for (const Faulty::Fault fault : {Faulty::Fault::kStaleRows, Faulty::Fault::kLostToken}) {
    std::mt19937_64 rng(12);
    int seen = 0;
    for (int i = 0; i < 40; ++i) {
      LoopScript script;
      script.fixed_depth = 4;
      const Job job = random_job(rng);
      const Reply reply = alone(job, script, true, &fault);
      const Reply serial = alone(job, script, false);
      seen += !same(serial, reply) || !of_its_form(job, reply) ? 1 : 0;
    }
    BOOST_TEST(seen > 5);
  }
}

BOOST_AUTO_TEST_CASE(a_dead_end_ends_only_its_request) {
  std::mt19937_64 rng(13);
  LoopScript script;
  LoopHarness h(script);
  Job bad = random_job(rng);
  bad.request.prompt.thinking.enabled = false;
  bad.request.max_tokens = 20;
  bad.form = forms()[1];
  const Job good = random_job(rng);
  auto good_sink = submit(h, good, true);
  // Its mask source dies after the first token.
  class Dying final : public MaskSource {
   public:
    MaskState start() const override { return 0; }
    MaskState next(MaskState state, int32_t) const override { return state == 0 ? 1 : kMaskDead; }
    bool mask(MaskState state, std::span<uint32_t> bits) const override {
      std::fill(bits.begin(), bits.end(), state == 0 ? 0xFFFFFFF0U : 0U);
      return state == 0;
    }
  };
  auto sink = std::make_shared<KeepingSink>();
  Submission s;
  s.ticket = h.book.open(sink, SIZE_MAX);
  s.request = bad.request;
  s.prompt = *h.text.encode(s.request.prompt);
  s.price = *price_request(h.capacity, static_cast<int64_t>(s.prompt.ids.size()), 20, true);
  s.mask = std::make_shared<Dying>();
  h.loop.take(std::move(s));
  h.run_dry();
  BOOST_TEST(sink->reply().status.reason() == "dead_end");
  BOOST_TEST((sink->reply().reason == FinishReason::kFailed));
  BOOST_TEST(same(good_sink->reply(), alone(good, script, false)));
}

BOOST_AUTO_TEST_CASE(equal_constraints_are_compiled_once) {
  ConstraintService service(scripted_vocabulary());
  const auto form = *forms()[0];
  const auto first = service.compile(form, false);
  const auto again = service.compile(form, true);
  BOOST_REQUIRE(first.ok() && again.ok());
  BOOST_TEST(service.counters().misses == 1U);
  BOOST_TEST(service.counters().hits == 1U);
  grammar::ConstraintSpec bad = form;
  bad.text = "root ::= root \"a\"";
  BOOST_TEST(!service.compile(bad, false).ok());
  BOOST_TEST(!service.compile(bad, false).ok());
  BOOST_TEST(service.counters().misses == 2U);
  // A cache of nothing keeps the newest alone.
  ConstraintService small(scripted_vocabulary(), 1);
  for (int i = 0; i < 5; ++i) {
    grammar::ConstraintSpec spec = form;
    spec.text += " # " + std::to_string(i);
    BOOST_TEST(small.compile(spec, false).ok());
  }
  BOOST_TEST(small.counters().entries == 1U);
}

BOOST_AUTO_TEST_CASE(threads_that_want_the_same_wait_for_one_compilation) {
  ConstraintService service(scripted_vocabulary());
  const auto form = *forms()[1];
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] { good += service.compile(form, false).ok() ? 1 : 0; });
  for (std::thread& t : threads) t.join();
  BOOST_TEST(good == 8);
  BOOST_TEST(service.counters().misses == 1U);
}
