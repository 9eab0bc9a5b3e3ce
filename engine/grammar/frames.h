// The runtime of a grammar: a nondeterministic pushdown automaton whose stacks are interned.
//
// A frame is one suspended piece of work on top of its parent; equal stacks have equal ids, so a
// thread is an integer and a copy is free. A configuration is a set of threads. Frames only grow;
// whoever owns the arena bounds its life (Matcher). Not thread-safe: the owner locks.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/grammar/program.h"

namespace tensorfold::grammar {

using FrameId = uint32_t;
inline constexpr FrameId kEndFrame = 0;       // nothing more may follow: the reply is complete
inline constexpr FrameId kHoleFrame = 1;      // stands for whatever a piece returns to
inline constexpr uint32_t kSymbolBase = 256;  // symbols above the bytes: token ids

struct Frame {
  enum class Kind : uint8_t {
    kEnd,
    kHole,      // below it anything (masks of pieces; see mask_walk.h)
    kTerminal,  // a: dfa, b: state, e: capture
    kText,      // a: text spec, b: state, c: characters, d: escape, e: capture
    kKey,       // a: object shape, b: key state, d: escape, e: text if kept apart; over kObject
    kColon,     // a: value node, b: white space
    kValue,     // a: value node, b: white space, e: 1 when the text is captured
    kObject,    // a: shape, b: phase and white space, c: seen, d: count, e: other names
    kArray,     // a: shape, b: phase and white space, c: count, d: hits, e: items seen
    kSymbol,    // a: token id
    kSequence,  // a: expression, b: next part (consumes nothing itself)
    kTool,      // a: tool shape, c: seen, d: count (consumes nothing itself)
    kJoin,      // e: set of frames, each of which continues (consumes nothing itself)
  };
  Kind kind = Kind::kEnd;
  uint16_t depth = 0;
  uint32_t a = 0, b = 0, c = 0, d = 0, e = 0;
  FrameId parent = kEndFrame;

  bool operator==(const Frame& o) const {
    return kind == o.kind && a == o.a && b == o.b && c == o.c && d == o.d && e == o.e &&
           parent == o.parent;
  }
};

// Text inside a JSON string: what one byte does.
enum class TextStep : unsigned char { kDead, kLive, kClosed };
struct TextState {
  int32_t state = 0;
  uint32_t count = 0;
  uint32_t escape = 0;
};

using FrameSet = std::vector<FrameId>;
using ByteSet = std::bitset<256>;

class Frames {
 public:
  explicit Frames(const Program& program);

  const Program& program() const { return program_; }
  const Frame& at(FrameId id) const { return frames_[id]; }
  size_t size() const { return frames_.size(); }
  size_t bytes() const;

  // Under Whitespace::kAny: whether white space is counted against its bound. Pieces of stacks are
  // explored without: no token brings the count from nothing to the bound.
  void count_spaces(bool counted) { spaces_counted_ = counted; }

  FrameSet start();
  // Adds the threads that reading `symbol` (a byte, or kSymbolBase + token id) leads to.
  void step(FrameId id, uint32_t symbol, FrameSet& out);
  // The threads that continue once the frame above `parent` is done.
  void resume(FrameId parent, FrameSet& out);
  FrameId intern(Frame frame);
  // Threads that differ only in what they return to become one that returns to all of it, so that
  // overlapping alternatives do not multiply at every level of nesting.
  void merge(FrameSet& set);

  // Adds the bytes that may come next; more than can is fine, fewer is not.
  void first_bytes(FrameId id, ByteSet& out);

