// The automaton of a word list, smallest from the beginning: words in order, and what no later word
// can touch any more becomes a state, unless an equal one is there.
#include <algorithm>

#include "engine/grammar/dfa.h"

namespace tensorfold::grammar {
namespace {

using Word = std::pair<std::string_view, uint32_t>;  // with its label

class WordStates {
 public:
  WordStates(const std::array<uint8_t, 256>& classes) : classes_(classes), open_(1) {}

  void add(const Word& word) {
    size_t shared = 0;
    while (shared < last_.size() && shared < word.first.size() &&
           last_[shared] == word.first[shared])
      ++shared;
    close(shared);
    if (open_.size() < word.first.size() + 1) open_.resize(word.first.size() + 1);
    for (size_t d = shared; d < word.first.size(); ++d) open_[d + 1] = {};
    open_[word.first.size()].label = word.second;
    last_ = word.first;
  }

  // The table; state 0 is the start.
  Dfa table(int32_t classes) {
    close(0);
    const int32_t start = intern(open_[0]);
    Dfa out;
    const size_t n = labels_.size();
    out.next.assign(n * static_cast<size_t>(classes), kDfaDead);
    for (size_t s = 0; s < n; ++s) {
      for (size_t e = first_[s]; e < (s + 1 < n ? first_[s + 1] : edges_.size()); ++e)
        out.next[s * static_cast<size_t>(classes) + edges_[e].first] = edges_[e].second;
    }
    out.accept = std::move(labels_);
    out.byte_class = classes_;
    out.classes = classes;
    out.start = start;
    return out;
  }

 private:
  using Edge = std::pair<uint8_t, int32_t>;  // class, state
  struct Open {                              // on the path of the last word
    uint32_t label = 0;
    std::vector<Edge> edges;
  };

  // What is deeper than `depth` on the last word's path is complete.
  void close(size_t depth) {
    for (size_t d = last_.size(); d > depth; --d)
      open_[d - 1].edges.emplace_back(classes_[static_cast<uint8_t>(last_[d - 1])],
                                      intern(open_[d]));
    last_ = last_.substr(0, depth);
  }

  int32_t intern(const Open& node) {
    if (2 * (labels_.size() + 1) > table_.size()) grow();
    size_t place = hash(node.label, node.edges.data(), node.edges.size()) & (table_.size() - 1);
    for (; table_[place] >= 0; place = (place + 1) & (table_.size() - 1)) {
      const auto s = static_cast<size_t>(table_[place]);
      const size_t end = s + 1 < first_.size() ? first_[s + 1] : edges_.size();
      if (labels_[s] == node.label && end - first_[s] == node.edges.size() &&
          std::equal(node.edges.begin(), node.edges.end(),
                     edges_.begin() + static_cast<ptrdiff_t>(first_[s])))
        return table_[place];
    }
    table_[place] = static_cast<int32_t>(labels_.size());
    first_.push_back(edges_.size());
    labels_.push_back(node.label);
    edges_.insert(edges_.end(), node.edges.begin(), node.edges.end());
    return table_[place];
  }

  static size_t hash(uint32_t label, const Edge* edges, size_t count) {
    uint64_t h = 1469598103934665603U ^ label;
    for (size_t e = 0; e < count; ++e) {
      h = (h ^ (static_cast<uint64_t>(edges[e].second) << 8 | edges[e].first)) *
          0xFF51AFD7ED558CCDU;
      h ^= h >> 32;
    }
    return static_cast<size_t>(h);
  }

  void grow() {
    table_.assign(std::max<size_t>(64, 2 * table_.size()), -1);
    for (size_t s = 0; s < labels_.size(); ++s) {
      const size_t end = s + 1 < first_.size() ? first_[s + 1] : edges_.size();
      size_t place =
          hash(labels_[s], edges_.data() + first_[s], end - first_[s]) & (table_.size() - 1);
      while (table_[place] >= 0) place = (place + 1) & (table_.size() - 1);
      table_[place] = static_cast<int32_t>(s);
    }
  }

  const std::array<uint8_t, 256> classes_;
  std::vector<Open> open_;  // by depth
  std::string_view last_;
  std::vector<int32_t> table_;  // open addressing; a power of two
  std::vector<uint32_t> labels_;
  std::vector<size_t> first_;  // by state, into edges_
  std::vector<Edge> edges_;
};

}  // namespace

Result<DfaPtr> dfa_words(const std::vector<std::string>& words, bool labels) {
  if (words.empty()) return std::make_shared<const Dfa>();
  std::array<uint8_t, 256> byte_class{};
  std::array<char, 256> used{};
  for (const std::string& w : words) {
    for (const char c : w) used[static_cast<uint8_t>(c)] = 1;
  }
  int32_t classes = 1;  // class 0: bytes of no word
  for (size_t b = 0; b < 256; ++b) {
    if (used[b]) byte_class[b] = static_cast<uint8_t>(classes++ & 0xFF);
  }
  if (classes > 256) return too_large("a list of texts");
  std::vector<Word> sorted;
  for (size_t i = 0; i < words.size(); ++i)
    sorted.emplace_back(words[i], labels ? static_cast<uint32_t>(i) + 1 : 1);
  std::sort(sorted.begin(), sorted.end());
  WordStates states(byte_class);
  size_t nodes = 1;  // of the words' tree
  std::string_view last;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const std::string_view word = sorted[i].first;
    const size_t common = std::min(last.size(), word.size());
    const auto split =
        std::mismatch(last.begin(), last.begin() + static_cast<ptrdiff_t>(common), word.begin());
    nodes += word.size() - static_cast<size_t>(split.first - last.begin());
    if (nodes * static_cast<size_t>(classes) > kDfaWorkMax / 4) return too_large("a list of texts");
    states.add(sorted[i]);
    last = word;
  }
  return dfa_finish_minimal(states.table(classes));
}

}  // namespace tensorfold::grammar
