// LoopGuard: notices that a reply goes round in circles: window after window of its tokens holds
// next to no run of tokens that had not been there before.
//
// A function of the token ids alone, counted at fixed places of the reply: how the tokens came
// (drafts, batches, a pause in between) can't change what it says. What is done about it is
// ReplyState's business. Owned by one reply; the engine thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_set>

namespace tensorfold {

inline constexpr int kLoopWindowTokens = 1024;
inline constexpr int kLoopWindows = 3;     // in a row, before it counts as a loop
inline constexpr int kLoopGramTokens = 8;  // a run whose first appearance makes it new
// New runs of a window below which it is one of a loop: under 2% of its tokens.
inline constexpr int kLoopNewGramsMin = (2 * kLoopWindowTokens + 99) / 100;
inline constexpr size_t kLoopGramsMax = size_t{1} << 20;  // runs that are remembered, 64 bits each

class LoopGuard {
 public:
  // Adds one token. True: it ended the window that makes a loop; the count then begins anew.
  bool add(int32_t token);
  // How many tokens may follow in one step so that add() can only be true for the last one.
  int32_t tokens_to_decision() const;
  // Forgets everything: what follows is another text.
  void restart();

 private:
  uint64_t gram() const;

  std::unordered_set<uint64_t> seen_;
  std::array<int32_t, kLoopGramTokens> last_{};  // a ring: the newest is at (tokens_ - 1) % size
  int64_t tokens_ = 0;                           // since the beginning
  int in_window_ = 0;
  int new_in_window_ = 0;
  int windows_ = 0;  // of a loop, in a row
};

}  // namespace tensorfold
