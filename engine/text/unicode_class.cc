#include "engine/text/unicode_class.h"

#include <utf8proc.h>

#include <array>
#include <map>
#include <string>
#include <vector>

namespace tensorfold {
namespace {

constexpr char32_t kCodePointEnd = 0x110000;
constexpr uint32_t kBlockSize = 256;  // code points per block of the two-level table

struct ClassRange {
  char32_t first, last;
  CharClass value;
};

constexpr CharClass L = CharClass::kLetter, M = CharClass::kMark, N = CharClass::kNumber,
                    P = CharClass::kPunct;

// What Unicode 15.1 and 16.0 added to 15.0 (Debian 12's utf8proc): nothing else changed class.
// clang-format off
constexpr ClassRange kAddedAfter15[] = {
    {0x897, 0x897, M}, {0x1B4E, 0x1B4F, P}, {0x1B7F, 0x1B7F, P}, {0x1C89, 0x1C8A, L},
    {0x2427, 0x2429, P}, {0x2FFC, 0x2FFF, P}, {0x31E4, 0x31E5, P}, {0x31EF, 0x31EF, P},
    {0xA7CB, 0xA7CD, L}, {0xA7DA, 0xA7DC, L}, {0x105C0, 0x105F3, L}, {0x10D40, 0x10D49, N},
    {0x10D4A, 0x10D65, L}, {0x10D69, 0x10D6D, M}, {0x10D6E, 0x10D6E, P}, {0x10D6F, 0x10D85, L},
    {0x10D8E, 0x10D8F, P}, {0x10EC2, 0x10EC4, L}, {0x10EFC, 0x10EFC, M}, {0x11380, 0x11389, L},
    {0x1138B, 0x1138B, L}, {0x1138E, 0x1138E, L}, {0x11390, 0x113B5, L}, {0x113B7, 0x113B7, L},
    {0x113B8, 0x113C0, M}, {0x113C2, 0x113C2, M}, {0x113C5, 0x113C5, M}, {0x113C7, 0x113CA, M},
    {0x113CC, 0x113D0, M}, {0x113D1, 0x113D1, L}, {0x113D2, 0x113D2, M}, {0x113D3, 0x113D3, L},
    {0x113D4, 0x113D5, P}, {0x113D7, 0x113D8, P}, {0x113E1, 0x113E2, M}, {0x116D0, 0x116E3, N},
    {0x11BC0, 0x11BE0, L}, {0x11BE1, 0x11BE1, P}, {0x11BF0, 0x11BF9, N}, {0x11F5A, 0x11F5A, M},
    {0x13460, 0x143FA, L}, {0x16100, 0x1611D, L}, {0x1611E, 0x1612F, M}, {0x16130, 0x16139, N},
    {0x16D40, 0x16D6C, L}, {0x16D6D, 0x16D6F, P}, {0x16D70, 0x16D79, N}, {0x18CFF, 0x18CFF, L},
    {0x1CC00, 0x1CCEF, P}, {0x1CCF0, 0x1CCF9, N}, {0x1CD00, 0x1CEB3, P}, {0x1E5D0, 0x1E5ED, L},
    {0x1E5EE, 0x1E5EF, M}, {0x1E5F0, 0x1E5F0, L}, {0x1E5F1, 0x1E5FA, N}, {0x1E5FF, 0x1E5FF, P},
    {0x1F8B2, 0x1F8BB, P}, {0x1F8C0, 0x1F8C1, P}, {0x1FA89, 0x1FA89, P}, {0x1FA8F, 0x1FA8F, P},
    {0x1FABE, 0x1FABE, P}, {0x1FAC6, 0x1FAC6, P}, {0x1FADC, 0x1FADC, P}, {0x1FADF, 0x1FADF, P},
    {0x1FAE9, 0x1FAE9, P}, {0x1FBCB, 0x1FBEF, P}, {0x2EBF0, 0x2EE5D, L},
};
// clang-format on

// White_Space: the same set in every Unicode version since 6.3.
bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

CharClass class_by_category(char32_t c) {
  if (c == '\n' || c == '\r') return CharClass::kNewline;
  if (is_white_space(c)) return CharClass::kSpace;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return CharClass::kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return CharClass::kPunct;
    default:
      return CharClass::kOther;
  }
}

class ClassTable {
 public:
  ClassTable() {
    std::vector<CharClass> all(kCodePointEnd);
    for (char32_t c = 0; c < kCodePointEnd; ++c) all[c] = class_by_category(c);
    for (const ClassRange& range : kAddedAfter15) {
      for (char32_t c = range.first; c <= range.last; ++c) all[c] = range.value;
    }
    std::map<std::vector<CharClass>, uint16_t> known;
    for (uint32_t b = 0; b < block_of_.size(); ++b) {
      const auto first = all.begin() + b * kBlockSize;
      const std::vector<CharClass> block(first, first + kBlockSize);
      const auto next = static_cast<uint16_t>(known.size());
      const auto [it, added] = known.emplace(block, next);
      if (added) classes_.insert(classes_.end(), block.begin(), block.end());
      block_of_[b] = it->second;
    }
  }

  CharClass at(char32_t c) const {
    if (c >= kCodePointEnd) return CharClass::kOther;
    return classes_[block_of_[c / kBlockSize] * kBlockSize + c % kBlockSize];
  }

 private:
  std::array<uint16_t, kCodePointEnd / kBlockSize> block_of_;
  std::vector<CharClass> classes_;
};

}  // namespace

CharClass char_class(char32_t code_point) {
  static const ClassTable table;
  return table.at(code_point);
}

}  // namespace tensorfold
