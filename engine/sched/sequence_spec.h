// SequenceSpec: one reply to produce, as the planner sees it: while it waits, while it runs and
// while it is set aside for others. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/sched/step_plan.h"

namespace tensorfold {

struct SequenceSpec {
  uint64_t request = 0;
  std::vector<int32_t> prompt;
  // Tokens that the reply has already: those of a sequence that was set aside. They're computed
  // again as generated rows (class D), so the reply goes on bit for bit as if nothing had happened.
  std::vector<int32_t> reply;
  int64_t reply_tokens = 0;  // most tokens of the reply, from the price; 0: only fill the prompt
  int64_t blocks = 0;        // for prompt and longest reply, from the price
  int64_t head_tokens = 0;   // PrefixQuery::head_tokens
  SampleSpec sampling;       // slot, positions, rows and mask are the planner's to fill in
  bool draft = true;
  bool background = false;
  int32_t set_aside = 0;  // how often it was, in favor of others
  std::string client;     // who asked: turns are taken and prompt rows shared between clients
  std::string cache_salt;
  bool cold = false;  // starts from nothing and leaves nothing in the cache
};

}  // namespace tensorfold
