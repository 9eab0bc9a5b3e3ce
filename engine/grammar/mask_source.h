// MaskSource: what a constraint tells the sampler. A constraint is a state machine over tokens
// whose states are integers, so that a checkpoint under speculation is a copy of one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold {

using MaskState = int64_t;
inline constexpr MaskState kMaskDead = -1;  // no text continues from here

class MaskSource {
 public:
  virtual ~MaskSource() = default;
  virtual MaskState start() const = 0;
  // The state after `token`, or kMaskDead when the constraint forbids it.
  virtual MaskState next(MaskState state, int32_t token) const = 0;
  // Bit i of bits[i / 32] says whether token i may follow. bits has ceil(vocab / 32) words, all of
  // which are written. Returns false when nothing may follow (a dead end).
  virtual bool mask(MaskState state, std::span<uint32_t> bits) const = 0;
};

// Allows a fixed set of tokens at every position.
std::unique_ptr<MaskSource> make_allow_list(int vocab_size, const std::vector<int32_t>& allowed);

}  // namespace tensorfold
