// The CPU's table of operations.
#include "kernels/backend.h"

namespace tensorfold {

const Backend& cpu_backend() {
  static constexpr Backend kCpu = {
      "cpu",           cpu::rope_table,       cpu::embed_rows,   cpu::hc_step,
      cpu::project,    cpu::attention_append, cpu::index_select, cpu::attention_core,
      cpu::moe_route,  cpu::moe_experts,      cpu::engram_gate,  cpu::head_logits,
      cpu::markov_step};
  return kCpu;
}

}  // namespace tensorfold
