// The measurements of `tfctl bench`, each from a target to a report (docs/bench.md defines them).
//
// A request that fails ends the measurement with its error: a figure never stands for a part.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ctl/bench/prompts.h"
#include "ctl/bench/report.h"

namespace tensorfold::ctl::bench {

inline constexpr int64_t kBenchStreamsMax = 64;        // at once
inline constexpr int64_t kBenchRepetitionsMax = 1000;  // of one cell
inline constexpr int64_t kBenchReplyTokensMax = 131'072;
inline constexpr double kBenchWindowSeconds = 86'400;  // of `sustained` and of waits, at most
inline constexpr int64_t kBenchListItemsMax = 64;      // of --streams and --lengths

struct Settings {
  const PromptSet* set = nullptr;
  int64_t tokens = 0;  // of a reply
  int64_t repetitions = 1;
  std::vector<int64_t> streams;
  std::vector<int64_t> lengths;  // prompt tokens
  double window_s = 90;
  int64_t fill_tokens = 0;  // a long prompt beside the streams; 0: none
  uint64_t seed = 0;
  bool ignore_eos = false;
  double poll_s = 0.5;  // ready
  double wait_s = 3600;
  int64_t started_us = 0;  // ready: on the wire's clock
  std::function<void(const std::string&)> note = [](const std::string&) {};  // progress
};

Result<Report> run_decode(const Target& target, const Settings& settings);
Result<Report> run_concurrent(const Target& target, const Settings& settings);
Result<Report> run_sustained(const Target& target, const Settings& settings);
Result<Report> run_prefill(const Target& target, const Settings& settings);
Result<Report> run_depth(const Target& target, const Settings& settings);
Result<Report> run_needle(const Target& target, const Settings& settings);
Result<Report> run_first_long(const Target& target, const Settings& settings);

// `target.model` may be empty: then it is asked for each time.
Result<Report> run_ready(Target target, const Settings& settings);

}  // namespace tensorfold::ctl::bench
