// From nondeterministic automata to deterministic ones.
#include "engine/grammar/subsets.h"

#include <algorithm>
#include <span>

namespace tensorfold::grammar {
namespace {

// A set of more than this part of all states is sorted by looking at each state.
constexpr size_t kDensePart = 16;

size_t at(int32_t i) { return static_cast<size_t>(i); }

// The construction's working state. Sets lie one behind the other in `pool_`; of an automaton's
// states they keep those that matter later: that have edges, that pass only at the end, and the
// final one.
class Subsets {
 public:
  Subsets(const ClassNfa& nfa, int32_t final)
      : nfa_(nfa), final_(final), mark_(nfa.states()), reached_(at(nfa.classes)) {
    table_.assign(kTableMin, kFree);
    matters_.resize(nfa.states());
    for (size_t s = 0; s < nfa.states(); ++s) matters_[s] = matters(s) ? 1 : 0;
  }

  Result<Dfa> build(int32_t start) {
    close({&start, 1}, true, false);
    out_.classes = nfa_.classes;
    out_.start = intern();
    for (size_t i = 0; i < sets(); ++i) {
      if (sets() > kDfaStatesMax || work_ > kDfaWorkMax) return too_large("a pattern");
      expand(i);
    }
    return std::move(out_);
  }

 private:
  static constexpr int32_t kFree = -1;
  static constexpr size_t kTableMin = 64;  // places; a power of two

  std::span<const ClassNfa::Edge> edges(size_t s) const {
    return std::span(nfa_.edges)
        .subspan(nfa_.first_edge[s], nfa_.first_edge[s + 1] - nfa_.first_edge[s]);
  }
  std::span<const Nfa::FreeEdge> free(size_t s) const {
    return std::span(nfa_.free).subspan(nfa_.first_free[s],
                                        nfa_.first_free[s + 1] - nfa_.first_free[s]);
  }
  bool matters(size_t s) const {
    const auto ends = [](const Nfa::FreeEdge& f) { return f.when == Nfa::Free::kAtEnd; };
    return s == at(final_) || !edges(s).empty() ||
           std::any_of(free(s).begin(), free(s).end(), ends);
  }

  // What is reached from `set` without a symbol, in now_.
  void close(std::span<const int32_t> set, bool at_start, bool at_end) {
    ++stamp_;
    now_.clear();
    for (const int32_t s : set) {
      if (mark_[at(s)] == stamp_) continue;
      mark_[at(s)] = stamp_;
      now_.push_back(s);
    }
    for (size_t i = 0; i < now_.size(); ++i) {
      for (const Nfa::FreeEdge& f : free(at(now_[i]))) {
        ++work_;
        if (f.when == Nfa::Free::kAtStart && !at_start) continue;
        if (f.when == Nfa::Free::kAtEnd && !at_end) continue;
        if (mark_[at(f.to)] == stamp_) continue;
        mark_[at(f.to)] = stamp_;
        now_.push_back(f.to);
      }
    }
  }

  size_t sets() const { return begin_.size(); }
  std::span<const int32_t> set(size_t i) const {
    const size_t end = i + 1 < begin_.size() ? begin_[i + 1] : pool_.size();
    return {pool_.data() + begin_[i], end - begin_[i]};
  }

  static uint64_t hash(std::span<const int32_t> v) {
    uint64_t h = 1469598103934665603U;
    for (const int32_t x : v) h = (h ^ static_cast<uint32_t>(x)) * 0xFF51AFD7ED558CCDU;
    return h ^ (h >> 32);
  }

  // now_ without what does not matter, ascending.
  void sort_now() {
    if (now_.size() * kDensePart > mark_.size()) {
      now_.clear();
      for (size_t s = 0; s < mark_.size(); ++s) {
        if (mark_[s] == stamp_ && matters_[s] != 0) now_.push_back(static_cast<int32_t>(s));
      }
      return;
    }
    std::erase_if(now_, [&](int32_t s) { return matters_[at(s)] == 0; });
    std::sort(now_.begin(), now_.end());
  }

  // The number of the set now_. The start's own set is kept apart from all later ones: only it may
  // pass "at start".
  int32_t intern() {
    sort_now();
    if (2 * (sets() + 1) > table_.size()) grow();
    size_t place = hash(now_) & (table_.size() - 1);
    for (; table_[place] != kFree; place = (place + 1) & (table_.size() - 1)) {
      const auto known = set(at(table_[place]));
      if (std::equal(known.begin(), known.end(), now_.begin(), now_.end())) return table_[place];
    }
    const auto id = static_cast<int32_t>(sets());
    if (id > 0) table_[place] = id;
    begin_.push_back(pool_.size());
    pool_.insert(pool_.end(), now_.begin(), now_.end());
    return id;
  }

  void grow() {
    table_.assign(2 * table_.size(), kFree);
    for (size_t i = 1; i < sets(); ++i) {
      size_t place = hash(set(i)) & (table_.size() - 1);
      while (table_[place] != kFree) place = (place + 1) & (table_.size() - 1);
      table_[place] = static_cast<int32_t>(i);
    }
  }

  void expand(size_t i) {
    close(set(i), i == 0, true);
    out_.accept.push_back(mark_[at(final_)] == stamp_ ? 1 : 0);
    for (std::vector<int32_t>& to : reached_) to.clear();
    for (const int32_t s : set(i)) {
      for (const ClassNfa::Edge& e : edges(at(s))) {
        work_ += at(e.high - e.low) + 1;
        for (int32_t c = e.low; c <= e.high; ++c) reached_[at(c)].push_back(e.to);
      }
    }
    int32_t to = kDfaDead;
    for (size_t c = 0; c < reached_.size(); ++c) {
      if (c == 0 || reached_[c] != reached_[c - 1]) {
        close(reached_[c], false, false);
        to = now_.empty() ? kDfaDead : intern();
      }
      out_.next.push_back(to);
    }
  }

  const ClassNfa& nfa_;
  int32_t final_;
  Dfa out_;
  std::vector<uint32_t> mark_;
  uint32_t stamp_ = 0;
  uint64_t work_ = 0;
  std::vector<char> matters_;                  // by state
  std::vector<int32_t> now_;                   // scratch: the set that is made
  std::vector<std::vector<int32_t>> reached_;  // scratch: by class
  std::vector<int32_t> pool_, table_;
  std::vector<size_t> begin_;
};

}  // namespace

Result<Dfa> determinize(const ClassNfa& nfa, int32_t start, int32_t final) {
  return Subsets(nfa, final).build(start);
}

}  // namespace tensorfold::grammar
