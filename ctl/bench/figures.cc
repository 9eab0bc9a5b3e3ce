#include "ctl/bench/figures.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tensorfold::ctl::bench {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void sort_finite(std::vector<double>& values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  std::sort(values.begin(), values.end());
}

double ratio(double tokens, int64_t us) { return us > 0 ? tokens / seconds(us) : kNaN; }

}  // namespace

double seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

double median(std::vector<double> values) {
  sort_finite(values);
  if (values.empty()) return kNaN;
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double percentile(std::vector<double> values, double share) {
  sort_finite(values);
  if (values.empty()) return kNaN;
  const double rank = std::ceil(share * static_cast<double>(values.size()) - 1e-9);
  const auto at = static_cast<size_t>(std::max(rank, 1.0)) - 1;
  return values[std::min(at, values.size() - 1)];
}

double first_token_s(const Sample& sample) { return seconds(sample.first_us() - sample.sent_us); }

double decode_tps(const Sample& sample) {
  if (sample.text_us.empty() || sample.completion_tokens < 2) return kNaN;
  return ratio(static_cast<double>(sample.completion_tokens - 1),
               sample.last_us() - sample.first_us());
}

double prefill_tps(const Sample& sample) {
  return ratio(static_cast<double>(sample.prompt_tokens), sample.first_us() - sample.sent_us);
}

double tokens_between(const Sample& sample, int64_t from_us, int64_t to_us) {
  if (sample.text_us.empty()) return 0;
  if (sample.past_end && sample.last_us() > sample.first_us()) {
    const int64_t inside = std::min(to_us, sample.last_us()) - std::max(from_us, sample.first_us());
    return static_cast<double>(sample.completion_tokens) *
           static_cast<double>(std::max<int64_t>(inside, 0)) /
           static_cast<double>(sample.last_us() - sample.first_us());
  }
  const auto inside = std::count_if(sample.text_us.begin(), sample.text_us.end(),
                                    [&](int64_t at) { return at > from_us && at <= to_us; });
  return static_cast<double>(sample.completion_tokens) * static_cast<double>(inside) /
         static_cast<double>(sample.text_us.size());
}

double aggregate_tps(std::span<const Sample> samples) {
  if (samples.empty()) return kNaN;
  double tokens = 0;
  int64_t start = samples[0].sent_us, end = samples[0].end_us;
  for (const Sample& sample : samples) {
    tokens += static_cast<double>(sample.completion_tokens);
    start = std::min(start, sample.sent_us);
    end = std::max(end, sample.end_us);
  }
  return ratio(tokens, end - start);
}

double steady_tps(std::span<const Sample> samples) {
  int64_t from = std::numeric_limits<int64_t>::min(), to = std::numeric_limits<int64_t>::max();
  for (const Sample& sample : samples) {
    if (sample.text_us.empty()) return kNaN;
    from = std::max(from, sample.text_us.front());
    to = std::min(to, sample.last_us());
  }
  if (samples.empty() || from >= to) return kNaN;
  double tokens = 0;
  for (const Sample& sample : samples) tokens += tokens_between(sample, from, to);
  return ratio(tokens, to - from);
}

std::vector<double> gaps_s(const Sample& sample) {
  return gaps_s(sample, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
}

std::vector<double> gaps_s(const Sample& sample, int64_t from_us, int64_t to_us) {
  std::vector<double> gaps;
  for (size_t i = 1; i < sample.text_us.size(); ++i) {
    const int64_t begin = sample.text_us[i - 1], end = sample.text_us[i];
    if (end > from_us && begin < to_us) gaps.push_back(seconds(end - begin));
  }
  return gaps;
}

}  // namespace tensorfold::ctl::bench
