// Classes of characters, and what is done with automata over them.
#include "engine/grammar/char_dfa.h"

#include <algorithm>
#include <span>

#include "engine/base/utf8.h"
#include "engine/grammar/subsets.h"

namespace tensorfold::grammar {
namespace {

constexpr uint32_t kSurrogateFirst = 0xD800, kSurrogateEnd = 0xE000;

size_t at(int32_t i) { return static_cast<size_t>(i); }

// Ranges from boundaries; all of one class.
CharClasses cut_at(std::vector<uint32_t> cuts) {
  cuts.insert(cuts.end(), {0, kSurrogateFirst, kSurrogateEnd, kCodePointMax + 1});
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  CharClasses out;
  out.class_of.assign(cuts.size(), 0);
  out.first = std::move(cuts);
  out.count = 1;
  return out;
}

bool is_character(uint32_t c) {
  return c <= kCodePointMax && (c < kSurrogateFirst || c >= kSurrogateEnd);
}

// By range of `classes`: whether its characters are in the (normalized) set.
std::vector<char> ranges_inside(const CharSet& set, const CharClasses& classes) {
  std::vector<char> in(classes.first.size(), 0);
  size_t r = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const uint32_t low = classes.first[i];
    while (r < set.size() && set[r].second < low) ++r;
    in[i] = r < set.size() && set[r].first <= low && is_character(low) ? 1 : 0;
  }
  return in;
}

// Classes of characters that no set tells apart; those in none of them have kNoClass. inside[s]: as
// above.
CharClasses sort_by_sets(const std::vector<const CharSet*>& sets,
                         std::vector<std::vector<char>>& inside) {
  std::vector<uint32_t> cuts;
  for (const CharSet* set : sets) {
    for (const CharRange& r : *set) {
      cuts.push_back(r.first);
      cuts.push_back(r.second + 1);
    }
  }
  CharClasses out = cut_at(std::move(cuts));
  // One set after the other; class 0 stays that of characters in none.
  for (const CharSet* set : sets) {
    inside.push_back(ranges_inside(*set, out));
    const std::vector<char>& in = inside.back();
    std::vector<char> some_outside(at(out.count), 0);
    std::vector<int32_t> fresh(at(out.count), -1);
    some_outside[0] = 1;
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i] == 0) some_outside[at(out.class_of[i])] = 1;
    }
    for (size_t i = 0; i < in.size(); ++i) {
      const auto c = at(out.class_of[i]);
      if (in[i] == 0 || some_outside[c] == 0) continue;
      if (fresh[c] < 0) fresh[c] = out.count++;
      out.class_of[i] = fresh[c];
    }
  }
  --out.count;
  for (int32_t& c : out.class_of) --c;  // 0 becomes kNoClass
  return out;
}

// The classes of a set, as ranges.
std::vector<std::pair<int32_t, int32_t>> class_runs(const std::vector<char>& in,
                                                    const CharClasses& classes) {
  std::vector<char> member(at(classes.count), 0);
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i] != 0) member[at(classes.class_of[i])] = 1;
  }
  std::vector<std::pair<int32_t, int32_t>> out;
  for (int32_t c = 0; c < classes.count; ++c) {
    if (member[at(c)] == 0) continue;
    if (out.empty() || out.back().second + 1 != c) out.emplace_back(c, c);
    out.back().second = c;
  }
  return out;
}

// Numbers for lists of states of one length, in the order of their first appearance.
class VectorIds {
 public:
  explicit VectorIds(size_t width) : width_(width), table_(kTableMin, kFree) {}
  size_t size() const { return count_; }
  const int32_t* at(size_t i) const { return pool_.data() + i * width_; }
  int32_t of(const std::vector<int32_t>& key) {
    if (2 * (size() + 1) >= table_.size()) grow();
    size_t place = hash(key.data()) & (table_.size() - 1);
    for (; table_[place] != kFree; place = (place + 1) & (table_.size() - 1)) {
      const int32_t* known = at(static_cast<size_t>(table_[place]));
      if (std::equal(known, known + width_, key.begin())) return table_[place];
    }
    table_[place] = static_cast<int32_t>(count_++);
    pool_.insert(pool_.end(), key.begin(), key.end());
    return table_[place];
  }

 private:
  static constexpr int32_t kFree = -1;
  static constexpr size_t kTableMin = 64;  // places; a power of two
  size_t hash(const int32_t* key) const {
    uint64_t h = 1469598103934665603U;
    for (size_t k = 0; k < width_; ++k)
      h = (h ^ static_cast<uint32_t>(key[k])) * 0xFF51AFD7ED558CCDU;
    return static_cast<size_t>(h ^ (h >> 32));
  }
  void grow() {
    table_.assign(2 * table_.size(), kFree);
    for (size_t i = 0; i < size(); ++i) {
      size_t place = hash(at(i)) & (table_.size() - 1);
      while (table_[place] != kFree) place = (place + 1) & (table_.size() - 1);
      table_[place] = static_cast<int32_t>(i);
    }
  }
  size_t width_, count_ = 0;
  std::vector<int32_t> table_, pool_;
};

// `raw` without states that lead nowhere, equal ones together.
CharDfaPtr minimal(CharClasses classes, const Dfa& raw) {
  auto out = std::make_shared<CharDfa>();
  const std::vector<int32_t> block = dfa_blocks(raw);
  if (raw.empty() || block[at(raw.start)] < 0) return out;
  const auto k = at(raw.classes);
  std::vector<int32_t> number(raw.states() + 1, kDfaDead), order;
  const auto visit = [&](int32_t s) {
    if (s < 0 || block[at(s)] < 0) return kDfaDead;
    int32_t& n = number[at(block[at(s)])];
    if (n < 0) {
      n = static_cast<int32_t>(order.size());
      order.push_back(s);
    }
    return n;
  };
  Dfa& table = out->table;
  table.classes = raw.classes;
  table.start = visit(raw.start);
  for (size_t i = 0; i < order.size(); ++i) {
    const auto s = at(order[i]);
    table.accept.push_back(raw.accept[s]);
    for (size_t c = 0; c < k; ++c) table.next.push_back(visit(raw.next[s * k + c]));
  }
  out->classes = std::move(classes);
  return out;
}

}  // namespace

