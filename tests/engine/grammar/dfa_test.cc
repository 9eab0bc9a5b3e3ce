// Automata against plain definitions: word lists by look-up, patterns side by side one by one,
// whether two languages meet by building what they share.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <random>

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
  for (const char* pattern : kPatterns) {
    const auto dfa = regex_to_dfa(pattern, RegexMatch::kSearch);
    BOOST_REQUIRE_MESSAGE(dfa.ok(), pattern);
    all.push_back(*dfa);
  }
  constexpr uint32_t kAlways = 1U << 31;
  const auto sorted = dfa_sort_texts(all, kAlways);
  BOOST_REQUIRE(sorted.ok());
  std::mt19937 random(9);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = random_text(random, 7);
    uint32_t label = kAlways;
    for (size_t k = 0; k < all.size(); ++k) label |= dfa_run(*all[k], text) != 0 ? 1U << k : 0U;
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

}  // namespace
}  // namespace tensorfold::grammar
