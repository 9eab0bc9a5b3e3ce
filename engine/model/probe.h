// ForwardProbe: a look inside one forward pass, for tests and `tfctl model eval`. The serving path
// passes none and pays one branch per quantity.
//
// Quantities are delivered row by row, in the order in which they are computed, on the thread that
// runs the step. Values that are bf16 in the model arrive widened to fp32.
#pragma once

#include <cstdint>
#include <span>

namespace tensorfold {

struct ProbeRow {
  int32_t slot = 0;
  int64_t position = 0;
};

enum class Quantity : unsigned char {
  kStreams,       // [hc_mult * hidden] X after block `layer`
  kPre,           // [hc_mult] FFN `pre` handed to the next block
  kAttnOut,       // [hidden] attention output before mixing
  kFfnOut,        // [hidden] MoE output before mixing
  kRouteIds,      // i32 [experts_per_token], descending biased score
  kRouteWeights,  // [experts_per_token], route_scale included
  kEngramRows,    // i32 [columns] global table rows of Engram layer `layer`
  kEngramGate,    // [hc_mult]
  kIndexScores,   // [visible entries] of index source `layer`, before candidate masking
  kTopk,          // i32 [<= index_topk] selected entries, ascending
  kCandidates,    // i32 [visible entries] 0/1 of the candidate source
  kTap,           // [hidden] DSpark tap (`layer` is the tapped layer)
  kWindowLatent,  // [head_dim] as stored (fp8 dequantised)
  kLogits,        // [vocab]
  // Drafter; `layer` is the stage or 0, `position` the drafted row's own position.
  kDraftStreams,     // [hc_mult * hidden] after stage `layer`
  kDraftRouteIds,    // i32 [experts_per_token]
  kDraftHidden,      // [hidden] collapsed last-stage hidden before its norm
  kDraftBaseLogits,  // [vocab]
  kDraftLogits,      // [vocab] Markov correction included
  kDraftId,          // i32 [1]
  kDraftConfidence,  // [1]
};

class ForwardProbe {
 public:
  virtual ~ForwardProbe() = default;
  // Teacher forcing: may overwrite the incoming streams X (bf16 bits) [hc_mult * hidden] and
  // pre [hc_mult] of one row before block `layer` (before its Engram addition and tap).
  virtual void layer_input(int layer, ProbeRow row, std::span<uint16_t> streams,
                           std::span<float> pre) {
    (void)layer, (void)row, (void)streams, (void)pre;
  }
  // Teacher forcing of the drafter's Markov chain: the token that the chain goes on with after it
  // chose `chosen` in the drafted row. Must be the same on every rank.
  virtual int32_t chain_token(ProbeRow row, int32_t chosen) {
    (void)row;
    return chosen;
  }
  virtual void on_f32(Quantity q, int layer, ProbeRow row, std::span<const float> values) {
    (void)q, (void)layer, (void)row, (void)values;
  }
  virtual void on_i32(Quantity q, int layer, ProbeRow row, std::span<const int32_t> values) {
    (void)q, (void)layer, (void)row, (void)values;
  }
};

}  // namespace tensorfold
