// EvalRecorder: keeps what a forward pass computed, row by row, for `tfctl model eval`.
//
// Used by one rank's thread at a time and read when the step is over. Rows of prompts before
// `keep_from` keep only their Engram rows, so a long prompt costs no memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/model/probe.h"

namespace tensorfold::ctl {

class EvalRecorder : public ForwardProbe {
 public:
  void keep_from(int64_t position) { keep_from_ = position; }

  void on_f32(Quantity q, int layer, ProbeRow row, std::span<const float> values) override;
  void on_i32(Quantity q, int layer, ProbeRow row, std::span<const int32_t> values) override;

  // nullptr: the pass never gave it.
  const std::vector<float>* f32(Quantity q, int layer, int64_t position) const;
  // Of quantities that exist once a row (drafter outputs), whatever layer they came under.
  const std::vector<float>* f32_any(Quantity q, int64_t position) const;
  const std::vector<int32_t>* i32(Quantity q, int layer, int64_t position) const;

 private:
  static uint64_t key(Quantity q, int layer, int64_t position) {
    return (static_cast<uint64_t>(q) << 56) | (static_cast<uint64_t>(layer & 0xFFFF) << 40) |
           static_cast<uint64_t>(position);
  }
  int64_t keep_from_ = 0;
  std::unordered_map<uint64_t, std::vector<float>> f32_;
  std::unordered_map<uint64_t, std::vector<int32_t>> i32_;
};

// Gives the drafter's chain the recorded tokens of the rows from `first` on, so that every drafted
// row stands on the recorded ones before it.
class DraftProbe : public EvalRecorder {
 public:
  DraftProbe(int64_t first, std::vector<int32_t> tokens)
      : first_(first), tokens_(std::move(tokens)) {}

  int32_t chain_token(ProbeRow row, int32_t chosen) override {
    const int64_t i = row.position - first_;
    const bool known = i >= 0 && i < static_cast<int64_t>(tokens_.size());
    return known ? tokens_[static_cast<size_t>(i)] : chosen;
  }

 private:
  int64_t first_;
  std::vector<int32_t> tokens_;
};

// Feeds every layer with given inputs, on any rank; records too on the rank whose records are read.
class TeacherProbe : public EvalRecorder {
 public:
  using Fill = std::function<void(int layer, int64_t position, std::span<uint16_t> streams,
                                  std::span<float> pre)>;
  TeacherProbe(Fill fill, bool record) : fill_(std::move(fill)), record_(record) {}

  void layer_input(int layer, ProbeRow row, std::span<uint16_t> streams,
                   std::span<float> pre) override {
    fill_(layer, row.position, streams, pre);
  }
  void on_f32(Quantity q, int layer, ProbeRow row, std::span<const float> values) override {
    if (record_) EvalRecorder::on_f32(q, layer, row, values);
  }
  void on_i32(Quantity q, int layer, ProbeRow row, std::span<const int32_t> values) override {
    if (record_) EvalRecorder::on_i32(q, layer, row, values);
  }

 private:
  Fill fill_;
  bool record_;
};

}  // namespace tensorfold::ctl
