// StepExecutor: one rank's execution of StepPlans: the model's forward pass, verification,
// acceptance and drafting. The same plans give the same results on every rank, so nothing is sent
// back. Owned by the thread that drives the rank's model.
//
// It deliberately decides nothing: which rows run, how deep drafts go and when a reply ends are the
// head's business.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/base/status.h"
#include "engine/model/model.h"
#include "engine/sample/sampler.h"
#include "engine/sample/token_history.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

// Runs plans; the head's engine sees only this, whether one rank stands behind it or several.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // One entry per SampleSpec of the plan, in its order. A status that is not ok means that the
  // device, the link or the plan is broken and the group has failed; what fails for one sequence
  // is in its entry.
  virtual Status run(const StepPlan& plan, std::vector<SampledTokens>& results) = 0;
};

// Where ranks agree within a step (engine/group); a model of one rank has none.
class StepAgreement {
 public:
  virtual ~StepAgreement() = default;
  // Before the model's first exchange. `status`: what this rank's commands came to.
  virtual Status before(const StepPlan& plan, const Status& status) = 0;
  // After verification, before anything is built on it: a row that failed on one rank fails on all.
  virtual Status after(const StepPlan& plan, std::vector<SampledTokens>& results) = 0;
};

class StepExecutor final : public StepRunner {
 public:
  explicit StepExecutor(Model& model, StepAgreement* agreement = nullptr);
  Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override;

 private:
  struct Slot {
    bool open = false;
    TokenHistory history;
    std::vector<int32_t> left;  // what the last step left: [last token, draft 0, draft 1, ...]
  };

  Status prepare(const StepPlan& plan);
  Status apply_commands(const StepPlan& plan);
  Status check_slice(const StepPlan& plan, const Slice& slice);
  Status take_tokens(const StepPlan& plan);
  Status check_scored(const StepPlan& plan, const Slice& slice, const SampleSpec& sample) const;
  Status verify_rows(const StepPlan& plan, std::vector<SampledTokens>& results);
  Status accept_rows(const StepPlan& plan, const std::vector<SampledTokens>& results);
  Status draft_tokens(const StepPlan& plan, std::vector<SampledTokens>& results);

  Model& model_;
  StepAgreement* const agreement_;
  Sampler sampler_;
  std::array<Slot, kSequencesMax> slots_;
  std::vector<std::vector<int32_t>> device_tokens_;  // by slice
  StepLogits logits_;
  std::vector<DraftRequest> draft_requests_;
  std::vector<DraftResult> draft_results_;
};

}  // namespace tensorfold
