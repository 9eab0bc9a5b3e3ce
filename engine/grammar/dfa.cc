// Operations on finished automata: products and explored ones. See nfa.cc for the way there and
// dfa_minimize.cc for what every builder ends with.
#include "engine/grammar/dfa.h"

#include <algorithm>
#include <unordered_map>

#include "engine/base/check.h"

namespace tensorfold::grammar {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

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

namespace {

// Numbers for pairs of states, in the order of their first appearance.
class PairIds {
 public:
  PairIds() : table_(kTableMin, kFree) {}
  int32_t of(int32_t a, int32_t b) {
    if (2 * order_.size() >= table_.size()) grow();
    const std::pair key(a, b);
    size_t place = hash(key) & (table_.size() - 1);
    for (; table_[place] != kFree; place = (place + 1) & (table_.size() - 1)) {
      if (order_[at(table_[place])] == key) return table_[place];
    }
    table_[place] = static_cast<int32_t>(order_.size());
    order_.push_back(key);
    return table_[place];
  }
  const std::vector<std::pair<int32_t, int32_t>>& order() const { return order_; }

 private:
  static constexpr int32_t kFree = -1;
  static constexpr size_t kTableMin = 64;  // places; a power of two
  static size_t hash(const std::pair<int32_t, int32_t>& p) {
    uint64_t h = (static_cast<uint64_t>(static_cast<uint32_t>(p.first)) << 32) |
                 static_cast<uint32_t>(p.second);
    h *= 0x9E3779B97F4A7C15U;
    return static_cast<size_t>(h ^ (h >> 31));
  }
  void grow() {
    table_.assign(2 * table_.size(), kFree);
    for (size_t i = 0; i < order_.size(); ++i) {
      size_t place = hash(order_[i]) & (table_.size() - 1);
      while (table_[place] != kFree) place = (place + 1) & (table_.size() - 1);
      table_[place] = static_cast<int32_t>(i);
    }
  }
  std::vector<int32_t> table_;
  std::vector<std::pair<int32_t, int32_t>> order_;
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
  PairIds ids;
  auto intern = [&](int32_t sa, int32_t sb) {
    return sa < 0 && sb < 0 ? kDfaDead : ids.of(sa, sb);
  };
  out.start = intern(a.start, b.start);
  for (size_t i = 0; i < ids.order().size(); ++i) {
    const size_t states = ids.order().size();
    if (states > 4 * kDfaStatesMax || states * of_class.size() > kDfaWorkMax)
      return too_large("a combination of patterns");
    const auto [sa, sb] = ids.order()[i];
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

bool dfa_meet(const Dfa& a, const Dfa& b) {
  if (a.empty() || b.empty()) return false;
  std::vector<std::pair<uint8_t, uint8_t>> bytes;  // one of each pair of classes
  std::vector<char> seen(at(a.classes) * at(b.classes), 0);
  for (size_t i = 0; i < 256; ++i) {
    char& known = seen[a.byte_class[i] * at(b.classes) + b.byte_class[i]];
    if (known == 0) bytes.emplace_back(a.byte_class[i], b.byte_class[i]);
    known = 1;
  }
  PairIds ids;
  (void)ids.of(a.start, b.start);
  for (size_t i = 0; i < ids.order().size(); ++i) {
    const auto [sa, sb] = ids.order()[i];
    if (a.label(sa) != 0 && b.label(sb) != 0) return true;
    for (const auto& [ca, cb] : bytes) {
      const int32_t ta = a.next[at(sa) * at(a.classes) + ca];
      const int32_t tb = b.next[at(sb) * at(b.classes) + cb];
      if (ta >= 0 && tb >= 0) (void)ids.of(ta, tb);
    }
  }
  return false;
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

uint32_t dfa_longest_chars(const Dfa& d) {
  if (d.empty()) return 0;
  const size_t n = d.states();
  std::vector<int32_t> entries(n, 0);
  for (const int32_t t : d.next) {
    if (t >= 0) ++entries[at(t)];
  }
  // Every state is reached from the start: on a cycle none ever runs out of ways in.
  std::vector<uint8_t> dearest(at(d.classes), 0);
  for (int b = 0; b < 256; ++b) {
    if ((b & 0xC0) != 0x80) dearest[d.byte_class[static_cast<size_t>(b)]] = 1;
  }
  std::vector<uint32_t> chars(n, 0);
  std::vector<int32_t> order;
  if (entries[at(d.start)] == 0) order.push_back(d.start);
  uint32_t longest = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t s = at(order[i]);
    longest = std::max(longest, chars[s]);
    for (int32_t c = 0; c < d.classes; ++c) {
      const int32_t t = d.next[s * at(d.classes) + at(c)];
      if (t < 0) continue;
      chars[at(t)] = std::max(chars[at(t)], chars[s] + dearest[at(c)]);
      if (--entries[at(t)] == 0) order.push_back(t);
    }
  }
  return order.size() == n ? longest : kCharsNever;
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
