// Every layer fed with given inputs, for both kinds of weights and both ways to round index
// scores; planted faults are found.
#include <boost/test/unit_test.hpp>

#include "tests/engine/model/golden_support.h"

namespace tensorfold::test {
namespace {

std::vector<std::string> arguments(const std::string& model, const std::string& scores) {
  return {"--model",  model,
          "--golden", golden_path("teacher_forced.safetensors.xz"),
          "--bounds", golden_path("bounds.json"),
          "--scores", scores};
}

std::vector<std::string> compared(const std::string& prefix) {
  std::vector<std::string> names = {"ids", "X_in_check", "pre_in_check"};
  for (const char* name : {"X_out", "pre_out", "attn_y", "ffn_y", "route_ids", "tap", "topk.2",
                           "topk.5", "topk.7", "topk.9"}) {
    names.push_back(prefix + name);
  }
  return names;
}

}  // namespace

BOOST_AUTO_TEST_CASE(native_weights) {
  for (const char* scores : {"bf16", "fp32"}) {
    check_passed(run_eval(arguments(golden_path("mini_native"), scores)), compared("native."));
  }
}

BOOST_AUTO_TEST_CASE(bf16_weights_and_planted_faults) {
  const TempFolder folder;
  make_bf16_twin(folder.path("model"));
  for (const char* scores : {"bf16", "fp32"}) {
    check_passed(run_eval(arguments(folder.path("model"), scores)), compared("bf16."));
  }
  for (const Fault fault : {Fault::kNoSink, Fault::kCombTransposed}) {
    const TempFolder faulty;
    plant_fault(folder.path("model"), faulty.path("model"), fault);
    const EvalOutcome outcome = run_eval(arguments(faulty.path("model"), "bf16"));
    check_fails_bounds(outcome);
    BOOST_CHECK_GT(outcome.figures("bf16.X_out", "PAST"), 0);
  }
}

}  // namespace tensorfold::test
