// FairQueue: sequences that wait for a slot, and whose turn it is. Pure, part of the planner.
//
// Each client has a line, first come, first served. Clients take turns: whoever was served longest
// ago is next, and a client that comes new takes its turn before those who were just served. So a
// line's first one waits for at most one turn of each other client, however long their lines are.
// Foreground lines go before background ones, but after kForegroundTurnsMax foreground turns in a
// row a background sequence that waited through them all is next by right.
// What waits for memory keeps its turn: it too is overtaken at most once by each client.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "engine/sched/sequence_spec.h"

namespace tensorfold {

inline constexpr int kForegroundTurnsMax = 32;  // while background work waits

class FairQueue {
 public:
  void push(SequenceSpec spec);
  void push_front(SequenceSpec spec);  // was set aside: before all others of its client
  bool remove(uint64_t request);       // false: it isn't there

  // Whose turn it is; nullptr: nobody waits. `by_right`: a background sequence before waiting
  // foreground ones.
  const SequenceSpec* next(bool& by_right) const;
  SequenceSpec pop();  // takes next()

  int size() const { return size_; }

 private:
  struct Line {
    int64_t stamp = 0;  // twice the turn in which it was served, or one less when it came after it
    std::deque<SequenceSpec> waiting;  // never empty
  };
  // By client name. std::map: the order is part of plan reproducibility.
  using Lines = std::map<std::string, Line>;
  static Lines::const_iterator first(const Lines& lines);
  const Lines& whose_turn() const;
  bool background_by_right() const;
  Line& line_of(const SequenceSpec& spec);

  Lines foreground_, background_;
  int64_t turns_ = 0;
  int foreground_turns_ = 0;  // since background work waits and got none
  int size_ = 0;
};

}  // namespace tensorfold
