// Generated and recorded traces. See the header.
#include "tests/bench/sim/traces.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>
#include <utility>

namespace tensorfold::sim {
namespace {

constexpr double kStretchMemory = 1.0 - 1.0 / 24;
constexpr int kFitRounds = 24;
constexpr int kQuarters = 4;  // of a logit: the resolution of stored confidences
constexpr double kConfidenceMax = 15;

double logit(double p) { return std::log(p / (1 - p)); }

// mt19937_64's numbers are the same everywhere; the library's distributions are not.
double unit(std::mt19937_64& rng) { return (static_cast<double>(rng() >> 11) + 0.5) * 0x1p-53; }
double normal(std::mt19937_64& rng) {
  return std::sqrt(-2 * std::log(unit(rng))) * std::cos(6.283185307179586 * unit(rng));
}

struct Token {
  double logit = 0;       // how easy it is, before the place's offset
  double difficulty = 0;  // logistic noise: a draft is right when its logit is above
};

std::vector<Token> make_tokens(const TextKind& kind, int count, std::mt19937_64& rng) {
  std::vector<Token> tokens(static_cast<size_t>(count));
  double slow = normal(rng);
  const double fresh = std::sqrt(1 - kStretchMemory * kStretchMemory);
  for (Token& t : tokens) {
    slow = kStretchMemory * slow + fresh * normal(rng);
    t.logit = kind.stretch * slow + kind.quick * normal(rng);
    t.difficulty = logit(unit(rng));
  }
  return tokens;
}

using Offsets = std::array<double, kDraftRowsMax>;

int32_t right_at(std::span<const Token> tokens, size_t at, const Offsets& offsets) {
  int32_t right = 0;
  while (right < kDraftRowsMax) {
    const auto i = static_cast<size_t>(right);
    const Token& t = tokens[at + i];
    if (t.logit + offsets[i] <= t.difficulty) break;
    ++right;
  }
  return right;
}

// Rounds of depth 5 through the text: how often each place was reached and passed.
void count_rounds(std::span<const Token> tokens, const Offsets& offsets,
                  std::array<double, kDraftRowsMax>& tried,
                  std::array<double, kDraftRowsMax>& passed) {
  tried.fill(0);
  passed.fill(0);
  for (size_t at = 0; at + kDraftRowsMax < tokens.size();) {
    const int32_t right = right_at(tokens, at, offsets);
    for (int32_t i = 0; i < kDraftRowsMax && i <= right; ++i) {
      tried[static_cast<size_t>(i)] += 1;
      passed[static_cast<size_t>(i)] += i < right;
    }
    at += static_cast<size_t>(right) + 1;
  }
}

Offsets fit_offsets(const TextKind& kind, std::span<const Token> tokens) {
  Offsets offsets{};
  std::array<double, kDraftRowsMax> tried{};
  std::array<double, kDraftRowsMax> passed{};
  for (int round = 0; round < kFitRounds; ++round) {
    count_rounds(tokens, offsets, tried, passed);
    double before = 1;
    for (size_t i = 0; i < offsets.size(); ++i) {
      const double wanted = kind.survival[i] / before;
      const double seen = (passed[i] + 0.5) / (tried[i] + 1);
      offsets[i] += logit(wanted) - logit(seen);
      before = kind.survival[i];
    }
  }
  return offsets;
}

bool has_replies(const Trace& trace) { return !trace.points.empty() && trace.points[0].begins; }

}  // namespace

std::vector<TextKind> text_kinds() {
  // Geometric rates for code, prose and counting; the chat figures were published as they are.
  const auto geometric = [](double q) {
    std::array<double, kDraftRowsMax> s{};
    double p = 1;
    for (double& x : s) x = p *= q;
    return s;
  };
  return {{"code", geometric(0.82), 0.8, 1.2, 0.9},
          {"prose", geometric(0.43), 0.8, 1.2, 1.6},
          {"counting", geometric(0.985), 0.5, 0.8, 0.8},
          {"chat", {0.74, 0.48, 0.26, 0.17, 0.13}, 1.0, 1.2, 1.4}};
}

Trace generate_trace(const TextKind& kind, int tokens, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const std::vector<Token> text = make_tokens(kind, tokens + kDraftRowsMax, rng);
  const Offsets offsets = fit_offsets(kind, text);
  Trace trace{kind.name, {}};
  for (size_t at = 0; at < static_cast<size_t>(tokens); ++at) {
    TracePoint point;
    point.right = right_at(text, at, offsets);
    for (size_t i = 0; i < offsets.size(); ++i) {
      const double true_logit = text[at + i].logit + offsets[i];
      const double said = true_logit + kind.noise * normal(rng);
      point.confidence[i] = static_cast<float>(std::clamp(said, -kConfidenceMax, kConfidenceMax));
    }
    trace.points.push_back(point);
  }
  return trace;
}

Trace mix_traces(std::span<const Trace> traces, int piece, const std::string& name) {
  Trace mixed{name, {}};
  std::vector<size_t> at(traces.size(), 0);
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < traces.size(); ++i) {
      const auto& from = traces[i].points;
      size_t end = std::min(from.size(), at[i] + static_cast<size_t>(piece));
      if (has_replies(traces[i]))
        while (end < from.size() && !from[end].begins) ++end;
      mixed.points.insert(mixed.points.end(), from.begin() + static_cast<ptrdiff_t>(at[i]),
                          from.begin() + static_cast<ptrdiff_t>(end));
      at[i] = end;
      more |= end < from.size();
    }
  }
  return mixed;
}

