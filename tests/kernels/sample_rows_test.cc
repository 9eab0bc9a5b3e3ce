// kernels/sample_rows.h against the host's sampler: the device's scan done on the host, lane by
// lane and in another order of lanes, over random steps. The ids must be the same. With the planted
// fault a tie goes to whom the order of lanes meets first, which must show.
#include "kernels/sample_rows.h"

#include <boost/test/unit_test.hpp>
#include <cstdio>

#include "tests/kernels/sample_cases.h"

namespace tensorfold::test {
namespace {

struct Order {
  int lanes = 1;
  bool fault = false;
};

SampleBest combine(const SampleBest& a, const SampleBest& b, bool fault) {
  if (!fault) return sample_better(a, b);
  if (a.id < 0) return b;
  return b.id >= 0 && b.score > a.score ? b : a;
}

// A row as kernels/cuda/sample_rows.cu does it.
void sample_row(const SampleCase& c, int r, const Order& order, SampleOutcome& out) {
  const float* logits = c.logits.data() + int64_t{r} * c.vocab;
  SampleScan scan;
  scan.row = c.rows[static_cast<size_t>(r)];
  if (scan.row.mask_row >= 0)
    scan.mask = c.masks.data() + int64_t{scan.row.mask_row} * c.mask_words();
  std::vector<uint32_t> changed(static_cast<size_t>(c.mask_words()));
  for (int i = 0; i < scan.row.changes; ++i) {
    const int32_t token = c.changes[static_cast<size_t>(scan.row.first_change + i)].token;
    changed[static_cast<size_t>(token / 32)] |= 1U << (token % 32);
  }
  bool finite = true;
  SampleBest best;
  const bool twice = scan.row.greedy == 0 && scan.row.min_p > 0;
  for (int pass = twice ? 0 : 1; pass < 2; ++pass) {
    scan.draw = pass == 1 && scan.row.greedy == 0;
    best = SampleBest{};
    for (int lane = order.lanes - 1; lane >= 0; --lane) {
      SampleBest mine;
      sample_plain(scan, logits, c.vocab, changed.data(), lane, order.lanes, mine, finite);
      sample_changed(scan, logits, c.vocab, c.changes.data(), lane, order.lanes, mine);
      best = combine(best, mine, order.fault);
    }
    scan.largest = best.score;
  }
  const SampleState state = !finite       ? SampleState::kNonFinite
                            : best.id < 0 ? SampleState::kDeadEnd
                                          : SampleState::kDone;
  out.state.push_back(static_cast<int32_t>(state));
  out.token.push_back(state == SampleState::kDone ? best.id : -1);
}

SampleOutcome sample_all(const SampleCase& c, const Order& order) {
  SampleOutcome out;
  for (int r = 0; r < static_cast<int>(c.rows.size()); ++r) sample_row(c, r, order, out);
  for (const SampleSequence& q : c.sequences)
    out.accepted.push_back(sample_accepted(q, c.drafts.data(), out.token.data(), out.state.data()));
  return out;
}

constexpr int kLanes[] = {1, 7, 32, 512};
constexpr int kVocabularies[] = {1, 3, 33, 130, 700};

}  // namespace

BOOST_AUTO_TEST_CASE(ids_of_the_hosts_sampler_in_any_order_of_lanes) {
  SampleCases cases(20261201);
  int sequences = 0, tokens = 0, failures = 0;
  for (int i = 0; i < 1500; ++i) {
    const SampleCase c = cases.make(kVocabularies[i % 5], 3);
    for (const SampledTokens& t : c.expected) {
      ++sequences;
      tokens += static_cast<int>(t.accepted.size());
      failures += t.status.ok() ? 0 : 1;
    }
    BOOST_REQUIRE_EQUAL(differing_sequences(c, sample_all(c, {kLanes[i % 4], false})), 0);
  }
  std::printf("%d sequences, %d tokens, %d failed rows\n", sequences, tokens, failures);
  BOOST_CHECK_GT(tokens, 2 * sequences);
  BOOST_CHECK_GT(failures, 100);
}

BOOST_AUTO_TEST_CASE(a_tie_that_goes_to_the_first_met_shows) {
  SampleCases cases(5);
  int differing = 0;
  for (int i = 0; i < 200; ++i) {
    const SampleCase c = cases.make(130, 3);
    differing += differing_sequences(c, sample_all(c, {32, true}));
  }
  BOOST_CHECK_GT(differing, 5);
}

// The size of the published model.
BOOST_AUTO_TEST_CASE(a_whole_vocabulary) {
  SampleCases cases(77);
  for (int i = 0; i < 3; ++i) {
    const SampleCase c = cases.make(129280, 1);
    BOOST_REQUIRE_EQUAL(differing_sequences(c, sample_all(c, {512, false})), 0);
  }
}

}  // namespace tensorfold::test
