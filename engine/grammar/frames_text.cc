// The content of JSON strings: escapes, characters, lengths; and raw text.
//
// One spelling per character: \" \\ \b \f \n \r \t for those, \u00XX for other control characters,
// everything else as itself. Text without a pattern may also spell characters beyond ASCII as
// \uXXXX (pairs of surrogates checked).
#include <algorithm>

#include "engine/grammar/frames.h"

namespace tensorfold::grammar {
namespace {

// TextState::escape: phase in the top bits, then digits read, the high half, the value so far.
enum Phase : uint32_t { kNone = 0, kSlash = 1, kHex = 2, kLowSlash = 3, kLowU = 4, kLowHex = 5 };
constexpr uint32_t phase_of(uint32_t e) { return e >> 28; }
constexpr uint32_t digits_of(uint32_t e) { return (e >> 26) & 3U; }
constexpr uint32_t high_of(uint32_t e) { return (e >> 16) & 0x3FFU; }
constexpr uint32_t value_of(uint32_t e) { return e & 0xFFFFU; }
constexpr uint32_t make(uint32_t phase, uint32_t digits, uint32_t high, uint32_t value) {
  return (phase << 28) | (digits << 26) | (high << 16) | value;
}

int hex_digit(uint8_t b) {
  if (b >= '0' && b <= '9') return b - '0';
  if (b >= 'a' && b <= 'f') return b - 'a' + 10;
  if (b >= 'A' && b <= 'F') return b - 'A' + 10;
  return -1;
}

int unescaped(uint8_t b) {
  switch (b) {
    case '"':
    case '\\':
      return b;
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    default:
      return -1;
  }
}

uint8_t byte_of(uint32_t c) { return static_cast<uint8_t>(c); }

bool short_escape(uint32_t c) { return c == 8 || c == 9 || c == 10 || c == 12 || c == 13; }

// Reads one more byte of content; false when that cannot become an accepted text.
bool content(const TextSpec& spec, TextState& s, uint8_t byte) {
  const Dfa& dfa = *spec.dfa;
  const int32_t t = dfa.step(s.state, byte);
  if (t < 0) return false;
  uint32_t count = s.count;
  if ((byte & 0xC0U) != 0x80U)
    count = spec.max == kNoMax ? std::min(count + 1, spec.min) : count + 1;
  if (spec.max != kNoMax) {
    const uint64_t least = static_cast<uint64_t>(count) + dfa.min_chars[static_cast<size_t>(t)];
    if (least > spec.max) return false;
  }
  s.state = t;
  s.count = count;
  return true;
}

bool content_possible(const TextSpec& spec, TextState s, uint32_t c) {
  return content(spec, s, static_cast<uint8_t>(c));
}

bool control_possible(const TextSpec& spec, const TextState& s, uint32_t low, uint32_t high) {
  for (uint32_t c = low; c <= high; ++c) {
    if (!short_escape(c) && content_possible(spec, s, c)) return true;
  }
  return false;
}

// Whether "\u" with these leading digits can be completed.
bool hex_possible(const TextSpec& spec, const TextState& s, uint32_t digits, uint32_t value) {
  const uint32_t low = value << (4 * (4 - digits));
  const uint32_t high = low | ((1U << (4 * (4 - digits))) - 1);
  if (low <= 0x1F && control_possible(spec, s, low, std::min(high, 0x1FU))) return true;
  if (!spec.dfa->universal || spec.key) return false;
  TextState probe = s;
  if (!content(spec, probe, 'x')) return false;  // no room for one more character
  if (high < 0x7F) return false;
  return low < 0xDC00 || high > 0xDFFF;
}

// A whole \uXXXX (or a pair) was read.
bool code_point(const TextSpec& spec, TextState& s, uint32_t c) {
  s.escape = 0;
  if (c < 0x20) return !short_escape(c) && content(spec, s, static_cast<uint8_t>(c));
  // Only text without a pattern comes here: one character, whichever it is.
  return content(spec, s, 'x');
}

TextStep escape_step(const TextSpec& spec, TextState& s, uint8_t byte) {
  const uint32_t e = s.escape;
  switch (phase_of(e)) {
    case kSlash: {
      if (byte == 'u') {
        s.escape = make(kHex, 0, 0, 0);
        return hex_possible(spec, s, 0, 0) ? TextStep::kLive : TextStep::kDead;
      }
      const int c = unescaped(byte);
      if (c < 0) return TextStep::kDead;
      s.escape = 0;
      return content(spec, s, static_cast<uint8_t>(c)) ? TextStep::kLive : TextStep::kDead;
    }
    case kLowSlash:
      s.escape = make(kLowU, 0, high_of(e), 0);
      return byte == '\\' ? TextStep::kLive : TextStep::kDead;
    case kLowU:
      s.escape = make(kLowHex, 0, high_of(e), 0);
      return byte == 'u' ? TextStep::kLive : TextStep::kDead;
    default:
      break;
  }
  const int d = hex_digit(byte);
  if (d < 0) return TextStep::kDead;
  const uint32_t digits = digits_of(e) + 1;
  const uint32_t value = (value_of(e) << 4) | static_cast<uint32_t>(d);
  if (phase_of(e) == kLowHex) {
    if (digits == 1 && value != 0xD) return TextStep::kDead;
    if (digits == 2 && value < 0xDC) return TextStep::kDead;
    if (digits < 4) {
      s.escape = make(kLowHex, digits, high_of(e), value);
      return TextStep::kLive;
    }
    return code_point(spec, s, 0x10000) ? TextStep::kLive : TextStep::kDead;
  }
  if (!hex_possible(spec, s, digits, value)) return TextStep::kDead;
  if (digits < 4) {
    s.escape = make(kHex, digits, 0, value);
    return TextStep::kLive;
  }
  if (value >= 0xD800 && value <= 0xDBFF) {
    s.escape = make(kLowSlash, 0, value - 0xD800, 0);
    return TextStep::kLive;
  }
  return code_point(spec, s, value) ? TextStep::kLive : TextStep::kDead;
}

bool slash_possible(const TextSpec& spec, const TextState& s) {
  for (const uint32_t c : {0x22U, 0x5CU, 8U, 12U, 10U, 13U, 9U}) {
    if (content_possible(spec, s, c)) return true;
  }
  return hex_possible(spec, s, 0, 0);
}

}  // namespace

TextStep Frames::text_step(const TextSpec& spec, TextState& s, uint8_t byte) {
  if (s.escape != 0) return escape_step(spec, s, byte);
  if (byte == '"') {
    return spec.dfa->label(s.state) != 0 && s.count >= spec.min ? TextStep::kClosed
                                                                : TextStep::kDead;
  }
  if (byte == '\\') {
    if (!slash_possible(spec, s)) return TextStep::kDead;
    s.escape = make(kSlash, 0, 0, 0);
    return TextStep::kLive;
  }
  if (byte < 0x20) return TextStep::kDead;
  return content(spec, s, byte) ? TextStep::kLive : TextStep::kDead;
}

bool Frames::raw_step(const TextSpec& spec, TextState& s, uint8_t byte) {
  return content(spec, s, byte);
}

void Frames::step_text(const Frame& f, uint8_t byte, FrameSet& out) {
  const TextSpec& spec = program_.texts[f.a];
  TextState s{static_cast<int32_t>(f.b), f.c, f.d};
  Frame next = f;
  if (spec.raw) {
    if (!content(spec, s, byte)) return;
    next.b = static_cast<uint32_t>(s.state);
    next.c = s.count;
    const FrameId id = intern(next);
    if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
    if (spec.dfa->label(s.state) != 0 && s.count >= spec.min) resume(f.parent, out);
    return;
  }
  switch (text_step(spec, s, byte)) {
    case TextStep::kDead:
      return;
    case TextStep::kClosed: {
      FrameId below = kEndFrame;
      if (completed(f, below)) resume(below, out);
      return;
    }
    case TextStep::kLive:
      break;
  }
  next.b = static_cast<uint32_t>(s.state);
  next.c = s.count;
  next.d = s.escape;
  if (f.e != 0) {
    next.e = capture(f.e, byte);
    if (s.escape == 0 && !unused_left(next, *spec.dfa)) return;
  }
  const FrameId id = intern(next);
  if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
}

// Reads one byte of a key's meaning. Keys run through the declared names' tree and, beside it or
// after it, the base automaton. State: a tree node, or tree size + base state.
bool Frames::key_content(const Frame& frame, Frame& next, uint8_t meant) {
  const ObjectShape& shape = program_.objects[frame.a];
  const auto tree = static_cast<uint32_t>(shape.trie.size());
  next = frame;
  next.d = 0;
  if (frame.e != 0) next.e = capture(frame.e, meant);
  const int32_t base =
      frame.b < tree ? shape.trie[frame.b].base : static_cast<int32_t>(frame.b - tree);
  if (frame.b < tree) {
    for (const auto& [b, child] : shape.trie[frame.b].next) {
      if (b != meant) continue;
      next.b = static_cast<uint32_t>(child);
      return key_alive(next, frames_[frame.parent]);
    }
  }
  if (base < 0) return false;
  const int32_t t = shape.base->step(base, meant);
  if (t < 0) return false;
  next.b = tree + static_cast<uint32_t>(t);
  return key_alive(next, frames_[frame.parent]);
}

bool Frames::key_control(const Frame& frame, uint32_t low, uint32_t high) {
  Frame probe;
  for (uint32_t c = low; c <= high; ++c) {
    if (!short_escape(c) && key_content(frame, probe, static_cast<uint8_t>(c))) return true;
  }
  return false;
}

TextStep Frames::key_step(const Frame& frame, Frame& next, uint8_t byte) {
  const uint32_t e = frame.d;
  auto live = [](bool alive) { return alive ? TextStep::kLive : TextStep::kDead; };
  if (e == 0) {
    if (byte == '"') return TextStep::kClosed;  // close_key decides
    if (byte != '\\') return live(byte >= 0x20 && key_content(frame, next, byte));
    bool possible = key_control(frame, 0, 0x1F);
    for (const uint32_t c : {0x22U, 0x5CU, 8U, 9U, 10U, 12U, 13U})
      possible = possible || key_content(frame, next, byte_of(c));
    next = frame;
    next.d = make(kSlash, 0, 0, 0);
    return live(possible);
  }
  if (phase_of(e) == kSlash) {
    if (byte == 'u') {
      next = frame;
      next.d = make(kHex, 0, 0, 0);
      return live(key_control(frame, 0, 0x1F));
    }
    const int c = unescaped(byte);
    return live(c >= 0 && key_content(frame, next, static_cast<uint8_t>(c)));
  }
  const int d = hex_digit(byte);
  if (d < 0) return TextStep::kDead;
  const uint32_t digits = digits_of(e) + 1;
  const uint32_t value = (value_of(e) << 4) | static_cast<uint32_t>(d);
  const uint32_t low = value << (4 * (4 - digits));
  if (low > 0x1F) return TextStep::kDead;
  if (digits == 4) return live(!short_escape(value) && key_content(frame, next, byte_of(value)));
  const uint32_t high = std::min(low | ((1U << (4 * (4 - digits))) - 1), 0x1FU);
  next = frame;
  next.d = make(kHex, digits, 0, value);
  return live(key_control(frame, low, high));
}

}  // namespace tensorfold::grammar
