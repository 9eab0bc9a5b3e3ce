// One recorded sequence, run through the model: prefill, then single-row steps whose tokens are
// given (teacher forcing), with drafts between them. Gathers everything that a comparison can ask
// for; compares nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ctl/eval_ranks.h"
#include "ctl/eval_recorder.h"
#include "engine/base/status.h"

namespace tensorfold::ctl {

inline constexpr int64_t kEvalPromptTokensMax = int64_t{1} << 20;

struct DraftPoint {
  int64_t position = 0;        // p: of the last target hidden; the drafted rows sit at p+1..
  int32_t token = 0;           // fed at p+1
  std::vector<int32_t> chain;  // recorded drafts: what the Markov chain goes on with
};

struct SequenceSpec {
  std::vector<int32_t> prompt;
  std::vector<bool> image;                      // per prompt row; empty: text only
  std::vector<int32_t> steps;                   // token fed by step s at position prompt.size() + s
  std::vector<DraftPoint> drafts;               // ascending positions, each >= prompt.size() - 1
  int64_t kept_rows = 1;                        // last prompt rows whose values are wanted
  int64_t logits_rows = 1;                      // last prompt rows whose logits are wanted
  std::map<int, std::vector<int64_t>> entries;  // KV-source layer -> entries wanted
  int64_t chunk = 0;                            // prompt rows in a step; 0: as many as a step takes
  TeacherProbe::Fill fill;                      // set: every layer is fed with given inputs
};

struct CacheEntry {
  std::vector<float> main, index_key;
};

struct SequenceRun {
  std::unique_ptr<EvalRecorder> rows;             // prompt rows and steps, by position
  std::vector<std::vector<float>> prompt_logits;  // the last `logits_rows` rows
  std::vector<std::vector<float>> step_logits;
  std::vector<std::unique_ptr<EvalRecorder>> draft_rows;  // one per draft point
  std::vector<DraftResult> drafts;
  std::map<std::pair<int, int64_t>, CacheEntry> entries;
};

// Positions that a sequence needs, drafted rows included.
int64_t sequence_positions(const SequenceSpec& spec, const ModelConfig& config);

Result<SequenceRun> run_sequence(EvalRanks& ranks, const SequenceSpec& spec);

}  // namespace tensorfold::ctl
