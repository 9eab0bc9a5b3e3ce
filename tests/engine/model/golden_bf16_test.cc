// The recorded runs of the small model widened to BF16: every tensor within its bound, and a
// planted fault past it.
#include <boost/test/unit_test.hpp>

#include "tests/engine/model/golden_support.h"

namespace tensorfold::test {

BOOST_AUTO_TEST_CASE(every_quantity_is_within_its_bound) {
  const TempFolder folder;
  make_bf16_twin(folder.path("model"));
  const std::vector<std::string> args = {"--model",  folder.path("model"),
                                         "--golden", golden_path("mini_bf16/golden.safetensors.xz"),
                                         "--bounds", golden_path("bounds.json")};
  const EvalOutcome outcome = run_eval(args);
  check_passed(outcome, {"prefill.X", "prefill.attn_y", "prefill.logits", "prefill.engram_rows",
                         "decode.X", "decode.logits", "decode.engram_rows", "draft.conf",
                         "draft.base_logits", "tokens", "engram_token_map"});
  BOOST_CHECK_EQUAL(outcome.number("no_rule"), 0);

  for (const Fault fault : {Fault::kNoSink, Fault::kCombTransposed}) {
    const TempFolder faulty;
    plant_fault(folder.path("model"), faulty.path("model"), fault);
    check_fails_bounds(run_eval({"--model", faulty.path("model"), "--golden",
                                 golden_path("mini_bf16/golden.safetensors.xz"), "--bounds",
                                 golden_path("bounds.json"), "--prompt", "p31"}));
  }
}

}  // namespace tensorfold::test
