// Exactness over the real forward pass (the golden mini model, FP8 and FP4 weights): the engine's
// replies, log-probabilities included, are bit-equal with and without drafts, alone and batched,
// for any chunking of the prompt, and on two ranks. The mini model's own drafter is seldom right
// (its weights are random), so most runs exchange its drafts for ones that often are.
#include <random>
#include <thread>

#include "tests/engine/mini_runs.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

constexpr auto run = run_mini;
constexpr auto random_request = random_mini_request;

Reply alone(const Request& request) {
  return run(mini_model(), {request}, RunOptions{}, nullptr)[0];
}

}  // namespace

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
    const Reply whole = run(mini_model(), {request}, o, nullptr)[0];
    for (const int chunk : c.chunks) {
      o.prefill_rows = chunk;
      BOOST_REQUIRE(same(run(mini_model(), {request}, o, nullptr)[0], whole));
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
  BOOST_REQUIRE(same(run(mini_model(), {request}, RunOptions{}, &whole)[0], cone));
}

BOOST_AUTO_TEST_CASE(two_ranks_agree) {
  // Each rank has its own model slices and executor; all they share is plans and the collective.
  constexpr int kWorld = 2;
  auto collectives = make_thread_collectives(kWorld, 20000);
  std::vector<std::unique_ptr<Model>> models;
  for (auto& c : collectives) {
    ModelOptions o = mini_options(kMiniPath);
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
    BOOST_REQUIRE(same(run(*models[0], {requests[i]}, RunOptions{}, &again)[0], batched[i]));
  }
}
