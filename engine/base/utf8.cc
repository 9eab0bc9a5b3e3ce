#include "engine/base/utf8.h"

#include <simdjson.h>

namespace tensorfold {
namespace {

struct Lead {
  uint32_t continuation_bytes;
  unsigned char second_low, second_high;  // allowed range of the second byte
};

// Table 3-7 of the Unicode standard. continuation_bytes is 0 for a byte that starts nothing.
Lead lead_of(unsigned char b) {
  if (b >= 0xC2 && b <= 0xDF) return {1, 0x80, 0xBF};
  if (b == 0xE0) return {2, 0xA0, 0xBF};
  if (b == 0xED) return {2, 0x80, 0x9F};
  if (b >= 0xE1 && b <= 0xEF) return {2, 0x80, 0xBF};
  if (b == 0xF0) return {3, 0x90, 0xBF};
  if (b >= 0xF1 && b <= 0xF3) return {3, 0x80, 0xBF};
  if (b == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return {first, 1, true, false};
  const Lead lead = lead_of(first);
  if (lead.continuation_bytes == 0) return {kReplacementCharacter, 1, false, false};
  char32_t code = first & (0x3F >> lead.continuation_bytes);
  for (uint32_t i = 1; i <= lead.continuation_bytes; ++i) {
    if (at + i >= text.size()) return {kReplacementCharacter, i, false, true};
    const unsigned char b = byte(at + i);
    const unsigned char low = i == 1 ? lead.second_low : 0x80;
    const unsigned char high = i == 1 ? lead.second_high : 0xBF;
    if (b < low || b > high) return {kReplacementCharacter, i, false, false};
    code = (code << 6) | (b & 0x3F);
  }
  return {code, lead.continuation_bytes + 1, true, false};
}

size_t utf8_first_invalid(std::string_view text) {
  if (simdjson::validate_utf8(text.data(), text.size())) return std::string_view::npos;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (!step.valid) return at;
    at += step.bytes;
  }
  return std::string_view::npos;
}

size_t utf8_unfinished_tail(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t at = text.size() - back;
    if ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) continue;
    return utf8_step(text, at).truncated ? back : 0;
  }
  return 0;
}

void utf8_append(std::string& out, char32_t code_point) {
  const auto put = [&](char32_t v) { out.push_back(static_cast<char>(v)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::string utf8_lossy(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_step(bytes, at);
    if (step.valid) {
      out.append(bytes.substr(at, step.bytes));
    } else {
      utf8_append(out, kReplacementCharacter);
    }
    at += step.bytes;
  }
  return out;
}

std::string shown_text(std::string_view text, size_t bytes_max, char instead) {
  const bool cut = text.size() > bytes_max;
  size_t end = cut ? bytes_max : text.size();
  while (cut && end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  std::string out(text.substr(0, end));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = instead;
  if (cut) out += "...";
  return out;
}

}  // namespace tensorfold
