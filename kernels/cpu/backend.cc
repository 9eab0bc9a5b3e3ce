// The CPU's table of operations.
#include "kernels/backend.h"

#include <utility>

#include "kernels/cpu/parallel.h"

namespace tensorfold {

const Backend& cpu_backend() {
  static constexpr Backend kCpu = {
      "cpu",           cpu::rope_table,       cpu::embed_rows,   cpu::hc_step,
      cpu::project,    cpu::attention_append, cpu::index_select, cpu::attention_core,
      cpu::moe_route,  cpu::moe_experts,      cpu::engram_gate,  cpu::head_logits,
      cpu::markov_step};
  return kCpu;
}

Result<std::unique_ptr<Stream>> make_cpu_stream(int threads) {
  TF_ASSIGN_OR_RETURN(std::unique_ptr<CpuStream> stream, CpuStream::create(threads));
  return std::unique_ptr<Stream>(std::move(stream));
}

}  // namespace tensorfold
