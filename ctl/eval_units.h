// Unit vectors: small inputs and outputs of single operations, compared with kernels/*.h and with
// the Engram hash. Every tensor of the file is an input, compared, or listed as without a rule.
//
// The file carries no constants of the model; those used here are V4.1's own (eval_units.cc).
#pragma once

#include "ctl/eval_bounds.h"
#include "ctl/eval_report.h"
#include "ctl/eval_tensor_file.h"
#include "engine/base/status.h"

namespace tensorfold::ctl {

// bounds must stand at the "units" part.
Status compare_units(const TensorFile& file, EvalBounds& bounds, EvalReport& report);

}  // namespace tensorfold::ctl
