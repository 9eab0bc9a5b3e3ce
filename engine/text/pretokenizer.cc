#include "engine/text/pretokenizer.h"

#include <array>

#include "engine/base/utf8.h"

namespace tensorfold {
namespace {

constexpr int kDigitsPerPiece = 3;  // expression 1

bool is_ascii_letter(unsigned char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

bool is_cjk(char32_t c) { return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF); }

constexpr std::array<CharClass, 128> make_ascii() {
  std::array<CharClass, 128> table{};
  for (unsigned c = 0; c < 128; ++c) {
    CharClass v = CharClass::kPunct;
    if (c < 0x20 || c == 0x7F) v = CharClass::kOther;
    if (c == ' ' || (c >= 0x09 && c <= 0x0D)) v = CharClass::kSpace;
    if (c == '\n' || c == '\r') v = CharClass::kNewline;
    if (c >= '0' && c <= '9') v = CharClass::kNumber;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) v = CharClass::kLetter;
    table[c] = v;
  }
  return table;
}
constexpr std::array<CharClass, 128> kAscii = make_ascii();

bool is_word(CharClass c) { return c == CharClass::kLetter || c == CharClass::kMark; }
bool is_space(CharClass c) { return c == CharClass::kSpace || c == CharClass::kNewline; }

}  // namespace

Pretokenizer::Char Pretokenizer::char_at(size_t at) const {
  if (at >= text_.size()) return {};
  const auto byte = static_cast<unsigned char>(text_[at]);
  if (byte < 0x80) {
    const CharClass cls = kAscii[byte];
    return {cls, cls == CharClass::kNumber ? Kind::kNumber : Kind::kRest, 1};
  }
  const Utf8Step step = utf8_step(text_, at);
  if (!step.valid) return {CharClass::kOther, Kind::kRest, 1};
  const CharClass cls = char_class(step.code_point);
  Kind kind = Kind::kRest;
  if (cls == CharClass::kNumber) {
    kind = Kind::kNumber;
  } else if (is_cjk(step.code_point)) {
    kind = Kind::kCjk;
  }
  return {cls, kind, step.bytes};
}

Pretokenizer::Char Pretokenizer::in_piece(size_t at) const {
  const Char c = char_at(at);
  return c.kind == kind_ ? c : Char{};
}

size_t Pretokenizer::skip_words(size_t at) const {
  while (true) {
    const Char c = in_piece(at);
    if (c.bytes == 0 || !is_word(c.cls)) return at;
    at += c.bytes;
  }
}

size_t Pretokenizer::skip_punct(size_t at) const {
  Char c = in_piece(at);
  while (c.bytes != 0 && c.cls == CharClass::kPunct) {
    at += c.bytes;
    c = in_piece(at);
  }
  while (c.bytes != 0 && c.cls == CharClass::kNewline) {
    at += c.bytes;
    c = in_piece(at);
  }
  return at;
}

// The three alternatives for white space. A run that holds a line end is taken up to its last one;
// otherwise all of it at the end of a piece, all but its last character before anything else.
size_t Pretokenizer::match_space(size_t at) const {
  size_t end = at, after_newline = at, before_last = at;
  Char c = in_piece(at);
  while (c.bytes != 0 && is_space(c.cls)) {
    before_last = end;
    end += c.bytes;
    if (c.cls == CharClass::kNewline) after_newline = end;
    c = in_piece(end);
  }
  if (after_newline != at) return after_newline;
  if (c.bytes == 0 || before_last == at) return end;
  return before_last;
}

size_t Pretokenizer::match(size_t at, Char first) const {
  const auto byte = static_cast<unsigned char>(text_[at]);
  const size_t after = at + first.bytes;
  if (byte < 0x80 && first.cls == CharClass::kPunct) {
    size_t end = after;
    while (end < text_.size() && is_ascii_letter(static_cast<unsigned char>(text_[end]))) ++end;
    if (end > after) return end;
  }
  if (is_word(first.cls)) return skip_words(after);
  if (first.cls == CharClass::kPunct) return skip_punct(after);
  const Char second = in_piece(after);
  if (second.bytes != 0 && first.cls != CharClass::kNewline && is_word(second.cls)) {
    return skip_words(after);
  }
  if (byte == ' ' && second.bytes != 0 && second.cls == CharClass::kPunct) return skip_punct(after);
  if (is_space(first.cls)) return match_space(at);
  return at;
}

size_t Pretokenizer::number_end(size_t at) const {
  for (int i = 0; i < kDigitsPerPiece; ++i) at += in_piece(at).bytes;
  return at;
}

bool Pretokenizer::next(std::string_view* piece) {
  const size_t from = at_;
  Char c = char_at(from);
  if (c.bytes == 0) return false;
  kind_ = c.kind;
  if (kind_ == Kind::kNumber) {
    at_ = number_end(from);
  } else {
    // Characters that expression 3 leaves alone gather into one piece, up to its next match.
    while (c.bytes != 0) {
      const size_t end = match(at_, c);
      if (end != at_) {
        if (at_ == from) at_ = end;
        break;
      }
      at_ += c.bytes;
      c = in_piece(at_);
    }
  }
  *piece = text_.substr(from, at_ - from);
  return true;
}

}  // namespace tensorfold
