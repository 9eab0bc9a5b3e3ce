// Bounds of keys: what is past them waits in order, is refused past the line's end, and never holds
// up another key.
#include "daemon/api/key_gate.h"

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

using namespace tensorfold;
using namespace tensorfold::api;

namespace {

struct Gate {
  KeyGate gate;
  std::string log;
  std::vector<std::string> gone;

  Status enter(const KeyIdentity& key, const std::string& name, int64_t deadline_us = 1000,
               bool starts = true) {
    KeyGate::Entry entry;
    entry.start = [this, name, starts] {
      log += "+" + name;
      return starts;
    };
    entry.drop = [this, name](const Status& why) { log += "-" + name + why.reason(); };
    entry.gone = [this, name] { return std::find(gone.begin(), gone.end(), name) != gone.end(); };
    entry.deadline_us = deadline_us;
    return gate.enter(key, std::move(entry));
  }
};

const KeyIdentity kA{"a", 2, 2, false};
const KeyIdentity kB{"b", 1, 0, false};
const KeyIdentity kFree{"free", 0, 0, false};

}  // namespace

BOOST_AUTO_TEST_CASE(past_the_bound_they_wait_in_order) {
  Gate g;
  for (const char* name : {"1", "2", "3", "4"}) BOOST_TEST(g.enter(kA, name).ok());
  BOOST_TEST(g.log == "+1+2");
  const Status full = g.enter(kA, "5");
  BOOST_TEST(full.reason() == "key_limit");
  BOOST_TEST((full.code() == StatusCode::kTooMany));
  // Another key is not held up, nor is one without a bound.
  BOOST_TEST(g.enter(kB, "b").ok());
  BOOST_TEST(g.enter(kB, "bb").reason() == "key_limit");
  for (int i = 0; i < 50; ++i) BOOST_TEST(g.enter(kFree, ".").ok());
  BOOST_TEST(g.gate.waiting() == 2U);
  g.log.clear();
  g.gate.leave("a");
  g.gate.leave("a");
  BOOST_TEST(g.log == "+3+4");
  g.gate.leave("a");
  g.gate.leave("a");
  BOOST_TEST(g.gate.running("a") == 0);
  BOOST_TEST(g.enter(kA, "6").ok());
  BOOST_TEST(g.log == "+3+4+6");
}

BOOST_AUTO_TEST_CASE(what_is_gone_or_late_does_not_start) {
  Gate g;
  for (const char* name : {"1", "2", "3", "4"}) BOOST_TEST(g.enter(kA, name, 500).ok());
  g.gone = {"3"};
  // The place of one that has gone is free at once.
  BOOST_TEST(g.enter(kA, "5", 2000).ok());
  g.gate.tick(499);
  BOOST_TEST(g.log == "+1+2");
  g.gate.tick(500);
  BOOST_TEST(g.log == "+1+2-4key_limit");
  g.gate.leave("a");
  BOOST_TEST(g.log == "+1+2-4key_limit+5");
}

BOOST_AUTO_TEST_CASE(one_that_ends_at_once_takes_no_place) {
  Gate g;
  for (int i = 0; i < 5; ++i) BOOST_TEST(g.enter(kA, "x", 1000, false).ok());
  BOOST_TEST(g.gate.running("a") == 0);
  BOOST_TEST(g.enter(kA, "1").ok());
  BOOST_TEST(g.enter(kA, "2").ok());
  BOOST_TEST(g.enter(kA, "y", 1000, false).ok());
  BOOST_TEST(g.enter(kA, "3").ok());
  g.log.clear();
  g.gate.leave("a");
  BOOST_TEST(g.log == "+y+3");
  g.gate.drop_all(unavailable("stop", "stopping"));
  BOOST_TEST(g.gate.waiting() == 0U);
}
