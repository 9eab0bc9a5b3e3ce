// Every layer fed with given inputs, for both kinds of weights; planted faults are found. The
// record was made with index scores rounded to bf16; with fp32 scores some lists differ by a few
// entries, and what does not depend on them keeps its bounds.
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
  check_passed(run_eval(arguments(golden_path("mini_native"), "bf16")), compared("native."));
}

BOOST_AUTO_TEST_CASE(served_scores) {
  const EvalOutcome outcome = run_eval(arguments(golden_path("mini_native"), "fp32"));
  BOOST_CHECK_EQUAL(outcome.error, "");
  BOOST_CHECK_EQUAL(outcome.number("missing"), 0);
  for (const char* name : {"native.X_out", "native.attn_y", "native.ffn_y", "native.tap"}) {
    BOOST_CHECK_GT(outcome.figures(name, "within"), 0);
    BOOST_CHECK_EQUAL(outcome.figures(name, "PAST"), 0);
  }
}

BOOST_AUTO_TEST_CASE(bf16_weights_and_planted_faults) {
  const TempFolder folder;
  make_bf16_twin(folder.path("model"));
  check_passed(run_eval(arguments(folder.path("model"), "bf16")), compared("bf16."));
  for (const Fault fault : {Fault::kNoSink, Fault::kCombTransposed}) {
    const TempFolder faulty;
    plant_fault(folder.path("model"), faulty.path("model"), fault);
    const EvalOutcome outcome = run_eval(arguments(faulty.path("model"), "bf16"));
    check_fails_bounds(outcome);
    BOOST_CHECK_GT(outcome.figures("bf16.X_out", "PAST"), 0);
  }
}

}  // namespace tensorfold::test
