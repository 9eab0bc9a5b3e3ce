// Automata over characters spelled out in the bytes of UTF-8.
//
// What the bytes of a character say is a tree over its class, the same for every state; a state's
// own steps are that tree with targets at its leaves. Equal steps of different states are one state
// of the result, so it is minimal when the automaton over characters is.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "engine/grammar/char_dfa.h"

namespace tensorfold::grammar {
namespace {

constexpr uint32_t kContinuations = 64;  // values of a byte 10xxxxxx

size_t at(int32_t i) { return static_cast<size_t>(i); }

// The tree of a partition of characters. Equal pieces are one.
class Utf8Tree {
 public:
  struct Range {
    uint8_t low, high;
    int32_t to;  // at the last byte a class, else a node
    bool operator==(const Range&) const = default;
  };
  struct Node {
    bool last = false;  // its bytes are the last of their characters
    std::vector<Range> ranges;
    bool operator==(const Node&) const = default;
  };

  explicit Utf8Tree(const CharClasses& classes) : classes_(classes) {
    for (auto& list : uniform_) list.assign(at(classes.count) + 1, kUnknown);
    for (uint32_t c = 0; c < 0x80; ++c) add(leads_.ranges, static_cast<uint8_t>(c), class_at(c));
    leads_.last = true;
    for (uint32_t b = 0xC2; b < 0xE0; ++b)
      add(more_.ranges, static_cast<uint8_t>(b), build(1, (b & 0x1FU) << 6, 0x80));
    for (uint32_t b = 0xE0; b < 0xF0; ++b)
      add(more_.ranges, static_cast<uint8_t>(b), build(2, (b & 0x0FU) << 12, 0x800));
    for (uint32_t b = 0xF0; b < 0xF5; ++b)
      add(more_.ranges, static_cast<uint8_t>(b), build(3, (b & 0x07U) << 18, 0x10000));
  }

  const Node& ascii() const { return leads_; }  // characters of one byte
  const Node& beyond() const { return more_; }  // first bytes of the others
  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  static constexpr int32_t kUnknown = -2;

  // The class of a code point; asked for in ascending order it takes no search.
  int32_t class_at(uint32_t c) {
    const std::vector<uint32_t>& first = classes_.first;
    if (first[range_] > c)
      range_ =
          static_cast<size_t>(std::upper_bound(first.begin(), first.end(), c) - first.begin()) - 1;
    while (range_ + 1 < first.size() && first[range_ + 1] <= c) ++range_;
    return classes_.class_of[range_];
  }

  static void add(std::vector<Range>& ranges, uint8_t byte, int32_t to) {
    if (to < 0) return;
    if (!ranges.empty() && ranges.back().to == to && ranges.back().high + 1 == byte) {
      ranges.back().high = byte;
    } else {
      ranges.push_back({byte, byte, to});
    }
  }

  // The node of `level` bytes that spell `low` and what follows; kDfaDead where all lead nowhere.
  // Below `least` the spelling would be too long.
  int32_t build(int level, uint32_t low, uint32_t least) {
    const uint32_t step = level == 1   ? 1
                          : level == 2 ? kContinuations
                                       : kContinuations * kContinuations;
    const uint32_t end = low + step * kContinuations;
    if (end <= least) return kDfaDead;
    const int32_t class_of = class_at(low);
    const bool same = range_ + 1 == classes_.first.size() || classes_.first[range_ + 1] >= end;
    if (same && class_of == kNoClass) return kDfaDead;
    if (same && low >= least) {
      int32_t& known = uniform_[at(level) - 1][at(class_of)];
      if (known == kUnknown) {
        const int32_t below = level == 1 ? class_of : build(level - 1, low, least);
        Node node;
        node.last = level == 1;
        node.ranges = {{0x80, 0xBF, below}};
        known = intern(std::move(node));
      }
      return known;
    }
    Node node;
    node.last = level == 1;
    for (uint32_t i = 0; i < kContinuations; ++i) {
      const uint32_t from = low + i * step;
      const int32_t to = level > 1      ? build(level - 1, from, least)
                         : from < least ? kDfaDead
                                        : class_at(from);
      add(node.ranges, static_cast<uint8_t>(0x80 + i), to);
    }
    return node.ranges.empty() ? kDfaDead : intern(std::move(node));
  }

