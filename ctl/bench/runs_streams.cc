// decode, concurrent and sustained: replies to the fixed prompts, alone and beside each other.
#include <algorithm>
#include <atomic>
#include <exception>
#include <latch>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "ctl/bench/runs.h"
#include "ctl/bench/samples.h"

namespace tensorfold::ctl::bench {
namespace {

constexpr int64_t kWarmUpTokens = 32;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Ask ask_of(const Settings& settings, int64_t i, bool variant) {
  Ask ask;
  const auto& prompts = settings.set->prompts;
  ask.text = prompts[static_cast<size_t>(i) % prompts.size()].text;
  if (variant) ask.text += " (variant " + std::to_string(i) + ")";
  ask.max_tokens = settings.tokens;
  ask.ignore_eos = settings.ignore_eos;
  return ask;
}

// Runs work(i) for i in [0, count) on a thread each, all let go at once.
Status on_threads(int64_t count, const std::function<Status(int64_t)>& work) {
  std::vector<Status> status(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  std::latch start(count);
  std::atomic<bool> called_off = false;
  try {
    threads.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        if (!called_off) status[static_cast<size_t>(i)] = work(i);
      });
    }
  } catch (const std::exception& e) {
    called_off = true;
    start.count_down(count - static_cast<int64_t>(threads.size()));
    status[0] = internal_error(std::string("no thread for a stream: ") + e.what());
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& one : status) TF_RETURN_IF_ERROR(one);
  return ok_status();
}

// One repetition of `concurrent`: a reply per stream and, once all have begun, a long prompt.
struct Round {
  std::vector<Sample> samples;
  std::optional<Sample> fill;
};

Result<Round> run_round(const Target& target, const Settings& settings, int64_t streams,
                        const std::optional<Ask>& fill) {
  Round round;
  round.samples.resize(static_cast<size_t>(streams));
  std::latch begun(streams);
  const auto stream = [&](int64_t i) -> Status {
    bool counted = false;
    const auto count = [&] {
      if (!std::exchange(counted, true)) begun.count_down();
    };
    auto sample = complete(target, ask_of(settings, i, true), count);
    count();
    if (!sample.ok()) return sample.status().with_context("stream " + std::to_string(i));
    round.samples[static_cast<size_t>(i)] = *std::move(sample);
    return ok_status();
  };
  const auto long_prompt = [&]() -> Status {
    begun.wait();
    auto sample = complete(target, *fill);
    if (!sample.ok()) return sample.status().with_context("the long prompt");
    round.fill = *std::move(sample);
    return ok_status();
  };
  TF_RETURN_IF_ERROR(on_threads(streams + (fill ? 1 : 0), [&](int64_t i) {
    return i < streams ? stream(i) : long_prompt();
  }));
  return round;
}

void append(std::vector<double>& to, const std::vector<double>& values) {
  to.insert(to.end(), values.begin(), values.end());
}

// All repetitions of `concurrent` with one number of streams.
struct Cell {
  int64_t streams = 0;
  std::vector<double> aggregate, steady, each, first, gaps, fill_first, fill_gaps;
  std::vector<Sample> samples, fills;
  double linear = kNaN;  // part of so many times the aggregate of one stream

  void take(const Round& round) {
    aggregate.push_back(aggregate_tps(round.samples));
    steady.push_back(steady_tps(round.samples));
    append(each, column(round.samples, decode_tps));
    append(first, column(round.samples, first_token_s));
    for (const Sample& sample : round.samples) {
      append(gaps, gaps_s(sample));
      if (round.fill) {
        append(fill_gaps, gaps_s(sample, round.fill->sent_us, round.fill->first_us()));
      }
      samples.push_back(sample);
    }
    if (!round.fill) return;
    fill_first.push_back(first_token_s(*round.fill));
    fills.push_back(*round.fill);
  }

