// The shortest length of a reply: end tokens are out until it is reached, alone and in front of
// another constraint.
#include "engine/min_tokens.h"

#include <boost/test/unit_test.hpp>
#include <vector>

#include "tests/engine/scripted_text.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

std::vector<int> allowed(const MaskSource& source, MaskState state) {
  std::vector<uint32_t> bits((kVocab + 31) / 32, 0xdeadbeef);
  const bool any = source.mask(state, bits);
  std::vector<int> out;
  for (int id = 0; id < static_cast<int>(bits.size()) * 32; ++id) {
    if ((bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1U) != 0) out.push_back(id);
  }
  BOOST_TEST(any == !out.empty());
  return out;
}

bool has(const std::vector<int>& ids, int id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_end_comes_after_the_last_counted_token) {
  const ScriptedText text;
  const auto source = make_min_tokens(kVocab, text, 3, nullptr);
  MaskState state = source->start();
  for (int n = 0; n < 3; ++n) {
    const auto ids = allowed(*source, state);
    BOOST_TEST(!has(ids, kEos));
    BOOST_TEST(ids.size() == static_cast<size_t>(kVocab) - 1);
    state = source->next(state, 5);
  }
  for (int n = 0; n < 5; ++n) {
    BOOST_TEST(allowed(*source, state).size() == static_cast<size_t>(kVocab));
    state = source->next(state, 5);
  }
  BOOST_TEST(source->next(kMaskDead, 5) == kMaskDead);
  BOOST_TEST(allowed(*source, kMaskDead).empty());
}

BOOST_AUTO_TEST_CASE(another_constraint_still_holds) {
  const ScriptedText text;
  const auto two = [] { return make_allow_list(kVocab, {7, kEos}); };
  const auto source = make_min_tokens(kVocab, text, 2, two());
  MaskState state = source->start();
  BOOST_TEST(allowed(*source, state) == std::vector<int>{7});
  BOOST_TEST(source->next(state, 8) == kMaskDead);
  state = source->next(source->next(state, 7), 7);
  BOOST_TEST(allowed(*source, state).size() == 2U);
  // Nothing but the end is left: then it ends.
  const auto only_end = make_min_tokens(kVocab, text, 2, make_allow_list(kVocab, {kEos}));
  BOOST_TEST(allowed(*only_end, only_end->start()) == std::vector<int>{kEos});
}
