// prefill, depth, needle, first-long and ready: long prompts, and the first one.
#include <algorithm>
#include <limits>
#include <utility>

#include "ctl/bench/runs.h"
#include "ctl/bench/samples.h"

namespace tensorfold::ctl::bench {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kNeedleDepths[] = {0.1, 0.5, 0.9};
constexpr int64_t kNeedleReplyTokens = 32;
constexpr int64_t kShortPromptTokens = 256;  // beside `depth`
constexpr int kFirstLongPrompts = 3;
constexpr double kFirstLongAim = 0.9;  // the first beside the third

// A cold prompt's rate; of one that was not cold: NaN, and a failure.
double cold_rate(const Sample& sample, const std::string& what, Report& report) {
  if (is_cold(sample)) return prefill_tps(sample);
  report.failures.push_back(what + " was not cold: " + std::to_string(*sample.cached_tokens) +
                            " of its " + std::to_string(sample.prompt_tokens) +
                            " tokens came from a cache");
  return kNaN;
}

std::string nth(const char* what, int64_t i) { return std::string(what) + std::to_string(i + 1); }

Json method_of(const LongPrompts& prompts) {
  return Json::string(prompts.by_ids() ? "token ids" : "words");
}

// Where a needle stands in a text of words: the space nearest behind that share of it.
size_t cut_at(const std::string& text, double depth) {
  const auto from = static_cast<size_t>(depth * static_cast<double>(text.size()));
  return std::min(text.find(' ', std::max(from, text.find(". ") + 1)), text.size());
}

}  // namespace

Result<Report> run_prefill(const Target& target, const Settings& settings) {
  Report report;
  LongPrompts prompts(target, settings.seed);
  TF_RETURN_IF_ERROR(prompts.prepare(false));
  Table table({"length", "prompt tokens", "prefill tok/s", "all", "first token s"});
  Json::Array cells;
  for (const int64_t length : settings.lengths) {
    std::vector<Sample> samples;
    std::vector<double> rates;
    std::string all;
    for (int64_t r = 0; r < settings.repetitions; ++r) {
      const std::string what = std::to_string(length) + " tokens, " + nth("repetition ", r);
      TF_ASSIGN_OR_RETURN(const Ask ask, prompts.make(length));
      auto sample = complete(target, ask);
      if (!sample.ok()) return sample.status().with_context(what);
      rates.push_back(cold_rate(*sample, what, report));
      samples.push_back(*std::move(sample));
      all += (all.empty() ? "" : " ") + fixed(rates.back(), 1);
      settings.note(what + ": " + fixed(rates.back(), 1) + " tok/s");
    }
    const std::vector<double> first = column(samples, first_token_s);
    Json cell = Json::object({{"length", Json::integer(length)},
                              {"prefill_tps", median_and_all(rates)},
                              {"first_token_s", median_and_all(first)}});
    add_counts(cell, samples);
    cells.push_back(std::move(cell));
    table.row({std::to_string(length), std::to_string(samples.back().prompt_tokens),
               fixed(median(rates), 1), all, fixed(median(first), 3)});
  }
  report.json =
      Json::object({{"prompts", method_of(prompts)}, {"cells", Json::array(std::move(cells))}});
  report.text = table.text();
  return report;
}

Result<Report> run_depth(const Target& target, const Settings& settings) {
  Report report;
  LongPrompts prompts(target, settings.seed);
  TF_RETURN_IF_ERROR(prompts.prepare(false));
  Table table({"length", "prompt tokens", "decode tok/s", "all", "of short", "first token s"});
  Json::Array cells;
  std::vector<int64_t> lengths = settings.lengths;
  lengths.insert(lengths.begin(), kShortPromptTokens);
  double beside = kNaN;
  for (const int64_t length : lengths) {
    std::vector<Sample> samples;
    std::string all;
    for (int64_t r = 0; r < settings.repetitions; ++r) {
      const std::string what = std::to_string(length) + " tokens, " + nth("repetition ", r);
      TF_ASSIGN_OR_RETURN(Ask ask, prompts.make(length));
      ask.max_tokens = settings.tokens;
      ask.ignore_eos = true;
      auto sample = complete(target, ask);
      if (!sample.ok()) return sample.status().with_context(what);
      cold_rate(*sample, what, report);
      samples.push_back(*std::move(sample));
      all += (all.empty() ? "" : " ") + fixed(decode_tps(samples.back()), 1);
      settings.note(what + ": " + fixed(decode_tps(samples.back()), 1) + " tok/s");
    }
    const std::vector<double> rates = column(samples, decode_tps);
    const std::vector<double> first = column(samples, first_token_s);
    if (cells.empty()) beside = median(rates);
    Json cell = Json::object({{"length", Json::integer(length)},
                              {"decode_tps", median_and_all(rates)},
                              {"of_short", number(median(rates) / beside)},
                              {"first_token_s", median_and_all(first)}});
    add_counts(cell, samples);
    cells.push_back(std::move(cell));
    table.row({std::to_string(length), std::to_string(samples.back().prompt_tokens),
               fixed(median(rates), 1), all, fixed(median(rates) / beside, 2),
               fixed(median(first), 3)});
  }
  report.json = Json::object({{"prompts", method_of(prompts)},
                              {"max_tokens", Json::integer(settings.tokens)},
                              {"cells", Json::array(std::move(cells))}});
  report.text = table.text();
  return report;
}

