// Operations on finished automata: trimming, minimizing, products. See nfa.cc for the way there.
#include "engine/grammar/dfa.h"

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "engine/base/check.h"

namespace tensorfold::grammar {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

// States from which an accepting state is reachable.
std::vector<char> live_states(const Dfa& d) {
  const size_t n = d.states();
  std::vector<std::vector<int32_t>> back(n);
  for (size_t s = 0; s < n; ++s) {
    for (int32_t c = 0; c < d.classes; ++c) {
      const int32_t t = d.next[s * at(d.classes) + at(c)];
      if (t >= 0 && (back[at(t)].empty() || back[at(t)].back() != static_cast<int32_t>(s)))
        back[at(t)].push_back(static_cast<int32_t>(s));
    }
  }
  std::vector<char> live(n, 0);
  std::vector<int32_t> todo;
  for (size_t s = 0; s < n; ++s) {
    if (d.accept[s] == 0) continue;
    live[s] = 1;
    todo.push_back(static_cast<int32_t>(s));
  }
  while (!todo.empty()) {
    const int32_t t = todo.back();
    todo.pop_back();
    for (const int32_t s : back[at(t)]) {
      if (live[at(s)]) continue;
      live[at(s)] = 1;
      todo.push_back(s);
    }
  }
  return live;
}

// Moore's refinement: blocks of states that no text tells apart.
std::vector<int32_t> equivalent_blocks(const Dfa& d, const std::vector<char>& live) {
  const size_t n = d.states();
  std::vector<int32_t> block(n, -1);
  size_t count = 0;
  {
    std::map<uint32_t, int32_t> first;
    for (size_t s = 0; s < n; ++s) {
      if (!live[s]) continue;
      block[s] = first.emplace(d.accept[s], static_cast<int32_t>(first.size())).first->second;
    }
    count = first.size();
  }
  struct Hash {
    size_t operator()(const std::vector<int32_t>& v) const {
      uint64_t h = 1469598103934665603U;
      for (const int32_t x : v) h = (h ^ static_cast<uint32_t>(x)) * 1099511628211U;
      return static_cast<size_t>(h ^ (h >> 29));
    }
  };
  std::vector<int32_t> key;
  // Long chains refine one state a round: past the bound the table stays as large as it is.
  uint64_t work = 0;
  while (true) {
    work += n * at(d.classes);
    if (work > kDfaMinimizeWorkMax) {
      for (size_t s = 0; s < n; ++s) block[s] = live[s] ? static_cast<int32_t>(s) : -1;
      return block;
    }
    std::unordered_map<std::vector<int32_t>, int32_t, Hash> seen;
    std::vector<int32_t> refined(n, -1);
    for (size_t s = 0; s < n; ++s) {
      if (!live[s]) continue;
      key.assign(1, block[s]);
      for (int32_t c = 0; c < d.classes; ++c) {
        const int32_t t = d.next[s * at(d.classes) + at(c)];
        key.push_back(t < 0 || !live[at(t)] ? -1 : block[at(t)]);
      }
      refined[s] = seen.emplace(key, static_cast<int32_t>(seen.size())).first->second;
    }
    block.swap(refined);
    if (seen.size() == count) return block;
    count = seen.size();
  }
}

bool starts_character(uint8_t byte) { return (byte & 0xC0U) != 0x80U; }

// 0-1 breadth-first search backwards from acceptance: the cost of a byte is 1 where it starts a
// character.
void measure(Dfa& d) {
  const size_t n = d.states();
  d.min_chars.assign(n, kCharsNever);
  std::vector<std::vector<std::pair<int32_t, uint8_t>>> back(n);
  std::vector<uint8_t> cheapest(at(d.classes), 1);
  for (int b = 0; b < 256; ++b) {
    if (!starts_character(static_cast<uint8_t>(b)))
      cheapest[d.byte_class[static_cast<size_t>(b)]] = 0;
  }
  std::deque<int32_t> todo;
  for (size_t s = 0; s < n; ++s) {
    for (int32_t c = 0; c < d.classes; ++c) {
      const int32_t t = d.next[s * at(d.classes) + at(c)];
      if (t >= 0) back[at(t)].emplace_back(static_cast<int32_t>(s), cheapest[at(c)]);
    }
    if (d.accept[s] != 0) {
      d.min_chars[s] = 0;
      todo.push_back(static_cast<int32_t>(s));
    }
  }
  while (!todo.empty()) {
    const int32_t t = todo.front();
    todo.pop_front();
    for (const auto& [s, cost] : back[at(t)]) {
      const uint32_t through = d.min_chars[at(t)] + cost;
      if (through >= d.min_chars[at(s)]) continue;
      d.min_chars[at(s)] = through;
      cost == 0 ? todo.push_front(s) : todo.push_back(s);
    }
  }
}

}  // namespace

