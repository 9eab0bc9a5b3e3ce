// How far a long job over bytes is: a rate over the last seconds, the time left, and one line that
// is drawn in place on a terminal or written now and then elsewhere.
//
// Owner: one thread. The clock is injected, so tests say what time it is.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

#include "engine/base/clock.h"

namespace tensorfold::models {

inline constexpr int64_t kRateWindowMs = 10'000;    // what the rate is an average over
inline constexpr int64_t kDrawGapMs = 200;          // between two drawings on a terminal
inline constexpr int64_t kPlainLineGapMs = 10'000;  // between two lines elsewhere

std::string size_text(int64_t bytes);        // "197.3 GB", as disks and networks count
std::string duration_text(int64_t seconds);  // "42 s", "12 min", "3 h 20 min"
// "20M", "1.5G", "300k", "1000": bytes, powers of 1000. False when it is none of these.
bool parse_size(std::string_view text, int64_t& bytes);

class RateMeter {
 public:
  void add(int64_t now_ms, int64_t total_bytes);  // total so far
  double bytes_per_second() const;                // 0 before two looks
  // Until `left_bytes` more are there; -1: not known.
  int64_t seconds_left(int64_t left_bytes) const;

 private:
  struct Look {
    int64_t at_ms, bytes;
  };
  std::deque<Look> looks_;
};

class Progress {
 public:
  // `what` begins every line ("fetching"). `terminal`: draw in place.
  Progress(std::ostream& out, const Clock& clock, bool terminal, std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void start(int64_t total_bytes, int64_t done_bytes, int total_items);
  void look(int64_t done_bytes, int done_items);  // cheap: draws only when it is time
  void note(std::string_view line);               // a line that stays
  void end();                                     // the last state, then a new line

  std::string line() const;  // what a look would show now

 private:
  void draw();
  std::ostream& out_;
  const Clock& clock_;
  const bool terminal_;
  const std::string what_;
  RateMeter meter_;
  int64_t total_bytes_ = 0, done_bytes_ = 0, drawn_ms_ = 0;
  int total_items_ = 0, done_items_ = 0;
  bool running_ = false, on_line_ = false;
};

}  // namespace tensorfold::models
