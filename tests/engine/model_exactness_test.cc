// Exactness over the real forward pass (the golden mini model, FP8 and FP4 weights): the engine's
// replies, log-probabilities included, are bit-equal with and without drafts, alone and batched,
// for any chunking of the prompt, and on two ranks. The mini model's own drafter is seldom right
// (its weights are random), so most runs exchange its drafts for ones that often are.
#include <atomic>
#include <random>
#include <thread>

#include "tests/engine/loop_harness.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

constexpr int kMiniVocab = 1024;
constexpr int64_t kContext = 1536;
constexpr int kSlots = 4;
constexpr int kRounds = 9;
const char* const kMiniPath = TF_TEST_DATA "/golden/mini_native";

ModelOptions mini_options() {
  ModelOptions o;
  o.model_path = kMiniPath;
  o.slots = kSlots;
  o.context = kContext;
  o.rows_max = 1024 + kSlots * 6;
  o.threads = 1;  // many tests share the machine
  return o;
}

Model& mini_model() {
  static auto collective = make_single_collective();
  static auto model = Model::load(mini_options(), *collective);
  BOOST_REQUIRE_MESSAGE(model.ok(), model.status().message());
  return **model;
}

// Drafts that are right `skill` times of 100, from replies that are known already.
class KnowingDrafter final : public Model {
 public:
  KnowingDrafter(Model& inner, unsigned skill) : inner_(inner), skill_(skill) {}
  // Sequences are told apart by what their ids are: prompt and reply so far.
  void know(std::vector<int32_t> prompt, const std::vector<TokenId>& reply) {
    prompt.insert(prompt.end(), reply.begin(), reply.end());
    known_.push_back(std::move(prompt));
  }
  const ModelConfig& config() const override { return inner_.config(); }
  int64_t weight_bytes() const override { return inner_.weight_bytes(); }
  int64_t cache_bytes() const override { return inner_.cache_bytes(); }
  std::string fingerprint() const override { return inner_.fingerprint(); }
  Status apply(const StepPlan& plan) override { return inner_.apply(plan); }
  std::span<const int32_t> ids(SlotId slot) const override { return inner_.ids(slot); }
  Status accept(SlotId slot, int64_t length) override {
    seen_[slot].resize(static_cast<size_t>(length));
    return inner_.accept(slot, length);
  }
  int64_t length(SlotId slot) const override { return inner_.length(slot); }
  Status read_entry(SlotId slot, int layer, int64_t entry, std::vector<float>& main,
                    std::vector<float>& key) const override {
    return inner_.read_entry(slot, layer, entry, main, key);
  }
  Status forward(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                 StepLogits& logits, ForwardProbe* probe) override {
    for (size_t i = 0; i < plan.slices.size(); ++i) {
      const Slice& s = plan.slices[i];
      auto& ids = seen_[s.slot];
      ids.resize(static_cast<size_t>(s.first_position));
      const int32_t* from = s.source == TokenSource::kDevice ? device_tokens[i].data()
                                                             : plan.tokens.data() + s.token_offset;
      ids.insert(ids.end(), from, from + s.rows);
    }
    return inner_.forward(plan, device_tokens, logits, probe);
  }
  Status draft(std::span<const DraftRequest> requests, std::vector<DraftResult>& results,
               ForwardProbe* probe) override {
    TF_RETURN_IF_ERROR(inner_.draft(requests, results, probe));
    for (size_t r = 0; r < requests.size(); ++r) {
      std::vector<int32_t> prefix = seen_[requests[r].slot];
      prefix.push_back(requests[r].token);
      for (const auto& known : known_) {
        if (known.size() < prefix.size() ||
            !std::equal(prefix.begin(), prefix.end(), known.begin()))
          continue;
        for (size_t i = 0; i < results[r].tokens.size(); ++i) {
          if (prefix.size() + i < known.size() && rng_() % 100 < skill_)
            results[r].tokens[i] = known[prefix.size() + i];
        }
      }
    }
    return ok_status();
  }

 private:
  Model& inner_;
  const unsigned skill_;
  std::vector<std::vector<int32_t>> known_;
  std::map<SlotId, std::vector<int32_t>> seen_;
  std::mt19937_64 rng_{5};
};

