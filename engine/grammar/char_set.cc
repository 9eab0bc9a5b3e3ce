// Character classes of regular expressions. The categories come from utf8proc.
#include "engine/grammar/char_set.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace tensorfold::grammar {
namespace {

struct Category {
  std::string_view short_name, long_name;
  uint32_t mask;  // bit i: utf8proc category i
};

constexpr uint32_t bit(int category) { return 1U << category; }
constexpr uint32_t kL = bit(UTF8PROC_CATEGORY_LU) | bit(UTF8PROC_CATEGORY_LL) |
                        bit(UTF8PROC_CATEGORY_LT) | bit(UTF8PROC_CATEGORY_LM) |
                        bit(UTF8PROC_CATEGORY_LO);
constexpr uint32_t kM =
    bit(UTF8PROC_CATEGORY_MN) | bit(UTF8PROC_CATEGORY_MC) | bit(UTF8PROC_CATEGORY_ME);
constexpr uint32_t kN =
    bit(UTF8PROC_CATEGORY_ND) | bit(UTF8PROC_CATEGORY_NL) | bit(UTF8PROC_CATEGORY_NO);
constexpr uint32_t kP = bit(UTF8PROC_CATEGORY_PC) | bit(UTF8PROC_CATEGORY_PD) |
                        bit(UTF8PROC_CATEGORY_PS) | bit(UTF8PROC_CATEGORY_PE) |
                        bit(UTF8PROC_CATEGORY_PI) | bit(UTF8PROC_CATEGORY_PF) |
                        bit(UTF8PROC_CATEGORY_PO);
constexpr uint32_t kS = bit(UTF8PROC_CATEGORY_SM) | bit(UTF8PROC_CATEGORY_SC) |
                        bit(UTF8PROC_CATEGORY_SK) | bit(UTF8PROC_CATEGORY_SO);
constexpr uint32_t kZ =
    bit(UTF8PROC_CATEGORY_ZS) | bit(UTF8PROC_CATEGORY_ZL) | bit(UTF8PROC_CATEGORY_ZP);

constexpr Category kCategories[] = {
    {"L", "Letter", kL},
    {"Lu", "Uppercase_Letter", bit(UTF8PROC_CATEGORY_LU)},
    {"Ll", "Lowercase_Letter", bit(UTF8PROC_CATEGORY_LL)},
    {"Lt", "Titlecase_Letter", bit(UTF8PROC_CATEGORY_LT)},
    {"Lm", "Modifier_Letter", bit(UTF8PROC_CATEGORY_LM)},
    {"Lo", "Other_Letter", bit(UTF8PROC_CATEGORY_LO)},
    {"M", "Mark", kM},
    {"Mn", "Nonspacing_Mark", bit(UTF8PROC_CATEGORY_MN)},
    {"Mc", "Spacing_Mark", bit(UTF8PROC_CATEGORY_MC)},
    {"Me", "Enclosing_Mark", bit(UTF8PROC_CATEGORY_ME)},
    {"N", "Number", kN},
    {"Nd", "Decimal_Number", bit(UTF8PROC_CATEGORY_ND)},
    {"Nd", "digit", bit(UTF8PROC_CATEGORY_ND)},
    {"Nl", "Letter_Number", bit(UTF8PROC_CATEGORY_NL)},
    {"No", "Other_Number", bit(UTF8PROC_CATEGORY_NO)},
    {"P", "Punctuation", kP},
    {"Pc", "Connector_Punctuation", bit(UTF8PROC_CATEGORY_PC)},
    {"Pd", "Dash_Punctuation", bit(UTF8PROC_CATEGORY_PD)},
    {"Ps", "Open_Punctuation", bit(UTF8PROC_CATEGORY_PS)},
    {"Pe", "Close_Punctuation", bit(UTF8PROC_CATEGORY_PE)},
    {"Pi", "Initial_Punctuation", bit(UTF8PROC_CATEGORY_PI)},
    {"Pf", "Final_Punctuation", bit(UTF8PROC_CATEGORY_PF)},
    {"Po", "Other_Punctuation", bit(UTF8PROC_CATEGORY_PO)},
    {"S", "Symbol", kS},
    {"Sm", "Math_Symbol", bit(UTF8PROC_CATEGORY_SM)},
    {"Sc", "Currency_Symbol", bit(UTF8PROC_CATEGORY_SC)},
    {"Sk", "Modifier_Symbol", bit(UTF8PROC_CATEGORY_SK)},
    {"So", "Other_Symbol", bit(UTF8PROC_CATEGORY_SO)},
    {"Z", "Separator", kZ},
    {"Zs", "Space_Separator", bit(UTF8PROC_CATEGORY_ZS)},
    {"Zl", "Line_Separator", bit(UTF8PROC_CATEGORY_ZL)},
    {"Zp", "Paragraph_Separator", bit(UTF8PROC_CATEGORY_ZP)},
    {"Cc", "Control", bit(UTF8PROC_CATEGORY_CC)},
    {"Cf", "Format", bit(UTF8PROC_CATEGORY_CF)},
};

}  // namespace

void char_set_normalize(CharSet& set) {
  std::sort(set.begin(), set.end());
  CharSet out;
  for (const CharRange& r : set) {
    if (r.first > r.second) continue;
    if (!out.empty() && r.first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, r.second);
    } else {
      out.push_back(r);
    }
  }
  set.swap(out);
}

CharSet char_set_negate(CharSet set) {
  char_set_normalize(set);
  CharSet out;
  uint32_t next = 0;
  for (const CharRange& r : set) {
    if (r.first > next) out.emplace_back(next, r.first - 1);
    next = r.second + 1;
  }
  if (next <= kCodePointMax) out.emplace_back(next, kCodePointMax);
  return out;
}

void char_set_add(CharSet& set, const CharSet& other) {
  set.insert(set.end(), other.begin(), other.end());
}

CharSet char_set_digits() { return {{'0', '9'}}; }
CharSet char_set_word() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CharSet char_set_space() {
  return {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}
CharSet char_set_no_line() {
  return char_set_negate({{0x0A, 0x0A}, {0x0D, 0x0D}, {0x2028, 0x2029}});
}

std::optional<CharSet> char_set_category(std::string_view name) {
  for (const std::string_view prefix : {"General_Category=", "gc="}) {
    if (name.substr(0, prefix.size()) == prefix) name.remove_prefix(prefix.size());
  }
  uint32_t mask = 0;
  for (const Category& c : kCategories) {
    if (name == c.short_name || name == c.long_name) mask = c.mask;
  }
  if (mask == 0) return std::nullopt;
  CharSet out;
  for (uint32_t c = 0; c <= kCodePointMax; ++c) {
    if (((mask >> utf8proc_category(static_cast<utf8proc_int32_t>(c))) & 1U) == 0) continue;
    if (!out.empty() && out.back().second + 1 == c) {
      out.back().second = c;
    } else {
      out.emplace_back(c, c);
    }
  }
  return out;
}

}  // namespace tensorfold::grammar
