// The last step of every builder: bytes that the table does not tell apart share a class, states
// that lead nowhere go, states that no text tells apart become one, and the rest is numbered in the
// order of a walk from the start. Everything lies in flat arrays: a schema builds hundreds of
// these.
//
// Minimizing refines two partitions in turns, of states and of transitions (A. Valmari, "Fast brief
// practical DFA minimization", 2012): its cost follows the transitions that exist, not the table.
#include <algorithm>

#include "engine/grammar/dfa.h"

namespace tensorfold::grammar {
namespace {

constexpr size_t kFewLabels = 8;

size_t at(int32_t i) { return static_cast<size_t>(i); }

// Merges equal columns of the table.
void merge_classes(Dfa& d) {
  const auto k = at(d.classes);
  const size_t n = d.states();
  std::vector<uint64_t> hash(k, 1469598103934665603U);
  for (size_t s = 0; s < n; ++s) {
    const int32_t* row = d.next.data() + s * k;
    for (size_t c = 0; c < k; ++c)
      hash[c] = (hash[c] ^ static_cast<uint32_t>(row[c])) * 0x100000001B3U;
  }
  const auto same = [&](size_t a, size_t b) {
    for (size_t s = 0; s < n; ++s) {
      if (d.next[s * k + a] != d.next[s * k + b]) return false;
    }
    return true;
  };
  std::vector<size_t> kept;
  std::vector<uint8_t> to(k, 0);
  for (size_t c = 0; c < k; ++c) {
    size_t i = 0;
    while (i < kept.size() && (hash[kept[i]] != hash[c] || !same(kept[i], c))) ++i;
    if (i == kept.size()) kept.push_back(c);
    to[c] = static_cast<uint8_t>(i);
  }
  if (kept.size() == k) return;
  for (uint8_t& c : d.byte_class) c = to[c];
  for (size_t s = 0; s < n; ++s) {
    for (size_t i = 0; i < kept.size(); ++i) d.next[s * kept.size() + i] = d.next[s * k + kept[i]];
  }
  d.next.resize(n * kept.size());
  d.classes = static_cast<int32_t>(kept.size());
}

// The transitions of a table, by target.
struct Backwards {
  std::vector<int32_t> tail, label, head;  // of each transition
  std::vector<int32_t> first;              // [states + 1], into `in`
  std::vector<int32_t> in;                 // transitions
};

Backwards backwards(const Dfa& d, const std::vector<char>* live) {
  const size_t n = d.states();
  Backwards b;
  b.first.assign(n + 1, 0);
  for (size_t s = 0; s < n; ++s) {
    if (live != nullptr && !(*live)[s]) continue;
    for (int32_t c = 0; c < d.classes; ++c) {
      const int32_t t = d.next[s * at(d.classes) + at(c)];
      if (t < 0 || (live != nullptr && !(*live)[at(t)])) continue;
      b.tail.push_back(static_cast<int32_t>(s));
      b.label.push_back(c);
      b.head.push_back(t);
      ++b.first[at(t) + 1];
    }
  }
  for (size_t s = 0; s < n; ++s) b.first[s + 1] += b.first[s];
  b.in.resize(b.tail.size());
  std::vector<int32_t> next(b.first.begin(), b.first.end() - 1);
  for (size_t i = 0; i < b.head.size(); ++i)
    b.in[at(next[at(b.head[i])]++)] = static_cast<int32_t>(i);
  return b;
}

// States from which an accepting state is reachable.
std::vector<char> live_states(const Dfa& d, const Backwards& b) {
  const size_t n = d.states();
  std::vector<char> live(n, 0);
  std::vector<int32_t> unvisited;
  for (size_t s = 0; s < n; ++s) {
    if (d.accept[s] == 0) continue;
    live[s] = 1;
    unvisited.push_back(static_cast<int32_t>(s));
  }
  while (!unvisited.empty()) {
    const auto t = at(unvisited.back());
    unvisited.pop_back();
    for (int32_t i = b.first[t]; i < b.first[t + 1]; ++i) {
      const int32_t s = b.tail[at(b.in[at(i)])];
      if (live[at(s)]) continue;
      live[at(s)] = 1;
      unvisited.push_back(s);
    }
  }
  return live;
}

// A partition of 0..n-1 that is refined by marking elements and splitting.
class Partition {
 public:
  // Elements with equal labels together; labels below `labels`.
  Partition(const std::vector<int32_t>& label, size_t labels)
      : elements_(label.size()), place_(label.size()), set_(label) {
    std::vector<int32_t> next(labels + 1, 0);
    for (const int32_t l : label) ++next[at(l) + 1];
    for (size_t l = 0; l < labels; ++l) {
      next[l + 1] += next[l];
      add_set(next[l], next[l + 1]);
    }
    for (size_t i = 0; i < label.size(); ++i) {
      place_[i] = next[at(label[i])]++;
      elements_[at(place_[i])] = static_cast<int32_t>(i);
    }
  }
  size_t sets() const { return first_.size(); }
  int32_t set_of(int32_t e) const { return set_[at(e)]; }
  std::span<const int32_t> members(size_t s) const {
    return {elements_.data() + first_[s], static_cast<size_t>(end_[s] - first_[s])};
  }
  void mark(int32_t e) {
    const auto s = at(set_[at(e)]);
    const int32_t i = place_[at(e)], j = first_[s] + marked_[s];
    if (i < j) return;
    const int32_t other = elements_[at(j)];
    elements_[at(i)] = other;
    place_[at(other)] = i;
    elements_[at(j)] = e;
    place_[at(e)] = j;
    if (marked_[s]++ == 0) touched_.push_back(static_cast<int32_t>(s));
  }
  // Marked elements leave their sets; the smaller part gets a new number.
  void split() {
    while (!touched_.empty()) {
      const auto s = at(touched_.back());
      touched_.pop_back();
      const int32_t j = first_[s] + marked_[s];
      const int32_t marked = marked_[s];
      marked_[s] = 0;
      if (j == end_[s]) continue;
      const bool front = marked <= end_[s] - j;
      const int32_t from = front ? first_[s] : j, to = front ? j : end_[s];
      (front ? first_ : end_)[s] = j;
      const auto fresh = static_cast<int32_t>(first_.size());
      add_set(from, to);
      for (int32_t i = from; i < to; ++i) set_[at(elements_[at(i)])] = fresh;
    }
  }

