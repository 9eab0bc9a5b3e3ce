// Traces for the depth simulator: what the drafter would say at every position of a reply, and how
// far it would be right. A reply is the same whatever is drafted, so a trace serves every policy.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/sched/step_plan.h"

namespace tensorfold::sim {

// At a position whose next token is known, five drafts of the tokens behind it.
struct TracePoint {
  std::array<float, kDraftRowsMax> confidence = {};  // logits
  int32_t right = 0;                                 // drafts right before the first wrong one
  int32_t usable = kDraftRowsMax;  // drafts before the first one that would end the reply
  bool begins = false;             // a reply; where none does, they have a length
};

struct Trace {
  std::string name;
  std::vector<TracePoint> points;
};

// What a generated text is like. Each token has a difficulty of its own, and easy and hard
// stretches follow one another; a draft is right when its logit beats the token's difficulty, so a
// token drafted from nearer by is right whenever it was right from farther off.
struct TextKind {
  std::string name;
  // Chance that the drafts up to each place are all right, over the rounds of depth 5.
  std::array<double, kDraftRowsMax> survival = {};
  double stretch = 1;  // spread of the slow part of the logit; its memory is 24 tokens
  double quick = 1;    // spread of the part that changes with each token
  double noise = 1;    // of the confidence, beside the true logit
};

// Kinds from docs/speculation.md's table of acceptance.
std::vector<TextKind> text_kinds();

// `tokens` points. The offsets of the places are fitted, on the trace itself, until rounds of depth
// 5 have the survival that is asked for.
Trace generate_trace(const TextKind& kind, int tokens, uint64_t seed);
// Pieces of several kinds in turn, `piece` tokens long; of replies as many whole ones as that
// takes.
Trace mix_traces(std::span<const Trace> traces, int piece, const std::string& name);

// The same text, but in every other piece all drafts are wrong, as confident as ever: a drafter
// whose state is broken.
Trace collapsing(const Trace& trace, int piece, const std::string& name);
// The same replies, beginning with that at about `part` of `parts` of it.
Trace beginning_at(const Trace& trace, int part, int parts);

// Text form, one trace after another: "trace NAME POINTS", then POINTS entries, each the number of
// right drafts and five confidences in quarters of a logit. Before one: "reply", when it is the
// first of a reply; "end N", when the draft behind the first N would end the reply.
std::string encode_traces(std::span<const Trace> traces);
Result<std::vector<Trace>> decode_traces(std::string_view text);

// Area under the curve of confidence against outcome, for the draft at `place`: 0.5 says nothing.
double confidence_auc(const Trace& trace, int place);

}  // namespace tensorfold::sim
