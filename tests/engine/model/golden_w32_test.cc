// The recorded runs with a window of 32, and that a window of 128 does not pass them.
#include <boost/test/unit_test.hpp>

#include "tests/engine/model/golden_support.h"

namespace tensorfold::test {

BOOST_AUTO_TEST_CASE(every_quantity_is_within_its_bound) {
  const TempFolder folder;
  make_bf16_twin(folder.path("model"), "mini_bf16/config_w32.json");
  const EvalOutcome outcome = run_eval({"--model", folder.path("model"), "--golden",
                                        golden_path("mini_bf16/golden_w32.safetensors.xz"),
                                        "--bounds", golden_path("bounds.json")});
  check_passed(outcome, {"prefill.X", "prefill.logits", "decode.logits", "draft.conf", "tokens"});
  BOOST_CHECK_EQUAL(outcome.number("no_rule"), 0);
}

BOOST_AUTO_TEST_CASE(another_window_is_found) {
  const TempFolder folder;
  make_bf16_twin(folder.path("model"));
  check_fails_bounds(run_eval({"--model", folder.path("model"), "--golden",
                               golden_path("mini_bf16/golden_w32.safetensors.xz"), "--bounds",
                               golden_path("bounds.json"), "--prompt", "p129"}));
}

}  // namespace tensorfold::test
