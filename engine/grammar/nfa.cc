// From nondeterministic automata to deterministic ones.
#include <algorithm>
#include <span>

#include "engine/grammar/dfa.h"

namespace tensorfold::grammar {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

size_t utf8_encode(uint32_t c, std::array<uint8_t, 4>& out) {
  if (c < 0x80) {
    out[0] = static_cast<uint8_t>(c);
    return 1;
  }
  if (c < 0x800) {
    out[0] = static_cast<uint8_t>(0xC0 | (c >> 6));
    out[1] = static_cast<uint8_t>(0x80 | (c & 0x3F));
    return 2;
  }
  if (c < 0x10000) {
    out[0] = static_cast<uint8_t>(0xE0 | (c >> 12));
    out[1] = static_cast<uint8_t>(0x80 | ((c >> 6) & 0x3F));
    out[2] = static_cast<uint8_t>(0x80 | (c & 0x3F));
    return 3;
  }
  out[0] = static_cast<uint8_t>(0xF0 | (c >> 18));
  out[1] = static_cast<uint8_t>(0x80 | ((c >> 12) & 0x3F));
  out[2] = static_cast<uint8_t>(0x80 | ((c >> 6) & 0x3F));
  out[3] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  return 4;
}

// The subset construction's working state. Sets lie one behind the other in `pool_`; of an
// automaton's states they keep those that matter later: that have edges, that pass only at the end,
// and the final one.
class Subsets {
 public:
  Subsets(const Nfa& nfa, int32_t final) : nfa_(nfa), final_(final), mark_(nfa.states().size()) {
    table_.assign(kTableMin, kFree);
  }

  Result<DfaPtr> build(int32_t start) {
    make_classes();
    make_edges();
    close({&start, 1}, true, false);
    out_.start = intern();
    for (size_t i = 0; i < sets(); ++i) {
      if (sets() > kDfaStatesMax || work_ > kDfaWorkMax) return too_large("a pattern");
      expand(i);
    }
    return dfa_finish(std::move(out_));
  }

 private:
  static constexpr int32_t kFree = -1;
  static constexpr size_t kTableMin = 64;  // places; a power of two
  struct ClassEdge {
    int32_t low, high, to;  // classes
  };

  void make_classes() {
    std::array<char, 257> cut{};
    cut[0] = 1;
    for (const Nfa::State& s : nfa_.states()) {
      for (const Nfa::Edge& e : s.edges) {
        cut[e.low] = 1;
        cut[static_cast<size_t>(e.high) + 1] = 1;
      }
    }
    int32_t id = -1;
    for (size_t b = 0; b < 256; ++b) {
      if (cut[b]) ++id;
      out_.byte_class[b] = static_cast<uint8_t>(id);
    }
    out_.classes = id + 1;
    reached_.resize(at(out_.classes));
  }

  void make_edges() {
    first_edge_.reserve(nfa_.states().size() + 1);
    for (const Nfa::State& s : nfa_.states()) {
      first_edge_.push_back(edges_.size());
      for (const Nfa::Edge& e : s.edges)
        edges_.push_back({out_.byte_class[e.low], out_.byte_class[e.high], e.to});
    }
    first_edge_.push_back(edges_.size());
  }

  bool matters(int32_t state) const {
    const Nfa::State& s = nfa_.states()[at(state)];
    return state == final_ || !s.edges.empty() ||
           std::any_of(s.free.begin(), s.free.end(),
                       [](const Nfa::FreeEdge& f) { return f.when == Nfa::Free::kAtEnd; });
  }