  int32_t intern(Node node) {
    uint64_t hash = node.last ? 1 : 2;
    for (const Range& r : node.ranges) {
      const auto bytes = uint64_t{r.low} << 8 | r.high;
      hash = (hash ^ (static_cast<uint64_t>(static_cast<uint32_t>(r.to)) << 16 | bytes)) *
             0xFF51AFD7ED558CCDU;
      hash ^= hash >> 32;
    }
    std::vector<int32_t>& alike = ids_[hash];
    for (const int32_t i : alike) {
      if (nodes_[at(i)] == node) return i;
    }
    alike.push_back(static_cast<int32_t>(nodes_.size()));
    nodes_.push_back(std::move(node));
    return alike.back();
  }

  const CharClasses& classes_;
  size_t range_ = 0;  // of the class that was asked for last
  Node leads_, more_;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, std::vector<int32_t>> ids_;  // by hash
  std::vector<int32_t> uniform_[3];  // by level and class: the node where all are of the class
};

class Speller {
 public:
  explicit Speller(const CharDfa& from)
      : from_(from), tree_(from.classes), known_(tree_.nodes().size()) {
    std::array<char, 257> cut{};
    cut[0] = 1;
    const auto cut_at = [&](const Utf8Tree::Node& node) {
      for (const Utf8Tree::Range& r : node.ranges) {
        cut[r.low] = 1;
        cut[static_cast<size_t>(r.high) + 1] = 1;
      }
    };
    cut_at(tree_.ascii());
    cut_at(tree_.beyond());
    for (const Utf8Tree::Node& node : tree_.nodes()) cut_at(node);
    int32_t id = -1;
    for (size_t b = 0; b < 256; ++b) {
      if (cut[b]) ++id;
      out_.byte_class[b] = static_cast<uint8_t>(id);
    }
    out_.classes = id + 1;
    for (const Utf8Tree::Range& r : tree_.ascii().ranges) {
      for (size_t c = out_.byte_class[r.low]; c <= out_.byte_class[r.high]; ++c)
        ascii_.emplace_back(c, at(r.to));
    }
    row_.resize(at(out_.classes));
    measure();
  }

  Result<DfaPtr> build() {
    const size_t n = from_.table.states();
    out_.start = from_.table.start;
    out_.accept = from_.table.accept;
    out_.next.assign(n * row_.size(), kDfaDead);
    table_.assign(64, -1);
    for (size_t s = 0; s < n; ++s) {
      if (out_.accept.size() > kDfaStatesMax || out_.next.size() > kDfaWorkMax)
        return too_large("a pattern");
      state_ = s;
      ++stamp_;
      const int32_t* steps = from_.table.next.data() + s * at(from_.table.classes);
      int32_t* row = out_.next.data() + s * row_.size();
      for (const auto& [column, class_of] : ascii_) row[column] = steps[class_of];
      put(tree_.beyond(), s);
    }
    return dfa_finish_minimal(std::move(out_));
  }

 private:
  // Characters that each state still needs: backwards from acceptance, one more in each round.
  void measure() {
    const Dfa& table = from_.table;
    const size_t n = table.states(), k = at(table.classes);
    std::vector<int32_t> first(n + 1, 0), tails(table.next.size()), now, after;
    for (const int32_t t : table.next) {
      if (t >= 0) ++first[at(t) + 1];
    }
    for (size_t s = 0; s < n; ++s) first[s + 1] += first[s];
    std::vector<int32_t> place(first.begin(), first.end() - 1);
    for (size_t i = 0; i < table.next.size(); ++i) {
      if (table.next[i] >= 0) tails[at(place[at(table.next[i])]++)] = static_cast<int32_t>(i / k);
    }
    out_.min_chars.assign(n, kCharsNever);
    for (size_t s = 0; s < n; ++s) {
      if (table.accept[s] == 0) continue;
      out_.min_chars[s] = 0;
      now.push_back(static_cast<int32_t>(s));
    }
    for (uint32_t chars = 1; !now.empty(); ++chars, now.swap(after)) {
      after.clear();
      for (const int32_t t : now) {
        for (int32_t i = first[at(t)]; i < first[at(t) + 1]; ++i) {
          uint32_t& known = out_.min_chars[at(tails[at(i)])];
          if (known != kCharsNever) continue;
          known = chars;
          after.push_back(tails[at(i)]);
        }
      }
    }
  }

