// What happens to a conversation before it is rendered: images, merging, ordering, dropping.
//
// Each pass takes messages and gives messages; all are pure. The order is the reference's: images,
// merge, sort, and, where reasoning is dropped, drop.
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/status.h"
#include "engine/text/prompt_message.h"

namespace tensorfold {

// Replaces image blocks by text blocks that hold kImageMark, appends their records to `images` in
// order, moves list contents to content_blocks, and gives such messages a text content too.
Status take_out_images(std::vector<PromptMessage>& messages, ImageLiteral literal,
                       std::vector<Json>& images);

// Tool messages become tool_result blocks of user messages; neighboring user messages become one.
std::vector<PromptMessage> merge_messages(std::span<const PromptMessage> messages,
                                          PromptFormat format);

// Sorts the tool results of each user message by the order of the calls they answer. `order` is the
// state after the messages before these.
using CallOrder = std::unordered_map<std::string, size_t>;
void learn_call_order(const PromptMessage& message, CallOrder& order);
void sort_tool_results(std::span<PromptMessage> messages, CallOrder order);

// The last message that asks for a reply, or -1.
int last_user_index(std::span<const PromptMessage> messages, PromptFormat format);

// Removes the reasoning (and messages of unknown roles) before the last user message.
std::vector<PromptMessage> drop_reasoning(std::span<const PromptMessage> messages,
                                          PromptFormat format);

}  // namespace tensorfold