Trace collapsing(const Trace& trace, int piece, const std::string& name) {
  Trace out{name, trace.points};
  for (size_t at = 0; at < out.points.size(); ++at) {
    if (at / static_cast<size_t>(piece) % 2 == 1) out.points[at].right = 0;
  }
  return out;
}

Trace beginning_at(const Trace& trace, int part, int parts) {
  Trace out = trace;
  auto at = out.points.begin() + static_cast<ptrdiff_t>(out.points.size()) * part / parts;
  at = std::find_if(at, out.points.end(), [](const TracePoint& p) { return p.begins; });
  std::rotate(out.points.begin(), at, out.points.end());
  return out;
}

std::string encode_traces(std::span<const Trace> traces) {
  std::ostringstream out;
  for (const Trace& t : traces) {
    out << "trace " << t.name << ' ' << t.points.size() << '\n';
    for (size_t i = 0; i < t.points.size(); ++i) {
      if (t.points[i].begins) out << "reply ";
      if (t.points[i].usable < kDraftRowsMax) out << "end " << t.points[i].usable << ' ';
      out << t.points[i].right;
      for (const float c : t.points[i].confidence) out << ' ' << std::lround(c * kQuarters);
      out << (i % 4 == 3 || i + 1 == t.points.size() ? "\n" : "  ");
    }
  }
  return out.str();
}

Result<std::vector<Trace>> decode_traces(std::string_view text) {
  std::istringstream in{std::string(text)};
  std::vector<Trace> traces;
  std::string word;
  while (in >> word) {
    Trace t;
    size_t count = 0;
    if (word != "trace" || !(in >> t.name >> count))
      return data_loss("trace " + std::to_string(traces.size()) + ": no head");
    for (size_t i = 0; i < count; ++i) {
      TracePoint p;
      in >> std::ws;
      p.begins = in.peek() == 'r' && in >> word && word == "reply";
      in >> std::ws;
      if (in.peek() == 'e' && (!(in >> word >> p.usable) || word != "end" || p.usable < 0))
        return data_loss("trace " + t.name + ", point " + std::to_string(i) + ": end");
      if (!(in >> p.right) || p.right < 0 || p.right > kDraftRowsMax)
        return data_loss("trace " + t.name + ", point " + std::to_string(i) + ": right");
      for (float& c : p.confidence) {
        if (!(in >> c)) return data_loss("trace " + t.name + ", point " + std::to_string(i));
        c /= kQuarters;
      }
      t.points.push_back(p);
    }
    traces.push_back(std::move(t));
  }
  return traces;
}

double confidence_auc(const Trace& trace, int place) {
  std::vector<std::pair<float, bool>> seen;
  for (const TracePoint& p : trace.points) {
    if (p.right >= place)
      seen.emplace_back(p.confidence[static_cast<size_t>(place)], p.right > place);
  }
  std::sort(seen.begin(), seen.end());
  double wins = 0;
  double wrong = 0;
  double right = 0;
  for (size_t i = 0; i < seen.size();) {
    size_t end = i;
    double wrong_here = 0;
    double right_here = 0;
    for (; end < seen.size() && seen[end].first == seen[i].first; ++end)
      (seen[end].second ? right_here : wrong_here) += 1;
    wins += right_here * (wrong + wrong_here / 2);
    wrong += wrong_here;
    right += right_here;
    i = end;
  }
  return wrong * right > 0 ? wins / (wrong * right) : 0.5;
}

}  // namespace tensorfold::sim
