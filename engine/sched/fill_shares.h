// FillShares: how the prompt rows of a step are shared between the sequences that fill. Pure but
// for what each client has had; part of the planner.
//
// Shortest first, aged: rows go to the sequence with the fewest left, less one step's rows for each
// step in which it got none, less what its client had too little of. Before that, half of a step's
// rows is dealt out in equal parts to the clients, so that each of C clients fills at least
// rows / 2C in every step, whatever the others send.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/sched/step_plan.h"

namespace tensorfold {

struct FillDemand {
  SlotId slot = 0;
  uint64_t request = 0;
  std::string client;
  int64_t left = 0;          // rows that it lacks in all
  int64_t most = 0;          // that it may have in this step, at most `left`
  bool generated = false;    // its rows are class D
  int64_t waited_steps = 0;  // in which it got none
  int64_t rows = 0;          // what it gets
};

class FillShares {
 public:
  // Deals out `rows` rows, at most `generated_rows` of them of class D. Fills in `rows` of each and
  // sorts by who comes first.
  void deal(std::vector<FillDemand>& demands, int64_t rows, int64_t generated_rows);

 private:
  std::map<std::string, int64_t> credit_;  // rows that a filling client had too few (or too many)
};

}  // namespace tensorfold
