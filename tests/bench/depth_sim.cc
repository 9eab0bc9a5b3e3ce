// depth_sim: what the depth policy is worth, on traces, at the costs of GB10 and of a measured
// table, beside the best fixed depth and an oracle that knows which drafts are right.
//
//   depth_sim [--traces FILE] [--costs FILE]   the table of docs/speculation.md, judging seeds
//   depth_sim --fit --traces FILE --costs FILE  searches better constants on the fitting seeds
//   depth_sim --record MODEL_DIR --out FILE    records traces of the model's replies
//   depth_sim --measure MODEL_DIR --out FILE   measures row costs, for half a minute
//
// Deterministic but for --measure. Not a test: tests/bench/depth_sim_test.cc holds it to its
// bounds.
#include <cstdio>
#include <string>
#include <vector>

#include "engine/weights/file.h"
#include "tests/bench/sim/fit.h"
#include "tests/bench/sim/measure.h"
#include "tests/bench/sim/record.h"
#include "tests/bench/sim/report.h"

namespace tensorfold::sim {
namespace {

constexpr int64_t kTraceFileBytesMax = int64_t{8} << 20;

struct Arguments {
  std::string traces, costs, record, measure, out;
  bool fit = false;
};

int fail(const std::string& message) {
  std::fprintf(stderr, "depth_sim: %s\n", message.c_str());
  return 1;
}

int write(const std::string& path, const std::string& text) {
  const auto file = AtomicFile::create(path);
  if (!file.ok()) return fail(file.status().message());
  Status status = (*file)->append(text);
  if (status.ok()) status = (*file)->commit();
  return status.ok() ? 0 : fail(status.message());
}

Result<Arguments> parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--fit") {
      a.fit = true;
      continue;
    }
    std::string* target = word == "--traces"    ? &a.traces
                          : word == "--costs"   ? &a.costs
                          : word == "--record"  ? &a.record
                          : word == "--measure" ? &a.measure
                          : word == "--out"     ? &a.out
                                                : nullptr;
    if (target == nullptr || i + 1 == argc) return invalid_argument("what is " + word + "?");
    *target = argv[++i];
  }
  return a;
}

int run(int argc, char** argv) {
  const auto arguments = parse(argc, argv);
  if (!arguments.ok()) return fail(arguments.status().message());
  if (!arguments->measure.empty()) {
    const auto table = measure_table(arguments->measure);
    return table.ok() ? write(arguments->out, *table) : fail(table.status().message());
  }
  if (!arguments->record.empty()) {
    const auto traces = record_traces(arguments->record);
    return traces.ok() ? write(arguments->out, encode_traces(*traces))
                       : fail(traces.status().message());
  }
  std::vector<Trace> recorded;
  if (!arguments->traces.empty()) {
    const auto text = read_text_file(arguments->traces, kTraceFileBytesMax);
    if (!text.ok()) return fail(text.status().message());
    auto traces = decode_traces(*text);
    if (!traces.ok()) return fail(traces.status().message());
    recorded = std::move(*traces);
  }
  std::vector<Costs> costs = {{"GB10", gb10_costs()}};
  if (!arguments->costs.empty()) {
    auto measured = read_costs(arguments->costs);
    if (!measured.ok()) return fail(measured.status().message());
    costs.push_back(std::move(*measured));
  }
  if (arguments->fit) {
    print_constants(fit_constants(recorded, costs));
    return 0;
  }
  print_report(recorded, costs, kDraftConstants);
  return 0;
}

}  // namespace
}  // namespace tensorfold::sim

int main(int argc, char** argv) { return tensorfold::sim::run(argc, argv); }