struct RunOptions {
  int slots = 1;
  int prefill_rows = 1024;
  int depth = 0;
  bool exact = true;
  uint64_t stagger = 0;  // seed of when requests arrive; 0: all at once
};

// Runs requests over `runner` (by default one executor over `model`) to their ends.
std::vector<Reply> run(Model& model, const std::vector<Request>& requests, const RunOptions& o,
                       StepRunner* runner = nullptr) {
  StepExecutor executor(model);
  LoggingRunner logging(runner ? *runner : executor);
  ScriptedText text;
  ManualClock clock;
  StatsBoard board;
  TicketBook book;
  const auto policy = make_fixed_depth_policy(o.depth);
  LoopOptions options;
  options.planner.slots = o.slots;
  options.planner.prefill_rows = o.prefill_rows;
  options.planner.pool_blocks = kSlots * blocks_for(kContext);
  options.planner.decoder_span = o.exact ? model.config().cone_rows() : model.config().window;
  options.planner.draft_rows = o.depth;
  options.vocab = kMiniVocab;
  options.queue_deadline_us = INT64_MAX;
  EngineLoop loop(options, {logging, text, *policy, clock, null_log(), board});
  std::mt19937_64 rng(o.stagger);
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  for (const Request& request : requests) {
    Submission s;
    sinks.push_back(std::make_shared<KeepingSink>());
    s.ticket = book.open(sinks.back(), SIZE_MAX);
    s.request = request;
    s.prompt = *text.encode(request.prompt);
    s.price = *price_request({kContext, options.planner.pool_blocks},
                             static_cast<int64_t>(s.prompt.ids.size()), request.max_tokens, true);
    if (!request.allowed_tokens.empty())
      s.mask = make_allow_list(kMiniVocab, request.allowed_tokens);
    loop.take(std::move(s));
    if (o.stagger == 0) continue;
    for (uint64_t turns = rng() % 5; turns > 0; --turns) loop.turn();
  }
  while (!loop.idle()) {
    loop.turn();
    BOOST_REQUIRE(!loop.failed());
  }
  std::vector<Reply> replies;
  for (const auto& sink : sinks) {
    replies.push_back(sink->reply());
    BOOST_REQUIRE(replies.back().finished == 1);
    BOOST_REQUIRE_MESSAGE(replies.back().status.ok(), replies.back().status.message());
  }
  return replies;
}

Request random_request(std::mt19937_64& rng, int prompt_max) {
  const auto chance = [&](unsigned percent) { return rng() % 100 < percent; };
  Request r;
  r.prompt.ids.emplace();
  for (uint64_t n = 1 + rng() % static_cast<uint64_t>(prompt_max); n > 0; --n)
    r.prompt.ids->push_back(static_cast<TokenId>(6 + rng() % 1000));
  r.max_tokens = 8 + static_cast<int>(rng() % 10);
  r.ignore_eos = true;
  r.top_logprobs = 2;
  SamplingParams& s = r.sampling;
  s.seed = rng();
  s.temperature = chance(50) ? 0.0 : 0.8;
  s.top_p = chance(50) ? 0.9 : 1.0;
  s.presence_penalty = chance(25) ? 0.7 : 0.0;
  s.frequency_penalty = chance(25) ? 0.4 : 0.0;
  s.repetition_penalty = chance(25) ? 1.2 : 1.0;
  if (chance(20)) s.logit_bias = {{77, 2.0F}, {500, -2.0F}};
  if (chance(25)) {
    for (TokenId id = 0; id < kMiniVocab; ++id) {
      if (rng() % 2) r.allowed_tokens.push_back(id);
    }
  }
  return r;
}

void require_equal(const Reply& a, const Reply& b) {
  BOOST_REQUIRE(a.ids == b.ids);
  BOOST_REQUIRE(a.reason == b.reason);
  BOOST_REQUIRE(a.stats.token_sha == b.stats.token_sha);
  BOOST_REQUIRE(a.logprobs.size() == b.logprobs.size());
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    BOOST_REQUIRE(a.logprobs[i].logprob == b.logprobs[i].logprob);  // bit for bit
    BOOST_REQUIRE(a.logprobs[i].top == b.logprobs[i].top);
  }
}

