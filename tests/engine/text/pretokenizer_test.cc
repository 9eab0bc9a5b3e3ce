// The hand-written pre-tokenizer against the three regular expressions themselves, run by PCRE2.
#include "engine/text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <boost/test/unit_test.hpp>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/base/utf8.h"
#include "engine/text/tokenizer_file.h"
#include "engine/text/unicode_class.h"

namespace tensorfold {
namespace {

using Pieces = std::vector<std::string>;

class Regex {
 public:
  explicit Regex(std::string_view pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
    BOOST_REQUIRE_MESSAGE(code_ != nullptr, "pattern does not compile at " << offset);
    match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  // The next match at or after `from`: its start and end.
  bool find(std::string_view text, size_t from, size_t* start, size_t* end) const {
    const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                               from, PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
    if (rc < 0) return false;
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match_.get());
    *start = bounds[0];
    *end = bounds[1];
    return true;
  }

  // Matches and the text between them, in order.
  void split(std::string_view text, Pieces& out) const {
    size_t at = 0, start = 0, end = 0;
    while (at < text.size() && find(text, at, &start, &end) && end > start) {
      if (start > at) out.emplace_back(text.substr(at, start - at));
      out.emplace_back(text.substr(start, end - start));
      at = end;
    }
    if (at < text.size()) out.emplace_back(text.substr(at));
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

Pieces by_regex(std::string_view text) {
  static const Regex expressions[] = {Regex(kSplitPatterns[0]), Regex(kSplitPatterns[1]),
                                      Regex(kSplitPatterns[2])};
  Pieces pieces = {std::string(text)};
  for (const Regex& expression : expressions) {
    Pieces next;
    for (const std::string& piece : pieces) expression.split(piece, next);
    pieces = std::move(next);
  }
  return pieces;
}

Pieces by_hand(std::string_view text) {
  Pieces out;
  Pretokenizer pretokenizer(text);
  std::string_view piece;
  while (pretokenizer.next(&piece)) out.emplace_back(piece);
  return out;
}

// Code points that PCRE2's Unicode version and ours put into the same class.
const std::vector<char32_t>& common_code_points() {
  static const std::vector<char32_t> all = [] {
    const struct {
      Regex regex;
      CharClass cls;
    } classes[] = {
        {Regex("\\p{L}"), CharClass::kLetter},    {Regex("\\p{M}"), CharClass::kMark},
        {Regex("\\p{N}"), CharClass::kNumber},    {Regex("[\\p{P}\\p{S}]"), CharClass::kPunct},
        {Regex("[\\r\\n]"), CharClass::kNewline}, {Regex("\\s"), CharClass::kSpace},
    };
    std::vector<char32_t> same;
    for (char32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      std::string text;
      utf8_append(text, c);
      CharClass theirs = CharClass::kOther;
      for (const auto& candidate : classes) {
        size_t start = 0, end = 0;
        if (!candidate.regex.find(text, 0, &start, &end)) continue;
        theirs = candidate.cls;
        break;
      }
      if (theirs == char_class(c)) same.push_back(c);
    }
    return same;
  }();
  return all;
}

BOOST_AUTO_TEST_CASE(the_class_table_is_that_of_one_unicode_version) {
  // FNV-1a over the classes of all code points: another utf8proc must give the same table.
  uint64_t hash = 0xCBF29CE484222325ull;
  for (char32_t c = 0; c < 0x110000; ++c) {
    hash = (hash ^ static_cast<uint64_t>(char_class(c))) * 0x100000001B3ull;
  }
  BOOST_TEST(hash == uint64_t{0x661162000A3654B1}, std::hex << hash);
  // PCRE2 knows an older or newer Unicode: all but a few thousand code points agree.
  BOOST_TEST(common_code_points().size() > 0x10F800 - 16000u);
}

BOOST_AUTO_TEST_CASE(known_cuts) {
  BOOST_TEST(by_hand("Hello, world's 12345!") ==
             (Pieces{"Hello", ",", " world", "'s", " ", "123", "45", "!"}));
  BOOST_TEST(by_hand("a  b") == (Pieces{"a", " ", " b"}));
  BOOST_TEST(by_hand("a \n\n  b") == (Pieces{"a", " \n\n", " ", " b"}));
  BOOST_TEST(by_hand("x   1") == (Pieces{"x", "   ", "1"}));  // a number ends the piece
  BOOST_TEST(by_hand("ab你好カタcd") == (Pieces{"ab", "你好カタ", "cd"}));
  BOOST_TEST(by_hand("ア・イ") == (Pieces{"ア", "・", "イ"}));
  BOOST_TEST(by_hand("a!\n\nb") == (Pieces{"a", "!\n\n", "b"}));
  BOOST_TEST(by_hand(std::string_view("\0\0\0a", 4)) ==
             (Pieces{std::string("\0\0", 2), std::string("\0a", 2)}));
  BOOST_TEST(by_hand("e\u0301\u0301x \u0301") == (Pieces{"e\u0301\u0301x", " \u0301"}));
  BOOST_TEST(by_hand("") == Pieces{});
}

BOOST_AUTO_TEST_CASE(every_code_point_in_every_neighborhood_cuts_as_the_expressions_do) {
  for (const char32_t c : common_code_points()) {
    if (c > 0x3400 && c < 0xF000 && c % 61 != 0) continue;  // long ranges of one class
    if (c > 0x20000 && c < 0xE0000 && c % 997 != 0) continue;
    std::string x;
    utf8_append(x, c);
    const std::string text =
        x + "a" + x + " " + x + x + "\n" + x + "1" + x + "!" + x + "你" + x + "\u0301" + x;
    BOOST_REQUIRE_MESSAGE(by_hand(text) == by_regex(text), "U+" << std::hex << uint32_t{c});
  }
}

BOOST_AUTO_TEST_CASE(random_texts_cut_as_the_expressions_do) {
  static constexpr std::string_view kParts[] = {
      " ",  "  ",       "\n",      "\r\n",   "\t",   "\u00A0", "\u3000", "a",
      "Zz", "é",        "e\u0301", "\u0301", "1",    "42",     "１",     "½",
      "!",  "...",      "'s",      "（",     "、",   "€",      "+",      "<",
      "你", "好吗",     "カ",      "・",     "ー",   "\u3099", "\u3040", "𠀀",
      "😀",  "👨\u200D👩", "\u200B",  "\uFEFF", "\x7F", "\x01",   "ไ",      "ก็",
      "한", "ß",        "\u2028",  "\u0085", "｜",   "▁"};
  std::mt19937 random(17);
  const auto& all = common_code_points();
  for (int i = 0; i < 60000; ++i) {
    std::string text;
    for (auto n = 1 + random() % 24; n > 0; --n) {
      if (random() % 5 == 0) {
        utf8_append(text, all[random() % all.size()]);
      } else {
        text += kParts[random() % std::size(kParts)];
      }
    }
    BOOST_REQUIRE_MESSAGE(by_hand(text) == by_regex(text), text);
  }
}

BOOST_AUTO_TEST_CASE(bytes_that_are_no_utf8_are_kept) {
  std::mt19937 random(19);
  for (int i = 0; i < 5000; ++i) {
    std::string text, joined;
    for (auto n = random() % 20; n > 0; --n) text += static_cast<char>(random() % 256);
    for (const std::string& piece : by_hand(text)) {
      BOOST_REQUIRE(!piece.empty());
      joined += piece;
    }
    BOOST_REQUIRE(joined == text);
  }
}

}  // namespace
}  // namespace tensorfold
