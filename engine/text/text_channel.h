// Incremental text: valid UTF-8 out of any bytes, and stop strings cut off.
//
// Each object belongs to one reply. What they give is a function of the bytes alone, never of how
// the bytes were cut into calls.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

// Bytes to valid UTF-8: holds back an unfinished sequence, replaces broken ones by U+FFFD.
class Utf8Stream {
 public:
  void push(std::string_view bytes, std::string& out);
  void flush(std::string& out);  // an unfinished sequence becomes U+FFFD

 private:
  std::string pending_;  // at most 3 bytes between calls
};

// Passes text on until one of the stop strings is complete; holds back what could become one.
class StopMatcher {
 public:
  explicit StopMatcher(const std::vector<std::string>& stops);  // empty ones are ignored

  // Text after a match is dropped.
  void push(std::string_view text, std::string& out);
  void flush(std::string& out);  // gives up what is held; a match does not reach across
  bool stopped() const { return stopped_; }
  int stop_index() const { return stop_index_; }  // which one of those given; -1: none yet

 private:
  struct Stop {
    std::string text;
    int index = 0;
    std::vector<size_t> fallback;  // Knuth-Morris-Pratt: the longest border of each prefix
    size_t matched = 0;            // bytes
  };
  static bool advance(Stop& stop, char c);  // true when complete

  std::vector<Stop> stops_;
  std::string held_;
  bool stopped_ = false;
  int stop_index_ = -1;
};

}  // namespace tensorfold
