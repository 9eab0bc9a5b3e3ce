// The replay. See the header.
#include "tests/bench/sim/depth_run.h"

#include <algorithm>
#include <memory>

#include "engine/draft/sequence_drafting.h"

namespace tensorfold::sim {
namespace {

constexpr int32_t kRight = 1;  // the id of every right token, and of every right draft
constexpr int32_t kWrong = 2;

// Tokens that `accepted` right drafts at a place give, the last being the target's own: a reply
// ends even among its drafts.
int32_t tokens_at(const Trace& trace, size_t at, int32_t accepted) {
  for (int32_t i = 1; i <= accepted; ++i) {
    const size_t next = at + static_cast<size_t>(i);
    if (next >= trace.points.size() || trace.points[next].begins) return i;
  }
  return accepted + 1;
}

// One sequence on its way through a trace.
struct Cursor {
  const Trace* trace = nullptr;
  size_t at = 0;
  bool ready = true;  // drafts lie ready for this position
  SequenceDrafting drafting;
  int64_t reply_tokens = 0;

  const TracePoint& point() const { return trace->points[at]; }
  bool ended() const { return at >= trace->points.size(); }
  // The next point is the first of another reply.
  bool replied(int reply) const {
    return !ended() && (point().begins || (!trace->points[0].begins && reply_tokens >= reply));
  }
};

// What a round of this depth accepts; the cursor goes on.
int32_t advance(Cursor& c, int32_t depth, RunResult& result) {
  const int32_t accepted = std::min(depth, c.point().right);
  const int32_t tokens = tokens_at(*c.trace, c.at, accepted);
  result.tokens += tokens;
  result.drafted += depth;
  result.accepted += accepted;
  ++result.rounds;
  c.at += static_cast<size_t>(tokens);
  c.reply_tokens += tokens;
  return accepted;
}

bool any_ended(std::span<const Cursor> cursors) {
  return std::any_of(cursors.begin(), cursors.end(), [](const Cursor& c) { return c.ended(); });
}

// What the engine would see: the drafts, and the tokens that came.
void end_round(Cursor& c, const TracePoint& point, int32_t depth, int64_t came, DepthPolicy& policy,
               RunResult& result) {
  std::array<int32_t, kDraftRowsMax> drafts{};
  for (int32_t i = 0; i < kDraftRowsMax; ++i)
    drafts[static_cast<size_t>(i)] = i < point.right ? kRight : kWrong;
  std::vector<int32_t> tokens(static_cast<size_t>(came), kRight);
  const auto ready = std::span<const int32_t>(drafts).first(c.ready ? drafts.size() : 0);
  result.pauses += c.drafting.end_round(ready, point.confidence, depth, tokens, policy);
}

}  // namespace

RunResult run_policy(std::span<const Trace> traces, const CostTable& costs,
                     const DraftConstants& constants, int reply) {
  const auto policy = make_expected_gain_policy(costs, constants);
  const auto n = static_cast<int32_t>(traces.size());
  std::vector<Cursor> cursors(traces.size());
  RunResult result;
  const auto begin_reply = [&](Cursor& c) {
    c.drafting = SequenceDrafting(constants);
    c.reply_tokens = 0;
    c.ready = c.drafting.begin_reply(*policy);
    if (c.ready) result.time_us += costs.draft(1);  // behind its prompt
  };
  for (size_t i = 0; i < traces.size(); ++i) {
    cursors[i].trace = &traces[i];
    begin_reply(cursors[i]);
  }
  std::vector<DepthQuery> queries(traces.size());
  while (!any_ended(cursors)) {
    int32_t drafting = 0;
    for (size_t i = 0; i < cursors.size(); ++i) {
      Cursor& c = cursors[i];
      DepthQuery& q = queries[i];
      q.available = c.ready ? c.point().usable : 0;
      q.confidence = std::span(c.point().confidence).first(static_cast<size_t>(q.available));
      q.drafting = c.drafting.begin_round(*policy, q.confidence);
      q.acceptance = &c.drafting.acceptance;
      drafting += q.drafting;
    }
    const std::vector<int32_t> depths = policy->choose(queries, 0);
    int32_t rows = n;
    for (const int32_t d : depths) rows += d;
    const int64_t before = result.tokens;
    for (size_t i = 0; i < cursors.size(); ++i) {
      Cursor& c = cursors[i];
      const TracePoint point = c.point();
      const int64_t had = result.tokens;
      advance(c, depths[i], result);
      end_round(c, point, depths[i], result.tokens - had, *policy, result);
      c.ready = queries[i].drafting;
      if (c.replied(reply)) begin_reply(c);
    }
    policy->observe(result.tokens - before);
    result.time_us += costs.step(n, rows) + costs.draft(drafting);
  }
  return result;
}

RunResult run_fixed(std::span<const Trace> traces, const CostTable& costs, int depth, int reply) {
  std::vector<Cursor> cursors(traces.size());
  const auto n = static_cast<int32_t>(traces.size());
  RunResult result;
  const double behind_prompt = depth > 0 ? costs.draft(1) : 0;
  for (size_t i = 0; i < traces.size(); ++i) {
    cursors[i].trace = &traces[i];
    result.time_us += behind_prompt;
  }
  while (!any_ended(cursors)) {
    int32_t rows = n;
    for (Cursor& c : cursors) {
      const int32_t verified = std::min(depth, c.point().usable);
      rows += verified;
      advance(c, verified, result);
      if (!c.replied(reply)) continue;
      c.reply_tokens = 0;
      result.time_us += behind_prompt;
    }
    result.time_us += costs.step(n, rows) + (depth > 0 ? costs.draft(n) : 0);
  }
  return result;
}

RunResult run_oracle(const Trace& trace, const CostTable& costs, int reply) {
  // The price of time at which the best choices give just that ratio (Dinkelbach). A round's choice
  // changes where the next begins, so the best are found from the end of the trace backwards.
  double price = best_fixed(std::span(&trace, 1), costs, reply).result.rate();
  RunResult result;
  const size_t length = trace.points.size();
  std::vector<double> worth(length + kDraftRowsMax + 2, 0);
  std::vector<int32_t> depth(length, 0);
  // Whether the drafter ran is the choice of the round before; without it the depth is 0. The
  // oracle is given the drafter's time back in rounds of depth 0.
  for (int round = 0; round < 12; ++round) {
    for (size_t at = length; at-- > 0;) {
      double best = -1e300;
      for (int32_t k = 0; k <= kDraftRowsMax; ++k) {
        if (k > trace.points[at].right) break;  // what is wrong is never verified
        const double us = costs.step(1, 1 + k) + (k > 0 ? costs.draft(1) : 0);
        const int32_t tokens = tokens_at(trace, at, k);
        const double w = tokens - price * us + worth[at + static_cast<size_t>(tokens)];
        if (w > best) best = w, depth[at] = k;
      }
      worth[at] = best;
    }
    result = {};
    Cursor c;
    c.trace = &trace;
    while (!c.ended()) {
      const int32_t k = depth[c.at];
      result.time_us += costs.step(1, 1 + k) + (k > 0 ? costs.draft(1) : 0);
      advance(c, k, result);
    }
    price = result.rate();
  }
  return result;
}

BestFixed best_fixed(std::span<const Trace> traces, const CostTable& costs, int reply) {
  BestFixed best;
  for (int depth = 0; depth <= kDraftRowsMax; ++depth) {
    const RunResult r = run_fixed(traces, costs, depth, reply);
    if (depth == 0 || r.rate() > best.result.rate()) best = {depth, r};
  }
  return best;
}

CostTable gb10_costs() {
  CostTable t;
  t.sequences = {1, 2, 3, 4};
  t.rows = {1, 2, 3, 4, 6};
  t.step_us = {17500, 21600, 25200, 28400, 34300,   //
               23600, 31600, 38500, 44700, 55900,   //
               29600, 41400, 51400, 60300, 76200,   //
               35600, 50900, 63800, 75300, 95400};  //
  // 420 MB whatever the number of sequences, 485 MB for each.
  t.draft_us = {3660, 5630, 7590, 9550};
  t.prompt_row_us = 400;  // a row of a 2,048-row chunk at 2,500 rows a second
  return t;
}

}  // namespace tensorfold::sim
