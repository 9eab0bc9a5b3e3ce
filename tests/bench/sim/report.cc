// See the header.
#include "tests/bench/sim/report.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "engine/base/json.h"
#include "engine/weights/file.h"

namespace tensorfold::sim {
namespace {

constexpr int64_t kCostsFileBytesMax = 64 * 1024;
constexpr int kStreams = 4;

Scenario scenario_of(std::vector<Trace> traces, const Costs& costs, const std::string& name) {
  Scenario s;
  s.text = name;
  s.costs = costs.name;
  s.table = costs.table;
  s.fixed = best_fixed(traces, costs.table, kReplyTokens);
  if (traces.size() == 1) s.oracle = run_oracle(traces[0], costs.table, kReplyTokens).rate();
  s.traces = std::move(traces);
  return s;
}

// The same text at `streams` places of it at once.
std::vector<Trace> shifted(const Trace& trace, int streams) {
  std::vector<Trace> out;
  for (int i = 0; i < streams; ++i) {
    Trace t = trace;
    const auto by = static_cast<ptrdiff_t>(trace.points.size()) * i / streams;
    std::rotate(t.points.begin(), t.points.begin() + by, t.points.end());
    out.push_back(std::move(t));
  }
  return out;
}

void print_scenario(const Scenario& s, const RunResult& policy) {
  const double rounds = static_cast<double>(policy.rounds);
  const double kept = 100 * static_cast<double>(policy.accepted) /
                      std::max<double>(1, static_cast<double>(policy.drafted));
  const double fixed = s.fixed.result.rate();
  std::printf("| %s | %s | %zu | %d | %.1f | %.1f | %.3f | ", s.text.c_str(), s.costs.c_str(),
              s.traces.size(), s.fixed.depth, fixed * 1e6, policy.rate() * 1e6,
              policy.rate() / fixed);
  if (s.oracle > 0) {
    std::printf("%.3f | ", s.oracle / fixed);
  } else {
    std::printf("- | ");
  }
  std::printf("%.2f | %.0f%% | %d |\n", static_cast<double>(policy.drafted) / rounds, kept,
              static_cast<int>(policy.pauses));
}

}  // namespace

Result<Costs> read_costs(const std::string& path) {
  TF_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kCostsFileBytesMax));
  TF_ASSIGN_OR_RETURN(const Json json, parse_json(text));
  const Json* stored = json.find("key");
  if (stored == nullptr) return data_loss(path + ": no key");
  const auto text_at = [&](const char* name) {
    const Json* v = stored->find(name);
    return v && v->is_string() ? v->as_string() : std::string();
  };
  const auto count_at = [&](const char* name) {
    const Json* v = stored->find(name);
    return v && v->as_int64() ? static_cast<int>(*v->as_int64()) : 0;
  };
  const CostKey key = {text_at("version"),  text_at("fingerprint"), text_at("device"),
                       count_at("threads"), count_at("slots"),      count_at("draft_rows")};
  TF_ASSIGN_OR_RETURN(CostTable table, decode_cost_table(text, key));
  return Costs{key.device, std::move(table)};
}

std::vector<Trace> part_of(std::span<const Trace> recorded, std::string_view prefix) {
  std::vector<Trace> out;
  for (const Trace& t : recorded) {
    if (t.name.starts_with(prefix))
      out.push_back({"recorded " + t.name.substr(prefix.size()), t.points});
  }
  return out;
}

std::vector<Scenario> make_scenarios(std::span<const Trace> recorded, std::span<const Costs> costs,
                                     uint64_t seed, int trace_tokens) {
  std::vector<Trace> texts;
  for (const TextKind& kind : text_kinds())
    texts.push_back(generate_trace(kind, trace_tokens, seed++));
  texts.push_back(mix_traces(texts, kPieceTokens, "mixed"));
  const Trace mixed = texts.back();
  texts.push_back(collapsing(texts.front(), kCollapseTokens, "collapsing"));
  for (const Trace& t : recorded) texts.push_back(t);
  if (!recorded.empty()) texts.push_back(mix_traces(recorded, kPieceTokens, "recorded mixed"));
  std::vector<Scenario> out;
  for (const Costs& c : costs) {
    for (const Trace& t : texts) out.push_back(scenario_of({t}, c, t.name));
    out.push_back(scenario_of(shifted(mixed, kStreams), c, mixed.name));
  }
  return out;
}

RunResult run_scenario(const Scenario& scenario, const DraftConstants& constants) {
  const Trace& trace = scenario.traces[0];
  if (scenario.traces.size() > 1 || !trace.points[0].begins)
    return run_policy(scenario.traces, scenario.table, constants, kReplyTokens);
  RunResult sum;
  for (int part = 0; part < kBeginnings; ++part) {
    const Trace t = beginning_at(trace, part, kBeginnings);
    const RunResult r = run_policy(std::span(&t, 1), scenario.table, constants, kReplyTokens);
    sum.tokens += r.tokens;
    sum.rounds += r.rounds;
    sum.drafted += r.drafted;
    sum.accepted += r.accepted;
    sum.pauses += r.pauses;
    sum.time_us += r.time_us;
  }
  return sum;
}

void print_report(std::span<const Trace> recorded, std::span<const Costs> costs,
                  const DraftConstants& constants) {
  std::printf(
      "| text | tokens a round at depth 5 | confidence AUC, places 1..5 |\n|---|---|---|\n");
  std::vector<Trace> texts;
  uint64_t seed = kJudgeSeed;
  for (const TextKind& kind : text_kinds())
    texts.push_back(generate_trace(kind, kTraceTokens, seed++));
  const std::vector<Trace> judged = part_of(recorded, "judge-");
  texts.insert(texts.end(), judged.begin(), judged.end());
  for (const Trace& t : texts) {
    const RunResult r = run_fixed(std::span(&t, 1), gb10_costs(), kDraftRowsMax, kReplyTokens);
    std::printf("| %s | %.2f |", t.name.c_str(),
                static_cast<double>(r.tokens) / static_cast<double>(r.rounds));
    for (int place = 0; place < kDraftRowsMax; ++place)
      std::printf(" %.2f", confidence_auc(t, place));
    std::printf(" |\n");
  }
  std::printf(
      "\n| text | costs | streams | best fixed depth | tok/s | policy tok/s | policy / fixed"
      " | oracle / fixed | drafts a round | kept | pauses |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Scenario& s : make_scenarios(judged, costs, kJudgeSeed, kTraceTokens))
    print_scenario(s, run_scenario(s, constants));
}

}  // namespace tensorfold::sim
