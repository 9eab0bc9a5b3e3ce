// TokenHistory: the ids of one sequence by position, with counts for penalties. Owned by the step
// executor; one per slot. Truncated by length like every other part of a sequence's state.
//
// Counts are brought up to date only when asked for: a prompt of a million tokens costs nothing
// unless its request has a penalty.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace tensorfold {

class TokenHistory {
 public:
  struct Counts {
    int32_t prompt = 0;
    int32_t reply = 0;
  };

  void clear();
  // Ids from `position` on become `ids`; what lay behind is forgotten. position <= size().
  void write(int64_t position, std::span<const int32_t> ids);
  void truncate(int64_t length);
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  std::span<const int32_t> ids() const { return ids_; }

  // Occurrences by token; positions from `reply_position` on are the reply.
  const std::unordered_map<int32_t, Counts>& counts(int64_t reply_position);

 private:
  std::vector<int32_t> ids_;  // by position
  std::unordered_map<int32_t, Counts> counts_;
  size_t counted_ = 0;  // ids_[0, counted_) are in counts_
  int64_t reply_position_ = 0;
};

}  // namespace tensorfold
