// Server-sent events out of pieces of any size (the WHATWG HTML standard, section 9.2): the data
// of each event. Names, ids and comments are passed over; CR, LF and CRLF end lines.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace tensorfold::ctl::bench {

inline constexpr size_t kBenchEventBytesMax = size_t{8} << 20;  // one event, as it was sent

class EventStream {
 public:
  using Handler = std::function<Status(std::string_view data)>;

  // Calls `handler` for every event that ends in these bytes; its error ends the parse.
  Status feed(std::string_view bytes, const Handler& handler);

 private:
  Status end_line(const Handler& handler);

  std::string line_, data_;
  bool has_data_ = false;
  bool after_cr_ = false;  // an LF that follows belongs to that CR
};

}  // namespace tensorfold::ctl::bench
