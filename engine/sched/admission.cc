// The price of a request. Pure.
#include "engine/sched/admission.h"

#include <algorithm>
#include <string>

#include "engine/sched/block_ledger.h"

namespace tensorfold {

int64_t Capacity::positions_max() const { return std::min(context, pool_blocks * kBlockPositions); }

Result<Price> price_request(const Capacity& capacity, int64_t prompt_tokens,
                            std::optional<int> max_tokens, bool from_ids) {
  if (prompt_tokens <= 0) return invalid_argument("the prompt is empty", "prompt", "empty_prompt");
  if (max_tokens && *max_tokens < 0)
    return invalid_argument("max_tokens must not be negative", "max_tokens");
  const int64_t most = capacity.positions_max();
  const int64_t reply = max_tokens.value_or(1);
  if (prompt_tokens + reply > most) {
    // Clients recognize this wording and shorten the conversation.
    const std::string where = from_ids ? "prompt" : "messages";
    return invalid_argument(
        "This server's maximum context length is " + std::to_string(most) +
            " tokens. However, you requested " + std::to_string(prompt_tokens + reply) +
            " tokens (" + std::to_string(prompt_tokens) + " in the " + where + ", " +
            std::to_string(reply) + " in the completion). Please reduce the length of the " +
            where + " or completion.",
        where, "context_length_exceeded");
  }
  Price price;
  price.reply_tokens = max_tokens ? *max_tokens : most - prompt_tokens;
  price.blocks = blocks_for(prompt_tokens + price.reply_tokens);
  return price;
}

}  // namespace tensorfold
