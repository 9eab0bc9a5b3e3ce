// What is counted of replies for /metrics: times in fixed buckets, ends, requests by key.
//
// Owner: the loop thread. Bounded: one counter for each label of the keys file, the rest together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace tensorfold::api {

inline constexpr size_t kMetricLabelsMax = 1024;  // labels counted apart

// Upper bounds in seconds, as the last one: everything.
class Histogram {
 public:
  static constexpr std::array<double, 16> kBoundsSeconds = {
      0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800};

  void add(double seconds) {
    size_t i = 0;
    while (i < kBoundsSeconds.size() && seconds > kBoundsSeconds[i]) ++i;
    ++buckets_[i];
    ++count_;
    sum_ += seconds;
  }
  // Observations up to bound i; i == kBoundsSeconds.size() is all of them.
  uint64_t up_to(size_t i) const {
    uint64_t n = 0;
    for (size_t k = 0; k <= i; ++k) n += buckets_[k];
    return n;
  }
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::array<uint64_t, kBoundsSeconds.size() + 1> buckets_{};
  uint64_t count_ = 0;
  double sum_ = 0;
};

struct ReplyMetrics {
  Histogram first_token, whole, queue, prefill, decode, per_token;
  uint64_t stops = 0, lengths = 0, calls = 0, aborts = 0, errors = 0;
  std::map<std::string, uint64_t, std::less<>> requests_by_label;

  void count_label(std::string_view label) {
    auto it = requests_by_label.find(label);
    if (it == requests_by_label.end()) {
      const bool room = requests_by_label.size() < kMetricLabelsMax;
      it = requests_by_label.emplace(room ? std::string(label) : "other", 0).first;
    }
    ++it->second;
  }
};

}  // namespace tensorfold::api
