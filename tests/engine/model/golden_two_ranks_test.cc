// The recorded runs on two ranks, as two threads that exchange their partial results.
#include <boost/test/unit_test.hpp>

#include "tests/engine/model/golden_support.h"

namespace tensorfold::test {

BOOST_AUTO_TEST_CASE(native_weights) {
  const EvalOutcome outcome =
      run_eval({"--model", golden_path("mini_native"), "--golden",
                golden_path("mini_native/golden.safetensors.xz"), "--bounds",
                golden_path("bounds.json"), "--ranks", "2", "--threads", "1"});
  check_passed(outcome, {"prefill.X", "prefill.attn_y", "prefill.logits", "prefill.engram_rows",
                         "decode.logits", "draft.conf", "draft.base_logits", "tokens"});
  BOOST_CHECK_EQUAL(outcome.report.find("ranks")->as_string(), "2");
}

BOOST_AUTO_TEST_CASE(bf16_weights_and_a_planted_fault) {
  const TempFolder folder;
  make_bf16_twin(folder.path("model"));
  const std::vector<std::string> rest = {
      "--bounds", golden_path("bounds.json"), "--ranks", "2", "--threads", "1"};
  std::vector<std::string> args = {"--model", folder.path("model"), "--golden",
                                   golden_path("teacher_forced.safetensors.xz")};
  args.insert(args.end(), rest.begin(), rest.end());
  check_passed(run_eval(args), {"bf16.X_out", "bf16.attn_y", "bf16.ffn_y", "bf16.tap"});
  const TempFolder faulty;
  plant_fault(folder.path("model"), faulty.path("model"), Fault::kNoSink);
  args[1] = faulty.path("model");
  check_fails_bounds(run_eval(args));
}

}  // namespace tensorfold::test
