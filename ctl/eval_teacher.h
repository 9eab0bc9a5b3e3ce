// The teacher-forced record: every layer of a long prompt and some steps is fed with generated
// inputs, so that nothing compounds between layers. The sharpest comparison there is.
//
// Tensors: ids [T], rows [R], X_in_check, pre_in_check; and per kind of weights ("bf16.",
// "native.") X_out [layers, R, hc, H], pre_out, attn_y, ffn_y, route_ids, tap, topk.L,
// score_prefill_last.L. Metadata: k, the generator's stream. Shapes, rows and k come from the file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ctl/eval_bounds.h"
#include "ctl/eval_report.h"
#include "ctl/eval_run.h"
#include "ctl/eval_tensor_file.h"
#include "engine/base/status.h"
#include "engine/model/config.h"

namespace tensorfold::ctl {

// The generator of the inputs: SplitMix64's output function on s * 0x9E3779B97F4A7C15.
uint64_t splitmix(uint64_t s);

struct TeacherInputs {
  uint64_t stream = 0;    // S = k * 2^32
  int64_t positions = 0;  // T
  int streams = 0;        // residual streams of the model
  int hidden = 0;

  float x(int layer, int64_t t, int c, int i) const;  // exact in bf16
  float pre(int layer, int64_t t, int c) const;
  int32_t id(int64_t t) const;
  void fill(int layer, int64_t t, std::span<uint16_t> x_bits, std::span<float> pre_out) const;
};

// Whether `file` is such a record.
bool is_teacher_forced(const TensorFile& file);

struct TeacherSpec {
  TeacherInputs inputs;
  SequenceSpec sequence;
  std::string prefix;  // "bf16." or "native."
};

// kind: "bf16" or "native": whose tensors of the file are used.
Result<TeacherSpec> teacher_spec(const TensorFile& file, std::string_view kind,
                                 const ModelConfig& config, int64_t chunk);

// Compares every tensor; bounds must stand at the section's "teacher_forced" part.
void compare_teacher(const TensorFile& file, const TeacherSpec& spec, const SequenceRun& run,
                     const ModelConfig& config, EvalBounds& bounds, EvalReport& report);

}  // namespace tensorfold::ctl
