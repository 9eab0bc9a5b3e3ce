// StepGate: where the ranks of a group agree within a step, so that one that would go another way
// is noticed before anything is built on it.
//
//   before the first exchange  all have the same plan (its digest), could take its commands, and
//                              what all steps so far left is the same (their checksum)
//   after verification         the same tokens were accepted; a row that failed on one rank (a NaN,
//                              a dead end) fails on all, and nothing else does
//
// A difference is kUnavailable with reason "out_of_step" on every rank. Without a group (alone) the
// gate says yes: that is how commands are carried out while ranks are apart. Owner: the thread that
// drives the rank's model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cluster/collective.h"
#include "engine/step_executor.h"

namespace tensorfold {

inline constexpr const char* kReasonOutOfStep = "out_of_step";

class StepGate final : public StepAgreement {
 public:
  // With all ranks of the group, from the same past. `collective` stays until alone().
  void join(Collective& collective, uint64_t generation);
  void alone() { collective_ = nullptr; }

  // The next step is of this message.
  void expect(uint64_t digest);
  // Its commands were carried out, in whole.
  bool commands_done() const { return commands_done_; }
  // What the step left becomes part of the checksum that the next one compares.
  void note(const std::vector<SampledTokens>& results);

  Status before(const StepPlan& plan, const Status& status) override;
  Status after(const StepPlan& plan, std::vector<SampledTokens>& results) override;

 private:
  void fail_row(SampledTokens& result, size_t row, size_t rows) const;

  Collective* collective_ = nullptr;
  uint64_t digest_ = 0;
  uint64_t past_ = 0;  // checksum over the results of this generation's steps
  bool commands_done_ = false;
  std::vector<std::byte> mine_, all_;  // of after()
};

}  // namespace tensorfold
