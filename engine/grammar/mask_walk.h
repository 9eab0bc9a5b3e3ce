// The mask of one thread: which tokens keep it alive.
//
// A thread's stack is cut into pieces: its top frame (with the object around a key, the array
// around an item that must be unique), then each frame below. What a piece does to the tokens
// depends on nothing but the piece and on where in the token trees it begins: the root for the top,
// the nodes where the piece above was complete (its exits) for those below. Both are remembered, so
// that a mask is a few look-ups wherever equal pieces stand. Counters far from their bounds do not
// make pieces differ.
//
// Text is not walked token by token where whole classes of tokens are known to stay inside it
// (VocabImage::safe, ClosedRuns). Not thread-safe; belongs to a Matcher.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/grammar/closed_run.h"
#include "engine/grammar/frames.h"
#include "engine/grammar/local_states.h"
#include "engine/grammar/vocab_image.h"

namespace tensorfold::grammar {

inline constexpr size_t kPiecesMaxBytes = size_t{24} << 20;  // remembered by one matcher
inline constexpr size_t kLocalStatesMaxBytes = size_t{16} << 20;

inline constexpr uint16_t kStructuralByte = UINT16_MAX;  // not a class of an automaton

// What a step to a tree's next node costs: by an automaton alone, by a text with its counters, by
// sets of frames.
inline constexpr int64_t kDfaNodeWork = 1, kTextNodeWork = 4, kFrameNodeWork = 16;

inline void set_token(std::span<uint32_t> bits, int32_t id) {
  bits[static_cast<size_t>(id) / 32] |= uint32_t{1} << (static_cast<uint32_t>(id) % 32);
}

inline void clear_token(std::span<uint32_t> bits, int32_t id) {
  bits[static_cast<size_t>(id) / 32] &= ~(uint32_t{1} << (static_cast<uint32_t>(id) % 32));
}

// Thrown inside the walk when its budget is spent; it does not leave the Matcher.
struct MaskWorkSpent {};

class MaskWalk {
 public:
  // A part of a mask: bits and ids together.
  struct Piece {
    const std::vector<uint32_t>* base = nullptr;  // bits of somebody else's
    std::vector<uint32_t> dense;
    std::vector<int32_t> sparse;
    uint32_t exits = 0;  // index of exit_sets_; 0: none
    // Of a piece below exits: tokens that end at those are allowed, too.
    bool with_exits = false;
    // Of a key: where it was closed, what must follow (over a hole), and the object behind that.
    struct Turn {
      uint32_t exits;
      FrameId colon, object;
    };
    std::vector<Turn> turns;
    bool none() const { return base == nullptr && dense.empty() && sparse.empty(); }
  };

  MaskWalk(Frames& frames, const VocabImage& vocab);
  // Adds the pieces that together are the thread's mask. They stay until trim() says otherwise.
  void mask(FrameId id, std::vector<const Piece*>& out);
  FrameId canonical(FrameId id);
  // Forgets what is remembered when that is too much; true when it did. Between masks only.
  bool trim();
  size_t bytes() const { return piece_bytes_ + states_.bytes(); }
  uint64_t nodes_walked() const { return nodes_walked_; }
  // Work that mask() may do from now on: nodes, weighted by what a step costs. Where it does not
  // suffice MaskWorkSpent is thrown, and what was not finished is forgotten.
  void set_work(int64_t units) { work_ = units; }
  int64_t work_left() const { return work_; }

 private:
  using Bytes = ByteSet;
  using Exits = uint32_t;  // index of exit_sets_; 0: none

  // A frame without what it returns to, and that.
  struct Local {
    FrameId frame;
    FrameId below;
    uint32_t spaces;  // white space before, when it counts (frame is without)
  };
  struct Below {
    int32_t state = kNoState;  // once resumed
    Bytes first;               // bytes that may come then
  };
  struct TextKey {
    const void* dfa;
    uint64_t state, room, need, first;
    bool operator==(const TextKey&) const = default;
  };
  struct TextHash {
    size_t operator()(const TextKey& k) const;
  };
  struct DfaFacts {
    std::unique_ptr<ClosedRuns> runs;
    bool total = false;       // every byte goes on from every state
    uint32_t rest_chars = 0;  // most code points that any state still needs
    std::vector<uint16_t>
        json;  // [256] class of a byte of a JSON text, kStructural where it is not
  };           // text itself
  // How the length of a text limits what may come.
  struct Room {
    uint32_t free = kNoMax;  // tokens of so many bytes cannot reach the bound
    uint32_t left = kNoMax;  // code points until the bound
  };

