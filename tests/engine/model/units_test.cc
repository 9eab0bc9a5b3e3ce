// Unit vectors of single operations against the kernels: `tfctl model eval --units`.
#include <boost/test/unit_test.hpp>
#include <fstream>

#include "tests/engine/model/golden_support.h"

namespace tensorfold::test {

BOOST_AUTO_TEST_CASE(every_unit_is_within_its_bound) {
  const EvalOutcome outcome = run_eval(
      {"--units", golden_path("units.safetensors.xz"), "--bounds", golden_path("bounds.json")});
  check_passed(outcome, {"hc.mixes",
                         "hc.pre",
                         "hc.post",
                         "hc.comb",
                         "hc.collapsed",
                         "hc.expanded",
                         "sinkhorn.comb",
                         "rope.plain.cos",
                         "rope.yarn.sin",
                         "rope.yarn.rotated",
                         "rope.plain.inverse",
                         "quant.fp8.bytes",
                         "quant.fp4_ue8m0.codes",
                         "quant.fp4_e4m3.scale_byte",
                         "gate.scores",
                         "gate.ids",
                         "gate.weights",
                         "engram.primes",
                         "engram.multipliers",
                         "engram.offsets",
                         "engram.seq14.rows",
                         "engram.seq15.rows",
                         "engram_gate.out",
                         "attn128.out",
                         "attn512.out",
                         "attn512.out_fp32P",
                         "pool.pooled",
                         "pool.latent",
                         "rmsnorm.out",
                         "swiglu.z",
                         "cand.mask"});
  BOOST_CHECK_EQUAL(outcome.number("no_rule"), 0);
}

// The same vectors against bounds that nothing can keep: a figure past its bound is a failure.
BOOST_AUTO_TEST_CASE(a_bound_that_is_not_kept_fails) {
  const TempFolder folder;
  const std::string bounds = folder.path("bounds.json");
  std::ofstream(bounds) << "{\"units\": {\"hc\": -1, \"gate_rel\": -1}}";
  const EvalOutcome outcome =
      run_eval({"--units", golden_path("units.safetensors.xz"), "--bounds", bounds});
  check_fails_bounds(outcome);
  BOOST_CHECK_GT(outcome.figures("hc.mixes", "PAST"), 0);
  BOOST_CHECK_GT(outcome.figures("gate.scores", "PAST"), 0);
}

}  // namespace tensorfold::test