 private:
  void add_set(int32_t first, int32_t end) {
    first_.push_back(first);
    end_.push_back(end);
    marked_.push_back(0);
  }
  std::vector<int32_t> elements_, place_, set_;
  std::vector<int32_t> first_, end_, marked_;  // by set
  std::vector<int32_t> touched_;
};

// An automaton without cycles (word lists, bounded numbers): from its ends to its start, states
// with equal rows and labels are one. False: there is a cycle.
bool acyclic_blocks(const Dfa& d, const std::vector<char>& live, std::vector<int32_t>& block) {
  const auto k = at(d.classes);
  const size_t n = d.states();
  std::vector<int32_t> entries(n, 0), order;
  for (size_t s = 0; s < n; ++s) {
    for (size_t c = 0; c < k && live[s]; ++c) {
      const int32_t t = d.next[s * k + c];
      if (t >= 0 && live[at(t)]) ++entries[at(t)];
    }
  }
  size_t count = 0;
  for (size_t s = 0; s < n; ++s) {
    count += live[s] ? 1U : 0U;
    if (live[s] && entries[s] == 0) order.push_back(static_cast<int32_t>(s));
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t c = 0; c < k; ++c) {
      const int32_t t = d.next[at(order[i]) * k + c];
      if (t >= 0 && live[at(t)] && --entries[at(t)] == 0) order.push_back(t);
    }
  }
  if (order.size() != count) return false;
  size_t places = 64;  // a power of two
  while (places < 2 * count) places *= 2;
  std::vector<int32_t> table(places, -1), rows;  // of blocks
  int32_t blocks = 0;
  std::vector<int32_t> row(k + 1);
  while (!order.empty()) {
    const size_t s = at(order.back());
    order.pop_back();
    row[k] = static_cast<int32_t>(d.accept[s]);
    uint64_t h = d.accept[s];
    for (size_t c = 0; c < k; ++c) {
      const int32_t t = d.next[s * k + c];
      row[c] = t >= 0 && live[at(t)] ? block[at(t)] : -1;
      h = (h ^ static_cast<uint32_t>(row[c])) * 0xFF51AFD7ED558CCDU;
      h ^= h >> 32;
    }
    size_t place = h & (places - 1);
    for (; table[place] >= 0; place = (place + 1) & (places - 1)) {
      if (std::equal(row.begin(), row.end(), rows.begin() + table[place] * std::ssize(row))) break;
    }
    if (table[place] < 0) {
      table[place] = blocks++;
      rows.insert(rows.end(), row.begin(), row.end());
    }
    block[s] = table[place];
  }
  return true;
}

// By state: the block of states that no text tells apart, -1 for those that are not live.
std::vector<int32_t> equivalent_blocks(const Dfa& d, const std::vector<char>& live, Backwards b) {
  const size_t n = d.states();
  std::vector<int32_t> block(n, -1);
  if (acyclic_blocks(d, live, block)) return block;
  if (std::find(live.begin(), live.end(), 0) != live.end()) b = backwards(d, &live);
  if (b.tail.size() > kDfaMinimizeMax) {
    for (size_t s = 0; s < n; ++s) block[s] = live[s] ? static_cast<int32_t>(s) : -1;
    return block;
  }
  // What is not live stands apart from everything; other states by their labels.
  std::vector<uint32_t> labels;
  for (size_t s = 0; s < n; ++s) {
    if (live[s] && std::find(labels.begin(), labels.end(), d.accept[s]) == labels.end())
      labels.push_back(d.accept[s]);
    if (labels.size() <= kFewLabels) continue;
    labels.assign(d.accept.begin(), d.accept.end());
    std::sort(labels.begin(), labels.end());
    labels.erase(std::unique(labels.begin(), labels.end()), labels.end());
    break;
  }
  std::sort(labels.begin(), labels.end());
  std::vector<int32_t> of_state(n);
  for (size_t s = 0; s < n; ++s) {
    const auto label = std::lower_bound(labels.begin(), labels.end(), d.accept[s]);
    of_state[s] = static_cast<int32_t>(live[s] ? label - labels.begin() : std::ssize(labels));
  }
  Partition states(of_state, labels.size() + 1);
  Partition cords(b.label, at(d.classes));
  size_t done_states = 1;
  for (size_t c = 0; c < cords.sets(); ++c) {
    for (const int32_t i : cords.members(c)) states.mark(b.tail[at(i)]);
    states.split();
    for (; done_states < states.sets(); ++done_states) {
      for (const int32_t s : states.members(done_states)) {
        for (int32_t i = b.first[at(s)]; i < b.first[at(s) + 1]; ++i) cords.mark(b.in[at(i)]);
      }
      cords.split();
    }
  }
  for (size_t s = 0; s < n; ++s) {
    if (live[s]) block[s] = states.set_of(static_cast<int32_t>(s));
  }
  return block;
}

bool starts_character(uint8_t byte) { return (byte & 0xC0U) != 0x80U; }

// 0-1 breadth-first search backwards from acceptance: the cost of a byte is 1 where it starts a
// character.
void measure(Dfa& d) {
  const size_t n = d.states();
  d.min_chars.assign(n, kCharsNever);
  std::vector<int32_t> now, after;
  for (size_t s = 0; s < n; ++s) {
    if (d.accept[s] == 0) continue;
    d.min_chars[s] = 0;
    now.push_back(static_cast<int32_t>(s));
  }
  if (now.size() == n) return;
  std::vector<uint8_t> cheapest(at(d.classes), 1);
  for (int b = 0; b < 256; ++b) {
    if (!starts_character(static_cast<uint8_t>(b)))
      cheapest[d.byte_class[static_cast<size_t>(b)]] = 0;
  }
  const Backwards b = backwards(d, nullptr);
  for (uint32_t chars = 0; !now.empty(); ++chars) {
    after.clear();
    for (size_t i = 0; i < now.size(); ++i) {
      const auto t = at(now[i]);
      if (d.min_chars[t] != chars) continue;  // it was reached for less
      for (int32_t j = b.first[t]; j < b.first[t + 1]; ++j) {
        const auto in = at(b.in[at(j)]);
        const auto s = at(b.tail[in]);
        const uint32_t cost = cheapest[at(b.label[in])];
        if (chars + cost >= d.min_chars[s]) continue;
        d.min_chars[s] = chars + cost;
        (cost == 0 ? now : after).push_back(static_cast<int32_t>(s));
      }
    }
    now.swap(after);
  }
}

// `raw` with equal states together: blocks, -1 for states that are not live.
DfaPtr renumbered(const Dfa& raw, const std::vector<int32_t>& block) {
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
    if (!raw.min_chars.empty()) out->min_chars.push_back(raw.min_chars[s]);
    for (int32_t c = 0; c < raw.classes; ++c) {
      const int32_t t = raw.next[s * at(raw.classes) + at(c)];
      int32_t to = kDfaDead;
      if (t >= 0 && block[at(t)] >= 0) {
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
  merge_classes(*out);
  if (raw.min_chars.empty()) measure(*out);
  return out;
}

}  // namespace

std::vector<int32_t> dfa_blocks(const Dfa& raw) {
  Backwards b = backwards(raw, nullptr);
  const std::vector<char> live = live_states(raw, b);
  return equivalent_blocks(raw, live, std::move(b));
}

DfaPtr dfa_finish(Dfa raw) {
  if (raw.empty() || raw.states() == 0) return std::make_shared<Dfa>();
  merge_classes(raw);
  Backwards b = backwards(raw, nullptr);
  const std::vector<char> live = live_states(raw, b);
  if (!live[at(raw.start)]) return std::make_shared<Dfa>();
  return renumbered(raw, equivalent_blocks(raw, live, std::move(b)));
}

DfaPtr dfa_finish_minimal(Dfa raw) {
  merge_classes(raw);
  std::vector<int32_t> block(raw.states());
  for (size_t s = 0; s < block.size(); ++s) block[s] = static_cast<int32_t>(s);
  return renumbered(raw, block);
}

}  // namespace tensorfold::grammar