  void thread_mask(FrameId id, std::vector<const Piece*>& out);
  Local localize(FrameId id);
  Frame plain_counters(const Frame& frame);
  const Piece& top_piece(const Local& local);
  const Piece& spaced_piece(FrameId plain, uint32_t spaces);
  const Piece& key_piece(FrameId frame, const DfaPtr& base, int32_t state);
  const Piece& unique_piece(FrameId frame, const TextSpec& spec, const Frame& f);
  void walk_key(FrameId key, std::vector<int32_t>& tokens, std::vector<Piece::Turn>& turns);
  void walk_names(FrameId key, std::vector<int32_t>& tokens, std::vector<int32_t>& dead);
  void add_below(uint32_t node, std::vector<int32_t>& tokens) const;
  const Piece& text_piece(const TextSpec& spec, const Frame& f);
  const Piece& plain_piece(std::unique_ptr<Piece>& known, const PlainText& plain);
  const Piece& raw_piece(const Dfa& dfa, const TextSpec* spec, const Frame& f, const Bytes& first);
  const Piece& piece_below(Exits exits, FrameId frame);
  void follow(Exits exits, FrameId below, std::vector<const Piece*>& out);
  // Adds what follows exits directly; its own exits.
  Exits follow_local(Exits exits, FrameId frame, std::vector<const Piece*>& out);
  const Piece& exit_tokens(Exits exits);

  const Below& below(FrameId frame);
  Bytes first_below(FrameId below);
  Bytes first_bytes(const FrameSet& set);
  DfaFacts& facts(const Dfa& dfa);

  // Walks what is below `root`; `from` is the state there.
  void walk_local(uint32_t root, int32_t from, std::vector<int32_t>& tokens,
                  std::vector<uint32_t>& exits);
  template <typename State, typename Step>
  void walk_nodes(uint32_t root, const State& start, Step step);
  template <bool kCounted, typename Structural>
  void walk_dfa(uint32_t root, const Dfa& dfa, int32_t from, uint32_t left,
                std::span<uint32_t> bits, Structural structural);
  bool by_classes(const Dfa& dfa, int32_t state, uint32_t kinds, const Room& room,
                  std::span<uint32_t> bits, std::vector<const TokenClass*>& others);
  uint32_t nodes_ahead(const Dfa& dfa, int32_t state) const;
  Room room_of(const TextSpec& spec, uint32_t count);
  const Piece& absolute_piece(FrameId id);
  void walk_absolute(FrameId id, std::vector<int32_t>& tokens);
  void add_tokens(uint32_t node, std::vector<int32_t>& tokens) const;
  void set_tokens(uint32_t node, std::span<uint32_t> bits) const;

  // Room in a walk for so many nodes.
  uint64_t nodes_left(int64_t weight) const {
    return static_cast<uint64_t>(std::max<int64_t>(work_, 0) / weight);
  }
  void spend(uint64_t nodes, int64_t weight);

  uint32_t intern_exits(std::vector<uint32_t> nodes);
  std::unique_ptr<Piece> new_piece() const { return std::make_unique<Piece>(); }
  void finish(Piece& piece, std::vector<int32_t> tokens);

  Frames& frames_;
  const VocabImage& vocab_;
  const std::vector<TokenForest::Node>& nodes_;
  const uint32_t longest_;  // bytes of the longest token
  // Whitespace::kAny is explored without counting, where no token can pass its bound from nothing.
  const bool counted_spaces_;
  TextSpec any_text_;
  std::unordered_map<const Dfa*, TextSpec> key_texts_;  // of other names
  LocalStates states_;
  std::unordered_map<FrameId, Local> locals_;
  std::unordered_map<FrameId, std::unique_ptr<Piece>> tops_;       // by local frame
  std::unordered_map<FrameId, std::unique_ptr<Piece>> absolutes_;  // by frame
  std::unordered_map<TextKey, std::unique_ptr<Piece>, TextHash> texts_;
  std::unordered_map<uint64_t, std::unique_ptr<Piece>> belows_;  // exits and frame
  std::unordered_map<uint64_t, std::unique_ptr<Piece>> spaced_;  // frame and white space
  std::unordered_map<FrameId, Below> resumed_;
  struct ExitSet {
    std::vector<uint32_t> nodes;
    std::unique_ptr<Piece> tokens;  // that end there
    uint32_t uses = 0;
    std::vector<std::pair<uint8_t, uint32_t>> below;  // nodes directly below, by byte
  };
  void walk_exits(Exits exits, int32_t state, std::vector<int32_t>& tokens,
                  std::vector<uint32_t>& out);
  std::vector<ExitSet> exit_sets_;
  std::unordered_map<uint64_t, std::vector<Exits>> exit_ids_;  // by hash
  std::unordered_map<const Dfa*, DfaFacts> facts_;
  std::vector<Bytes> firsts_;  // interned
  std::vector<FrameSet> levels_;
  struct Open {  // a node of walk_local's path: what is left of the nodes below it
    uint32_t node, next, end;
    int32_t state;
  };
  std::vector<Open> path_;
  std::vector<Frame> key_path_;
  std::vector<int32_t> dfa_path_;
  std::vector<uint32_t> dfa_chars_;
  size_t piece_bytes_ = 0;
  uint64_t nodes_walked_ = 0;
  int64_t work_ = INT64_MAX;
};

}  // namespace tensorfold::grammar
