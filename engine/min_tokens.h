// A constraint that keeps a reply from ending too early: end tokens are out until enough tokens
// have come. It stands in front of another constraint, or alone.
//
// States: the other's state and the count, in one integer. Immutable; any thread.
#pragma once

#include <memory>

#include "engine/grammar/mask_source.h"
#include "engine/text_codec.h"

namespace tensorfold {

inline constexpr int kMinTokensMax = (1 << 20) - 1;  // of one request

// `inner` may be null. Where the inner constraint leaves nothing but the end, it ends there: a form
// that is complete can't be made longer.
std::shared_ptr<const MaskSource> make_min_tokens(int vocab_size, const TextCodec& text,
                                                  int min_tokens,
                                                  std::shared_ptr<const MaskSource> inner);

}  // namespace tensorfold
