// A model that passes everything on to another one: the base of those that change one thing.
#pragma once

#include <string>
#include <vector>

#include "engine/model/model.h"

namespace tensorfold {

class PassingModel : public Model {
 public:
  explicit PassingModel(Model& inner) : inner_(inner) {}
  const ModelConfig& config() const override { return inner_.config(); }
  int64_t weight_bytes() const override { return inner_.weight_bytes(); }
  int64_t cache_bytes() const override { return inner_.cache_bytes(); }
  std::string fingerprint() const override { return inner_.fingerprint(); }
  std::string device() const override { return inner_.device(); }
  StepGraphStats graphs() const override { return inner_.graphs(); }
  Status apply(const StepPlan& plan) override { return inner_.apply(plan); }
  std::span<const int32_t> ids(SlotId slot) const override { return inner_.ids(slot); }
  Status forward(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                 StepLogits& logits, ForwardProbe* probe) override {
    return inner_.forward(plan, device_tokens, logits, probe);
  }
  Status accept(SlotId slot, int64_t length) override { return inner_.accept(slot, length); }
  int64_t length(SlotId slot) const override { return inner_.length(slot); }
  Status draft(std::span<const DraftRequest> requests, std::vector<DraftResult>& results,
               ForwardProbe* probe) override {
    return inner_.draft(requests, results, probe);
  }
  Status read_entry(SlotId slot, int layer, int64_t entry, std::vector<float>& main,
                    std::vector<float>& index_key) const override {
    return inner_.read_entry(slot, layer, entry, main, index_key);
  }

 protected:
  Model& inner_;
};

}  // namespace tensorfold