int32_t CharClasses::of(uint32_t code_point) const {
  const auto above = std::upper_bound(first.begin(), first.end(), code_point);
  return class_of[static_cast<size_t>(above - first.begin()) - 1];
}

int32_t CharNfa::add() {
  states_.emplace_back();
  return static_cast<int32_t>(states_.size()) - 1;
}

void CharNfa::edge(int32_t from, const CharSet& set, int32_t to) {
  const auto [it, fresh] = set_ids_.emplace(set, static_cast<int32_t>(sets_.size()));
  if (fresh) sets_.push_back(&it->first);
  states_[at(from)].edges.emplace_back(it->second, to);
}

Result<CharDfaPtr> CharNfa::determinize(int32_t start, int32_t final) const {
  std::vector<std::vector<char>> inside;
  CharClasses classes = sort_by_sets(sets_, inside);
  std::vector<std::vector<std::pair<int32_t, int32_t>>> runs;
  runs.reserve(inside.size());
  for (const std::vector<char>& in : inside) runs.push_back(class_runs(in, classes));
  ClassNfa nfa;
  nfa.classes = classes.count;
  for (const State& state : states_) {
    nfa.first_edge.push_back(nfa.edges.size());
    nfa.first_free.push_back(nfa.free.size());
    for (const auto& [set, to] : state.edges) {
      for (const auto& [low, high] : runs[at(set)]) nfa.edges.push_back({low, high, to});
    }
    nfa.free.insert(nfa.free.end(), state.free.begin(), state.free.end());
  }
  nfa.first_edge.push_back(nfa.edges.size());
  nfa.first_free.push_back(nfa.free.size());
  TF_ASSIGN_OR_RETURN(const Dfa raw, grammar::determinize(nfa, start, final));
  return minimal(std::move(classes), raw);
}

uint32_t chars_run(const CharDfa& dfa, std::string_view text) {
  int32_t s = dfa.table.start;
  for (size_t i = 0; s >= 0 && i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    if (!step.valid) return 0;
    i += step.bytes;
    const int32_t c = dfa.classes.of(step.code_point);
    s = c == kNoClass ? kDfaDead : dfa.table.next[at(s) * at(dfa.table.classes) + at(c)];
  }
  return s < 0 ? 0 : dfa.table.label(s);
}

namespace {

// Characters that none of the automata tells apart. of_class: [classes, parts] each one's own.
CharClasses common_classes(const std::vector<CharDfaPtr>& parts, std::vector<int32_t>& of_class) {
  std::vector<uint32_t> cuts;
  for (const CharDfaPtr& part : parts)
    cuts.insert(cuts.end(), part->classes.first.begin(), part->classes.first.end());
  CharClasses out = cut_at(std::move(cuts));
  VectorIds ids(parts.size());
  std::vector<int32_t> own(parts.size());
  for (size_t i = 0; i < out.first.size(); ++i) {
    out.class_of[i] = kNoClass;
    if (!is_character(out.first[i])) continue;
    for (size_t k = 0; k < parts.size(); ++k)
      own[k] = parts[k]->empty() ? kNoClass : parts[k]->classes.of(out.first[i]);
    const size_t known = ids.size();
    out.class_of[i] = ids.of(own);
    if (ids.size() > known) of_class.insert(of_class.end(), own.begin(), own.end());
  }
  out.count = static_cast<int32_t>(ids.size());
  return out;
}

}  // namespace

Result<CharDfaPtr> chars_sort_texts(const std::vector<CharDfaPtr>& parts, uint32_t always) {
  const size_t width = parts.size();
  std::vector<int32_t> of_class;
  CharClasses classes = common_classes(parts, of_class);
  const auto count = at(classes.count);
  // States of all parts side by side; dead ones stay, for the text may be in others or in none.
  VectorIds ids(width);
  std::vector<int32_t> to(width);
  for (size_t k = 0; k < width; ++k) to[k] = parts[k]->table.start;
  Dfa raw;
  raw.classes = classes.count;
  raw.start = ids.of(to);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids.size() > 4 * kDfaStatesMax || ids.size() * count * width > kDfaWorkMax)
      return too_large("a combination of patterns");
    uint32_t label = always;
    for (size_t k = 0; k < width; ++k) {
      const int32_t s = ids.at(i)[k];
      if (s >= 0 && parts[k]->table.label(s) != 0) label |= 1U << k;
    }
    raw.accept.push_back(label);
    for (size_t c = 0; c < count; ++c) {
      const int32_t* from = ids.at(i);
      for (size_t k = 0; k < width; ++k) {
        const Dfa& part = parts[k]->table;
        const int32_t own = of_class[c * width + k];
        to[k] =
            from[k] < 0 || own < 0 ? kDfaDead : part.next[at(from[k]) * at(part.classes) + at(own)];
      }
      raw.next.push_back(ids.of(to));
    }
  }
  // No two states are equal: the labels keep apart what each part says, and a part's own states
  // differ.
  auto out = std::make_shared<CharDfa>();
  out->classes = std::move(classes);
  out->table = std::move(raw);
  return CharDfaPtr(std::move(out));
}

}  // namespace tensorfold::grammar
