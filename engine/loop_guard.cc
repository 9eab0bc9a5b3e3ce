// Counting of runs. See the header.
#include "engine/loop_guard.h"

#include <limits>

namespace tensorfold {

// The runs' identity: 64 bits mixed from all of their tokens. Two that share it by chance would
// count as one, which moves no window across its bound in practice and is the same everywhere.
uint64_t LoopGuard::gram() const {
  uint64_t hash = 0x9E3779B97F4A7C15ULL;
  for (int64_t i = tokens_ - kLoopGramTokens; i < tokens_; ++i) {
    hash ^= static_cast<uint32_t>(last_[static_cast<size_t>(i % kLoopGramTokens)]);
    hash *= 0xBF58476D1CE4E5B9ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

bool LoopGuard::add(int32_t token) {
  last_[static_cast<size_t>(tokens_ % kLoopGramTokens)] = token;
  ++tokens_;
  if (tokens_ >= kLoopGramTokens) {
    // Past the bound nothing is remembered any more, so that nothing more counts as a loop.
    const bool fresh = seen_.size() < kLoopGramsMax ? seen_.insert(gram()).second
                                                    : seen_.find(gram()) == seen_.end();
    new_in_window_ += fresh;
  }
  if (++in_window_ < kLoopWindowTokens) return false;
  windows_ = new_in_window_ < kLoopNewGramsMin ? windows_ + 1 : 0;
  in_window_ = 0;
  new_in_window_ = 0;
  if (windows_ < kLoopWindows) return false;
  windows_ = 0;
  return true;
}

int32_t LoopGuard::tokens_to_decision() const {
  if (windows_ + 1 < kLoopWindows) return std::numeric_limits<int32_t>::max();
  return kLoopWindowTokens - in_window_;
}

void LoopGuard::restart() {
  seen_.clear();
  tokens_ = 0;
  in_window_ = 0;
  new_in_window_ = 0;
  windows_ = 0;
}

}  // namespace tensorfold