Status too_large(std::string_view what) {
  return invalid_argument(std::string(what) + " needs more than " + std::to_string(kDfaStatesMax) +
                              " states or too much work to build",
                          "", "schema_too_complex");
}

uint32_t dfa_run(const Dfa& dfa, std::string_view text) {
  int32_t s = dfa.start;
  for (size_t i = 0; s >= 0 && i < text.size(); ++i) s = dfa.step(s, static_cast<uint8_t>(text[i]));
  return s < 0 ? 0 : dfa.label(s);
}

DfaPtr dfa_finish(Dfa raw) {
  if (raw.empty() || raw.states() == 0) {
    auto none = std::make_shared<Dfa>();
    return none;
  }
  const std::vector<char> live = live_states(raw);
  if (!live[at(raw.start)]) return std::make_shared<Dfa>();
  const std::vector<int32_t> block = equivalent_blocks(raw, live);
  // Blocks are renumbered in the order of a walk from the start: equal languages, equal tables.
  const auto blocks = static_cast<size_t>(*std::max_element(block.begin(), block.end())) + 1;
  std::vector<int32_t> member(blocks, -1), number(blocks, -1);
  for (size_t s = 0; s < block.size(); ++s) {
    if (block[s] >= 0 && member[at(block[s])] < 0) member[at(block[s])] = static_cast<int32_t>(s);
  }
  auto out = std::make_shared<Dfa>();
  out->byte_class = raw.byte_class;
  out->classes = raw.classes;
  std::vector<int32_t> order = {block[at(raw.start)]};
  number[at(order[0])] = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t s = at(member[at(order[i])]);
    out->accept.push_back(raw.accept[s]);
    for (int32_t c = 0; c < raw.classes; ++c) {
      const int32_t t = raw.next[s * at(raw.classes) + at(c)];
      int32_t to = kDfaDead;
      if (t >= 0 && live[at(t)]) {
        const int32_t b = block[at(t)];
        if (number[at(b)] < 0) {
          number[at(b)] = static_cast<int32_t>(order.size());
          order.push_back(b);
        }
        to = number[at(b)];
      }
      out->next.push_back(to);
    }
  }
  out->start = 0;
  measure(*out);
  return out;
}

namespace {

struct PairHash {
  size_t operator()(const std::pair<int32_t, int32_t>& p) const {
    uint64_t h = (static_cast<uint64_t>(static_cast<uint32_t>(p.first)) << 32) |
                 static_cast<uint32_t>(p.second);
    h *= 0x9E3779B97F4A7C15U;
    return static_cast<size_t>(h ^ (h >> 31));
  }
};

}  // namespace

Result<DfaPtr> dfa_product(const Dfa& a, const Dfa& b,
                           const std::function<uint32_t(uint32_t, uint32_t)>& combine) {
  Dfa out;
  std::map<std::pair<int, int>, uint8_t> classes;
  std::vector<std::pair<int, int>> of_class;
  for (size_t i = 0; i < 256; ++i) {
    const std::pair<int, int> key(a.byte_class[i], b.byte_class[i]);
    const auto [it, fresh] = classes.emplace(key, static_cast<uint8_t>(classes.size()));
    if (fresh) of_class.push_back(key);
    out.byte_class[i] = it->second;
  }
  out.classes = static_cast<int32_t>(of_class.size());
  std::unordered_map<std::pair<int32_t, int32_t>, int32_t, PairHash> ids;
  std::vector<std::pair<int32_t, int32_t>> order;
  auto intern = [&](int32_t sa, int32_t sb) {
    if (sa < 0 && sb < 0) return kDfaDead;
    const auto [it, fresh] = ids.emplace(std::pair(sa, sb), static_cast<int32_t>(order.size()));
    if (fresh) order.emplace_back(sa, sb);
    return it->second;
  };
  out.start = intern(a.start, b.start);
  for (size_t i = 0; i < order.size(); ++i) {
    if (order.size() > 4 * kDfaStatesMax || order.size() * of_class.size() > kDfaWorkMax)
      return too_large("a combination of patterns");
    const auto [sa, sb] = order[i];
    out.accept.push_back(combine(sa < 0 ? 0 : a.label(sa), sb < 0 ? 0 : b.label(sb)));
    for (const auto& [ca, cb] : of_class) {
      const int32_t ta =
          sa < 0 ? kDfaDead : a.next[at(sa) * at(a.classes) + static_cast<size_t>(ca)];
      const int32_t tb =
          sb < 0 ? kDfaDead : b.next[at(sb) * at(b.classes) + static_cast<size_t>(cb)];
      out.next.push_back(intern(ta, tb));
    }
  }
  return dfa_finish(std::move(out));
}

