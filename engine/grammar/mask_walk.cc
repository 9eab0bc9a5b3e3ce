// Walks over the token tries.
#include "engine/grammar/mask_walk.h"

#include <algorithm>

namespace tensorfold::grammar {
namespace {

void or_into(std::span<uint32_t> bits, const std::vector<uint32_t>& more) {
  for (size_t i = 0; i < bits.size(); ++i) bits[i] |= more[i];
}

void set_tokens(const TokenTrie& trie, uint32_t node, std::span<uint32_t> bits) {
  const TokenTrie::Node& n = trie.nodes()[node];
  for (uint32_t t = n.token_begin; t < n.token_end; ++t) set_token(bits, trie.tokens()[t]);
}

// Walks every node below `root`; step gives the state after a byte, or false to prune.
template <typename State, typename Step>
void walk_states(const TokenTrie& trie, uint32_t root, const State& start, Step step) {
  const std::vector<TokenTrie::Node>& nodes = trie.nodes();
  const uint16_t base = nodes[root].depth;
  std::vector<State> stack(1, start);
  for (uint32_t i = root + 1; i < nodes[root].end;) {
    const auto depth = static_cast<size_t>(nodes[i].depth - base);
    stack.resize(depth + 1, start);
    stack[depth] = stack[depth - 1];
    i = step(i, nodes[i].byte, stack[depth]) ? i + 1 : nodes[i].end;
  }
}

template <typename T>
void append(std::string& key, T value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

MaskWalk::MaskWalk(Frames& frames, const VocabImage& vocab) : frames_(frames), vocab_(vocab) {
  for (const TokenTrie::Node& n : vocab.all().nodes())
    longest_ = std::max<uint32_t>(longest_, n.depth);
  any_text_.dfa = dfa_universal();
}

// The thread whose mask is the same and whose counter is the least of those.
FrameId MaskWalk::canonical(FrameId id) {
  const Frame f = frames_.at(id);
  if (f.kind != Frame::Kind::kText) return id;
  const TextSpec& spec = frames_.program().texts[f.a];
  Frame same = f;
  const uint32_t need = spec.min > f.c ? spec.min - f.c : 0;
  if (spec.max != kNoMax) {
    const uint32_t slack =
        spec.dfa->universal
            ? 0
            : static_cast<uint32_t>(std::min<size_t>(spec.dfa->states(), kDfaStatesMax));
    if (spec.max - f.c < longest_ + 1 + slack) return id;
  }
  if (need == 0) same.c = spec.min;
  if (need > longest_) same.c = 0;
  return same == f ? id : frames_.intern(same);
}

MaskWalk::Inner& MaskWalk::remember(const std::string& key) {
  if (inner_.size() >= kInnerKeptMax) inner_.clear();
  std::unique_ptr<Inner>& slot = inner_[key];
  slot = std::make_unique<Inner>();
  slot->bits.assign(vocab_.words(), 0);
  return *slot;
}

void MaskWalk::mask(FrameId id, std::span<uint32_t> bits) {
  const Frame f = frames_.at(id);
  switch (f.kind) {
    case Frame::Kind::kEnd:
      for (const int32_t end : vocab_.spec().end_ids) {
        if (end >= 0 && end < vocab_.spec().mask_tokens) set_token(bits, end);
      }
      return;
    case Frame::Kind::kSymbol:
      if (f.a < static_cast<uint32_t>(vocab_.spec().mask_tokens))
        set_token(bits, static_cast<int32_t>(f.a));
      return;
    case Frame::Kind::kTerminal:
      if (f.e == 0) {
        raw_mask(f, bits);
        return;
      }
      break;
    case Frame::Kind::kText:
      if (frames_.program().texts[f.a].raw) {
        raw_mask(f, bits);
        return;
      }
      if (f.d == 0 && (f.e == 0 || frames_.program().texts[f.a].dfa->universal)) {
        text_mask(f, bits);
        return;
      }
      break;
    case Frame::Kind::kKey: {
      const ObjectShape& shape = frames_.program().objects[f.a];
      if (f.d == 0 && shape.base && shape.base->universal &&
          frames_.other_allowed(frames_.at(f.parent))) {
        key_mask(id, bits);
        return;
      }
      break;
    }
    default:
      break;
  }
  walk_below(vocab_.all(), 0, {id}, bits);
}

void MaskWalk::walk_below(const TokenTrie& trie, uint32_t root, const FrameSet& from,
                          std::span<uint32_t> bits) {
  const std::vector<TokenTrie::Node>& nodes = trie.nodes();
  const uint16_t base = nodes[root].depth;
  if (levels_.empty()) levels_.resize(1);
  levels_[0] = from;
  for (uint32_t i = root + 1; i < nodes[root].end;) {
    const auto depth = static_cast<size_t>(nodes[i].depth - base);
    if (levels_.size() <= depth) levels_.resize(depth + 1);
    FrameSet& after = levels_[depth];
    after.clear();
    for (const FrameId id : levels_[depth - 1]) frames_.step(id, nodes[i].byte, after);
    if (after.empty()) {
      i = nodes[i].end;
      continue;
    }
    frames_.merge(after);
    set_tokens(trie, i, bits);
    ++i;
  }
}

const MaskWalk::Inner& MaskWalk::text_inner(const TextSpec& spec, const Frame& f) {
  const auto state = static_cast<int32_t>(f.b);
  std::string key("t");
  append(key, spec.dfa.get());
  append(key, state);
  const uint32_t room = spec.max == kNoMax ? kNoMax : spec.max - f.c;
  append(key, room);
  append(key, spec.min > f.c ? spec.min - f.c : 0U);
  if (const auto it = inner_.find(key); it != inner_.end()) return *it->second;
  Inner& inner = remember(key);
  const bool plain = spec.dfa->universal && state == spec.dfa->start;
  inner.trie = plain ? &vocab_.rest() : &vocab_.all();
  if (plain) or_into(inner.bits, vocab_.safe(room));
  walk_states(*inner.trie, 0, TextState{state, f.c, 0},
              [&](uint32_t node, uint8_t byte, TextState& s) {
                switch (frames_.text_step(spec, s, byte)) {
                  case TextStep::kDead:
                    return false;
                  case TextStep::kClosed:
                    inner.exits.push_back({node, {}});
                    inner.trie->path(node, inner.exits.back().path);
                    return false;
                  case TextStep::kLive:
                    break;
                }
                set_tokens(*inner.trie, node, inner.bits);
                return true;
              });
  return inner;
}

void MaskWalk::text_mask(const Frame& f, std::span<uint32_t> bits) {
  const Inner& inner = text_inner(frames_.program().texts[f.a], f);
  or_into(bits, inner.bits);
  FrameSet after;
  if (f.e == 0) frames_.resume(f.parent, after);
  for (const Exit& exit : inner.exits) {
    if (f.e != 0) {
      Frame done = f;
      for (size_t i = 0; i + 1 < exit.path.size(); ++i)
        done.e = frames_.capture(done.e, static_cast<uint8_t>(exit.path[i]));
      FrameId below = kEndFrame;
      after.clear();
      if (!frames_.completed(done, below)) continue;
      frames_.resume(below, after);
    }
    set_tokens(*inner.trie, exit.node, bits);
    walk_below(*inner.trie, exit.node, after, bits);
  }
}

// A key of an open object: any text goes on, so only where it ends depends on the names.
void MaskWalk::key_mask(FrameId id, std::span<uint32_t> bits) {
  const Frame f = frames_.at(id);
  const ObjectShape& shape = frames_.program().objects[f.a];
  const auto tree = static_cast<uint32_t>(shape.trie.size());
  Frame as_text;
  as_text.kind = Frame::Kind::kText;
  as_text.b = f.b < tree ? static_cast<uint32_t>(shape.trie[f.b].base) : f.b - tree;
  const Inner& inner = text_inner(any_text_, as_text);
  or_into(bits, inner.bits);
  for (const Exit& exit : inner.exits) {
    Frame now = f, next;
    bool alive = true;
    for (size_t i = 0; alive && i + 1 < exit.path.size(); ++i) {
      alive = frames_.key_step(now, next, static_cast<uint8_t>(exit.path[i])) == TextStep::kLive;
      now = next;
    }
    if (!alive) continue;
    FrameSet after;
    frames_.close_key(now, after);
    if (after.empty()) continue;
    set_tokens(*inner.trie, exit.node, bits);
    walk_below(*inner.trie, exit.node, after, bits);
  }
}

// Bytes that may come first in any of these; more than can is fine, fewer is not.
MaskWalk::Bytes MaskWalk::first_bytes(const FrameSet& set) const {
  Bytes out;
  for (const FrameId id : set) {
    const Frame& f = frames_.at(id);
    switch (f.kind) {
      case Frame::Kind::kEnd:
      case Frame::Kind::kSymbol:
        break;
      case Frame::Kind::kObject:
      case Frame::Kind::kArray:
        for (const char c : {' ', '\t', '\n', '\r', ',', '}', ']'})
          out.set(static_cast<uint8_t>(c));
        break;
      case Frame::Kind::kTerminal: {
        const Dfa& dfa = *frames_.program().dfas[f.a];
        for (size_t b = 0; b < 256; ++b) {
          if (dfa.step(static_cast<int32_t>(f.b), static_cast<uint8_t>(b)) >= 0) out.set(b);
        }
        break;
      }
      default:
        out.set();
        return out;
    }
  }
  return out;
}

bool MaskWalk::is_total(const Dfa& dfa) {
  const auto [it, fresh] = total_.emplace(&dfa, true);
  if (fresh) {
    it->second = std::all_of(dfa.next.begin(), dfa.next.end(), [](int32_t t) { return t >= 0; });
  }
  return it->second;
}

const MaskWalk::Inner& MaskWalk::raw_inner(const Dfa& dfa, const TextSpec* spec, const Frame& f,
                                           const Bytes& first) {
  std::string key("r");
  append(key, &dfa);
  append(key, spec);
  append(key, f.b);
  append(key, f.c);
  append(key, first);
  if (const auto it = inner_.find(key); it != inner_.end()) return *it->second;
  Inner& inner = remember(key);
  inner.trie = &vocab_.all();
  const std::vector<TokenTrie::Node>& nodes = inner.trie->nodes();
  if (spec == nullptr && first.none() && is_total(dfa)) {
    inner.bits = vocab_.ordinary();
    return inner;
  }
  const bool leaves = first.any();
  walk_states(*inner.trie, 0, TextState{static_cast<int32_t>(f.b), f.c, 0},
              [&](uint32_t node, uint8_t byte, TextState& s) {
                if (spec == nullptr) {
                  s.state = dfa.step(s.state, byte);
                  if (s.state < 0) return false;
                } else if (!frames_.raw_step(*spec, s, byte)) {
                  return false;
                }
                set_tokens(*inner.trie, node, inner.bits);
                if (!leaves || dfa.label(s.state) == 0) return true;
                if (spec != nullptr && s.count < spec->min) return true;
                for (uint32_t child = node + 1; child < nodes[node].end; child = nodes[child].end) {
                  if (!first.test(nodes[child].byte)) continue;
                  inner.exits.push_back({node, {}});
                  break;
                }
                return true;
              });
  return inner;
}

void MaskWalk::raw_mask(const Frame& f, std::span<uint32_t> bits) {
  const bool text = f.kind == Frame::Kind::kText;
  const TextSpec* spec = text ? &frames_.program().texts[f.a] : nullptr;
  const Dfa& dfa = text ? *spec->dfa : *frames_.program().dfas[f.a];
  FrameSet after;
  frames_.resume(f.parent, after);
  const Inner& inner = raw_inner(dfa, spec, f, first_bytes(after));
  or_into(bits, inner.bits);
  for (const Exit& exit : inner.exits) walk_below(*inner.trie, exit.node, after, bits);
}

}  // namespace tensorfold::grammar