Reply alone(const Request& request) { return run(mini_model(), {request}, RunOptions{})[0]; }

}  // namespace

BOOST_AUTO_TEST_CASE(drafted_equals_serial) {
  std::mt19937_64 rng(1);
  int accepted = 0;
  int rejected = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Request request = random_request(rng, 50);
    const Reply serial = alone(request);
    for (const unsigned skill : {0U, 70U, 100U}) {
      KnowingDrafter drafter(mini_model(), skill);
      drafter.know(*request.prompt.ids, serial.ids);
      RunOptions o;
      o.depth = 1 + static_cast<int>(rng() % 5);
      const Reply drafted = run(drafter, {request}, o)[0];
      require_equal(drafted, serial);
      accepted += drafted.stats.accepted;
      rejected += drafted.stats.drafted - drafted.stats.accepted;
    }
  }
  BOOST_TEST(accepted > 5 * kRounds);
  BOOST_TEST(rejected > 5 * kRounds);
}

BOOST_AUTO_TEST_CASE(batched_equals_alone) {
  std::mt19937_64 rng(2);
  for (int round = 0; round < kRounds / 3; ++round) {
    std::vector<Request> requests;
    KnowingDrafter drafter(mini_model(), 60);
    std::vector<Reply> expected;
    for (int i = 0; i < 6; ++i) {
      requests.push_back(random_request(rng, 60));
      expected.push_back(alone(requests.back()));
      drafter.know(*requests.back().prompt.ids, expected.back().ids);
    }
    RunOptions o;
    o.slots = 2 + static_cast<int>(rng() % 3);
    o.prefill_rows = 5 + static_cast<int>(rng() % 60);
    o.depth = static_cast<int>(rng() % 6);
    o.stagger = 1 + rng();
    const auto replies = run(drafter, requests, o);
    for (size_t i = 0; i < replies.size(); ++i) require_equal(replies[i], expected[i]);
  }
}

BOOST_AUTO_TEST_CASE(any_chunking_equals_any_other) {
  // Prompts on both sides of the window (128) and of the cone (636 rows).
  std::mt19937_64 rng(3);
  const int64_t cone = mini_model().config().cone_rows();
  struct Case {
    int64_t length;
    bool exact;
    std::vector<int> chunks;
  };
  const Case cases[] = {{127, true, {1, 61}},       {128, false, {61, 127}},
                        {129, true, {61, 128}},     {129, false, {1, 128}},
                        {cone - 1, true, {129}},    {cone + 1, true, {300}},
                        {cone + 130, false, {128}}, {901, true, {101, 256}}};
  for (const Case& c : cases) {
    Request request = random_request(rng, 1);
    request.prompt.ids->clear();
    for (int64_t i = 0; i < c.length; ++i)
      request.prompt.ids->push_back(static_cast<TokenId>(6 + rng() % 1000));
    RunOptions o;
    o.exact = c.exact;
    const Reply whole = run(mini_model(), {request}, o)[0];
    for (const int chunk : c.chunks) {
      o.prefill_rows = chunk;
      require_equal(run(mini_model(), {request}, o)[0], whole);
    }
  }
}

BOOST_AUTO_TEST_CASE(exact_prefill_equals_running_the_decoder_over_every_row) {
  std::mt19937_64 rng(4);
  Request request = random_request(rng, 1);
  request.prompt.ids->clear();
  for (int i = 0; i < 950; ++i)
    request.prompt.ids->push_back(static_cast<TokenId>(6 + rng() % 1000));
  const Reply cone = alone(request);
  class WholeDecoder final : public StepRunner {
   public:
    explicit WholeDecoder(StepRunner& inner) : inner_(inner) {}
    Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
      StepPlan whole = plan;
      for (Slice& s : whole.slices) {
        s.decoder_rows = s.rows;
        s.decoder_floor = 0;
      }
      return inner_.run(whole, results);
    }

   private:
    StepRunner& inner_;
  };
  StepExecutor executor(mini_model());
  WholeDecoder whole(executor);
  require_equal(run(mini_model(), {request}, RunOptions{}, &whole)[0], cone);
}