Result<DfaPtr> dfa_intersect(const Dfa& a, const Dfa& b) {
  if (a.universal && !b.empty()) return std::make_shared<const Dfa>(b);
  if (b.universal && !a.empty()) return std::make_shared<const Dfa>(a);
  return dfa_product(a, b, [](uint32_t x, uint32_t y) { return y == 0 ? 0 : x; });
}

Result<DfaPtr> dfa_union(const Dfa& a, const Dfa& b) {
  return dfa_product(a, b, [](uint32_t x, uint32_t y) { return x != 0 ? x : y; });
}

Result<DfaPtr> dfa_subtract(const Dfa& a, const Dfa& b) {
  return dfa_product(a, b, [](uint32_t x, uint32_t y) { return y != 0 ? 0 : x; });
}

Result<DfaPtr> dfa_at_least(const Dfa& a, uint32_t chars) {
  if (a.empty() || a.min_chars[at(a.start)] >= chars) return std::make_shared<const Dfa>(a);
  if (static_cast<uint64_t>(chars) * a.states() > kDfaStatesMax)
    return too_large("minLength with a pattern");
  Nfa nfa;
  const int32_t start = nfa.add();
  int32_t last = start;
  for (uint32_t i = 0; i < chars; ++i) {
    const int32_t next = nfa.add();
    nfa.code_points(last, 0, 0x10FFFF, next);
    last = next;
  }
  nfa.code_points(last, 0, 0x10FFFF, last);
  TF_ASSIGN_OR_RETURN(const DfaPtr longer, nfa_to_dfa(nfa, start, last));
  return dfa_product(a, *longer, [](uint32_t x, uint32_t y) { return y == 0 ? 0 : x; });
}

Result<DfaPtr> DfaExplorer::build(const Key& start, std::string_view alphabet, const Step& step,
                                  const Label& label) {
  struct Hash {
    size_t operator()(const Key& v) const {
      uint64_t h = 1469598103934665603U;
      for (const int64_t x : v) h = (h ^ static_cast<uint64_t>(x)) * 1099511628211U;
      return static_cast<size_t>(h ^ (h >> 29));
    }
  };
  Dfa out;
  // Class 0: bytes that lead nowhere. Every byte of a full alphabet has one of its own.
  const bool full = alphabet.size() == 256;
  for (size_t i = 0; i < alphabet.size(); ++i)
    out.byte_class[static_cast<uint8_t>(alphabet[i])] = static_cast<uint8_t>(full ? i : i + 1);
  out.classes = static_cast<int32_t>(full ? 256 : alphabet.size() + 1);
  std::unordered_map<Key, int32_t, Hash> ids;
  std::vector<Key> order;
  ids.emplace(start, 0);
  order.push_back(start);
  out.start = 0;
  Key to;
  for (size_t i = 0; i < order.size(); ++i) {
    if (order.size() > kDfaStatesMax) return too_large("a number or text range");
    const Key from = order[i];
    out.accept.push_back(label(from));
    if (!full) out.next.push_back(kDfaDead);
    for (const char c : alphabet) {
      to.clear();
      if (!step(from, static_cast<uint8_t>(c), to)) {
        out.next.push_back(kDfaDead);
        continue;
      }
      const auto [it, fresh] = ids.emplace(to, static_cast<int32_t>(order.size()));
      if (fresh) order.push_back(to);
      out.next.push_back(it->second);
    }
  }
  return dfa_finish(std::move(out));
}

}  // namespace tensorfold::grammar
