// Turns of waiting sequences. Owner: the planner.
#include "engine/sched/fair_queue.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {

FairQueue::Line& FairQueue::line_of(const SequenceSpec& spec) {
  Lines& lines = spec.background ? background_ : foreground_;
  const auto [it, added] = lines.try_emplace(spec.client);
  if (added) it->second.stamp = 2 * turns_ - 1;
  ++size_;
  return it->second;
}

void FairQueue::push(SequenceSpec spec) {
  Line& line = line_of(spec);
  line.waiting.push_back(std::move(spec));
}

void FairQueue::push_front(SequenceSpec spec) {
  Line& line = line_of(spec);
  line.waiting.push_front(std::move(spec));
}

bool FairQueue::remove(uint64_t request) {
  const auto is_it = [&](const SequenceSpec& s) { return s.request == request; };
  for (Lines* lines : {&foreground_, &background_}) {
    for (auto it = lines->begin(); it != lines->end(); ++it) {
      if (std::erase_if(it->second.waiting, is_it) == 0) continue;
      if (it->second.waiting.empty()) lines->erase(it);
      --size_;
      if (background_.empty()) foreground_turns_ = 0;
      return true;
    }
  }
  return false;
}

FairQueue::Lines::const_iterator FairQueue::first(const Lines& lines) {
  return std::min_element(lines.begin(), lines.end(), [](const auto& a, const auto& b) {
    const Line& x = a.second;
    const Line& y = b.second;
    if (x.stamp != y.stamp) return x.stamp < y.stamp;
    return x.waiting.front().request < y.waiting.front().request;
  });
}

bool FairQueue::background_by_right() const {
  return !background_.empty() && foreground_turns_ >= kForegroundTurnsMax;
}

const FairQueue::Lines& FairQueue::whose_turn() const {
  return background_by_right() || foreground_.empty() ? background_ : foreground_;
}

const SequenceSpec* FairQueue::next(bool& by_right) const {
  by_right = background_by_right() && !foreground_.empty();
  const Lines& lines = whose_turn();
  return lines.empty() ? nullptr : &first(lines)->second.waiting.front();
}

SequenceSpec FairQueue::pop() {
  const bool foreground = &whose_turn() == &foreground_;
  Lines& lines = foreground ? foreground_ : background_;
  TF_CHECK(!lines.empty());
  const auto it = lines.find(first(lines)->first);
  SequenceSpec spec = std::move(it->second.waiting.front());
  it->second.waiting.pop_front();
  it->second.stamp = 2 * ++turns_;
  if (it->second.waiting.empty()) lines.erase(it);
  --size_;
  foreground_turns_ = foreground && !background_.empty() ? foreground_turns_ + 1 : 0;
  return spec;
}

}  // namespace tensorfold
