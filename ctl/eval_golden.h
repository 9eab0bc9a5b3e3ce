// Recorded runs of whole sequences: which prompts a file holds, what has to be run for them, and
// the comparison of every tensor of a prompt. Names, prompts, rows and shapes come from the file;
// nothing here knows a particular model or prompt.
//
// Format: tensors "PROMPT.prompt", "PROMPT.tokens", "PROMPT.prefill.*", "PROMPT.decode.*",
// "PROMPT.draft.*" (tests/data/golden/README.md lists them).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ctl/eval_bounds.h"
#include "ctl/eval_report.h"
#include "ctl/eval_run.h"
#include "ctl/eval_tensor_file.h"
#include "engine/base/status.h"
#include "engine/model/config.h"

namespace tensorfold::ctl {

struct GoldenPrompt {
  std::string name;
  SequenceSpec spec;
};

// The prompts of `file`, in its order. Ids of a prompt that the file leaves out are taken from
// `prompts` (nullptr: that is an error). `only`: one prompt's name, or empty for all.
Result<std::vector<GoldenPrompt>> golden_prompts(const TensorFile& file, const TensorFile* prompts,
                                                 const std::string& only, int64_t chunk);

// Whether some prompt of the file has no ids of its own.
bool golden_needs_prompts(const TensorFile& file);

// Compares every tensor of the prompt; bounds must stand at the section's "golden" part.
void compare_golden(const TensorFile& file, const GoldenPrompt& prompt, const SequenceRun& run,
                    const ModelConfig& config, EvalBounds& bounds, EvalReport& report);

// Tensors that belong to no prompt: lists those that `handled` does not name as without a rule.
std::vector<const StoredTensor*> golden_constants(const TensorFile& file);

}  // namespace tensorfold::ctl
