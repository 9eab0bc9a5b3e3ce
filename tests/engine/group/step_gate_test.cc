// Two ranks that meet in the steps of a real model: a row that fails on one rank ends its request
// on both and no other; a rank that has another plan, another past or other tokens is noticed on
// both before anything is built on it. Without the gate each of these goes unnoticed (the last
// case).
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "tests/engine/group/two_models.h"

using namespace tensorfold;
using namespace tensorfold::test;

namespace {

constexpr const char* kMini = TF_TEST_DATA "/golden/mini_native";

// Row `row` of the step's logits is no number.
TamperedModel::Tamper no_number(size_t row) {
  return [row](StepLogits& logits) {
    const size_t vocab = logits.values.size() / logits.rows.size();
    logits.values[row * vocab + 5] = std::numeric_limits<float>::quiet_NaN();
  };
}

// Another token of row 0 is by far the likeliest.
void other_token(StepLogits& logits) { logits.values[17] = 1e6F; }

void both_out_of_step(const TwoModels& two, const char* word) {
  for (const OneRank& rank : two.ranks) {
    BOOST_TEST(rank.status.reason() == kReasonOutOfStep);
    BOOST_TEST(rank.status.message().find(word) != std::string::npos, rank.status.message());
  }
}

void both_fine(const TwoModels& two) {
  for (const OneRank& rank : two.ranks)
    BOOST_REQUIRE_MESSAGE(rank.status.ok(), rank.status.message());
  BOOST_REQUIRE_EQUAL(two.ranks[0].results.size(), two.ranks[1].results.size());
  for (size_t i = 0; i < two.ranks[0].results.size(); ++i) {
    const SampledTokens& a = two.ranks[0].results[i];
    const SampledTokens& b = two.ranks[1].results[i];
    BOOST_TEST(a.accepted == b.accepted);
    BOOST_TEST(a.drafts == b.drafts);
    BOOST_TEST((a.status.ok() == b.status.ok()));
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(ranks_that_agree_go_on) {
  TwoModels two(kMini);
  two.run(first_plan(3));
  both_fine(two);
  for (uint64_t step = 2; step < 6; ++step) {
    two.run(next_plan(step, {0, 1}, static_cast<int64_t>(10 + step)));
    both_fine(two);
  }
}

BOOST_AUTO_TEST_CASE(a_row_that_fails_on_one_rank_fails_on_both_and_alone) {
  for (const size_t bad_rank : {size_t{0}, size_t{1}}) {
    TwoModels plain(kMini);
    plain.run(first_plan(3));
    plain.run(next_plan(2, {0, 1}, 12));
    TwoModels two(kMini);
    two.ranks[bad_rank].model->tamper = no_number(1);
    two.run(first_plan(3));
    both_fine(two);
    for (OneRank& rank : two.ranks) {
      BOOST_TEST(rank.results[0].status.ok());
      BOOST_TEST(!rank.results[1].status.ok());
      BOOST_TEST(rank.results[1].accepted.empty());
      rank.model->tamper = nullptr;
    }
    // The other one goes on as if nothing had been.
    StepPlan next = next_plan(2, {0}, 12);
    next.commands.push_back({CacheCommand::Kind::kCloseSlot, 1, 0, 0});
    two.run(next);
    both_fine(two);
    BOOST_TEST(two.ranks[0].results[0].accepted == plain.ranks[0].results[0].accepted);
  }
}

BOOST_AUTO_TEST_CASE(another_token_on_one_rank_is_noticed_at_once) {
  TwoModels two(kMini);
  two.ranks[1].model->tamper = other_token;
  two.run(first_plan(0));
  both_out_of_step(two, "different tokens");
}

BOOST_AUTO_TEST_CASE(another_plan_is_noticed) {
  TwoModels two(kMini);
  two.run(first_plan(0), nullptr, 2);
  both_out_of_step(two, "another plan");
}

BOOST_AUTO_TEST_CASE(commands_that_one_rank_cannot_take_are_noticed) {
  TwoModels two(kMini);
  StepPlan bad = first_plan(0);
  bad.commands.push_back({CacheCommand::Kind::kCloseSlot, 1, 0, 0});
  bad.commands.push_back({CacheCommand::Kind::kCloseSlot, 1, 0, 0});
  two.run(first_plan(0), &bad);
  BOOST_TEST(two.ranks[0].status.reason() == kReasonOutOfStep);
  BOOST_TEST(!two.ranks[1].status.ok());
  BOOST_TEST(two.ranks[0].gate.commands_done());
  BOOST_TEST(!two.ranks[1].gate.commands_done());
}

BOOST_AUTO_TEST_CASE(another_past_is_noticed) {
  TwoModels two(kMini);
  two.run(first_plan(0));
  both_fine(two);
  two.ranks[1].results[0].drafts.push_back(1);
  two.ranks[1].gate.note(two.ranks[1].results);
  two.run(next_plan(2, {0, 1}, 12));
  both_out_of_step(two, "earlier steps");
}

BOOST_AUTO_TEST_CASE(without_the_gate_nothing_is_noticed) {
  TwoModels two(kMini);
  for (OneRank& rank : two.ranks) rank.executor = std::make_unique<StepExecutor>(*rank.model);
  two.ranks[1].model->tamper = other_token;
  two.run(first_plan(0), nullptr, 2);
  for (const OneRank& rank : two.ranks) BOOST_TEST(rank.status.ok());
  BOOST_TEST((two.ranks[0].results[0].accepted != two.ranks[1].results[0].accepted));
}
