// Counting in front of a constraint. See the header.
#include "engine/min_tokens.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

constexpr int kCountBits = 20;
constexpr MaskState kCountMask = (MaskState{1} << kCountBits) - 1;

class MinTokens final : public MaskSource {
 public:
  MinTokens(int vocab_size, const TextCodec& text, int min_tokens,
            std::shared_ptr<const MaskSource> inner)
      : vocab_(vocab_size), least_(min_tokens), inner_(std::move(inner)) {
    TF_CHECK(min_tokens > 0 && min_tokens <= kMinTokensMax);
    for (int id = 0; id < vocab_; ++id) {
      if (text.ends_reply(id)) ends_.push_back(id);
    }
  }

  MaskState start() const override { return join(0, inner_ ? inner_->start() : 0); }

  MaskState next(MaskState state, int32_t token) const override {
    if (state == kMaskDead) return kMaskDead;
    const MaskState count = std::min<MaskState>((state & kCountMask) + 1, least_);
    return join(count, inner_ ? inner_->next(state >> kCountBits, token) : 0);
  }

  bool mask(MaskState state, std::span<uint32_t> bits) const override {
    if (state == kMaskDead) {
      std::fill(bits.begin(), bits.end(), 0U);
      return false;
    }
    if (inner_) {
      if (!inner_->mask(state >> kCountBits, bits)) return false;
    } else {
      std::fill(bits.begin(), bits.end(), ~0U);
      if (vocab_ % 32 != 0) bits.back() = (1U << (vocab_ % 32)) - 1;
    }
    if (hold_back_end(state, bits)) return true;
    return inner_ && inner_->mask(state >> kCountBits, bits);
  }

  MaskFound mask_within(MaskState state, std::span<uint32_t> bits, int64_t& work) const override {
    if (state == kMaskDead || !inner_) return MaskSource::mask_within(state, bits, work);
    const MaskFound found = inner_->mask_within(state >> kCountBits, bits, work);
    if (found != MaskFound::kSome || hold_back_end(state, bits)) return found;
    return inner_->mask_within(state >> kCountBits, bits, work);
  }

  // A forced end has no way around it: it is left to the mask.
  int32_t forced(MaskState state) const override {
    return state == kMaskDead || !inner_ ? -1 : inner_->forced(state >> kCountBits);
  }

  const void* turns() const override { return inner_ ? inner_->turns() : this; }

 private:
  // Without the end tokens while the reply is too short; false when nothing is left then.
  bool hold_back_end(MaskState state, std::span<uint32_t> bits) const {
    if ((state & kCountMask) >= least_) return true;
    for (const int id : ends_) bits[static_cast<size_t>(id) / 32] &= ~(1U << (id % 32));
    return std::any_of(bits.begin(), bits.end(), [](uint32_t word) { return word != 0; });
  }

  static MaskState join(MaskState count, MaskState inner) {
    if (inner == kMaskDead) return kMaskDead;
    TF_CHECK(inner >= 0 && inner >> (62 - kCountBits) == 0);
    return inner << kCountBits | count;
  }

  const int vocab_;
  const MaskState least_;
  const std::shared_ptr<const MaskSource> inner_;
  std::vector<int> ends_;
};

}  // namespace

std::shared_ptr<const MaskSource> make_min_tokens(int vocab_size, const TextCodec& text,
                                                  int min_tokens,
                                                  std::shared_ptr<const MaskSource> inner) {
  return std::make_shared<MinTokens>(vocab_size, text, min_tokens, std::move(inner));
}

}  // namespace tensorfold