BOOST_AUTO_TEST_CASE(two_ranks_agree) {
  // Each rank has its own model slices and executor; all they share is plans and the collective.
  constexpr int kWorld = 2;
  auto collectives = make_thread_collectives(kWorld, 20000);
  std::vector<std::unique_ptr<Model>> models;
  for (auto& c : collectives) {
    ModelOptions o = mini_options();
    auto model = Model::load(o, *c);
    BOOST_REQUIRE_MESSAGE(model.ok(), model.status().message());
    models.push_back(std::move(model).value());
  }
  class Ranks final : public StepRunner {
   public:
    Ranks(Model& a, Model& b) : a_(a), b_(b) {}
    Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
      std::vector<SampledTokens> other;
      Status other_status;
      std::thread worker([&] { other_status = b_.run(plan, other); });
      const Status status = a_.run(plan, results);
      worker.join();
      TF_RETURN_IF_ERROR(status);
      TF_RETURN_IF_ERROR(other_status);
      for (size_t i = 0; i < results.size(); ++i) {
        BOOST_REQUIRE(results[i].accepted == other[i].accepted);
        BOOST_REQUIRE(results[i].drafts == other[i].drafts);
        BOOST_REQUIRE(results[i].draft_confidence == other[i].draft_confidence);
      }
      return ok_status();
    }

   private:
    StepExecutor a_, b_;
  };
  std::mt19937_64 rng(6);
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(random_request(rng, 60));
  Ranks ranks(*models[0], *models[1]);
  RunOptions o;
  o.slots = 3;
  o.depth = 3;
  const auto batched = run(*models[0], requests, o, &ranks);
  for (size_t i = 0; i < requests.size(); ++i) {
    Ranks again(*models[0], *models[1]);
    require_equal(run(*models[0], {requests[i]}, RunOptions{}, &again)[0], batched[i]);
  }
}

BOOST_AUTO_TEST_CASE(a_forward_pass_that_is_not_row_invariant_is_caught) {
  // The planted fault: the last bits of the logits depend on how many rows share the step.
  class Leaky final : public Model {
   public:
    explicit Leaky(Model& inner) : inner_(inner) {}
    const ModelConfig& config() const override { return inner_.config(); }
    int64_t weight_bytes() const override { return 0; }
    int64_t cache_bytes() const override { return 0; }
    std::string fingerprint() const override { return ""; }
    Status apply(const StepPlan& plan) override { return inner_.apply(plan); }
    std::span<const int32_t> ids(SlotId slot) const override { return inner_.ids(slot); }
    Status accept(SlotId slot, int64_t length) override { return inner_.accept(slot, length); }
    int64_t length(SlotId slot) const override { return inner_.length(slot); }
    Status draft(std::span<const DraftRequest> r, std::vector<DraftResult>& out,
                 ForwardProbe* probe) override {
      return inner_.draft(r, out, probe);
    }
    Status read_entry(SlotId, int, int64_t, std::vector<float>&,
                      std::vector<float>&) const override {
      return unsupported("leaky");
    }
    Status forward(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                   StepLogits& logits, ForwardProbe* probe) override {
      TF_RETURN_IF_ERROR(inner_.forward(plan, device_tokens, logits, probe));
      const float leak = 1 + 1e-6F * static_cast<float>(plan.total_rows());
      for (float& v : logits.values) v *= leak;
      return ok_status();
    }

   private:
    Model& inner_;
  };
  std::mt19937_64 rng(7);
  const Request request = random_request(rng, 40);
  Leaky leaky(mini_model());
  RunOptions drafted;
  drafted.depth = 5;
  const Reply a = run(leaky, {request}, RunOptions{})[0];
  const Reply b = run(leaky, {request}, drafted)[0];
  bool equal = a.ids == b.ids && a.logprobs.size() == b.logprobs.size();
  for (size_t i = 0; equal && i < a.logprobs.size(); ++i)
    equal = a.logprobs[i].logprob == b.logprobs[i].logprob;
  BOOST_TEST(!equal);
}
