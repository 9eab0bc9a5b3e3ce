// What goes on below a piece: the nodes where it was complete (its exits), and what comes from
// there.
#include <algorithm>

#include "engine/grammar/mask_walk.h"

namespace tensorfold::grammar {
namespace {

using Kind = Frame::Kind;

}  // namespace

MaskWalk::Exits MaskWalk::follow_local(Exits exits, FrameId frame, std::vector<const Piece*>& out) {
  const Piece& piece = piece_below(exits, frame);
  if (piece.with_exits) out.push_back(&exit_tokens(exits));
  if (!piece.none()) out.push_back(&piece);
  return piece.exits;
}

void MaskWalk::follow(Exits exits, FrameId id, std::vector<const Piece*>& out) {
  const Frame f = frames_.at(id);
  if (f.kind == Kind::kJoin) {
    FrameSet members;
    frames_.joined(id, members);
    for (const FrameId member : members) follow(exits, member, out);
    return;
  }
  const Local local = f.kind == Kind::kEnd ? Local{kEndFrame, kEndFrame, 0} : localize(id);
  const Exits more = follow_local(exits, local.frame, out);
  if (more != 0) follow(more, local.below, out);
}

// Tokens that end at these nodes.
const MaskWalk::Piece& MaskWalk::exit_tokens(Exits exits) {
  ExitSet& set = exit_sets_[exits];
  if (set.tokens) return *set.tokens;
  set.tokens = new_piece();
  std::vector<int32_t> tokens;
  for (const uint32_t node : set.nodes) add_tokens(node, tokens);
  finish(*set.tokens, std::move(tokens));
  return *set.tokens;
}

// What goes on below a piece that was complete at these nodes.
const MaskWalk::Piece& MaskWalk::piece_below(Exits exits, FrameId frame) {
  std::unique_ptr<Piece>& known = belows_[(static_cast<uint64_t>(exits) << 32) | frame];
  if (known) return *known;
  std::unique_ptr<Piece> piece = new_piece();
  const int32_t state = below(frame).state;
  if (state == kNoState) {
    known = std::move(piece);
    return *known;
  }
  std::vector<int32_t> tokens;
  std::vector<uint32_t> out;
  if (states_.exits(state)) out = exit_sets_[exits].nodes;
  piece->with_exits = states_.alive(state);
  if (piece->with_exits) walk_exits(exits, state, tokens, out);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  piece->exits = intern_exits(std::move(out));
  finish(*piece, std::move(tokens));
  known = std::move(piece);
  return *known;
}

// Walks what is below each of the nodes. Where that is done often (many objects may be around one
// value), the nodes below are sorted by byte once, so that only those that may lead on are met.
void MaskWalk::walk_exits(Exits exits, int32_t state, std::vector<int32_t>& tokens,
                          std::vector<uint32_t>& out) {
  const TokenForest& forest = vocab_.forest();
  ExitSet& set = exit_sets_[exits];
  if (++set.uses == 1) {
    for (const uint32_t node : set.nodes) walk_local(node, state, tokens, out);
    return;
  }
  if (set.uses == 2) {
    for (const uint32_t node : set.nodes) {
      const auto bytes = forest.child_bytes(node);
      for (size_t i = 0; i < bytes.size(); ++i)
        set.below.emplace_back(bytes[i], forest.children(node)[i]);
    }
    std::sort(set.below.begin(), set.below.end());
    piece_bytes_ += set.below.size() * sizeof(set.below[0]);
  }
  uint64_t walked = 0;
  for (size_t i = 0; i < set.below.size();) {
    const uint8_t byte = set.below[i].first;
    const int32_t t = states_.first(state)[byte] ? states_.step(state, byte) : kNoState;
    if (t == kNoState) {
      const auto from = set.below.begin() + static_cast<ptrdiff_t>(i);
      i = static_cast<size_t>(std::upper_bound(from, set.below.end(), std::pair(byte, UINT32_MAX)) -
                              set.below.begin());
      continue;
    }
    for (; i < set.below.size() && set.below[i].first == byte; ++i) {
      const uint32_t node = set.below[i].second;
      ++walked;
      if (states_.exits(t)) out.push_back(node);
      if (!states_.alive(t)) continue;
      add_tokens(node, tokens);
      walk_local(node, t, tokens, out);
    }
  }
  spend(walked, kFrameNodeWork);
}

uint32_t MaskWalk::intern_exits(std::vector<uint32_t> nodes) {
  if (nodes.empty()) return 0;
  uint64_t hash = 1469598103934665603U;
  for (const uint32_t n : nodes) hash = (hash ^ n) * 1099511628211U;
  std::vector<Exits>& same = exit_ids_[hash];
  for (const Exits e : same) {
    if (exit_sets_[e].nodes == nodes) return e;
  }
  piece_bytes_ += nodes.size() * sizeof(uint32_t) + 96;
  same.push_back(static_cast<Exits>(exit_sets_.size()));
  exit_sets_.emplace_back().nodes = std::move(nodes);
  return same.back();
}

}  // namespace tensorfold::grammar
