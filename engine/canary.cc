// See the header.
#include "engine/canary.h"

#include <utility>

#include "engine/health_watch.h"

namespace tensorfold {

std::vector<TokenId> canary_prompt(const TextCodec& text) {
  Prompt prompt;
  ChatMessage message;
  message.content.push_back({ContentPart::Kind::kText, "Count from 1 to 20.", ""});
  prompt.messages.push_back(std::move(message));
  auto encoded = text.encode(prompt);
  if (!encoded.ok() || encoded->ids.size() > static_cast<size_t>(kCanaryPromptTokensMax)) return {};
  return std::move(encoded->ids);
}

}  // namespace tensorfold
