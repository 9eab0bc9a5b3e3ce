// Derived tables of a program.
#include "engine/grammar/program.h"

#include <algorithm>

namespace tensorfold::grammar {

uint32_t Program::literal(std::string_view text) {
  if (text.empty()) return add_expr({});
  const Result<DfaPtr> words = dfa_words({std::string(text)});
  return add_expr({Expr::Kind::kTerminal, add_dfa(*words), {}});
}

size_t Program::bytes() const {
  constexpr size_t kItemBytes = 64;
  size_t total = sizeof(Program);
  std::unordered_map<const Dfa*, bool> seen;
  for (const DfaPtr& d : dfas) total += d && seen.emplace(d.get(), true).second ? d->bytes() : 0;
  for (const TextSpec& t : texts)
    total += sizeof t + (t.dfa && seen.emplace(t.dfa.get(), true).second ? t.dfa->bytes() : 0);
  for (const ValueNode& n : nodes)
    total +=
        sizeof n + 4 * (n.texts.size() + n.terminals.size() + n.objects.size() + n.arrays.size());
  for (const ObjectShape& o : objects) {
    total += sizeof o + kItemBytes * (o.properties.size() + o.other.size());
    for (const KeyTrieNode& k : o.trie) total += sizeof k + 8 * k.next.size();
  }
  for (const ArrayShape& a : arrays) total += sizeof a + 12 * a.prefix.size();
  for (const Expr& e : exprs) total += sizeof e + 4 * e.parts.size();
  for (const ToolShape& t : tools) total += sizeof t + kItemBytes * t.open.size();
  return total;
}

namespace {

// Where only declared names could follow, the way to other names ends, so that a key never runs
// into a dead end. False: there are no other names at all.
bool mark_others(ObjectShape& shape) {
  const Dfa& base = *shape.base;
  std::vector<uint16_t> bytes_of(static_cast<size_t>(base.classes), 0), named;
  for (const uint8_t c : base.byte_class) ++bytes_of[c];
  std::vector<char> others(shape.trie.size(), 0);
  for (size_t i = shape.trie.size(); i-- > 0;) {  // a node comes behind the one above it
    const KeyTrieNode& node = shape.trie[i];
    if (node.base < 0) continue;
    bool any = node.property < 0 && base.label(node.base) != 0;
    named.assign(bytes_of.size(), 0);
    for (const auto& [byte, child] : node.next) {
      any = any || others[static_cast<size_t>(child)] != 0;
      ++named[base.byte_class[byte]];
    }
    const int32_t* row = base.next.data() + static_cast<size_t>(node.base) * bytes_of.size();
    for (size_t c = 0; c < bytes_of.size() && !any; ++c)
      any = row[c] >= 0 && named[c] < bytes_of[c];
    others[i] = any ? 1 : 0;
  }
  for (size_t i = 0; i < shape.trie.size(); ++i) {
    if (others[i] == 0) shape.trie[i].base = kDfaDead;
  }
  return others[0] != 0;
}

}  // namespace

void index_object(ObjectShape& shape) {
  const auto count = static_cast<uint32_t>(shape.properties.size());
  shape.required = 0;
  shape.next_required.assign(count + 1, count);
  shape.by_name.resize(count);
  for (uint32_t i = count; i-- > 0;) {
    shape.by_name[i] = i;
    shape.next_required[i] = shape.properties[i].required ? i : shape.next_required[i + 1];
    shape.required += shape.properties[i].required ? 1 : 0;
  }
  std::sort(shape.by_name.begin(), shape.by_name.end(), [&](uint32_t a, uint32_t b) {
    return shape.properties[a].name < shape.properties[b].name;
  });
  KeyTrieNode root;
  root.base = shape.base ? shape.base->start : kDfaDead;
  root.high = count;
  shape.trie.assign(1, root);
  for (uint32_t i = 0; i < count; ++i) {
    int32_t at = 0;
    for (const char c : shape.properties[shape.by_name[i]].name) {
      const auto byte = static_cast<uint8_t>(c);
      auto& next = shape.trie[static_cast<size_t>(at)].next;
      if (next.empty() || next.back().first != byte) {
        KeyTrieNode node;
        const int32_t base = shape.trie[static_cast<size_t>(at)].base;
        if (base >= 0) node.base = shape.base->step(base, byte);
        node.low = i;
        next.emplace_back(byte, static_cast<int32_t>(shape.trie.size()));
        at = static_cast<int32_t>(shape.trie.size());
        shape.trie.push_back(std::move(node));
      } else {
        at = next.back().second;
      }
      shape.trie[static_cast<size_t>(at)].high = i + 1;
    }
    shape.trie[static_cast<size_t>(at)].property = static_cast<int32_t>(shape.by_name[i]);
  }
  if (shape.base && !mark_others(shape)) shape.base = nullptr;
}

}  // namespace tensorfold::grammar