Result<Report> run_needle(const Target& target, const Settings& settings) {
  Report report;
  LongPrompts prompts(target, settings.seed);
  TF_RETURN_IF_ERROR(prompts.prepare(true));
  Table table({"length", "prompt tokens", "depth", "found", "first token s"});
  Json::Array cells;
  int64_t found = 0, count = 0;
  for (const int64_t length : settings.lengths) {
    for (const double depth : kNeedleDepths) {
      const std::string phrase = prompts.words().phrase();
      Ask ask;
      ask.text = prompts.chat_text(length);
      ask.text.insert(cut_at(ask.text, depth), " The secret phrase is " + phrase + ".");
      ask.text += ". What is the secret phrase? Answer with the phrase only.";
      ask.max_tokens = kNeedleReplyTokens;
      const auto sample = complete(target, ask);
      if (!sample.ok()) return sample.status().with_context(std::to_string(length) + " tokens");
      const bool there = sample->text.find(phrase) != std::string::npos;
      found += there ? 1 : 0;
      ++count;
      Json cell = Json::object({{"length", Json::integer(length)},
                                {"depth", number(depth)},
                                {"phrase", Json::string(phrase)},
                                {"reply", Json::string(sample->text)},
                                {"found", Json::boolean(there)},
                                {"first_token_s", number(first_token_s(*sample))}});
      add_counts(cell, {&*sample, 1});
      cells.push_back(std::move(cell));
      table.row({std::to_string(length), std::to_string(sample->prompt_tokens), fixed(depth, 1),
                 there ? "yes" : "no", fixed(first_token_s(*sample), 3)});
      settings.note(std::to_string(length) + " tokens, depth " + fixed(depth, 1) + ": " +
                    (there ? "found" : "not found"));
    }
  }
  if (found < count) {
    report.failures.push_back("found " + std::to_string(found) + " of " + std::to_string(count));
  }
  report.json = Json::object({{"found", Json::integer(found)},
                              {"count", Json::integer(count)},
                              {"cells", Json::array(std::move(cells))}});
  report.text = table.text();
  return report;
}

Result<Report> run_first_long(const Target& target, const Settings& settings) {
  Report report;
  LongPrompts prompts(target, settings.seed);
  TF_RETURN_IF_ERROR(prompts.prepare(false));
  Table table({"prompt", "prompt tokens", "prefill tok/s", "first token s"});
  std::vector<Sample> samples;
  std::vector<double> rates;
  for (int i = 0; i < kFirstLongPrompts; ++i) {
    const std::string what = nth("prompt ", i);
    TF_ASSIGN_OR_RETURN(const Ask ask, prompts.make(settings.lengths.front()));
    auto sample = complete(target, ask);
    if (!sample.ok()) return sample.status().with_context(what);
    rates.push_back(cold_rate(*sample, what, report));
    table.row({std::to_string(i + 1), std::to_string(sample->prompt_tokens), fixed(rates.back(), 1),
               fixed(first_token_s(*sample), 3)});
    samples.push_back(*std::move(sample));
  }
  const double ratio = rates.front() / rates.back();
  report.json = Json::object({{"length", Json::integer(settings.lengths.front())},
                              {"prompts", method_of(prompts)},
                              {"prefill_tps", numbers(rates)},
                              {"first_token_s", numbers(column(samples, first_token_s))},
                              {"first_of_third", number(ratio)},
                              {"aim", number(kFirstLongAim)}});
  add_counts(report.json, samples);
  report.text = table.text() + "the first beside the third: " + fixed(ratio, 3) + " (aim " +
                fixed(kFirstLongAim, 1) + " or more)\n";
  return report;
}

Result<Report> run_ready(Target target, const Settings& settings) {
  const auto wait_us = static_cast<int64_t>(settings.wait_s * 1e6);
  const bool named = !target.model.empty();
  const int64_t begin = target.wire->now_us();
  int64_t attempts = 0, listed_us = 0;
  for (;;) {
    ++attempts;
    const auto model = first_model(*target.wire);
    if (model.ok() && listed_us == 0) listed_us = target.wire->now_us();
    Status status = model.status();
    if (model.ok()) {
      if (!named) target.model = *model;
      Ask ask;
      ask.text = "Say yes.";
      const auto sample = complete(target, ask);
      if (sample.ok()) {
        Report report;
        const double ready_s = seconds(sample->end_us - settings.started_us);
        const double listed_s = seconds(listed_us - settings.started_us);
        report.json = Json::object({{"ready_s", number(ready_s)},
                                    {"models_s", number(listed_s)},
                                    {"attempts", Json::integer(attempts)},
                                    {"poll_s", number(settings.poll_s)}});
        report.text = "first token after " + fixed(ready_s, 2) + " s, models listed after " +
                      fixed(listed_s, 2) + " s (" + std::to_string(attempts) + " attempts)\n";
        return report;
      }
      status = sample.status();
    }
    const std::string& reason = status.reason();
    if (reason == "http_400" || reason == "http_401" || reason == "http_403") return status;
    if (target.wire->now_us() - begin >= wait_us) {
      return Status(StatusCode::kDeadline,
                    "not ready within " + fixed(settings.wait_s, 0) + " s: " + status.message(), {},
                    "timeout");
    }
    target.wire->sleep_us(static_cast<int64_t>(settings.poll_s * 1e6));
  }
}

}  // namespace tensorfold::ctl::bench
