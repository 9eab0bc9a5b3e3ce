// Two ranks of the golden mini model in one process, each with its executor and gate, and a hand on
// one rank's logits: what a rank that computes something else looks like to the other.
#pragma once

#include <boost/test/unit_test.hpp>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine/group/step_gate.h"
#include "engine/model/model.h"
#include "engine/step_executor.h"

namespace tensorfold::test {

inline constexpr int kMeetTimeoutMs = 60'000;

// A rank's model whose logits pass through `tamper`.
class TamperedModel final : public Model {
 public:
  using Tamper = std::function<void(StepLogits&)>;
  explicit TamperedModel(std::unique_ptr<Model> inner) : inner_(std::move(inner)) {}
  Tamper tamper;

  const ModelConfig& config() const override { return inner_->config(); }
  int64_t weight_bytes() const override { return inner_->weight_bytes(); }
  int64_t cache_bytes() const override { return inner_->cache_bytes(); }
  std::string fingerprint() const override { return inner_->fingerprint(); }
  Status apply(const StepPlan& plan) override { return inner_->apply(plan); }
  std::span<const int32_t> ids(SlotId slot) const override { return inner_->ids(slot); }
  Status forward(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                 StepLogits& logits, ForwardProbe* probe) override {
    TF_RETURN_IF_ERROR(inner_->forward(plan, device_tokens, logits, probe));
    if (tamper) tamper(logits);
    return ok_status();
  }
  Status accept(SlotId slot, int64_t length) override { return inner_->accept(slot, length); }
  int64_t length(SlotId slot) const override { return inner_->length(slot); }
  Status draft(std::span<const DraftRequest> requests, std::vector<DraftResult>& results,
               ForwardProbe* probe) override {
    return inner_->draft(requests, results, probe);
  }
  Status read_entry(SlotId slot, int layer, int64_t entry, std::vector<float>& main,
                    std::vector<float>& index_key) const override {
    return inner_->read_entry(slot, layer, entry, main, index_key);
  }

 private:
  std::unique_ptr<Model> inner_;
};

struct OneRank {
  std::unique_ptr<TamperedModel> model;
  StepGate gate;
  std::unique_ptr<StepExecutor> executor;
  Status status;
  std::vector<SampledTokens> results;

  void run(const StepPlan& plan, uint64_t digest) {
    gate.expect(digest);
    status = executor->run(plan, results);
    if (status.ok()) gate.note(results);
  }
};

class TwoModels {
 public:
  explicit TwoModels(const char* folder)
      : collectives_(make_thread_collectives(2, kMeetTimeoutMs)) {
    for (size_t r = 0; r < 2; ++r) {
      ModelOptions o;
      o.model_path = folder;
      o.slots = 2;
      o.context = 512;
      o.rows_max = 64;
      o.threads = 1;
      auto loaded = Model::load(o, *collectives_[r]);
      BOOST_REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
      ranks[r].model = std::make_unique<TamperedModel>(std::move(loaded).value());
      ranks[r].executor = std::make_unique<StepExecutor>(*ranks[r].model, &ranks[r].gate);
      ranks[r].gate.join(*collectives_[r], 7);
    }
  }

  // Both ranks at once; `other`: what rank 1 is given instead.
  void run(const StepPlan& plan, const StepPlan* other = nullptr, uint64_t other_digest = 1) {
    std::thread second([&] { ranks[1].run(other != nullptr ? *other : plan, other_digest); });
    ranks[0].run(plan, 1);
    second.join();
  }

  OneRank ranks[2];

 private:
  std::vector<std::unique_ptr<Collective>> collectives_;
};

// Prompts in slots 0 and 1; afterwards each step goes on with what the last one left.
inline StepPlan first_plan(int draft_rows) {
  StepPlan plan;
  plan.step = 1;
  for (SlotId slot = 0; slot < 2; ++slot) {
    plan.commands.push_back({CacheCommand::Kind::kOpenSlot, slot, 0, 0});
    plan.commands.push_back({CacheCommand::Kind::kAppendBlock, slot, slot, 0});
    Slice s;
    s.slot = slot;
    s.rows = s.decoder_rows = 12;
    s.logits_rows = 1;
    s.token_offset = static_cast<int32_t>(plan.tokens.size());
    for (int i = 0; i < s.rows; ++i) plan.tokens.push_back(3 + (i * 37 + slot * 11) % 250);
    plan.slices.push_back(s);
    SampleSpec sample;
    sample.slot = slot;
    sample.position = sample.reply_position = s.rows;
    sample.temperature = 0;
    sample.draft_rows = draft_rows;
    plan.samples.push_back(sample);
  }
  return plan;
}

// One row each of the slots in `slots`, at `position` (of the row).
inline StepPlan next_plan(uint64_t step, std::vector<SlotId> slots, int64_t position) {
  StepPlan plan;
  plan.step = step;
  for (const SlotId slot : slots) {
    Slice s;
    s.slot = slot;
    s.first_position = position;
    s.rows = s.decoder_rows = s.logits_rows = 1;
    s.row_class = RowClass::kGenerated;
    s.source = TokenSource::kDevice;
    plan.slices.push_back(s);
    SampleSpec sample;
    sample.slot = slot;
    sample.position = position + 1;
    sample.reply_position = 12;
    sample.temperature = 0;
    plan.samples.push_back(sample);
  }
  return plan;
}

}  // namespace tensorfold::test
