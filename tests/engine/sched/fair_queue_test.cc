// Turns in the queue: order, right of background work, and how often a line's first one is
// overtaken, over random lives; with an unfair queue that the same check must refuse.
#include "engine/sched/fair_queue.h"

#include <boost/test/unit_test.hpp>
#include <map>
#include <random>
#include <set>
#include <vector>

using namespace tensorfold;

namespace {

SequenceSpec spec(uint64_t request, const std::string& client, bool background = false) {
  SequenceSpec s;
  s.request = request;
  s.client = client;
  s.background = background;
  return s;
}

std::vector<uint64_t> drain(FairQueue& queue) {
  std::vector<uint64_t> order;
  while (queue.size() > 0) order.push_back(queue.pop().request);
  return order;
}

// Watches arrivals and turns: once a foreground sequence is the first of its line, every other
// client that waits, or comes later, may be served once before it, and background work by right.
class TurnWatch {
 public:
  void arrive(uint64_t request, const std::string& client) { lines_[client].push_back(request); }

  // False: somebody's patience was used up.
  bool serve(uint64_t request, const std::string& client) {
    auto& line = lines_[client];
    std::erase(line, request);
    overtaken_.erase(request);
    bool ok = true;
    for (const auto& [name, waiting] : lines_) {
      if (waiting.empty() || name == client) continue;
      auto& others = overtaken_[waiting.front()];
      ok = ok && others.insert(client).second;
    }
    return ok;
  }

 private:
  std::map<std::string, std::deque<uint64_t>> lines_;
  std::map<uint64_t, std::set<std::string>> overtaken_;  // by whom, since first of its line
};

}  // namespace

BOOST_AUTO_TEST_CASE(one_client_is_first_come_first_served) {
  FairQueue queue;
  for (uint64_t i = 1; i <= 5; ++i) queue.push(spec(i, "a"));
  BOOST_TEST(queue.remove(3));
  BOOST_TEST(!queue.remove(3));
  BOOST_TEST((drain(queue) == std::vector<uint64_t>{1, 2, 4, 5}));
}

BOOST_AUTO_TEST_CASE(a_flood_does_not_hold_up_another_client) {
  FairQueue queue;
  for (uint64_t i = 1; i <= 20; ++i) queue.push(spec(i, "flood"));
  BOOST_TEST(queue.pop().request == 1U);
  queue.push(spec(100, "other"));
  queue.push(spec(101, "other"));
  BOOST_TEST(queue.pop().request == 100U);  // next, before 19 older ones
  BOOST_TEST(queue.pop().request == 2U);
  BOOST_TEST(queue.pop().request == 101U);
  BOOST_TEST(queue.pop().request == 3U);
  // A client that comes back at once gains nothing by it.
  queue.push(spec(102, "other"));
  BOOST_TEST(queue.pop().request == 102U);
  queue.push(spec(103, "other"));
  BOOST_TEST(queue.pop().request == 4U);
}

BOOST_AUTO_TEST_CASE(what_was_set_aside_is_first_of_its_line) {
  FairQueue queue;
  queue.push(spec(1, "a", true));
  queue.push(spec(2, "a", true));
  queue.push_front(spec(3, "a", true));
  BOOST_TEST((drain(queue) == std::vector<uint64_t>{3, 1, 2}));
}

BOOST_AUTO_TEST_CASE(background_work_waits_for_a_known_number_of_turns) {
  FairQueue queue;
  queue.push(spec(1, "night", true));
  bool by_right = false;
  for (int turn = 0; turn < kForegroundTurnsMax; ++turn) {
    queue.push(spec(static_cast<uint64_t>(100 + turn), "day"));
    BOOST_TEST(queue.next(by_right)->request == static_cast<uint64_t>(100 + turn));
    BOOST_TEST(!by_right);
    queue.pop();
  }
  BOOST_TEST(queue.next(by_right)->request == 1U);
  BOOST_TEST(!by_right);  // nobody else waits
  queue.push(spec(900, "day"));
  BOOST_TEST(queue.next(by_right)->request == 1U);
  BOOST_TEST(by_right);
  BOOST_TEST(queue.pop().request == 1U);
  BOOST_TEST(queue.pop().request == 900U);
  BOOST_TEST(queue.next(by_right) == nullptr);
}

BOOST_AUTO_TEST_CASE(nobody_is_overtaken_twice_by_the_same_client) {
  std::mt19937_64 rng(7);
  uint64_t served = 0;
  int unfair_found = 0;
  for (int round = 0; round < 400; ++round) {
    FairQueue queue;
    std::vector<std::pair<uint64_t, std::string>> stack;  // the planted fault: last come first
    TurnWatch fair;
    TurnWatch unfair;
    bool unfair_ok = true;
    uint64_t next = 1;
    for (int event = 0; event < 200; ++event) {
      if (queue.size() == 0 || rng() % 2 == 0) {
        const std::string client(1, static_cast<char>('a' + rng() % (1 + rng() % 8)));
        fair.arrive(next, client);
        unfair.arrive(next, client);
        stack.emplace_back(next, client);
        queue.push(spec(next++, client));
      } else {
        const SequenceSpec s = queue.pop();
        BOOST_REQUIRE(fair.serve(s.request, s.client));
        unfair_ok = unfair.serve(stack.back().first, stack.back().second) && unfair_ok;
        stack.pop_back();
        ++served;
      }
    }
    unfair_found += !unfair_ok;
  }
  BOOST_TEST(served > 30000U);
  BOOST_TEST(unfair_found > 390);
}
