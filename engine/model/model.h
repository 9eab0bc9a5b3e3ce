// Model: the forward pass of one rank, from a step's rows to logits and drafts. Owned by the engine
// thread; holds the rank's weights and the state of all sequences (engine/cache). Written once over
// kernels/*.h. Samples nothing: engine/sample turns logits into tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/cluster/collective.h"
#include "engine/model/config.h"
#include "engine/model/probe.h"
#include "engine/sched/step_plan.h"
#include "kernels/sample_rows.h"
#include "kernels/step_graph.h"

namespace tensorfold {

class CacheTier;
class LogSink;

// Of forward(): storage did not give what the step's rows need. Its commands are carried out and
// its sequences hold rows without values; everything else is as it was.
inline constexpr std::string_view kReasonStorage = "storage_failed";

enum class ScorePrecision : unsigned char { kFp32, kBf16 };  // of index scores; fp32 is served

struct ModelOptions {
  std::string model_path;      // folder: config.json, *.safetensors, tokenizer.json
  std::string engram_path;     // empty: in model_path
  std::string prepared_path;   // empty: read the folder
  int slots = 4;               // sequences with state
  int64_t context = 0;         // positions per sequence; 0: the model's maximum
  int64_t pool_blocks = 0;     // shared pool; 0: slots * context
  int64_t snapshot_bytes = 0;  // for snapshots of the prefix cache
  CacheTier* tier = nullptr;   // this rank's records on disk; outlives the model; nullptr: none
  int rows_max = 2048 + 384;   // rows in one step
  int threads = 0;             // CPU worker threads; 0: number of cores
  std::string device = "cpu";  // kernels/device.h: open_device
  ScorePrecision scores = ScorePrecision::kFp32;
  ValueType exchange = ValueType::kF32;     // of partial results between ranks; equal on all
  int64_t graph_bytes = int64_t{64} << 20;  // of recorded steps, where the device records them
  LogSink* log = nullptr;                   // what loading has to tell; nullptr: nobody
};

// Logits of the rows that wanted them, in plan order.
struct StepLogits {
  struct Row {
    SlotId slot;
    int64_t position;
    bool finite;  // false: NaN or infinity in this row; only this sequence fails
  };
  std::vector<Row> rows;
  std::vector<float> values;  // [rows, vocab] fp32, whole vocabulary on every rank

  // In: tokens are enough, chosen as these say, one for each row of the plan with logits; or empty.
  // Out: chosen, and then tokens and states in place of values; a model need not.
  std::vector<SampleRow> ask;
  bool chosen = false;
  std::vector<int32_t> tokens, states;  // [rows] (kernels/sample_rows.h)

  void clear() {
    rows.clear();
    values.clear();
    chosen = false;
    tokens.clear();
    states.clear();
  }
};

struct DraftRequest {
  SlotId slot;
  int64_t position;  // p: the last position whose target hidden is known (= length - 1)
  int32_t token;     // the accepted token that comes at p + 1
  int32_t rows;      // how many drafts are wanted, 1..kDraftRowsMax; block_size rows always run
};

struct DraftResult {
  SlotId slot;
  std::vector<int32_t> tokens;    // greedy Markov chain
  std::vector<float> confidence;  // logits
};

class Model {
 public:
  static Result<std::unique_ptr<Model>> load(const ModelOptions& options, Collective& collective);
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual int64_t weight_bytes() const = 0;
  virtual int64_t cache_bytes() const = 0;
  virtual std::string fingerprint() const = 0;
  virtual std::string device() const { return "cpu"; }  // the one it runs on
  virtual StepGraphStats graphs() const { return {}; }
  virtual int64_t waited_ns() const { return 0; }  // Device::waited_ns
  // Recorded steps go: the exchanges in them are about to (SeatCollective::on_leave).
  virtual void forget_recorded() {}

  // Runs the plan's cache commands ahead of forward(), which then doesn't: for who must know the
  // sequences as they leave them.
  virtual Status apply(const StepPlan& plan) = 0;
  // Ids of the sequence's positions as fed. Valid until its next rows or command.
  virtual std::span<const int32_t> ids(SlotId slot) const = 0;
  // Runs the plan's cache commands, then its slices. A slice with TokenSource::kDevice takes its
  // ids from `device_tokens` (ids by slice, in plan order). Positions become part of the sequence:
  // length(slot) = first_position + rows.
  virtual Status forward(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                         StepLogits& logits, ForwardProbe* probe = nullptr) = 0;

  // After acceptance: the sequence keeps its first `length` positions (drafter context included).
  virtual Status accept(SlotId slot, int64_t length) = 0;
  virtual int64_t length(SlotId slot) const = 0;

  // Drafts for several sequences at once; none when the model has no drafter.
  virtual Status draft(std::span<const DraftRequest> requests, std::vector<DraftResult>& results,
                       ForwardProbe* probe = nullptr) = 0;

  // One stored global entry of a KV source, dequantised: main [head_dim], index key
  // [index_head_dim].
  virtual Status read_entry(SlotId slot, int layer, int64_t entry, std::vector<float>& main,
                            std::vector<float>& index_key) const = 0;
};

}  // namespace tensorfold
