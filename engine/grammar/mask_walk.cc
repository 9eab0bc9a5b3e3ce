// Pieces of masks: how a stack is cut, what is remembered, how it is put together. How texts are
// walked is in mask_text.cc.
#include "engine/grammar/mask_walk.h"

#include <algorithm>

namespace tensorfold::grammar {
namespace {

constexpr size_t kSparseTokensMax = 1024;  // of a piece; more are kept as bits
constexpr size_t kPieceBytes = 192;        // of a piece without its tokens
constexpr size_t kLocalsMax = 1U << 18;    // frames that were cut

using Kind = Frame::Kind;

}  // namespace

MaskWalk::MaskWalk(Frames& frames, const VocabImage& vocab)
    : frames_(frames),
      vocab_(vocab),
      nodes_(vocab.forest().nodes()),
      longest_(vocab.longest_bytes()),
      counted_spaces_(frames.program().whitespace != Whitespace::kAny ||
                      vocab.longest_space() > kSpaceMaxChars),
      states_(frames) {
  any_text_.dfa = dfa_universal();
  exit_sets_.emplace_back();
  path_.resize(longest_ + 2);
  dfa_path_.assign(longest_ + 1, kNoState);
  dfa_chars_.assign(longest_ + 1, 0);
}

bool MaskWalk::trim() {
  if (piece_bytes_ <= kPiecesMaxBytes && states_.bytes() <= kLocalStatesMaxBytes &&
      locals_.size() <= kLocalsMax)
    return false;
  states_.clear();
  locals_.clear();
  tops_.clear();
  texts_.clear();
  belows_.clear();
  resumed_.clear();
  exit_sets_.resize(1);
  exit_ids_.clear();
  firsts_.clear();
  absolutes_.clear();
  spaced_.clear();
  piece_bytes_ = 0;
  return true;
}

// ---------------------------------------------------------------- cutting a stack

// The thread whose mask is the same and whose counter is the least of those.
FrameId MaskWalk::canonical(FrameId id) {
  const Frame f = frames_.at(id);
  const Frame same = plain_counters(f);
  return same == f ? id : frames_.intern(same);
}

// Counters that no token brings to a bound, set to a value that stands for all of those.
Frame MaskWalk::plain_counters(const Frame& f) {
  Frame same = f;
  if (f.kind == Kind::kText) {
    const TextSpec& spec = frames_.program().texts[f.a];
    const uint32_t need = spec.min > f.c ? spec.min - f.c : 0;
    if (spec.max != kNoMax) {
      const uint32_t slack = spec.dfa->universal ? 0 : facts(*spec.dfa).rest_chars;
      if (spec.max - f.c < longest_ + 1 + slack) return f;
    }
    if (need == 0) same.c = spec.min;
    if (need > longest_) same.c = 0;
  } else if (f.kind == Kind::kArray && !frames_.program().arrays[f.a].contains) {
    const ArrayShape& s = frames_.program().arrays[f.a];
    const auto prefix = static_cast<uint32_t>(s.prefix.size());
    if (s.max != kNoMax && s.max - f.c <= longest_ + 1) return f;
    const uint32_t enough = std::max(s.min, prefix);
    if (f.c >= enough) same.c = enough;
    if (f.c >= prefix && f.c + longest_ + 1 < s.min) same.c = prefix;
  }
  return same;
}

MaskWalk::Local MaskWalk::localize(FrameId id) {
  const auto [it, fresh] = locals_.try_emplace(id);
  if (!fresh) return it->second;
  Frame f = frames_.at(id);
  const bool sticky =
      f.kind == Kind::kKey ||
      (f.e != 0 && (f.kind == Kind::kText || f.kind == Kind::kTerminal || f.kind == Kind::kValue));
  Local local{};
  if (sticky) {
    Frame around = plain_counters(frames_.at(f.parent));
    local.below = around.parent;
    around.parent = kHoleFrame;
    f.parent = frames_.intern(around);
  } else {
    f = plain_counters(f);
    if (!counted_spaces_) {
      const uint32_t spaces = Frames::spaces_of(f);
      if (spaces + vocab_.longest_space() > kSpaceMaxChars) local.spaces = spaces;
      f = Frames::without_spaces(f);
    }
    local.below = f.parent;
    f.parent = kHoleFrame;
  }
  local.frame = frames_.intern(f);
  it->second = local;
  return local;
}

const MaskWalk::Below& MaskWalk::below(FrameId frame) {
  const auto [it, fresh] = resumed_.try_emplace(frame);
  if (!fresh) return it->second;
  FrameSet after;
  frames_.resume(frame, after);
  frames_.merge(after);
  Below info;
  info.state = states_.intern(after);
  info.first = first_bytes(after);
  it->second = info;
  return it->second;
}

MaskWalk::Bytes MaskWalk::first_below(FrameId id) {
  const Frame f = frames_.at(id);
  if (f.kind == Kind::kEnd) return {};
  if (f.kind == Kind::kJoin) {
    FrameSet after;
    frames_.resume(id, after);
    return first_bytes(after);
  }
  return below(localize(id).frame).first;
}

// Bytes that may come first in any of these; more than can is fine, fewer is not.
MaskWalk::Bytes MaskWalk::first_bytes(const FrameSet& set) {
  Bytes out;
  for (const FrameId id : set) frames_.first_bytes(id, out);
  return out;
}

// ---------------------------------------------------------------- putting a mask together

void MaskWalk::mask(FrameId id, std::vector<const Piece*>& out) {
  struct Uncounted {
    Frames& frames;
    ~Uncounted() { frames.count_spaces(true); }
  } const restore{frames_};
  frames_.count_spaces(counted_spaces_);
  thread_mask(id, out);
}

void MaskWalk::spend(uint64_t nodes, int64_t weight) {
  nodes_walked_ += nodes;
  work_ -= static_cast<int64_t>(nodes) * weight;
  if (work_ < 0) throw MaskWorkSpent();
}

void MaskWalk::thread_mask(FrameId id, std::vector<const Piece*>& out) {
  const Frame f = frames_.at(id);
  // Near the deepest stack pieces do depend on what is below them.
  const bool simple = f.kind == Kind::kEnd || f.kind == Kind::kSymbol ||
                      (f.e != 0 && Frames::spaces_of(f) != 0 && !counted_spaces_);
  if (simple || f.depth + longest_ + 2 >= frames_.program().depth_max) {
    out.push_back(&absolute_piece(id));
    return;
  }
  const Local local = localize(id);
  const Piece& piece = top_piece(local);
  out.push_back(&piece);
  if (piece.exits != 0) follow(piece.exits, local.below, out);
  for (const Piece::Turn& turn : piece.turns) {
    const Exits valued = follow_local(turn.exits, turn.colon, out);
    const Exits done = valued != 0 ? follow_local(valued, turn.object, out) : 0;
    if (done != 0) follow(done, local.below, out);
  }
}

const MaskWalk::Piece& MaskWalk::top_piece(const Local& local) {
  const Frame f = frames_.at(local.frame);
  const Program& program = frames_.program();
  if (f.kind == Kind::kTerminal && f.e == 0)
    return raw_piece(*program.dfas[f.a], nullptr, f, first_below(local.below));
  if (f.kind == Kind::kText) {
    const TextSpec& spec = program.texts[f.a];
    if (spec.raw) return raw_piece(*spec.dfa, &spec, f, first_below(local.below));
    if (f.d == 0 && f.e == 0) return text_piece(spec, f);
    if (f.d == 0) return unique_piece(local.frame, spec, f);
  }
  if (f.kind == Kind::kKey && f.d == 0) {
    const ObjectShape& shape = program.objects[f.a];
    const auto tree = static_cast<uint32_t>(shape.trie.size());
    const int32_t base = f.b < tree ? shape.trie[f.b].base : static_cast<int32_t>(f.b - tree);
    const bool others = base >= 0 && frames_.other_allowed(frames_.at(f.parent));
    return key_piece(local.frame, others ? shape.base : nullptr, base);
  }
  if (local.spaces > 0) return spaced_piece(local.frame, local.spaces);
  std::unique_ptr<Piece>& known = tops_[local.frame];
  if (known) return *known;
  std::unique_ptr<Piece> piece = new_piece();
  std::vector<int32_t> tokens;
  std::vector<uint32_t> exits;
  walk_local(vocab_.all_root(), states_.intern({local.frame}), tokens, exits);
  piece->exits = intern_exits(std::move(exits));
  finish(*piece, std::move(tokens));
  known = std::move(piece);
  return *known;
}

// The piece of a frame after that much white space: without what brings it over the bound.
const MaskWalk::Piece& MaskWalk::spaced_piece(FrameId frame, uint32_t spaces) {
  std::unique_ptr<Piece>& known = spaced_[(static_cast<uint64_t>(spaces) << 32) | frame];
  if (known) return *known;
  std::unique_ptr<Piece> piece = new_piece();
  const Piece& plain = top_piece({frame, kHoleFrame, 0});
  const uint32_t room = kSpaceMaxChars - spaces;
  std::vector<int32_t> tokens;
  std::vector<uint32_t> exits;
  for (const uint32_t node : exit_sets_[plain.exits].nodes) {
    if (nodes_[node].lead <= room) exits.push_back(node);
  }
  piece->dense = plain.dense;
  if (!plain.dense.empty() && room == 0) {
    for (size_t w = 0; w < piece->dense.size(); ++w) piece->dense[w] &= ~vocab_.led_by_space()[w];
  } else if (!plain.dense.empty()) {
    for (const int32_t id : vocab_.long_leads()) {
      if (vocab_.lead_of(id) <= room) break;
      clear_token(piece->dense, id);
    }
  }
  for (const int32_t id : plain.sparse) {
    if (vocab_.lead_of(id) <= room) tokens.push_back(id);
  }
  piece->exits = intern_exits(std::move(exits));
  finish(*piece, std::move(tokens));
  known = std::move(piece);
  return *known;
}

// A key. Names that are not declared go on as their automaton says, whatever is around them: only
// what has a quotation mark in it, or leads to a declared name, needs a look. `base`: null when
// only declared names may come.
const MaskWalk::Piece& MaskWalk::key_piece(FrameId frame, const DfaPtr& base, int32_t state) {
  std::unique_ptr<Piece>& known = tops_[frame];
  if (known) return *known;
  std::unique_ptr<Piece> piece = new_piece();
  std::vector<int32_t> tokens, dead;
  if (!base || !base->universal) walk_names(frame, tokens, dead);
  if (base) {
    TextSpec& spec = key_texts_[base.get()];
    spec.dfa = base;
    spec.key = true;
    Frame as_text;
    as_text.kind = Kind::kText;
    as_text.b = static_cast<uint32_t>(state);
    const Piece& inside = text_piece(spec, as_text);
    piece->base = inside.base != nullptr ? inside.base : &inside.dense;
    if (!dead.empty()) {
      piece->dense = *piece->base;
      piece->base = nullptr;
      for (const int32_t id : dead) clear_token(piece->dense, id);
    }
  }
  walk_key(frame, tokens, piece->turns);
  finish(*piece, std::move(tokens));
  known = std::move(piece);
  return *known;
}

// Tokens with a quotation mark. What a closed key leads to is told apart by its value and by the
// object behind, so that equal values are walked once whatever objects they are in.
void MaskWalk::walk_key(FrameId key, std::vector<int32_t>& tokens,
                        std::vector<Piece::Turn>& turns) {
  const uint32_t root = vocab_.quote_root();
  std::vector<std::pair<FrameId, std::vector<uint32_t>>> closed;  // by what follows
  FrameSet after;
  key_path_.resize(longest_ + 1);
  key_path_[0] = frames_.at(key);
  const uint64_t most = nodes_left(kTextNodeWork);
  uint64_t walked = 0;
  for (uint32_t i = root + 1; i < nodes_[root].end;) {
    if (++walked > most) break;
    const Frame from = key_path_[nodes_[i].depth - 1U];
    const TextStep step = frames_.key_step(from, key_path_[nodes_[i].depth], nodes_[i].byte);
    if (step == TextStep::kLive) {
      add_tokens(i, tokens);
      ++i;
      continue;
    }
    after.clear();
    if (step == TextStep::kClosed) frames_.close_key(from, after);
    for (const FrameId colon : after) {
      auto place = std::find_if(closed.begin(), closed.end(),
                                [colon](const auto& c) { return c.first == colon; });
      if (place == closed.end()) place = closed.insert(closed.end(), {colon, {}});
      place->second.push_back(i);
    }
    i = nodes_[i].end;
  }
  spend(walked, kTextNodeWork);
  for (auto& [id, nodes] : closed) {
    Frame colon = frames_.at(id);
    const FrameId object = colon.parent;
    colon.parent = kHoleFrame;
    turns.push_back({intern_exits(std::move(nodes)), frames_.intern(colon), object});
  }
}

// Tokens that stay on the way to a declared name, and those on such a way that goes no farther,
// whatever the automaton of other names says of them.
void MaskWalk::walk_names(FrameId key, std::vector<int32_t>& tokens, std::vector<int32_t>& dead) {
  const std::vector<KeyTrieNode>& trie = frames_.program().objects[frames_.at(key).a].trie;
  const uint32_t tree = static_cast<uint32_t>(trie.size());
  const uint32_t root = vocab_.all_root();
  std::vector<Frame> stack(longest_ + 1);
  stack[0] = frames_.at(key);
  if (stack[0].b >= tree) return;
  const uint64_t most = nodes_left(kTextNodeWork);
  uint64_t walked = 0;
  for (uint32_t i = root + 1; i < nodes_[root].end;) {
    if (++walked > most) break;
    const size_t depth = nodes_[i].depth;
    const uint8_t byte = nodes_[i].byte;
    const Frame& from = stack[depth - 1];
    Frame& next = stack[depth];
    const auto& names = trie[from.b].next;
    const bool named =
        from.d != 0 || byte == '\\' ||
        std::any_of(names.begin(), names.end(), [byte](const auto& n) { return n.first == byte; });
    const TextStep step = named ? frames_.key_step(from, next, byte) : TextStep::kClosed;
    if (step == TextStep::kLive && next.b < tree) {
      add_tokens(i, tokens);
      ++i;
      continue;
    }
    if (step == TextStep::kDead) add_below(i, dead);
    i = nodes_[i].end;
  }
  spend(walked, kTextNodeWork);
}

// All tokens of a subtree.
void MaskWalk::add_below(uint32_t node, std::vector<int32_t>& tokens) const {
  const std::vector<int32_t>& ids = vocab_.forest().tokens();
  const uint32_t last = nodes_[nodes_[node].end - 1].token_end;
  for (uint32_t t = nodes_[node].token_begin; t < last; ++t) tokens.push_back(ids[t]);
}

// ---------------------------------------------------------------- walking

// In the order of the nodes. Only what may lead on is stepped to.
void MaskWalk::walk_local(uint32_t root, int32_t from, std::vector<int32_t>& tokens,
                          std::vector<uint32_t>& exits) {
  const TokenForest& forest = vocab_.forest();
  const uint64_t most = nodes_left(kFrameNodeWork);
  uint64_t walked = 0;
  size_t depth = 0;
  const auto open = [&](uint32_t node, int32_t state) {
    path_[depth++] = {node, 0, static_cast<uint32_t>(forest.child_bytes(node).size()), state};
  };
  open(root, from);
  while (depth > 0 && walked <= most) {
    Open& top = path_[depth - 1];
    const uint8_t* bytes = forest.child_bytes(top.node).data();
    const ByteSet& first = states_.first(top.state);
    while (top.next < top.end && !first[bytes[top.next]]) ++top.next;
    if (top.next == top.end) {
      --depth;
      continue;
    }
    const uint32_t node = forest.children(top.node)[top.next];
    const int32_t t = states_.step(top.state, bytes[top.next++]);
    ++walked;
    if (t == kNoState) continue;
    if (states_.exits(t)) exits.push_back(node);
    if (!states_.alive(t)) continue;
    add_tokens(node, tokens);
    open(node, t);
  }
  spend(walked, kFrameNodeWork);
}

// A thread whose stack is not cut: the end, a symbol, or too deep a stack.
const MaskWalk::Piece& MaskWalk::absolute_piece(FrameId id) {
  std::unique_ptr<Piece>& known = absolutes_[id];
  if (known) return *known;
  std::unique_ptr<Piece> piece = new_piece();
  const Frame f = frames_.at(id);
  const int32_t width = vocab_.spec().mask_tokens;
  std::vector<int32_t> tokens;
  if (f.kind == Kind::kEnd) {
    for (const int32_t end : vocab_.spec().end_ids) {
      if (end >= 0 && end < width) tokens.push_back(end);
    }
  } else if (f.kind == Kind::kSymbol) {
    if (f.a < static_cast<uint32_t>(width)) tokens.push_back(static_cast<int32_t>(f.a));
  } else {
    walk_absolute(id, tokens);
  }
  finish(*piece, std::move(tokens));
  known = std::move(piece);
  return *known;
}

void MaskWalk::walk_absolute(FrameId id, std::vector<int32_t>& tokens) {
  const uint32_t root = vocab_.all_root();
  frames_.count_spaces(true);
  if (levels_.empty()) levels_.resize(1);
  levels_[0] = {id};
  const uint64_t most = nodes_left(kFrameNodeWork);
  uint64_t walked = 0;
  for (uint32_t i = root + 1; i < nodes_[root].end;) {
    if (++walked > most) break;
    const size_t depth = nodes_[i].depth;
    if (levels_.size() <= depth) levels_.resize(depth + 1);
    FrameSet& after = levels_[depth];
    after.clear();
    for (const FrameId now : levels_[depth - 1]) frames_.step(now, nodes_[i].byte, after);
    if (after.empty()) {
      i = nodes_[i].end;
      continue;
    }
    frames_.merge(after);
    add_tokens(i, tokens);
    ++i;
  }
  spend(walked, kFrameNodeWork);
}

void MaskWalk::add_tokens(uint32_t node, std::vector<int32_t>& tokens) const {
  const TokenForest::Node& n = nodes_[node];
  const std::vector<int32_t>& ids = vocab_.forest().tokens();
  for (uint32_t t = n.token_begin; t < n.token_end; ++t) tokens.push_back(ids[t]);
}

void MaskWalk::set_tokens(uint32_t node, std::span<uint32_t> bits) const {
  const TokenForest::Node& n = nodes_[node];
  for (uint32_t t = n.token_begin; t < n.token_end; ++t)
    set_token(bits, vocab_.forest().tokens()[t]);
}

// ---------------------------------------------------------------- remembering

// Adds `tokens` and counts the piece.
void MaskWalk::finish(Piece& piece, std::vector<int32_t> tokens) {
  if (piece.dense.empty() && tokens.size() <= kSparseTokensMax) {
    piece.sparse = std::move(tokens);
    piece.sparse.shrink_to_fit();
  } else {
    if (piece.dense.empty()) piece.dense.assign(vocab_.words(), 0);
    for (const int32_t id : tokens) set_token(piece.dense, id);
  }
  piece_bytes_ += kPieceBytes + (piece.dense.size() + piece.sparse.size()) * sizeof(uint32_t);
}

MaskWalk::DfaFacts& MaskWalk::facts(const Dfa& dfa) {
  const auto [it, fresh] = facts_.try_emplace(&dfa);
  DfaFacts& f = it->second;
  if (!fresh) return f;
  f.runs = std::make_unique<ClosedRuns>(dfa);
  f.total = std::all_of(dfa.next.begin(), dfa.next.end(), [](int32_t t) { return t >= 0; });
  for (const uint32_t chars : dfa.min_chars) f.rest_chars = std::max(f.rest_chars, chars);
  f.json.assign(dfa.byte_class.begin(), dfa.byte_class.end());
  for (size_t b = 0; b < f.json.size(); ++b) {
    if (b < 0x20 || b == '"' || b == '\\') f.json[b] = kStructuralByte;
  }
  return f;
}

}  // namespace tensorfold::grammar
