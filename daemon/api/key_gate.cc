// Waiting lines of keys. See the header.
#include "daemon/api/key_gate.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold::api {

Status KeyGate::enter(const KeyIdentity& key, Entry entry) {
  Line& line = lines_[key.label];
  line.limit = key.running;
  if (key.running <= 0 || (line.running < key.running && line.queue.empty())) {
    ++line.running;
    if (!entry.start()) --line.running;
    return ok_status();
  }
  std::erase_if(line.queue, [](const Entry& waiting) { return waiting.gone(); });
  if (line.queue.size() >= static_cast<size_t>(std::max(0, key.waiting))) {
    return Status(StatusCode::kTooMany,
                  "this key has " + std::to_string(line.running) + " replies in progress and " +
                      std::to_string(line.queue.size()) + " waiting, which is its limit",
                  {}, "key_limit");
  }
  line.queue.push_back(std::move(entry));
  return ok_status();
}

void KeyGate::advance(Line& line) {
  while (!line.queue.empty() && (line.limit <= 0 || line.running < line.limit)) {
    Entry entry = std::move(line.queue.front());
    line.queue.pop_front();
    if (entry.gone()) continue;
    ++line.running;
    if (!entry.start()) --line.running;
  }
}

void KeyGate::leave(const std::string& label) {
  const auto it = lines_.find(label);
  TF_CHECK(it != lines_.end() && it->second.running > 0);
  --it->second.running;
  advance(it->second);
}

void KeyGate::tick(int64_t now_us) {
  for (auto& [label, line] : lines_) {
    std::deque<Entry> late;
    for (auto it = line.queue.begin(); it != line.queue.end();) {
      if (!it->gone() && now_us < it->deadline_us) {
        ++it;
        continue;
      }
      late.push_back(std::move(*it));
      it = line.queue.erase(it);
    }
    for (Entry& entry : late) {
      if (entry.gone()) continue;
      entry.drop(Status(StatusCode::kUnavailable,
                        "the other replies of this key did not end in time", {}, "key_limit"));
    }
  }
}

void KeyGate::drop_all(const Status& why) {
  for (auto& [label, line] : lines_) {
    std::deque<Entry> all = std::exchange(line.queue, {});
    for (Entry& entry : all)
      if (!entry.gone()) entry.drop(why);
  }
}

size_t KeyGate::waiting() const {
  size_t n = 0;
  for (const auto& [label, line] : lines_) n += line.queue.size();
  return n;
}

int KeyGate::running(const std::string& label) const {
  const auto it = lines_.find(label);
  return it == lines_.end() ? 0 : it->second.running;
}

}  // namespace tensorfold::api
