#include "ctl/model/progress.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <ostream>

namespace tensorfold::models {

std::string size_text(int64_t bytes) {
  constexpr std::array<std::string_view, 4> kUnits = {"kB", "MB", "GB", "TB"};
  if (bytes < 1000) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  while (value >= 999.95 && unit + 1 < kUnits.size()) value /= 1000, ++unit;
  char text[48];
  std::snprintf(text, sizeof text, "%.1f %s", value, kUnits[unit].data());
  return text;
}

std::string duration_text(int64_t seconds) {
  if (seconds < 120) return std::to_string(std::max<int64_t>(0, seconds)) + " s";
  const int64_t minutes = (seconds + 30) / 60;
  if (minutes < 120) return std::to_string(minutes) + " min";
  return std::to_string(minutes / 60) + " h " + std::to_string(minutes % 60) + " min";
}

bool parse_size(std::string_view text, int64_t& bytes) {
  constexpr double kBytesMax = 1e15;
  double scale = 1;
  if (!text.empty()) {
    switch (text.back()) {
      case 'k':
      case 'K':
        scale = 1e3;
        break;
      case 'M':
        scale = 1e6;
        break;
      case 'G':
        scale = 1e9;
        break;
      default:
        break;
    }
    if (scale > 1) text.remove_suffix(1);
  }
  double value = 0;
  const auto [end, code] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (code != std::errc() || end != text.data() + text.size()) return false;
  if (!(value > 0) || value * scale > kBytesMax || value * scale < 1) return false;
  bytes = static_cast<int64_t>(value * scale);
  return true;
}

void RateMeter::add(int64_t now_ms, int64_t total_bytes) {
  if (!looks_.empty() && (total_bytes < looks_.back().bytes || now_ms < looks_.back().at_ms)) {
    looks_.clear();  // it began anew
  }
  looks_.push_back({now_ms, total_bytes});
  while (looks_.size() > 2 && looks_[1].at_ms <= now_ms - kRateWindowMs) looks_.pop_front();
}

double RateMeter::bytes_per_second() const {
  if (looks_.size() < 2) return 0;
  const int64_t ms = looks_.back().at_ms - looks_.front().at_ms;
  if (ms <= 0) return 0;
  return static_cast<double>(looks_.back().bytes - looks_.front().bytes) * 1000.0 /
         static_cast<double>(ms);
}

int64_t RateMeter::seconds_left(int64_t left_bytes) const {
  const double rate = bytes_per_second();
  if (left_bytes <= 0) return 0;
  return rate < 1 ? -1 : static_cast<int64_t>(static_cast<double>(left_bytes) / rate) + 1;
}

Progress::Progress(std::ostream& out, const Clock& clock, bool terminal, std::string what)
    : out_(out), clock_(clock), terminal_(terminal), what_(std::move(what)) {}

Progress::~Progress() {
  if (on_line_) out_ << "\n" << std::flush;
}

void Progress::start(int64_t total_bytes, int64_t done_bytes, int total_items) {
  total_bytes_ = total_bytes;
  done_bytes_ = done_bytes;
  total_items_ = total_items;
  done_items_ = 0;
  meter_ = RateMeter();
  drawn_ms_ = clock_.monotonic_us() / 1000;
  meter_.add(drawn_ms_, done_bytes);
  running_ = true;
}

void Progress::look(int64_t done_bytes, int done_items) {
  const int64_t now_ms = clock_.monotonic_us() / 1000;
  done_bytes_ = done_bytes;
  done_items_ = done_items;
  if (!running_ || now_ms - drawn_ms_ < (terminal_ ? kDrawGapMs : kPlainLineGapMs)) return;
  meter_.add(now_ms, done_bytes);
  drawn_ms_ = now_ms;
  draw();
}

std::string Progress::line() const {
  const int64_t percent = total_bytes_ > 0 ? done_bytes_ * 100 / total_bytes_ : 100;
  std::string out = what_ + ": " + size_text(done_bytes_) + " of " + size_text(total_bytes_) +
                    " (" + std::to_string(percent) + "%), " + std::to_string(done_items_) + " of " +
                    std::to_string(total_items_) + " files";
  const double rate = meter_.bytes_per_second();
  if (rate >= 1) out += ", " + size_text(static_cast<int64_t>(rate)) + "/s";
  const int64_t left = meter_.seconds_left(total_bytes_ - done_bytes_);
  if (left > 0) out += ", " + duration_text(left) + " left";
  return out;
}

void Progress::draw() {
  if (terminal_) {
    out_ << "\r" << line() << "\x1b[K" << std::flush;
    on_line_ = true;
  } else {
    out_ << line() << "\n" << std::flush;
  }
}

void Progress::note(std::string_view text) {
  if (on_line_) out_ << "\r\x1b[K";
  on_line_ = false;
  out_ << text << "\n" << std::flush;
}

void Progress::end() {
  if (!running_) return;
  running_ = false;
  meter_.add(clock_.monotonic_us() / 1000, done_bytes_);
  draw();
  if (on_line_) out_ << "\n" << std::flush;
  on_line_ = false;
}

}  // namespace tensorfold::models
