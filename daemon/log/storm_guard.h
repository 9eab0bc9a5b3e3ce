// Keeps a storm of equal warnings out of the journal, which would drop lines of its own choice: the
// first ones of a kind are written, then one now and then that says how many were left out.
//
// A kind is an event, or a message without its numbers. Any thread may ask; warnings are rare, so
// one mutex serves all.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/base/clock.h"

namespace tensorfold::log {

inline constexpr int64_t kStormLines = 40;         // of one kind in a window, before it is a storm
inline constexpr int64_t kStormWindowMs = 10'000;  // the first window; each further one is doubled
inline constexpr int64_t kStormWindowMsMax = 600'000;
inline constexpr size_t kStormKinds = 64;         // remembered at once; the oldest goes first
inline constexpr size_t kStormKindBytesMax = 96;  // of a message that tell kinds apart

class StormGuard {
 public:
  explicit StormGuard(const Clock& clock) : clock_(clock) {}

  struct Verdict {
    bool write = true;
    int64_t left_out = 0;  // lines of this kind since the last one that was written
  };
  Verdict admit(std::string_view event, std::string_view message);

 private:
  struct Kind {
    std::string name;
    int64_t window_end_ms = 0, window_ms = 0;
    int64_t lines = 0;  // in this window
    int64_t left_out = 0;
    bool storm = false;  // the window before overflowed
  };
  Kind& kind_of(std::string_view event, std::string_view message, int64_t now_ms);

  const Clock& clock_;
  std::mutex mutex_;
  std::array<Kind, kStormKinds> kinds_;
};

}  // namespace tensorfold::log
