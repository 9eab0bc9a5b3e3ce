// CacheIndex: what the planner asks before it fills a prompt: how much of it is in the cache
// already. The planner starts behind a match: it appends the matched blocks to the sequence's table
// and restores its rings from the snapshot.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/sched/step_plan.h"

namespace tensorfold {

struct PrefixMatch {
  int64_t positions = 0;        // the sequence starts here; fewer than the prompt has
  std::vector<BlockId> blocks;  // that hold them, in order, referenced for this sequence
  int64_t snapshot = -1;        // rings at `positions`; -1 with no positions
};

class CacheIndex {
 public:
  virtual ~CacheIndex() = default;
  virtual PrefixMatch match(std::span<const int32_t> prompt, std::string_view salt) = 0;
};

// A cache that holds nothing.
class EmptyCacheIndex final : public CacheIndex {
 public:
  PrefixMatch match(std::span<const int32_t>, std::string_view) override { return {}; }
};

}  // namespace tensorfold
