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

// What a mask within a budget of work came to.
enum class MaskFound : unsigned char {
  kSome,    // bits are written
  kNone,    // so are they, and nothing may follow: a dead end
  kNotYet,  // it takes more work; bits mean nothing
};

class MaskSource {
 public:
  virtual ~MaskSource() = default;
  virtual MaskState start() const = 0;
  // The state after `token`, or kMaskDead when the constraint forbids it.
  virtual MaskState next(MaskState state, int32_t token) const = 0;
  // Bit i of bits[i / 32] says whether token i may follow. bits has ceil(vocab / 32) words, all of
  // which are written. Returns false when nothing may follow (a dead end).
  virtual bool mask(MaskState state, std::span<uint32_t> bits) const = 0;
  // The same within `work` units (about as many steps through the vocabulary's trees), which is
  // lowered by what was spent. mask() always ends, however long it takes; behind it the same state
  // costs next to nothing here.
  virtual MaskFound mask_within(MaskState state, std::span<uint32_t> bits, int64_t& work) const {
    --work;
    return mask(state, bits) ? MaskFound::kSome : MaskFound::kNone;
  }
  // The token that text decides which can only go on one way: the longest allowed one, when all
  // others begin it. -1: there are several ways, or this mask was not asked for before.
  virtual int32_t forced(MaskState) const { return -1; }
  // Calls of sources with the same one wait for each other.
  virtual const void* turns() const { return this; }
};

// Allows a fixed set of tokens at every position.
std::unique_ptr<MaskSource> make_allow_list(int vocab_size, const std::vector<int32_t>& allowed);

}  // namespace tensorfold
