// The runs recorded with fp32 index scores, for both kinds of weights. Their prompts' ids are in
// the main record beside them.
#include <boost/test/unit_test.hpp>

#include "tests/engine/model/golden_support.h"

namespace tensorfold::test {
namespace {

const std::vector<std::string> kCompared = {"prefill.logits", "decode.logits", "draft.conf",
                                            "tokens"};

}  // namespace

BOOST_AUTO_TEST_CASE(native_weights) {
  const EvalOutcome outcome = run_eval({"--model", golden_path("mini_native"), "--golden",
                                        golden_path("mini_native/golden_score_fp32.safetensors.xz"),
                                        "--bounds", golden_path("bounds.json")});
  check_passed(outcome, kCompared);
  BOOST_CHECK_EQUAL(outcome.report.find("scores")->as_string(), "fp32");
}

BOOST_AUTO_TEST_CASE(bf16_weights_and_a_planted_fault) {
  const TempFolder folder;
  make_bf16_twin(folder.path("model"));
  const std::string golden = golden_path("mini_bf16/golden_score_fp32.safetensors.xz");
  const std::string bounds = golden_path("bounds.json");
  const EvalOutcome outcome = run_eval({"--model", folder.path("model"), "--golden", golden,
                                        "--bounds", bounds, "--scores", "fp32"});
  check_passed(outcome, kCompared);
  // This record holds logits only, which show nothing smaller than this.
  const TempFolder faulty;
  plant_fault(folder.path("model"), faulty.path("model"), Fault::kNoRouteBias);
  check_fails_bounds(run_eval({"--model", faulty.path("model"), "--golden", golden, "--bounds",
                               bounds, "--prompt", "p40"}));
}

}  // namespace tensorfold::test
