// Comparison of a record's Engram constants with those that the engine computes or reads.
#pragma once

#include "ctl/eval_report.h"
#include "ctl/eval_tensor_file.h"
#include "engine/weights/engram_constants.h"
#include "engine/weights/weight_source.h"

namespace tensorfold::ctl {

// Every tensor of the file that belongs to no prompt: engram_token_map, engram_primes,
// engram_offsets, engram_multipliers must be equal; any other is listed as without a rule.
void compare_constants(const TensorFile& file, const WeightSource& source, EvalReport& report);

// One integer tensor against values; "differing" with the bound 0.
void compare_integers(const StoredTensor& tensor, std::span<const int64_t> ours,
                      EvalReport& report);

// The values of all layers, one layer after the other.
std::vector<int64_t> all_multipliers(const EngramConstants& constants);
std::vector<int64_t> all_primes(const EngramConstants& constants);
std::vector<int64_t> all_offsets(const EngramConstants& constants);

}  // namespace tensorfold::ctl