  // A string's content by one byte of JSON text. `spec.raw` is not for this.
  static TextStep text_step(const TextSpec& spec, TextState& s, uint8_t byte);
  // The same for raw text; false when it cannot go on.
  static bool raw_step(const TextSpec& spec, TextState& s, uint8_t byte);
  // The frame below, as it is once the text or terminal `frame` is complete; kEndFrame + false
  // when that would repeat an item that must be unique.
  bool completed(const Frame& frame, FrameId& below);
  bool has_alike(const FrameSet& set) const;
  // The white space just read, of frames that count it; and the frame with none.
  static uint32_t spaces_of(const Frame& frame);
  static Frame without_spaces(Frame frame);
  // What is left of the items that were used and begin with what `frame` has captured.
  std::vector<std::string> used_rests(const Frame& frame) const;
  // The frames that a kJoin stands for.
  void joined(FrameId join, FrameSet& out) const;
  // What follows a key: nothing when the key is not allowed here.
  void close_key(const Frame& key, FrameSet& out);
  // Whether undeclared names may come next.
  bool other_allowed(const Frame& object) const;
  // Extends a captured text.
  uint32_t capture(uint32_t chain, uint8_t byte);
  TextStep key_step(const Frame& frame, Frame& next, uint8_t byte);

 private:
  struct Hash {
    size_t operator()(const Frame& f) const;
  };
  void grow();
  ByteSet live_bytes(const Dfa& dfa, int32_t state);
  const ByteSet& node_bytes(uint32_t index);
  void text_bytes(const Frame& f, ByteSet& out);
  void key_bytes(const Frame& f, ByteSet& out);
  void enter(uint32_t expr, FrameId parent, FrameSet& out, int depth);
  void enter_parameter(const Frame& tool, FrameSet& out);
  void enter_value(const ValueNode& node, const Frame& frame, uint8_t byte, FrameSet& out);
  void step_value(FrameId id, uint8_t byte, FrameSet& out);
  void step_object(FrameId id, uint8_t byte, FrameSet& out);
  void step_array(FrameId id, uint8_t byte, FrameSet& out);
  void step_terminal(const Frame& f, uint8_t byte, FrameSet& out);
  void step_text(const Frame& f, uint8_t byte, FrameSet& out);
  void open_item(FrameId id, uint8_t byte, FrameSet& out);
  void item_threads(const Frame& array, std::vector<std::pair<int32_t, uint32_t>>& out) const;
  bool item_hits_reachable(const ArrayShape& s, uint32_t count, uint32_t hits) const;
  uint32_t missing(const Frame& object) const;
  bool property_allowed(const Frame& object, uint32_t property) const;
  bool more_allowed(const Frame& object) const;
  bool may_close(const Frame& object) const;
  bool key_alive(const Frame& key, const Frame& object) const;
  bool unused_left(const Frame& f, const Dfa& dfa);
  bool unused_items(const Frame& array);
  const std::vector<uint32_t>& word_counts(uint32_t key, const Dfa& dfa);
  bool key_content(const Frame& frame, Frame& next, uint8_t meant);
  bool key_control(const Frame& frame, uint32_t low, uint32_t high);
  int32_t space(uint32_t state, uint8_t byte, bool close_only) const;
  uint32_t set_add(uint32_t set, uint32_t item);
  bool set_has(uint32_t set, uint32_t item) const;
  uint32_t set_size(uint32_t set) const;

  const Program& program_;
  bool spaces_counted_ = true;
  std::vector<Frame> frames_;
  std::vector<FrameId> table_;  // open addressing over frames_; 0 (kEndFrame) is a free place
  // Sets of small integers, interned; [0] is the empty set.
  std::vector<std::vector<uint64_t>> sets_;
  std::unordered_map<std::string, uint32_t> set_ids_;
  std::unordered_map<uint64_t, uint32_t> set_added_;
  // Captured texts as chains: (prefix << 8 | byte) -> chain. 0: none, 1: empty.
  std::unordered_map<uint64_t, uint32_t> chains_;
  std::vector<uint32_t> chain_prefix_ = {0, 0};
  std::vector<uint8_t> chain_byte_ = {0, 0};
  std::unordered_map<uint32_t, std::vector<uint32_t>> finite_words_;  // dfa or text index -> counts
  std::unordered_map<const Dfa*, std::vector<ByteSet>> class_bytes_;  // by class
  std::vector<ByteSet> node_bytes_;  // of values, by node; none: not looked at
  std::vector<std::pair<int32_t, uint32_t>> array_scratch_;
};

}  // namespace tensorfold::grammar
