// Who asks, and how much at once: a key's own bounds on replies in progress and on replies that
// wait for them. What is past a key's bound waits here, not in the engine's queue, so that a busy
// key can't fill that for the others.
//
// Owner: the loop thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "engine/base/status.h"

namespace tensorfold::api {

inline constexpr int kKeyRunningMax = 4096;  // "running=" of a key
inline constexpr int kKeyWaitingMax = 4096;  // "waiting=" of a key

struct KeyIdentity {
  std::string label;        // empty without keys
  int running = 0;          // replies in progress; 0: no bound of its own
  int waiting = 0;          // replies that wait for that; 0 with a bound: none waits
  bool background = false;  // every request of the key yields to others
};

class KeyGate {
 public:
  struct Entry {
    std::function<bool()> start;              // its turn has come; false: it ended at once
    std::function<void(const Status&)> drop;  // it waited too long
    std::function<bool()> gone;               // nobody waits for it any more
    int64_t deadline_us = 0;
  };

  // Runs start() now or keeps the entry for later; kTooMany when the key's own queue is full.
  Status enter(const KeyIdentity& key, Entry entry);
  void leave(const std::string& label);  // one of that key's replies has ended
  void tick(int64_t now_us);             // drops what is late or gone
  void drop_all(const Status& why);

  size_t waiting() const;
  int running(const std::string& label) const;

 private:
  struct Line {
    int limit = 0;
    int running = 0;
    std::deque<Entry> queue;
  };
  void advance(Line& line);

  std::map<std::string, Line> lines_;  // of keys that have a bound; bounded by the keys of the file
};

}  // namespace tensorfold::api