  // What is reached from `set` without a byte, in now_.
  void close(std::span<const int32_t> set, bool at_start, bool at_end) {
    ++stamp_;
    now_.clear();
    for (const int32_t s : set) {
      if (mark_[at(s)] == stamp_) continue;
      mark_[at(s)] = stamp_;
      now_.push_back(s);
    }
    for (size_t i = 0; i < now_.size(); ++i) {
      for (const Nfa::FreeEdge& f : nfa_.states()[at(now_[i])].free) {
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

  // The number of the set now_. The start's own set is kept apart from all later ones: only it may
  // pass "at start".
  int32_t intern() {
    std::erase_if(now_, [&](int32_t s) { return !matters(s); });
    std::sort(now_.begin(), now_.end());
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
      for (size_t e = first_edge_[at(s)]; e < first_edge_[at(s) + 1]; ++e) {
        work_ += at(edges_[e].high - edges_[e].low) + 1;
        for (int32_t c = edges_[e].low; c <= edges_[e].high; ++c)
          reached_[at(c)].push_back(edges_[e].to);
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

  const Nfa& nfa_;
  int32_t final_;
  Dfa out_;
  std::vector<uint32_t> mark_;
  uint32_t stamp_ = 0;
  uint64_t work_ = 0;
  std::vector<ClassEdge> edges_;  // by state
  std::vector<size_t> first_edge_;
  std::vector<int32_t> now_;                   // scratch: the set that is made
  std::vector<std::vector<int32_t>> reached_;  // scratch: by class
  std::vector<int32_t> pool_, table_;
  std::vector<size_t> begin_;
};

}  // namespace

int32_t Nfa::add() {
  states_.emplace_back();
  return static_cast<int32_t>(states_.size()) - 1;
}

void Nfa::text(int32_t from, std::string_view bytes, int32_t to) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int32_t next = i + 1 == bytes.size() ? to : add();
    edge(from, static_cast<uint8_t>(bytes[i]), static_cast<uint8_t>(bytes[i]), next);
    from = next;
  }
  if (bytes.empty()) free_edge(from, to);
}

void Nfa::code_points(int32_t from, uint32_t low, uint32_t high, int32_t to) {
  if (low > high) return;
  if (low <= 0xDFFF && high >= 0xD800) {  // no surrogates in UTF-8
    if (low < 0xD800) code_points(from, low, 0xD7FF, to);
    if (high > 0xDFFF) code_points(from, 0xE000, high, to);
    return;
  }
  for (const uint32_t max : {0x7FU, 0x7FFU, 0xFFFFU}) {
    if (low <= max && max < high) {
      code_points(from, low, max, to);
      code_points(from, max + 1, high, to);
      return;
    }
  }
  if (high > 0x7F) {
    for (int i = 1; i < 4; ++i) {
      const uint32_t m = (1U << (6 * i)) - 1;
      if ((low & ~m) == (high & ~m)) continue;
      if ((low & m) != 0) {
        code_points(from, low, low | m, to);
        code_points(from, (low | m) + 1, high, to);
        return;
      }
      if ((high & m) != m) {
        code_points(from, low, (high & ~m) - 1, to);
        code_points(from, high & ~m, high, to);
        return;
      }
    }
  }
  std::array<uint8_t, 4> a{}, b{};
  const size_t n = utf8_encode(low, a);
  (void)utf8_encode(high, b);
  // From the last byte on: characters that end alike share the states of their ends.
  int32_t next = to;
  for (size_t i = n; i-- > 1;) {
    const uint64_t end =
        (static_cast<uint64_t>(next) << 16) | static_cast<uint64_t>(a[i] << 8) | b[i];
    const auto [it, fresh] = ends_.try_emplace(end, -1);
    if (fresh) {
      it->second = add();
      edge(it->second, a[i], b[i], next);
    }
    next = it->second;
  }
  edge(from, a[0], b[0], next);
}

Result<DfaPtr> nfa_to_dfa(const Nfa& nfa, int32_t start, int32_t final) {
  return Subsets(nfa, final).build(start);
}

DfaPtr dfa_universal() {
  static const DfaPtr kUniversal = [] {
    Nfa nfa;
    const int32_t s = nfa.add();
    nfa.code_points(s, 0, 0x10FFFF, s);
    auto dfa = std::make_shared<Dfa>(**nfa_to_dfa(nfa, s, s));
    dfa->universal = true;
    return DfaPtr(dfa);
  }();
  return kUniversal;
}

}  // namespace tensorfold::grammar
