// Masks of texts and terminals: what stays inside an automaton, and where it may end.
#include <algorithm>

#include "engine/grammar/mask_walk.h"

namespace tensorfold::grammar {
namespace {

constexpr uint32_t kFewNodes = 4096;  // are walked at once, without a look at classes
constexpr uint32_t kStructural = (1U << kQuote) | (1U << kBackslash) | (1U << kControl);

void or_into(std::span<uint32_t> bits, const std::vector<uint32_t>& more) {
  for (size_t i = 0; i < bits.size(); ++i) bits[i] |= more[i];
}

}  // namespace

size_t MaskWalk::TextHash::operator()(const TextKey& k) const {
  uint64_t h = reinterpret_cast<uintptr_t>(k.dfa) * 0x9E3779B97F4A7C15U;
  for (const uint64_t v : {k.state, k.room, k.need, k.first}) {
    h = (h ^ v) * 0xFF51AFD7ED558CCDU;
    h ^= h >> 32;
  }
  return static_cast<size_t>(h);
}

// step(node, byte, state) gives the state after a byte, or false to prune.
template <typename State, typename Step>
void MaskWalk::walk_nodes(uint32_t root, const State& start, Step step) {
  const uint32_t end = nodes_[root].end;
  const uint16_t base = nodes_[root].depth;
  std::vector<State> stack(longest_ + 1, start);
  const uint64_t most = nodes_left(kTextNodeWork);
  uint64_t walked = 0;
  for (uint32_t i = root + 1; i < end;) {
    if (++walked > most) break;
    const auto depth = static_cast<size_t>(nodes_[i].depth - base);
    stack[depth] = stack[depth - 1];
    i = step(i, nodes_[i].byte, stack[depth]) ? i + 1 : nodes_[i].end;
  }
  spend(walked, kTextNodeWork);
}

// Follows the automaton, for at most `left` code points; `structural` decides about bytes that mean
// more than themselves.
template <bool kCounted, typename Structural>
void MaskWalk::walk_dfa(uint32_t root, const Dfa& dfa, int32_t from, uint32_t left,
                        std::span<uint32_t> bits, Structural structural) {
  const uint16_t* const classes = facts(dfa).json.data();
  const int32_t* const next = dfa.next.data();
  const auto width = static_cast<size_t>(dfa.classes);
  const int32_t* const ids = vocab_.forest().tokens().data();
  const TokenForest::Node* const nodes = nodes_.data();
  int32_t* const path = dfa_path_.data() - nodes[root].depth;
  path[nodes[root].depth] = from;
  uint32_t* const chars = dfa_chars_.data() - nodes[root].depth;
  chars[nodes[root].depth] = 0;
  const uint64_t most = nodes_left(kDfaNodeWork);
  uint64_t walked = 0;
  const uint32_t end = nodes[root].end;
  for (uint32_t i = root + 1; i < end;) {
    if (++walked > most) break;
    const TokenForest::Node& node = nodes[i];
    const uint16_t c = classes[node.byte];
    if (c == kStructuralByte) {
      structural(i, path[node.depth - 1], kCounted ? chars[node.depth - 1] : 0);
      i = node.end;
      continue;
    }
    const int32_t t = next[static_cast<size_t>(path[node.depth - 1]) * width + c];
    if (t < 0) {
      i = node.end;
      continue;
    }
    path[node.depth] = t;
    if constexpr (kCounted) {
      const uint32_t n = chars[node.depth - 1] + ((node.byte & 0xC0U) != 0x80U ? 1U : 0U);
      if (n > left || dfa.min_chars[static_cast<size_t>(t)] > left - n) {
        i = node.end;
        continue;
      }
      chars[node.depth] = n;
    }
    for (uint32_t k = node.token_begin; k < node.token_end; ++k) set_token(bits, ids[k]);
    ++i;
  }
  spend(walked, kDfaNodeWork);
}

// At most so many nodes of the tree of all tokens are walked from this state.
uint32_t MaskWalk::nodes_ahead(const Dfa& dfa, int32_t state) const {
  const uint32_t root = vocab_.all_root();
  uint32_t total = 0;
  for (uint32_t i = root + 1; i < nodes_[root].end; i = nodes_[i].end) {
    if (dfa.step(state, nodes_[i].byte) >= 0) total += nodes_[i].end - i;
  }
  return total;
}

MaskWalk::Room MaskWalk::room_of(const TextSpec& spec, uint32_t count) {
  if (spec.max == kNoMax) return {};
  const uint32_t left = spec.max - count, rest = facts(*spec.dfa).rest_chars;
  return {left > rest ? left - rest : 0, left};
}

// Allows the classes of plain tokens that cannot leave the automaton, skips those that cannot stay
// inside, and names the others: they are to be walked, as are all tokens that are not plain. False
// where a walk over all tokens costs less: nothing was done.
bool MaskWalk::by_classes(const Dfa& dfa, int32_t state, uint32_t kinds, const Room& room,
                          std::span<uint32_t> bits, std::vector<const TokenClass*>& others) {
  const uint32_t ahead = nodes_ahead(dfa, state);
  if (ahead < kFewNodes) return false;
  ClosedRuns& runs = *facts(dfa).runs;
  std::vector<const TokenClass*> inside;
  uint32_t cost = 0;
  uint8_t lead = 0;
  const bool bounded = room.free < longest_;
  const auto closed_from = [&](int32_t from, uint32_t read) {
    return &runs.closed(from, kinds, bounded ? room.left - read : kRunForever);
  };
  const std::vector<ClosedRuns::Closed>* closed = closed_from(state, 0);
  bool dead = false;
  for (const TokenClass& c : vocab_.classes()) {
    if (c.lead != lead) {
      lead = c.lead;
      const int32_t led = lead == 0 ? state : dfa.step(state, lead);
      dead = led < 0 ||
             (bounded && dfa.min_chars[static_cast<size_t>(led)] + (lead == 0 ? 0 : 1) > room.left);
      if (!dead) closed = closed_from(led, lead == 0 ? 0 : 1);
    }
    if (dead) continue;
    // Not inside for sure, and no byte of another kind at which the text could have ended: a kind
    // that never goes on, or more code points than may still come.
    const bool sealed = !c.mixed && (c.kinds & ~kinds) == 0;
    if (sealed && (c.kinds & ~runs.ever()) != 0) continue;
    if (sealed && c.min_chars > room.left) continue;
    const uint32_t behind = c.max_chars - (c.lead != 0 ? 1 : 0);
    const bool stays = std::any_of(closed->begin(), closed->end(), [&](const auto& k) {
      return (c.kinds & ~k.kinds) == 0 && behind <= k.chars;
    });
    if (stays) {
      inside.push_back(&c);
    } else {
      others.push_back(&c);
      cost += c.nodes;
    }
  }
  if (inside.empty() || cost >= ahead) {
    others.clear();
    return false;
  }
  for (const TokenClass* c : inside) {
    if (!c->dense.empty()) or_into(bits, c->dense);
    for (const int32_t id : c->sparse) set_token(bits, id);
  }
  return true;
}

const MaskWalk::Piece& MaskWalk::plain_piece(std::unique_ptr<Piece>& known,
                                             const PlainText& plain) {
  std::unique_ptr<Piece> piece = new_piece();
  piece->base = &plain.bits;
  piece->exits = intern_exits(plain.exits);
  finish(*piece, {});
  known = std::move(piece);
  return *known;
}

// A JSON string's content from here; exits: after its closing mark.
const MaskWalk::Piece& MaskWalk::text_piece(const TextSpec& spec, const Frame& f) {
  const Dfa& dfa = *spec.dfa;
  const auto state = static_cast<int32_t>(f.b);
  const Room room = room_of(spec, f.c);
  const bool bounded = room.free < longest_;  // some token can reach the bound
  const uint32_t left = bounded ? spec.max - f.c : kNoMax;
  const uint32_t need = std::min(spec.min > f.c ? spec.min - f.c : 0U, longest_ + 1);
  std::unique_ptr<Piece>& known =
      texts_[{&dfa, f.b, left, need, UINT64_MAX - (spec.key ? 1U : 0U)}];
  if (known) return *known;
  if (dfa.universal && state == dfa.start && !bounded && need <= 1)
    return plain_piece(known, vocab_.plain(spec.key, need == 0));
  std::unique_ptr<Piece> piece = new_piece();
  std::vector<uint32_t> bits(vocab_.words(), 0);
  std::vector<uint32_t> exits;
  std::vector<std::pair<uint32_t, TextState>> slow;  // to be gone on with one by one
  // Byte by byte, with counters.
  const auto walk_from = [&](uint32_t root, const TextState& from) {
    walk_nodes(root, from, [&](uint32_t node, uint8_t byte, TextState& s) {
      switch (frames_.text_step(spec, s, byte)) {
        case TextStep::kDead:
          return false;
        case TextStep::kClosed:
          exits.push_back(node);
          return false;
        case TextStep::kLive:
          break;
      }
      set_tokens(node, bits);
      return true;
    });
  };
  // Escapes and the closing mark apart, the automaton and the count decide.
  const auto structural = [&](uint32_t node, int32_t s, uint32_t chars) {
    const uint32_t count = f.c + chars;
    TextState after{s, spec.max == kNoMax ? std::min(count, spec.min) : count, 0};
    const TextStep step = frames_.text_step(spec, after, nodes_[node].byte);
    if (step == TextStep::kClosed) exits.push_back(node);
    if (step != TextStep::kLive) return;
    set_tokens(node, bits);
    slow.emplace_back(node, after);
  };
  const auto walk_fast = [&](uint32_t root) {
    walk_dfa<false>(root, dfa, state, kNoMax, bits, structural);
  };
  const auto walk_counted = [&](uint32_t root) {
    walk_dfa<true>(root, dfa, state, left, bits, structural);
  };
  const bool plain = need == 0 && !bounded;
  std::vector<const TokenClass*> others;
  if (dfa.universal && state == dfa.start) {
    or_into(bits, vocab_.safe(left));
    plain ? walk_fast(vocab_.rest_root()) : walk_counted(vocab_.rest_root());
  } else if (by_classes(dfa, state, ~kStructural, room, bits, others)) {
    // Plain tokens hold no byte that ends the text: what is still needed is not asked for.
    for (const TokenClass* c : others)
      c->max_bytes <= room.free ? walk_fast(c->root) : walk_counted(c->root);
    plain ? walk_fast(vocab_.rest_root()) : walk_counted(vocab_.rest_root());
  } else {
    plain ? walk_fast(vocab_.all_root()) : walk_counted(vocab_.all_root());
  }
  for (const auto& [node, after] : slow) walk_from(node, after);
  std::sort(exits.begin(), exits.end());
  piece->exits = intern_exits(std::move(exits));
  piece->dense = std::move(bits);
  finish(*piece, {});
  known = std::move(piece);
  return *known;
}

// A text that must not be one of those before it. Only what those begin with can be used up, and
// only what has a quotation mark can end as one of them.
const MaskWalk::Piece& MaskWalk::unique_piece(FrameId frame, const TextSpec& spec, const Frame& f) {
  std::unique_ptr<Piece>& known = tops_[frame];
  if (known) return *known;
  std::unique_ptr<Piece> piece = new_piece();
  const Piece& plain = text_piece(spec, f);
  piece->dense = plain.base != nullptr ? *plain.base : plain.dense;
  for (const std::string& rest : frames_.used_rests(f)) {
    FrameSet now = {frame}, after;
    uint32_t node = vocab_.all_root();
    for (const char c : rest) {
      uint32_t child = node + 1;
      while (child < nodes_[node].end && nodes_[child].byte != static_cast<uint8_t>(c))
        child = nodes_[child].end;
      if (child >= nodes_[node].end) break;
      after.clear();
      for (const FrameId id : now) frames_.step(id, static_cast<uint8_t>(c), after);
      node = child;
      now.swap(after);
      if (!now.empty()) continue;
      std::vector<int32_t> dead;
      add_below(node, dead);
      for (const int32_t id : dead) clear_token(piece->dense, id);
      break;
    }
  }
  std::vector<int32_t> tokens;
  std::vector<uint32_t> exits;
  walk_local(vocab_.quote_root(), states_.intern({frame}), tokens, exits);
  piece->exits = intern_exits(std::move(exits));
  finish(*piece, std::move(tokens));
  known = std::move(piece);
  return *known;
}

// A terminal or raw text from here; exits: where it may end and one of `first` goes on.
const MaskWalk::Piece& MaskWalk::raw_piece(const Dfa& dfa, const TextSpec* spec, const Frame& f,
                                           const Bytes& first) {
  auto place = std::find(firsts_.begin(), firsts_.end(), first);
  if (place == firsts_.end()) place = firsts_.insert(firsts_.end(), first);
  const auto first_id = static_cast<uint64_t>(place - firsts_.begin());
  const uint32_t room = spec == nullptr || spec->max == kNoMax ? kNoMax : spec->max - f.c;
  const uint32_t need = spec != nullptr && spec->min > f.c ? spec->min - f.c : 0U;
  const uint64_t first_key = (first_id << 1) | (spec != nullptr ? 1U : 0U);
  std::unique_ptr<Piece>& known = texts_[{&dfa, f.b, room, need, first_key}];
  if (known) return *known;
  std::unique_ptr<Piece> piece = new_piece();
  const bool leaves = first.any();
  if (spec == nullptr && !leaves && facts(dfa).total) {
    piece->base = &vocab_.ordinary();
    finish(*piece, {});
    known = std::move(piece);
    return *known;
  }
  std::vector<uint32_t> bits(vocab_.words(), 0);
  std::vector<uint32_t> exits;
  const auto exit_at = [&](uint32_t node) {
    for (uint32_t child = node + 1; child < nodes_[node].end; child = nodes_[child].end) {
      if (!first.test(nodes_[child].byte)) continue;
      exits.push_back(node);
      return;
    }
  };
  const TextState start{static_cast<int32_t>(f.b), f.c, 0};
  const auto walk = [&](uint32_t root) {
    walk_nodes(root, start, [&](uint32_t node, uint8_t byte, TextState& s) {
      if (spec == nullptr) {
        s.state = dfa.step(s.state, byte);
        if (s.state < 0) return false;
      } else if (!frames_.raw_step(*spec, s, byte)) {
        return false;
      }
      set_tokens(node, bits);
      const bool ends = leaves && dfa.label(s.state) != 0;
      if (ends && (spec == nullptr || s.count >= spec->min)) exit_at(node);
      return true;
    });
  };
  // A class that cannot leave the automaton may still leave it for what follows: not if none of
  // its bytes begins that.
  uint32_t kinds = ~0U;
  for (int b = 0; b < 256; ++b) {
    if (!first.test(static_cast<size_t>(b))) continue;
    kinds &= b < 0x80 ? ~(1U << ascii_kind(static_cast<uint8_t>(b))) : ~kAnyBeyond;
  }
  std::vector<const TokenClass*> others;
  if (by_classes(dfa, start.state, kinds, spec == nullptr ? Room{} : room_of(*spec, f.c), bits,
                 others)) {
    for (const TokenClass* c : others) walk(c->root);
    walk(vocab_.rest_root());
  } else {
    walk(vocab_.all_root());
  }
  std::sort(exits.begin(), exits.end());
  piece->exits = intern_exits(std::move(exits));
  piece->dense = std::move(bits);
  finish(*piece, {});
  known = std::move(piece);
  return *known;
}

}  // namespace tensorfold::grammar
