// What head and workers say to each other: every message comes back as it was, and no damage is
// taken for another message of the same kind without being refused or being one.
#include <boost/test/unit_test.hpp>
#include <random>

#include "engine/group/messages.h"

using namespace tensorfold;

namespace {

RecordKey random_key(std::mt19937_64& rng) {
  RecordKey key;
  for (uint8_t& byte : key.name.bytes) byte = static_cast<uint8_t>(rng());
  key.kind = static_cast<CacheNote::Kind>(rng() % 3);
  return key;
}

std::vector<RecordKey> random_keys(std::mt19937_64& rng, size_t most) {
  std::vector<RecordKey> keys(rng() % (most + 1));
  for (RecordKey& key : keys) key = random_key(rng);
  return keys;
}

News random_news(std::mt19937_64& rng) {
  News news;
  news.whole = rng() % 2 == 0;
  news.last = rng() % 2 == 0;
  news.accepts = rng() % 2 == 0;
  news.there = random_keys(rng, 20);
  news.gone = random_keys(rng, 3);
  for (size_t i = rng() % 4; i > 0; --i) news.staged.push_back({random_key(rng), rng() % 2 == 0});
  for (size_t i = rng() % 3; i > 0; --i) news.compared.push_back({random_key(rng), rng() % 2 == 0});
  return news;
}

// Shorter and longer ones are refused; a changed one is refused or says something else.
template <typename T>
void hurt(const T& message, size_t least) {
  const std::vector<std::byte> body = encode(message);
  T out;
  for (size_t n = 0; n < std::min(body.size(), least); ++n)
    BOOST_TEST(!decode(std::span(body).first(n), out).ok());
  for (size_t i = 0; i < body.size(); ++i) {
    std::vector<std::byte> changed = body;
    changed[i] ^= std::byte{0x81};
    if (decode(changed, out).ok()) BOOST_TEST((encode(out) == changed));
    BOOST_TEST((order_digest(changed) != order_digest(body)));
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(messages_come_back_and_damage_is_refused) {
  std::mt19937_64 rng(5);
  for (int i = 0; i < 50; ++i) {
    const Hello hello = {rng(), rng(), rng(), rng() % 2 == 0};
    Hello hello_out;
    BOOST_REQUIRE(decode(encode(hello), hello_out).ok());
    BOOST_TEST((encode(hello_out) == encode(hello)));
    hurt(hello, SIZE_MAX);
    const Sync sync = {rng(), rng() % 2 == 0, rng()};
    Sync sync_out;
    BOOST_REQUIRE(decode(encode(sync), sync_out).ok());
    BOOST_TEST((encode(sync_out) == encode(sync)));
    hurt(sync, SIZE_MAX);
    const News news = random_news(rng);
    News news_out;
    BOOST_REQUIRE(decode(encode(news), news_out).ok());
    BOOST_TEST((encode(news_out) == encode(news)));
    hurt(news, SIZE_MAX);
    StepOrder order;
    order.sequence = rng();
    order.flush = rng() % 2 == 0;
    order.dropped = random_keys(rng, 5);
    order.plan = encode_step_plan({});
    StepOrder order_out;
    BOOST_REQUIRE(decode(encode(order), order_out).ok());
    BOOST_TEST((encode(order_out) == encode(order)));
    hurt(order, encode(order).size() - order.plan.size());
  }
}

BOOST_AUTO_TEST_CASE(one_past_the_bounds) {
  News news;
  news.there.resize(static_cast<size_t>(kNewsKeysMax) + 1);
  News out;
  BOOST_TEST(!decode(encode(news), out).ok());
  news.whole = true;
  BOOST_TEST(decode(encode(news), out).ok());
  news.there.resize(static_cast<size_t>(kNewsKeysAtOnceMax) + 1);
  BOOST_TEST(!decode(encode(news), out).ok());
  StepOrder order;
  order.dropped.resize(static_cast<size_t>(kDroppedKeysMax) + 1);
  StepOrder order_out;
  BOOST_TEST(!decode(encode(order), order_out).ok());
}
