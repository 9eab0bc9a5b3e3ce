// Backend: the operations of one device as a table. The forward pass is written over it, so the
// CPU and CUDA engines run the same code above this line.
#pragma once

#include <memory>

#include "engine/base/status.h"
#include "kernels/attention_append.h"
#include "kernels/attention_core.h"
#include "kernels/embed_rows.h"
#include "kernels/engram_gate.h"
#include "kernels/hc_step.h"
#include "kernels/head_logits.h"
#include "kernels/index_select.h"
#include "kernels/markov_step.h"
#include "kernels/moe_experts.h"
#include "kernels/moe_route.h"
#include "kernels/project.h"
#include "kernels/rope.h"

namespace tensorfold {

struct Backend {
  const char* name;
  void (*rope_table)(const RopeTableParams&, Stream&);
  void (*embed_rows)(const EmbedRowsParams&, Stream&);
  void (*hc_step)(const HcStepParams&, Stream&);
  void (*project)(const ProjectParams&, Stream&);
  void (*attention_append)(const AttentionAppendParams&, Stream&);
  void (*index_select)(const IndexSelectParams&, Stream&);
  void (*attention_core)(const AttentionCoreParams&, Stream&);
  void (*moe_route)(const MoeRouteParams&, Stream&);
  void (*moe_experts)(const MoeExpertsParams&, Stream&);
  void (*engram_gate)(const EngramGateParams&, Stream&);
  void (*head_logits)(const HeadLogitsParams&, Stream&);
  void (*markov_step)(const MarkovStepParams&, Stream&);
};

const Backend& cpu_backend();
// Threads that share the CPU operations; 0: one per core. kUnavailable when the system refuses
// them.
Result<std::unique_ptr<Stream>> make_cpu_stream(int threads);

}  // namespace tensorfold
