// The coarsest partition of nodes and shapes by what they say: all are taken for equal first, and
// told apart round by round by the classes of what they refer to.
#include "engine/grammar/schema_merge.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace tensorfold::grammar {
namespace {

constexpr int kMergeRoundsMax = 64;         // deeper differences leave the schema as it is
constexpr size_t kCoveredLookedMax = 1024;  // alternatives of one node that are compared

using Words = std::vector<int64_t>;

struct WordsHash {
  size_t operator()(const Words& words) const {
    uint64_t h = 1469598103934665603U;
    for (const int64_t w : words) {
      h = (h ^ static_cast<uint64_t>(w)) * 0xFF51AFD7ED558CCDU;
      h ^= h >> 32;
    }
    return static_cast<size_t>(h);
  }
};

class Merger {
 public:
  Merger(Program& program, const std::vector<char>& live)
      : program_(program),
        live_(live),
        node_class_(program.nodes.size(), 0),
        object_class_(program.objects.size(), 0),
        array_class_(program.arrays.size(), 0) {
    std::map<std::string_view, int64_t> names;
    for (const ObjectShape& s : program.objects) {
      names_.emplace_back();
      for (const auto& p : s.properties)
        names_.back().push_back(
            names.emplace(p.name, static_cast<int64_t>(names.size())).first->second);
    }
  }

  // False: not settled within the bound.
  bool settle() {
    size_t classes = 1;
    for (int round = 0; round < kMergeRoundsMax; ++round) {
      (void)number(program_.objects.size(), object_class_,
                   [this](size_t i, Words& out) { describe_object(i, out); });
      (void)number(program_.arrays.size(), array_class_,
                   [this](size_t i, Words& out) { describe_array(program_.arrays[i], out); });
      const size_t now = number(program_.nodes.size(), node_class_, [this](size_t i, Words& out) {
        describe_node(program_.nodes[i], out);
      });
      if (now == classes) return true;
      classes = now;
    }
    return false;
  }

  void rewrite() {
    const std::vector<int32_t> node = firsts(node_class_);
    const std::vector<int32_t> object = firsts(object_class_), array = firsts(array_class_);
    const auto point = [&](int32_t& n) {
      if (n != kNoNode && alive(n)) n = node[static_cast<size_t>(node_class_[at(n)])];
    };
    for (ObjectShape& s : program_.objects) {
      for (auto& p : s.properties) point(p.value);
      for (auto& o : s.other) point(o.second);
    }
    for (ArrayShape& s : program_.arrays) {
      for (auto* list : {&s.prefix, &s.hit_prefix, &s.miss_prefix}) {
        for (int32_t& n : *list) point(n);
      }
      for (int32_t* n : {&s.rest, &s.hit, &s.miss}) point(*n);
    }
    const auto once = [](std::vector<uint32_t>& list, const std::vector<int32_t>& class_of,
                         const std::vector<int32_t>& first) {
      for (uint32_t& i : list) i = static_cast<uint32_t>(first[static_cast<size_t>(class_of[i])]);
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    };
    for (ValueNode& n : program_.nodes) {
      once(n.objects, object_class_, object);
      once(n.arrays, array_class_, array);
    }
    // Of equal nodes only the first is referred to.
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
      if (node[at(node_class_[i])] == static_cast<int32_t>(i)) drop_covered(program_.nodes[i]);
    }
  }

 private:
  // Alternatives all of whose values another one of the same node has, too, say nothing.
  void drop_covered(ValueNode& n) const {
    if (n.objects.size() < 2 || n.objects.size() > kCoveredLookedMax) return;
    std::vector<uint32_t> kept;
    for (size_t i = 0; i < n.objects.size(); ++i) {
      // All of them are different languages by now, or at least written differently: of two that
      // cover each other the first stays.
      const auto covers = [&](uint32_t other) { return covered(n.objects[i], other); };
      bool drop = std::any_of(kept.begin(), kept.end(), covers);
      for (size_t j = i + 1; j < n.objects.size() && !drop; ++j)
        drop = covers(n.objects[j]) && !covered(n.objects[j], n.objects[i]);
      if (!drop) kept.push_back(n.objects[i]);
    }
    n.objects.swap(kept);
  }

  // The node of an undeclared name; nullopt: it depends on the name.
  static std::optional<int32_t> others(const ObjectShape& s) {
    if (!s.base) return kNoNode;
    if (!s.base->universal || s.other.size() != 1) return std::nullopt;
    return s.other.begin()->second;
  }
  const ObjectShape::Property* find(uint32_t object, int64_t name) const {
    const std::vector<int64_t>& names = names_[object];
    const auto place = std::find(names.begin(), names.end(), name);
    if (place == names.end()) return nullptr;
    return &program_.objects[object].properties[static_cast<size_t>(place - names.begin())];
  }

  // Every value of object `i` is one of `j` (false when that is not plain to see).
  bool covered(uint32_t i, uint32_t j) const {
    const ObjectShape &a = program_.objects[i], &b = program_.objects[j];
    if (a.ordered || b.ordered || a.min < b.min || a.max > b.max) return false;
    const auto rest_a = others(a), rest_b = others(b);
    if (!rest_a || !rest_b || !within(*rest_a, *rest_b)) return false;
    for (size_t p = 0; p < b.properties.size(); ++p) {
      const ObjectShape::Property* const own = find(i, names_[j][p]);
      if (b.properties[p].required && (own == nullptr || !own->required)) return false;
      if (!within(own != nullptr ? own->value : *rest_a, b.properties[p].value)) return false;
    }
    for (size_t p = 0; p < a.properties.size(); ++p) {
      if (find(j, names_[i][p]) == nullptr && !within(a.properties[p].value, *rest_b)) return false;
    }
    return true;
  }

