// Steps of generated rows run from recorded launches (engine/model/model_impl.h; the table of
// recorded steps: engine/model/graph_table.h; docs/kernels/graphs.md).
//
// A step is cut where the host has to do something: before each Engram layer, whose rows it reads,
// and at the head, whose logits it fetches. A part is queued, recorded and then run, or run from
// what was recorded; the calls in it are the same.
#include <algorithm>
#include <string>

#include "engine/base/log_sink.h"
#include "engine/model/model_impl.h"

namespace tensorfold {

// Decides how this step's parts are run; pads its rows when not simply queued.
void ForwardModel::choose_graph() {
  step_key_.reset();
  step_use_ = GraphUse::kQueue;
  step_part_ = 0;
  recorded_.clear();
  if (graphs_ == nullptr) return;
  GraphStep step;
  step.rows = rows_.encoder.rows;
  step.prompt_rows = rows_.encoder.prompt_rows;
  step.decoder_rows = rows_.decoder.rows;
  step.positions_end = rows_.encoder.positions_end;
  step.probed = probe_ != nullptr;
  step.meets_on_host = collective_.world_size() > 1 && exchange_ == nullptr;
  const std::optional<GraphKey> key = graph_key(step, options_.rows_max, cache_->layout().context);
  if (!key) return;
  // One slice a row at most, one a sequence: this many whatever shares the step.
  const int slices = std::min(key->rows, options_.slots) + key->rows - least_rows(key->rows);
  if (!tables_.fits(key->rows, slices)) return;
  step_key_ = key;
  step_use_ = graphs_->use(*key);
  rows_.pad(key->rows, slices, key->positions);
}

// Layers up to the next one before which the host has to act.
int ForwardModel::segment_end(int first) const {
  for (int layer = first + 1; layer < config_.layers; ++layer)
    if (config_.roles[static_cast<size_t>(layer)].engram >= 0) return layer;
  return config_.layers;
}

Status ForwardModel::run_segments() {
  const bool engram_first = config_.roles[0].engram >= 0;
  if (engram_first) TF_RETURN_IF_ERROR(run_part([this] { return begin_rows(), ok_status(); }));
  for (int first = 0; first < config_.layers;) {
    const int last = segment_end(first);
    const LayerRole& role = config_.roles[static_cast<size_t>(first)];
    if (role.engram >= 0) {
      RowSet& rows = first <= config_.decoder_start ? rows_.encoder : rows_.decoder;
      LayerPlan plan;
      plan.layer = first;
      plan.role = &role;
      TF_RETURN_IF_ERROR(
          fetch_engram(plan, weights_->layers[static_cast<size_t>(first)].engram, rows));
    }
    const bool begins = first == 0 && !engram_first;
    engram_fetched_ = true;
    const Status status = run_part([this, first, last, begins] {
      if (begins) begin_rows();
      return run_layers(first, last);
    });
    engram_fetched_ = false;
    TF_RETURN_IF_ERROR(status);
    first = last;
  }
  return ok_status();
}

Status ForwardModel::run_part(const std::function<Status()>& queue) {
  if (step_use_ == GraphUse::kQueue) return queue();
  if (step_use_ == GraphUse::kRun) {
    const GraphParts& parts = graphs_->parts(*step_key_);
    TF_CHECK_LT(step_part_, parts.size());
    device_->run_graph(*parts[step_part_++], *stream_);
    return ok_status();
  }
  Status refused = device_->begin_graph(*stream_);
  if (refused.ok()) {
    Status queued = queue();
    Result<std::unique_ptr<StepGraph>> graph = device_->end_graph(*stream_);
    if (!queued.ok()) return queued;
    if (graph.ok()) {
      recorded_.push_back(std::move(*graph));
      device_->run_graph(*recorded_.back(), *stream_);
      return ok_status();
    }
    refused = graph.status();
  }
  if (options_.log != nullptr)
    options_.log->info("steps of " + std::to_string(step_key_->rows) +
                       " rows are queued launch by launch: " + refused.message());
  graphs_->refuse(*step_key_);
  step_use_ = GraphUse::kQueue;
  recorded_.clear();
  return queue();
}

// The step is through: what was recorded is kept.
void ForwardModel::keep_graph() {
  if (step_use_ == GraphUse::kRecord) graphs_->keep(*step_key_, std::move(recorded_));
  recorded_.clear();
}

}  // namespace tensorfold
