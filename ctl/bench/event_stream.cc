#include "ctl/bench/event_stream.h"

namespace tensorfold::ctl::bench {

Status EventStream::feed(std::string_view bytes, const Handler& handler) {
  while (!bytes.empty()) {
    if (after_cr_ && bytes.front() == '\n') {
      after_cr_ = false;
      bytes.remove_prefix(1);
      continue;
    }
    after_cr_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    const std::string_view piece = bytes.substr(0, end);
    if (line_.size() + data_.size() + piece.size() > kBenchEventBytesMax) {
      return data_loss("an event has more than " + std::to_string(kBenchEventBytesMax) + " bytes");
    }
    line_.append(piece);
    if (end == std::string_view::npos) return ok_status();
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    TF_RETURN_IF_ERROR(end_line(handler));
  }
  return ok_status();
}

Status EventStream::end_line(const Handler& handler) {
  std::string line;
  line.swap(line_);
  if (line.empty()) {
    if (!has_data_) return ok_status();
    std::string data;
    data.swap(data_);
    has_data_ = false;
    return handler(data);
  }
  const size_t colon = line.find(':');
  if (line.substr(0, colon) != "data") return ok_status();
  std::string_view value;
  if (colon != std::string::npos) value = std::string_view(line).substr(colon + 1);
  if (!value.empty() && value.front() == ' ') value.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_.append(value);
  has_data_ = true;
  return ok_status();
}

}  // namespace tensorfold::ctl::bench
