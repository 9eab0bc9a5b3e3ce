// UnitRunner: what the unit comparisons share: the file, the report, a CPU stream, and helpers that
// turn tensors into an operation's operands. Internal to eval_units*.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/eval_bounds.h"
#include "ctl/eval_report.h"
#include "ctl/eval_tensor_file.h"
#include "engine/base/status.h"
#include "kernels/hc_step.h"
#include "kernels/op.h"
#include "kernels/weight_view.h"

namespace tensorfold::ctl {

// A matrix in the layout that operations read.
struct UnitMatrix {
  std::vector<float> f32;
  std::vector<uint16_t> bf16;
  WeightView view;
};
// values [out][in] -> panels, in fp32 or bf16 (exact when the values are bf16).
UnitMatrix make_panels(std::span<const float> values, int out, int in, WeightLayout layout);

std::vector<uint16_t> to_bf16(std::span<const float> values);
std::vector<float> from_bf16(std::span<const uint16_t> bits);

class UnitRunner {
 public:
  UnitRunner(const TensorFile& file, EvalBounds& bounds, EvalReport& report, Stream& stream)
      : file_(file), bounds_(bounds), report_(report), stream_(stream) {}

  // Each runs one group of tensors when the file has it. Errors are damage of the file.
  Status hyper_connections();
  Status sinkhorn();
  Status rope(const std::string& name, double theta, bool yarn);
  Status quantisation();
  Status gate();
  Status engram_rows();
  Status engram_gate();
  Status attention();
  Status pool();
  Status rms_norm();
  Status swiglu();
  Status candidates();
  // Tensors that no group touched.
  void list_untouched();

 private:
  bool has(std::string_view name) const { return file_.find(name) != nullptr; }
  // The tensor (its use is noted), or an error naming it. Shapes: -1 matches any length.
  Result<const StoredTensor*> take(const std::string& name, std::vector<int64_t> shape);
  Result<std::vector<float>> input(const std::string& name, std::vector<int64_t> shape);
  // Compares one tensor. measure "rel", "max_abs" or "differing" (values with other bits).
  Status compare(const std::string& name, std::span<const float> ours, const char* measure,
                 std::optional<double> bound);
  Status compare_exact(const std::string& name, std::span<const int64_t> ours, bool bounded);
  Status attention_case(const std::string& name);
  std::byte* workspace(int64_t bytes);
  void run(HcStepParams& params);  // with the workspace that it needs

  const TensorFile& file_;
  EvalBounds& bounds_;
  EvalReport& report_;
  Stream& stream_;
  std::vector<std::byte> workspace_;
  std::set<std::string, std::less<>> touched_;
};

}  // namespace tensorfold::ctl
