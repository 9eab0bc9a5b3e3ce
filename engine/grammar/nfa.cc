// From nondeterministic automata to deterministic ones, and the automata of plain word lists.
#include <algorithm>
#include <unordered_map>

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

struct VectorHash {
  size_t operator()(const std::vector<int32_t>& v) const {
    uint64_t h = 1469598103934665603U;
    for (const int32_t x : v) h = (h ^ static_cast<uint32_t>(x)) * 1099511628211U;
    return static_cast<size_t>(h ^ (h >> 29));
  }
};

// The subset construction's working state.
class Subsets {
 public:
  Subsets(const Nfa& nfa, int32_t final) : nfa_(nfa), final_(final), mark_(nfa.states().size()) {}

  Result<DfaPtr> build(int32_t start) {
    make_classes();
    std::vector<int32_t> first = closure({start}, true, false);
    out_.start = intern(std::move(first));
    for (size_t i = 0; i < sets_.size(); ++i) {
      if (sets_.size() > kDfaStatesMax || work_ > kDfaWorkMax) return too_large("a pattern");
      expand(i);
    }
    return dfa_finish(std::move(out_));
  }

 private:
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
      if (cut[b]) {
        ++id;
        representative_.push_back(static_cast<uint8_t>(b));
      }
      out_.byte_class[b] = static_cast<uint8_t>(id);
    }
    out_.classes = id + 1;
  }

  std::vector<int32_t> closure(std::vector<int32_t> set, bool at_start, bool at_end) {
    ++stamp_;
    for (const int32_t s : set) mark_[at(s)] = stamp_;
    for (size_t i = 0; i < set.size(); ++i) {
      for (const Nfa::FreeEdge& f : nfa_.states()[at(set[i])].free) {
        ++work_;
        if (f.when == Nfa::Free::kAtStart && !at_start) continue;
        if (f.when == Nfa::Free::kAtEnd && !at_end) continue;
        if (mark_[at(f.to)] == stamp_) continue;
        mark_[at(f.to)] = stamp_;
        set.push_back(f.to);
      }
    }
    std::sort(set.begin(), set.end());
    return set;
  }

  int32_t intern(std::vector<int32_t> set) {
    const auto [it, fresh] = ids_.emplace(std::move(set), static_cast<int32_t>(sets_.size()));
    if (fresh) sets_.push_back(&it->first);
    return it->second;
  }

  void expand(size_t i) {
    const std::vector<int32_t> set = *sets_[i];
    // The start's set differs from every later one even if equal: only it may pass "at start".
    const std::vector<int32_t> ended = closure(set, i == 0, true);
    const bool accepts = std::binary_search(ended.begin(), ended.end(), final_);
    out_.accept.push_back(accepts ? 1 : 0);
    for (const uint8_t byte : representative_) {
      std::vector<int32_t> to;
      ++stamp_;
      for (const int32_t s : set) {
        for (const Nfa::Edge& e : nfa_.states()[at(s)].edges) {
          ++work_;
          if (byte < e.low || byte > e.high || mark_[at(e.to)] == stamp_) continue;
          mark_[at(e.to)] = stamp_;
          to.push_back(e.to);
        }
      }
      if (to.empty()) {
        out_.next.push_back(kDfaDead);
        continue;
      }
      out_.next.push_back(intern_later(closure(std::move(to), false, false)));
    }
  }

  // Sets after the first byte; the start's own set is kept apart by a marker element.
  int32_t intern_later(std::vector<int32_t> set) {
    if (set == *sets_[0]) {
      if (twin_ < 0) {
        twin_ = static_cast<int32_t>(sets_.size());
        twin_set_ = set;
        sets_.push_back(&twin_set_);
      }
      return twin_;
    }
    return intern(std::move(set));
  }

  const Nfa& nfa_;
  int32_t final_;
  Dfa out_;
  std::vector<uint32_t> mark_;
  uint32_t stamp_ = 0;
  uint64_t work_ = 0;
  std::vector<uint8_t> representative_;
  std::unordered_map<std::vector<int32_t>, int32_t, VectorHash> ids_;
  std::vector<const std::vector<int32_t>*> sets_;
  std::vector<int32_t> twin_set_;
  int32_t twin_ = -1;
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
  for (size_t i = 0; i < n; ++i) {
    const int32_t next = i + 1 == n ? to : add();
    edge(from, a[i], b[i], next);
    from = next;
  }
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

Result<DfaPtr> dfa_words(const std::vector<std::string>& words, bool labels) {
  // A trie written out as a table.
  Dfa out;
  std::array<char, 256> used{};
  for (const std::string& w : words) {
    for (const char c : w) used[static_cast<uint8_t>(c)] = 1;
  }
  int32_t classes = 1;  // class 0: bytes of no word
  for (size_t b = 0; b < 256; ++b) {
    if (used[b]) out.byte_class[b] = static_cast<uint8_t>(classes++ & 0xFF);
  }
  if (classes > 256) return too_large("a list of texts");
  out.classes = classes;
  auto add = [&] {
    out.accept.push_back(0);
    out.next.insert(out.next.end(), at(classes), kDfaDead);
    return static_cast<int32_t>(out.accept.size()) - 1;
  };
  if (words.empty()) return std::make_shared<const Dfa>();
  out.start = add();
  for (size_t i = 0; i < words.size(); ++i) {
    int32_t s = out.start;
    for (const char c : words[i]) {
      const size_t slot = at(s) * at(classes) + out.byte_class[static_cast<uint8_t>(c)];
      if (out.next[slot] < 0) {
        if (out.next.size() > kDfaWorkMax / 4) return too_large("a list of texts");
        const int32_t fresh = add();
        out.next[slot] = fresh;
      }
      s = out.next[slot];
    }
    out.accept[at(s)] = labels ? static_cast<uint32_t>(i) + 1 : 1;
  }
  return dfa_finish(std::move(out));
}

}  // namespace tensorfold::grammar
