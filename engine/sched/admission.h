// What a request costs before it starts, and whether it can ever fit. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/base/status.h"

namespace tensorfold {

struct Capacity {
  int64_t context = 0;      // positions per sequence
  int64_t pool_blocks = 0;  // blocks of kBlockPositions
  // The most positions that one sequence can have.
  int64_t positions_max() const;
};

struct Price {
  int64_t reply_tokens = 0;  // the reply's bound: max_tokens, or all that is left
  int64_t blocks = 0;        // for prompt and longest reply; some are taken as the reply grows
};

// kInvalidArgument with reason "context_length_exceeded" and param "messages" (`from_ids`:
// "prompt") when prompt and reply can never fit. Without max_tokens at least one reply token must.
Result<Price> price_request(const Capacity& capacity, int64_t prompt_tokens,
                            std::optional<int> max_tokens, bool from_ids);

}  // namespace tensorfold
