// Benchmark of the host's part of a decode step: one sequence of the model in MODEL_DIR, greedy,
// through StepExecutor as the engine runs it, serially and with drafts.
//
// usage: host_bench MODEL_DIR [--device cuda|cpu] [--steps N] [--json FILE] [--commit ID]
//
// Host: wall time of a step less the time that the host stood waiting for the device in it
// (Device::waited_ns): planning tables, uploads, launches, ids taken over. The device works
// meanwhile, so a step takes less than the sum.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "engine/cluster/collective.h"
#include "engine/model/model.h"
#include "engine/step_executor.h"

namespace tensorfold::bench {
namespace {

constexpr int kPromptTokens = 40;
constexpr int kBlocks = 64;
constexpr int kWarmSteps = 24;  // kernels are loaded, steps recorded

struct Options {
  std::string model, device = "cuda", json, commit = "unknown";
  int steps = 300;
};

struct Row {
  std::string name;
  double wall_us = 0, host_us = 0, host_p90_us = 0, tokens = 0;
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "host_bench: %s\n", what.c_str());
  std::exit(1);
}

class Sequence {
 public:
  Sequence(Model& model, int drafts) : model_(model), executor_(model), drafts_(drafts) {}

  // The prompt in one step; leaves the first token and its drafts.
  void begin() {
    StepPlan plan = next();
    plan.commands.push_back({CacheCommand::Kind::kOpenSlot, 0, 0, 0});
    for (int b = 0; b < kBlocks; ++b)
      plan.commands.push_back({CacheCommand::Kind::kAppendBlock, 0, b, 0});
    Slice slice;
    slice.rows = slice.decoder_rows = kPromptTokens;
    slice.logits_rows = 1;
    plan.slices.push_back(slice);
    for (int i = 0; i < kPromptTokens; ++i) plan.tokens.push_back(5 + i * 7 % 200);
    sample(plan, 1, kPromptTokens);
    run(plan);
  }
  void end() {
    StepPlan plan = next();
    plan.commands.push_back({CacheCommand::Kind::kCloseSlot, 0, 0, 0});
    run(plan);
  }
  // A step over the last token and what was drafted behind it.
  void step() {
    const int rows = 1 + static_cast<int>(results_[0].drafts.size());
    StepPlan plan = next();
    Slice slice;
    slice.first_position = model_.length(0);
    slice.rows = slice.decoder_rows = slice.logits_rows = rows;
    slice.row_class = RowClass::kGenerated;
    slice.source = TokenSource::kDevice;
    plan.slices.push_back(slice);
    sample(plan, rows, slice.first_position + 1);
    run(plan);
    tokens_ += static_cast<int64_t>(results_[0].accepted.size());
  }
  int64_t tokens() const { return tokens_; }

 private:
  StepPlan next() {
    StepPlan plan;
    plan.step = ++steps_;
    return plan;
  }
  void sample(StepPlan& plan, int rows, int64_t position) const {
    SampleSpec spec;
    spec.verify_rows = rows;
    spec.position = spec.reply_position = position;
    spec.temperature = 0;
    spec.draft_rows = drafts_;
    plan.samples.push_back(spec);
  }
  void run(const StepPlan& plan) {
    const Status status = executor_.run(plan, results_);
    if (!status.ok()) fail(status.message());
    if (!plan.samples.empty() && !results_[0].status.ok()) fail(results_[0].status.message());
  }

  Model& model_;
  StepExecutor executor_;
  const int drafts_;
  uint64_t steps_ = 0;
  int64_t tokens_ = 0;
  std::vector<SampledTokens> results_;
};

Row measure(Model& model, int drafts, int steps) {
  Sequence sequence(model, drafts);
  sequence.begin();
  for (int i = 0; i < kWarmSteps; ++i) sequence.step();
  std::vector<double> wall, host;
  const int64_t tokens = sequence.tokens();
  for (int i = 0; i < steps; ++i) {
    const int64_t waited = model.waited_ns();
    const auto begin = std::chrono::steady_clock::now();
    sequence.step();
    const double ns = static_cast<double>(
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
    wall.push_back(ns / 1e3);
    host.push_back((ns - static_cast<double>(model.waited_ns() - waited)) / 1e3);
  }
  Row row;
  row.tokens = static_cast<double>(sequence.tokens() - tokens) / steps;
  sequence.end();
  std::sort(wall.begin(), wall.end());
  std::sort(host.begin(), host.end());
  row.name = drafts == 0 ? "serial" : std::to_string(drafts) + " drafts";
  row.wall_us = wall[wall.size() / 2];
  row.host_us = host[host.size() / 2];
  row.host_p90_us = host[host.size() * 9 / 10];
  std::printf("%s: %.1f us a step, of which the host works %.1f us (p90 %.1f); %.2f tokens\n",
              row.name.c_str(), row.wall_us, row.host_us, row.host_p90_us, row.tokens);
  return row;
}

int run(const Options& o) {
  const auto collective = make_single_collective();
  ModelOptions options;
  options.model_path = o.model;
  options.device = o.device;
  options.slots = 1;
  options.context = int64_t{kBlocks} * 256;
  options.rows_max = 512;
  Result<std::unique_ptr<Model>> model = Model::load(options, *collective);
  if (!model.ok() && model.status().code() == StatusCode::kUnavailable) {
    std::printf("skipped: %s\n", model.status().message().c_str());
    return 77;
  }
  if (!model.ok()) fail(model.status().message());
  std::vector<Row> rows = {measure(**model, 0, o.steps)};
  if (const int block = (*model)->config().dspark.block_size; (*model)->config().dspark.stages > 0)
    rows.push_back(measure(**model, block, o.steps));
  const StepGraphStats graphs = (*model)->graphs();
  std::printf("%s: %lld steps queued, %lld run from %lld recordings\n", (*model)->device().c_str(),
              static_cast<long long>(graphs.queued), static_cast<long long>(graphs.runs),
              static_cast<long long>(graphs.recorded));
  if (o.json.empty()) return 0;
  std::FILE* f = std::fopen(o.json.c_str(), "w");
  if (f == nullptr) fail(o.json + ": cannot be written");
  std::fprintf(f, "{\"device\": \"%s\", \"commit\": \"%s\", \"rows\": [",
               (*model)->device().c_str(), o.commit.c_str());
  for (size_t i = 0; i < rows.size(); ++i)
    std::fprintf(f,
                 "%s{\"step\": \"%s\", \"wall_us\": %.1f, \"host_us\": %.1f, "
                 "\"host_p90_us\": %.1f, \"tokens\": %.2f}",
                 i > 0 ? ", " : "", rows[i].name.c_str(), rows[i].wall_us, rows[i].host_us,
                 rows[i].host_p90_us, rows[i].tokens);
  std::fprintf(f, "]}\n");
  std::fclose(f);
  return 0;
}

}  // namespace
}  // namespace tensorfold::bench

int main(int argc, char** argv) {
  tensorfold::bench::Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (name == "--device")
      o.device = value();
    else if (name == "--steps")
      o.steps = std::max(10, std::atoi(value().c_str()));
    else if (name == "--json")
      o.json = value();
    else if (name == "--commit")
      o.commit = value();
    else
      o.model = name;
  }
  if (o.model.empty()) {
    std::fprintf(stderr, "usage: host_bench MODEL_DIR [--device cuda|cpu] [--steps N]\n");
    return 64;
  }
  return tensorfold::bench::run(o);
}