  bool within(int32_t a, int32_t b) const {
    if (a == kNoNode || !alive(a) || a == b) return true;
    if (b == kNoNode || !alive(b)) return false;
    const ValueNode& x = program_.nodes[at(a)];
    const ValueNode& y = program_.nodes[at(b)];
    const auto part = [](const std::vector<uint32_t>& less, const std::vector<uint32_t>& more) {
      return std::includes(more.begin(), more.end(), less.begin(), less.end());
    };
    return part(x.texts, y.texts) && part(x.terminals, y.terminals) && part(x.objects, y.objects) &&
           part(x.arrays, y.arrays);
  }

  static size_t at(int32_t i) { return static_cast<size_t>(i); }
  bool alive(int32_t n) const { return live_[at(n)] != 0; }
  int64_t of(int32_t n) const { return n == kNoNode || !alive(n) ? -1 : node_class_[at(n)]; }

  template <typename Describe>
  static size_t number(size_t count, std::vector<int32_t>& classes, Describe describe) {
    std::unordered_map<Words, int32_t, WordsHash> seen;
    Words words;
    std::vector<int32_t> next(count);
    for (size_t i = 0; i < count; ++i) {
      words.clear();
      describe(i, words);
      next[i] = seen.emplace(words, static_cast<int32_t>(seen.size())).first->second;
    }
    classes.swap(next);
    return seen.size();
  }

  void describe_object(size_t i, Words& out) const {
    const ObjectShape& s = program_.objects[i];
    // A pointer only tells bases apart; nothing is ordered by it.
    out = {static_cast<int64_t>(reinterpret_cast<intptr_t>(s.base.get())), s.min, s.max, s.ordered};
    for (size_t p = 0; p < s.properties.size(); ++p) {
      out.push_back(names_[i][p]);
      out.push_back(of(s.properties[p].value) * 2 + (s.properties[p].required ? 1 : 0));
    }
    std::map<uint32_t, int32_t> other(s.other.begin(), s.other.end());
    for (const auto& [label, node] : other) {
      out.push_back(label);
      out.push_back(of(node));
    }
  }

  void describe_array(const ArrayShape& s, Words& out) const {
    out = {of(s.rest), s.min,      s.max,      s.contains, of(s.hit),
           of(s.miss), s.min_hits, s.max_hits, s.unique};
    for (const auto* list : {&s.prefix, &s.hit_prefix, &s.miss_prefix}) {
      out.push_back(static_cast<int64_t>(list->size()));
      for (const int32_t n : *list) out.push_back(of(n));
    }
  }

  void describe_node(const ValueNode& n, Words& out) const {
    const auto add = [&](const std::vector<uint32_t>& list, const std::vector<int32_t>* classes) {
      Words part;
      for (const uint32_t i : list) part.push_back(classes == nullptr ? i : (*classes)[i]);
      std::sort(part.begin(), part.end());
      part.erase(std::unique(part.begin(), part.end()), part.end());
      out.push_back(static_cast<int64_t>(part.size()));
      out.insert(out.end(), part.begin(), part.end());
    };
    add(n.texts, nullptr);
    add(n.terminals, nullptr);
    add(n.objects, &object_class_);
    add(n.arrays, &array_class_);
  }

  // By class: its first member.
  static std::vector<int32_t> firsts(const std::vector<int32_t>& classes) {
    std::vector<int32_t> out(classes.size(), kNoNode);
    for (size_t i = classes.size(); i-- > 0;) out[at(classes[i])] = static_cast<int32_t>(i);
    return out;
  }

  Program& program_;
  const std::vector<char>& live_;
  std::vector<int32_t> node_class_, object_class_, array_class_;
  std::vector<std::vector<int64_t>> names_;  // by object and property
};

}  // namespace

void merge_equal_nodes(Program& program, const std::vector<char>& live) {
  Merger merger(program, live);
  if (merger.settle()) merger.rewrite();
}

Reached reached_from(const Program& program, int32_t root) {
  Reached out;
  std::vector<char> node(program.nodes.size(), 0), object(program.objects.size(), 0),
      array(program.arrays.size(), 0);
  std::vector<int32_t> unvisited;
  const auto visit = [&](int32_t n) {
    if (n == kNoNode || node[static_cast<size_t>(n)] != 0) return;
    node[static_cast<size_t>(n)] = 1;
    unvisited.push_back(n);
  };
  visit(root);
  while (!unvisited.empty()) {
    const ValueNode& n = program.nodes[static_cast<size_t>(unvisited.back())];
    unvisited.pop_back();
    for (const uint32_t o : n.objects) {
      if (object[o] != 0) continue;
      object[o] = 1;
      out.objects.push_back(o);
      for (const auto& p : program.objects[o].properties) visit(p.value);
      for (const auto& other : program.objects[o].other) visit(other.second);
    }
    for (const uint32_t a : n.arrays) {
      if (array[a] != 0) continue;
      array[a] = 1;
      out.arrays.push_back(a);
      const ArrayShape& s = program.arrays[a];
      for (const auto* list : {&s.prefix, &s.hit_prefix, &s.miss_prefix}) {
        for (const int32_t i : *list) visit(i);
      }
      for (const int32_t i : {s.rest, s.hit, s.miss}) visit(i);
    }
  }
  return out;
}

}  // namespace tensorfold::grammar
