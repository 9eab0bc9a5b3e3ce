// See the header.
#include "engine/drafting_start.h"

#include <array>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/draft/cost_store.h"

namespace tensorfold {
namespace {

// Different texts go different ways through the experts.
constexpr std::array<const char*, 4> kQuestions = {
    "Write a short story about a lighthouse keeper and a lost ship.",
    "Count from 1 to 40.",
    "Write a function that sorts a list of numbers and explain each line of it.",
    "What is the capital of France, and why did it become the capital?",
};

std::vector<std::vector<int32_t>> questions(const TextCodec& text, int vocab) {
  std::vector<std::vector<int32_t>> out;
  for (const char* question : kQuestions) {
    Prompt prompt;
    ChatMessage message;
    message.content.push_back({ContentPart::Kind::kText, question, ""});
    prompt.messages.push_back(std::move(message));
    const auto ids = text.encode(prompt);
    if (ids.ok() && !ids->ids.empty()) out.push_back(ids->ids);
  }
  if (!out.empty()) return out;
  std::vector<int32_t> any;  // a tokenizer without a chat form
  for (int32_t id = 0; id < kMeasurePromptTokens; ++id) any.push_back(id * 7 % vocab);
  return {any};
}

}  // namespace

Result<std::unique_ptr<DepthPolicy>> make_depth_policy(const DraftingStart& start,
                                                       StepRunner& runner, const TextCodec& text,
                                                       const Clock& clock, LogSink& log) {
  const EngineOptions& o = start.options;
  const int draft_rows = start.limits.draft_rows;
  if (o.draft_full || draft_rows == 0) return make_fixed_depth_policy(draft_rows);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const CostKey key = {TF_VERSION,   start.fingerprint,
                       start.device, o.threads > 0 ? o.threads : cores,
                       o.slots,      draft_rows};
  const auto measure = [&] {
    const auto prompts = questions(text, start.vocab);
    return measure_costs(runner, start.limits, prompts, clock);
  };
  TF_ASSIGN_OR_RETURN(const CostTable table,
                      stored_or_measured_costs(o.state_dir, key, measure, log));
  return make_expected_gain_policy(table);
}

}  // namespace tensorfold
