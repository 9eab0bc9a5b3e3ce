// The simplest constraint: a fixed set of tokens, at every position. One state. Immutable, so any
// thread may use it.
#include <algorithm>

#include "engine/base/check.h"
#include "engine/grammar/mask_source.h"

namespace tensorfold {
namespace {

class AllowList final : public MaskSource {
 public:
  AllowList(int vocab_size, const std::vector<int32_t>& allowed)
      : bits_((static_cast<size_t>(vocab_size) + 31) / 32, 0) {
    for (const int32_t id : allowed) {
      if (id < 0 || id >= vocab_size) continue;  // no such token: nothing to allow
      bits_[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
      any_ = true;
    }
  }

  MaskState start() const override { return 0; }

  MaskState next(MaskState state, int32_t token) const override {
    if (state != 0 || token < 0 || static_cast<size_t>(token) / 32 >= bits_.size())
      return kMaskDead;
    return (bits_[static_cast<size_t>(token) / 32] >> (token % 32)) & 1U ? 0 : kMaskDead;
  }

  bool mask(MaskState state, std::span<uint32_t> bits) const override {
    TF_CHECK_EQ(bits.size(), bits_.size());
    if (state != 0) {
      std::fill(bits.begin(), bits.end(), 0U);
      return false;
    }
    std::copy(bits_.begin(), bits_.end(), bits.begin());
    return any_;
  }

 private:
  std::vector<uint32_t> bits_;
  bool any_ = false;
};

}  // namespace

std::unique_ptr<MaskSource> make_allow_list(int vocab_size, const std::vector<int32_t>& allowed) {
  return std::make_unique<AllowList>(vocab_size, allowed);
}

}  // namespace tensorfold
