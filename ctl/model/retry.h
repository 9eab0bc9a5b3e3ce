// Which answers of a server are worth another try, and when. Pure.
#pragma once

#include <curl/curl.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace tensorfold::models {

inline constexpr int kTriesMax = 8;                // in a row that bring nothing
inline constexpr int64_t kBackoffFirstMs = 500;    // then doubled
inline constexpr int64_t kBackoffMostMs = 30'000;  // between two tries
inline constexpr int64_t kResumeDelayMs = 200;     // after a try that brought something
inline constexpr int64_t kRetryAfterMostMs =
    3'600'000;  // a server's Retry-After longer than this ends it

// A failed try: whether another may help, and what to say if it does not.
struct Fault {
  bool again = false;
  bool all = false;  // the same would happen to every file: no access, no room
  std::string what;
};

Fault http_fault(long status, std::string_view body);
Fault curl_fault(CURLcode code, std::string_view detail);
// The answer has a Content-Encoding: what comes are other bytes than the file's.
Fault encoding_fault(std::string_view encoding);

int64_t backoff_ms(int tries);  // before try number `tries` (1: the first again)

// Of a Retry-After header, seconds or a date, in milliseconds; -1: none that can be read.
int64_t retry_after_ms(std::string_view header, int64_t unix_ms);

}  // namespace tensorfold::models