  Json json() const {
    Json cell = Json::object({{"streams", Json::integer(streams)},
                              {"aggregate_tps", median_and_all(aggregate)},
                              {"steady_tps", median_and_all(steady)},
                              {"stream_tps", median_and_all(each)},
                              {"first_token_s", spread(first)},
                              {"first_token_s_all", numbers(first)},
                              {"gap_s", spread(gaps)},
                              {"of_linear", number(linear)}});
    add_counts(cell, samples);
    if (fills.empty()) return cell;
    Json fill =
        Json::object({{"first_token_s", median_and_all(fill_first)}, {"gap_s", spread(fill_gaps)}});
    add_counts(fill, fills);
    cell.set("long_prompt", std::move(fill));
    return cell;
  }

  std::vector<std::string> row() const {
    int64_t cached = 0;
    for (const Sample& sample : samples) cached += sample.cached_tokens.value_or(0);
    return {std::to_string(streams),
            fixed(median(aggregate), 1),
            fixed(linear, 2),
            fixed(median(steady), 1),
            fixed(median(each), 1),
            fixed(percentile(first, 0.5), 3),
            fixed(percentile(first, 0.99), 3),
            fixed(percentile(gaps, 0.99), 3),
            fixed(percentile(fill_gaps, 0.99), 3),
            fixed(median(fill_first), 3),
            std::to_string(cached)};
  }
};

Result<Cell> run_cell(const Target& target, const Settings& settings, LongPrompts& prompts,
                      int64_t streams, std::vector<std::string>& failures) {
  Cell cell;
  cell.streams = streams;
  for (int64_t r = 0; r < settings.repetitions; ++r) {
    std::optional<Ask> fill;
    if (settings.fill_tokens > 0) {
      TF_ASSIGN_OR_RETURN(fill, prompts.make(settings.fill_tokens));
    }
    TF_ASSIGN_OR_RETURN(const Round round, run_round(target, settings, streams, fill));
    cell.take(round);
    if (round.fill && !is_cold(*round.fill)) {
      failures.push_back("the long prompt beside " + std::to_string(streams) +
                         " streams was not cold");
    }
    settings.note(std::to_string(streams) + " streams, repetition " + std::to_string(r + 1) + ": " +
                  fixed(cell.aggregate.back(), 1) + " tok/s");
  }
  return cell;
}

}  // namespace

Result<Report> run_decode(const Target& target, const Settings& settings) {
  Report report;
  Table table({"prompt", "decode tok/s", "all", "first token s", "tokens", "texts"});
  Json::Array cells;
  for (size_t p = 0; p < settings.set->prompts.size(); ++p) {
    const std::string kind(settings.set->prompts[p].kind);
    Ask ask = ask_of(settings, static_cast<int64_t>(p), false);
    Ask warm_up = ask;
    warm_up.max_tokens = std::min(kWarmUpTokens, ask.max_tokens);
    if (const auto warm = complete(target, warm_up); !warm.ok()) {
      return warm.status().with_context("warm-up of " + kind);
    }
    std::vector<Sample> samples;
    for (int64_t r = 0; r < settings.repetitions; ++r) {
      auto sample = complete(target, ask);
      if (!sample.ok()) return sample.status().with_context(kind);
      settings.note(kind + ", repetition " + std::to_string(r + 1) + ": " +
                    fixed(decode_tps(*sample), 1) + " tok/s");
      samples.push_back(*std::move(sample));
    }
    const std::vector<double> rates = column(samples, decode_tps);
    const std::vector<double> first = column(samples, first_token_s);
    const bool same = identical_texts(samples);
    Json cell = Json::object({{"prompt", Json::string(kind)},
                              {"decode_tps", median_and_all(rates)},
                              {"first_token_s", median_and_all(first)},
                              {"identical_texts", Json::boolean(same)}});
    add_counts(cell, samples);
    cells.push_back(std::move(cell));
    std::string all;
    for (const double rate : rates) all += (all.empty() ? "" : " ") + fixed(rate, 1);
    table.row({kind, fixed(median(rates), 1), all, fixed(median(first), 3),
               std::to_string(samples.back().completion_tokens), same ? "identical" : "differ"});
    if (median(rates) != median(rates)) {
      report.failures.push_back(kind + ": the replies are too short to time");
    }
  }
  report.json = Json::object({{"set", Json::string(std::string(settings.set->name))},
                              {"max_tokens", Json::integer(settings.tokens)},
                              {"cells", Json::array(std::move(cells))}});
  report.text = table.text();
  return report;
}

