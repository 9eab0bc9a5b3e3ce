// The recorded runs of the model in its original storage (FP8, FP4): every tensor within its
// bound, and a planted fault past it.
#include <boost/test/unit_test.hpp>

#include "tests/engine/model/golden_support.h"

namespace tensorfold::test {

BOOST_AUTO_TEST_CASE(every_quantity_is_within_its_bound) {
  const EvalOutcome outcome = run_eval({"--model", golden_path("mini_native"), "--golden",
                                        golden_path("mini_native/golden.safetensors.xz"),
                                        "--bounds", golden_path("bounds.json")});
  check_passed(outcome,
               {"prefill.X", "prefill.attn_y", "prefill.logits", "prefill.engram_rows", "decode.X",
                "decode.logits", "decode.engram_rows", "draft.conf", "draft.base_logits", "tokens",
                "engram_token_map", "engram_primes", "engram_offsets", "engram_multipliers"});
  BOOST_CHECK_EQUAL(outcome.number("no_rule"), 0);
}

// Short chunks change nothing that a bound can see, rows of images included.
BOOST_AUTO_TEST_CASE(a_chunked_prompt_is_within_the_same_bounds) {
  for (const char* prompt : {"p129", "img60"}) {
    const EvalOutcome outcome =
        run_eval({"--model", golden_path("mini_native"), "--golden",
                  golden_path("mini_native/golden.safetensors.xz"), "--bounds",
                  golden_path("bounds.json"), "--prompt", prompt, "--chunk", "7"});
    check_passed(outcome, {"prefill.X", "prefill.logits", "decode.logits", "tokens"});
  }
}

BOOST_AUTO_TEST_CASE(planted_faults_are_found) {
  for (const Fault fault : {Fault::kNoSink, Fault::kCombTransposed}) {
    const TempFolder folder;
    plant_fault(golden_path("mini_native"), folder.path("model"), fault);
    check_fails_bounds(run_eval({"--model", folder.path("model"), "--golden",
                                 golden_path("mini_native/golden.safetensors.xz"), "--bounds",
                                 golden_path("bounds.json"), "--prompt", "p31"}));
  }
}

}  // namespace tensorfold::test
