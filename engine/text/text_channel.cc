#include "engine/text/text_channel.h"

#include <algorithm>

#include "engine/base/utf8.h"

namespace tensorfold {

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  pending_ += bytes;
  size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Step step = utf8_step(pending_, at);
    if (step.truncated) break;
    utf8_append(out, step.code_point);
    at += step.bytes;
  }
  pending_.erase(0, at);
}

void Utf8Stream::flush(std::string& out) {
  if (!pending_.empty()) utf8_append(out, kReplacementCharacter);
  pending_.clear();
}

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  for (size_t n = 0; n < stops.size(); ++n) {
    const std::string& text = stops[n];
    if (text.empty()) continue;
    Stop stop{text, static_cast<int>(n), std::vector<size_t>(text.size(), 0), 0};
    for (size_t i = 1, border = 0; i < text.size(); ++i) {
      while (border > 0 && text[i] != text[border]) border = stop.fallback[border - 1];
      if (text[i] == text[border]) ++border;
      stop.fallback[i] = border;
    }
    stops_.push_back(std::move(stop));
  }
}

bool StopMatcher::advance(Stop& stop, char c) {
  while (stop.matched > 0 && stop.text[stop.matched] != c) {
    stop.matched = stop.fallback[stop.matched - 1];
  }
  if (stop.text[stop.matched] == c) ++stop.matched;
  return stop.matched == stop.text.size();
}

void StopMatcher::push(std::string_view text, std::string& out) {
  if (stopped_) return;
  if (stops_.empty()) {
    out += text;
    return;
  }
  for (const char c : text) {
    held_ += c;
    size_t complete = 0;  // the longest stop string that ends here
    for (Stop& stop : stops_) {
      if (!advance(stop, c) || stop.text.size() <= complete) continue;
      complete = stop.text.size();
      stop_index_ = stop.index;
    }
    if (complete == 0) continue;
    out.append(held_, 0, held_.size() - complete);
    held_.clear();
    stopped_ = true;
    return;
  }
  size_t hold = 0;
  for (const Stop& stop : stops_) hold = std::max(hold, stop.matched);
  out.append(held_, 0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
}

void StopMatcher::flush(std::string& out) {
  out += held_;
  held_.clear();
  for (Stop& stop : stops_) stop.matched = 0;
}

}  // namespace tensorfold
