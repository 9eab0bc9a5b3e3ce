// Automata against plain definitions: word lists by look-up, patterns side by side one by one,
// whether two languages meet by building what they share.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <random>

#include "engine/base/utf8.h"
#include "engine/grammar/dfa.h"
#include "engine/grammar/regex.h"

namespace tensorfold::grammar {
namespace {

std::string random_text(std::mt19937& random, size_t longest) {
  static constexpr const char* kLetters[] = {"a", "b", "c", "\"", "\xC3\xA9", "\xE3\x80\x80", " "};
  std::string text;
  for (size_t n = random() % (longest + 1); n > 0; --n)
    text += kLetters[random() % std::size(kLetters)];
  return text;
}

BOOST_AUTO_TEST_CASE(word_lists_hold_their_words_and_no_others) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> words;
    for (size_t n = random() % 40; n > 0; --n) words.push_back(random_text(random, 6));
    const auto dfa = dfa_words(words, true);
    BOOST_REQUIRE(dfa.ok());
    BOOST_REQUIRE((*dfa)->empty() == words.empty());
    if (words.empty()) continue;
    for (int i = 0; i < 100; ++i) {
      const std::string text = i % 2 == 0 ? random_text(random, 6) : words[random() % words.size()];
      const auto last = std::find(words.rbegin(), words.rend(), text);
      const auto label = static_cast<uint32_t>(words.rend() - last);
      BOOST_REQUIRE_MESSAGE(dfa_run(**dfa, text) == label, text);
    }
  }
}

BOOST_AUTO_TEST_CASE(word_lists_are_smallest) {
  // Two beginnings, two ends: one state between, whatever the order.
  const auto a = dfa_words({"bad", "bag", "mad", "mag"}),
             b = dfa_words({"mag", "bad", "mad", "bag"});
  BOOST_REQUIRE(a.ok() && b.ok());
  BOOST_TEST((*a)->states() == 4U);
  BOOST_TEST((*a)->next == (*b)->next);
  BOOST_TEST((*a)->accept == (*b)->accept);
}

BOOST_AUTO_TEST_CASE(sorted_texts_and_meeting_languages_agree_with_each_pattern) {
  const char* const kPatterns[] = {"^a",     "b$",      "^(?:a|b)+$",    "\\s",
                                   "^\\S+$", "^[^a]*$", "^(ab|c){1,3}$", "\xC3\xA9"};
  std::vector<DfaPtr> all;
  std::vector<CharDfaPtr> chars;
  for (const char* pattern : kPatterns) {
    const auto dfa = regex_to_chars(pattern, RegexMatch::kSearch);
    BOOST_REQUIRE_MESSAGE(dfa.ok(), pattern);
    chars.push_back(*dfa);
    const auto bytes = chars_to_bytes(**dfa);
    BOOST_REQUIRE_MESSAGE(bytes.ok(), pattern);
    all.push_back(*bytes);
  }
  constexpr uint32_t kAlways = 1U << 31;
  const auto sorted_chars = chars_sort_texts(chars, kAlways);
  BOOST_REQUIRE(sorted_chars.ok());
  const auto sorted = chars_to_bytes(**sorted_chars);
  BOOST_REQUIRE(sorted.ok());
  std::mt19937 random(9);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = random_text(random, 7);
    uint32_t label = kAlways;
    for (size_t k = 0; k < all.size(); ++k) {
      BOOST_REQUIRE_MESSAGE(chars_run(*chars[k], text) == dfa_run(*all[k], text), text);
      label |= dfa_run(*all[k], text) != 0 ? 1U << k : 0U;
    }
    BOOST_REQUIRE_MESSAGE(dfa_run(**sorted, text) == label, text);
  }
  BOOST_TEST(dfa_run(**sorted, "a\xFF") == 0U);
  size_t apart = 0;
  for (const DfaPtr& a : all) {
    for (const DfaPtr& b : all) {
      const auto both = dfa_intersect(*a, *b);
      BOOST_REQUIRE(both.ok());
      BOOST_TEST(dfa_meet(*a, *b) == !(*both)->empty());
      apart += (*both)->empty() ? 1U : 0U;
    }
  }
  BOOST_TEST(apart > 0U);
}

// Every code point of random sets, spelled in bytes: exactly those are accepted, and no other
// bytes.
BOOST_AUTO_TEST_CASE(characters_become_their_bytes) {
  constexpr uint32_t kBorders[] = {0,      0x7F,    0x80,    0x7FF,   0x800,
                                   0xFFF,  0x1000,  0xCFFF,  0xD7FF,  0xE000,
                                   0xFFFF, 0x10000, 0x3FFFF, 0x40000, 0x10FFFF};
  std::mt19937 random(17);
  for (int round = 0; round < 6; ++round) {
    CharSet set;
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    for (int i = 0; i < 6; ++i) {
      const uint32_t at = kBorders[below(std::size(kBorders))];
      const uint32_t low = at - std::min(at, below(70));
      set.emplace_back(low, std::min(kCodePointMax, low + below(i == 0 ? 9000 : 90)));
    }
    char_set_normalize(set);
    CharNfa nfa;
    const int32_t start = nfa.add(), mid = nfa.add(), end = nfa.add();
    nfa.edge(start, set, mid);
    nfa.edge(mid, {{'a', 'b'}, {0xE9, 0xE9}}, end);
    const auto chars = nfa.determinize(start, end);
    BOOST_REQUIRE(chars.ok());
    const auto bytes = chars_to_bytes(**chars);
    BOOST_REQUIRE(bytes.ok());
    BOOST_TEST((*bytes)->min_chars[static_cast<size_t>((*bytes)->start)] == 2U);
    size_t range = 0;
    for (uint32_t c = 0; c <= kCodePointMax; ++c) {
      while (range < set.size() && set[range].second < c) ++range;
      const bool surrogate = c >= 0xD800 && c < 0xE000;
      const bool in = range < set.size() && set[range].first <= c && !surrogate;
      std::string text;
      if (surrogate) {
        text = {'\xED', static_cast<char>(0x80 | ((c >> 6) & 0x3F)),
                static_cast<char>(0x80 | (c & 0x3F))};
      } else {
        utf8_append(text, static_cast<char32_t>(c));
      }
      if (dfa_run(**bytes, text + "\xC3\xA9") != (in ? 1U : 0U))
        BOOST_FAIL("code point " << c << " in round " << round);
    }
    for (const char* text : {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
                             "\xF4\x90\x80\x80", "\xF5\x80\x80\x80"})
      BOOST_TEST(dfa_run(**bytes, std::string(text) + "a") == 0U);
  }
}

}  // namespace
}  // namespace tensorfold::grammar
