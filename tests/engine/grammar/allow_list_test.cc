// The allow list: exactly its tokens, at every position; nothing else continues.
#include <boost/test/unit_test.hpp>

#include "engine/grammar/mask_source.h"

using namespace tensorfold;

BOOST_AUTO_TEST_CASE(mask_and_next_agree_for_every_token) {
  constexpr int kVocab = 131;  // not a multiple of 32
  const std::vector<int32_t> allowed = {0, 31, 32, 63, 64, 130};
  const auto source = make_allow_list(kVocab, {0, 31, 32, 63, 64, 130, 130, 131, -1, 100000});
  std::vector<uint32_t> bits((kVocab + 31) / 32, 0xFFFFFFFFU);
  BOOST_REQUIRE(source->mask(source->start(), bits));
  for (int32_t id = 0; id < 160; ++id) {
    const bool expected = std::find(allowed.begin(), allowed.end(), id) != allowed.end();
    BOOST_TEST(((bits[static_cast<size_t>(id) / 32] >> (id % 32)) & 1U) == expected,
               "token " << id);
    BOOST_TEST((source->next(source->start(), id) != kMaskDead) == expected, "token " << id);
  }
  BOOST_TEST(source->next(source->start(), -1) == kMaskDead);
  BOOST_TEST(source->next(source->start(), INT32_MAX) == kMaskDead);
}

BOOST_AUTO_TEST_CASE(dead_ends_are_dead) {
  const auto nothing = make_allow_list(64, {});
  std::vector<uint32_t> bits(2, 7U);
  BOOST_TEST(!nothing->mask(nothing->start(), bits));
  BOOST_TEST((bits[0] == 0U && bits[1] == 0U));
  const auto one = make_allow_list(64, {5});
  BOOST_TEST(!one->mask(kMaskDead, bits));
  BOOST_TEST(one->next(kMaskDead, 5) == kMaskDead);
}