Result<Report> run_concurrent(const Target& target, const Settings& settings) {
  Report report;
  LongPrompts prompts(target, settings.seed);
  if (settings.fill_tokens > 0) TF_RETURN_IF_ERROR(prompts.prepare(false));
  Table table({"streams", "total tok/s", "of linear", "steady", "each", "first p50 s", "p99 s",
               "gap p99 s", "filling", "long first s", "cached"});
  Json::Array cells;
  double one = kNaN;
  for (const int64_t streams : settings.streams) {
    auto cell = run_cell(target, settings, prompts, streams, report.failures);
    if (!cell.ok()) return cell.status().with_context(std::to_string(streams) + " streams");
    if (streams == 1) one = median(cell->aggregate);
    cell->linear = median(cell->aggregate) / (static_cast<double>(streams) * one);
    cells.push_back(cell->json());
    table.row(cell->row());
  }
  report.json = Json::object({{"set", Json::string(std::string(settings.set->name))},
                              {"max_tokens", Json::integer(settings.tokens)},
                              {"long_prompt_tokens", Json::integer(settings.fill_tokens)},
                              {"cells", Json::array(std::move(cells))}});
  report.text = table.text();
  return report;
}

Result<Report> run_sustained(const Target& target, const Settings& settings) {
  Report report;
  const auto window_us = static_cast<int64_t>(settings.window_s * 1e6);
  Table table({"streams", "total tok/s", "each p50", "first p50 s", "p99 s", "replies"});
  Json::Array cells;
  int64_t variant = 0;  // no prompt twice
  for (const int64_t streams : settings.streams) {
    std::vector<std::vector<Sample>> of_stream(static_cast<size_t>(streams));
    std::vector<int64_t> begin(static_cast<size_t>(streams));
    std::atomic<int64_t> next = variant;
    TF_RETURN_IF_ERROR(on_threads(streams, [&](int64_t i) -> Status {
      const auto at = static_cast<size_t>(i);
      begin[at] = target.wire->now_us();
      while (target.wire->now_us() < begin[at] + window_us) {
        auto sample = complete(target, ask_of(settings, next++, true));
        if (!sample.ok()) return sample.status().with_context("stream " + std::to_string(i));
        of_stream[at].push_back(*std::move(sample));
      }
      return ok_status();
    }));
    variant = next;
    const int64_t from = *std::min_element(begin.begin(), begin.end());
    double tokens = 0;
    std::vector<Sample> samples;
    for (auto& list : of_stream) {
      for (Sample& sample : list) {
        tokens += tokens_between(sample, from, from + window_us);
        samples.push_back(std::move(sample));
      }
    }
    const std::vector<double> each = column(samples, decode_tps);
    const std::vector<double> first = column(samples, first_token_s);
    const double total = tokens / settings.window_s;
    Json cell = Json::object({{"streams", Json::integer(streams)},
                              {"aggregate_tps", number(total)},
                              {"stream_tps", median_and_all(each)},
                              {"first_token_s", spread(first)},
                              {"first_token_s_all", numbers(first)}});
    add_counts(cell, samples);
    cells.push_back(std::move(cell));
    table.row({std::to_string(streams), fixed(total, 1), fixed(median(each), 1),
               fixed(percentile(first, 0.5), 3), fixed(percentile(first, 0.99), 3),
               std::to_string(samples.size())});
    settings.note(std::to_string(streams) + " streams: " + fixed(total, 1) + " tok/s");
  }
  report.json = Json::object({{"set", Json::string(std::string(settings.set->name))},
                              {"max_tokens", Json::integer(settings.tokens)},
                              {"window_s", number(settings.window_s)},
                              {"cells", Json::array(std::move(cells))}});
  report.text = table.text();
  return report;
}

}  // namespace tensorfold::ctl::bench