  // Where a node's range leads from the character's state.
  int32_t target(const Utf8Tree::Node& node, const Utf8Tree::Range& r) {
    if (!node.last) return inner(r.to);
    return from_.table.next[state_ * at(from_.table.classes) + at(r.to)];
  }

  void put(const Utf8Tree::Node& node, size_t s) {
    for (const Utf8Tree::Range& r : node.ranges) {
      const int32_t to = target(node, r);
      if (to < 0) continue;
      int32_t* row = out_.next.data() + s * row_.size();
      std::fill(row + out_.byte_class[r.low], row + out_.byte_class[r.high] + 1, to);
    }
  }

  // The state inside a character at the node; kDfaDead where it leads nowhere.
  int32_t inner(int32_t id) {
    Known& known = known_[at(id)];
    if (known.stamp == stamp_) return known.state;
    const Utf8Tree::Node& node = tree_.nodes()[at(id)];
    Targets targets;
    bool dead = true;
    for (const Utf8Tree::Range& r : node.ranges) {
      targets.push_back(target(node, r));
      dead = dead && targets.back() < 0;
    }
    known.stamp = stamp_;
    known.state = dead ? kDfaDead : intern(node, targets);
    return known.state;
  }

  using Targets = std::vector<int32_t>;

  int32_t intern(const Utf8Tree::Node& node, const Targets& targets) {
    std::fill(row_.begin(), row_.end(), kDfaDead);
    for (size_t i = 0; i < targets.size(); ++i) {
      const Utf8Tree::Range& r = node.ranges[i];
      std::fill(row_.begin() + out_.byte_class[r.low], row_.begin() + out_.byte_class[r.high] + 1,
                targets[i]);
    }
    const size_t k = row_.size(), chars = from_.table.states();
    if (2 * (out_.accept.size() - chars + 1) > table_.size()) grow();
    size_t place = hash(row_.data()) & (table_.size() - 1);
    for (; table_[place] >= 0; place = (place + 1) & (table_.size() - 1)) {
      const auto known = out_.next.begin() + table_[place] * static_cast<ptrdiff_t>(k);
      if (std::equal(row_.begin(), row_.end(), known)) return table_[place];
    }
    table_[place] = static_cast<int32_t>(out_.accept.size());
    uint32_t nearest = kCharsNever;  // the character is begun: its other bytes count for nothing
    for (const int32_t t : targets) {
      if (t >= 0) nearest = std::min(nearest, out_.min_chars[at(t)]);
    }
    out_.min_chars.push_back(nearest);
    out_.accept.push_back(0);
    out_.next.insert(out_.next.end(), row_.begin(), row_.end());
    return table_[place];
  }

  uint64_t hash(const int32_t* row) const {
    uint64_t h = 1469598103934665603U;
    for (size_t c = 0; c < row_.size(); ++c)
      h = (h ^ static_cast<uint32_t>(row[c])) * 0xFF51AFD7ED558CCDU;
    return h ^ (h >> 32);
  }

  void grow() {
    table_.assign(2 * table_.size(), -1);
    for (size_t s = from_.table.states(); s < out_.accept.size(); ++s) {
      size_t place = hash(out_.next.data() + s * row_.size()) & (table_.size() - 1);
      while (table_[place] >= 0) place = (place + 1) & (table_.size() - 1);
      table_[place] = static_cast<int32_t>(s);
    }
  }

  struct Known {
    uint32_t stamp = 0;
    int32_t state = kDfaDead;
  };

  const CharDfa& from_;
  Utf8Tree tree_;
  std::vector<std::pair<size_t, size_t>> ascii_;  // columns of bytes that are characters; classes
  Dfa out_;
  size_t state_ = 0;  // of the character
  uint32_t stamp_ = 0;
  std::vector<Known> known_;    // by node, of the state
  std::vector<int32_t> table_;  // states inside characters, by their rows; a power of two
  std::vector<int32_t> row_;    // scratch
};

}  // namespace

Result<DfaPtr> chars_to_bytes(const CharDfa& dfa) {
  if (dfa.empty()) return std::make_shared<const Dfa>();
  return Speller(dfa).build();
}

}  // namespace tensorfold::grammar
