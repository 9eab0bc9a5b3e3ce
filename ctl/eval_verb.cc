// tfctl model eval: runs recorded results through the model and reports how near it comes.
//
// Owns the order of things: options -> files -> model -> runs -> report. What is compared and how
// is in eval_golden*, eval_teacher* and eval_units*.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "ctl/eval_bounds.h"
#include "ctl/eval_constants.h"
#include "ctl/eval_golden.h"
#include "ctl/eval_ranks.h"
#include "ctl/eval_report.h"
#include "ctl/eval_run.h"
#include "ctl/eval_teacher.h"
#include "ctl/eval_tensor_file.h"
#include "ctl/eval_units.h"
#include "ctl/verbs.h"
#include "engine/weights/weight_source.h"

namespace tensorfold::ctl {
namespace {

constexpr int kEvalThreadsMax = 64;
constexpr int64_t kEvalContextMultiple = kBlockPositions;

struct EvalOptions {
  std::string model, golden, bounds, section, units, prompts, prompt;
  std::string device = "cpu";
  std::optional<ScorePrecision> scores;  // unset: as the golden file was made
  int ranks = 1;
  int threads = 0;
  int64_t chunk = 0;
};

int usage(const Invocation& call, const std::string& message) {
  *call.err << "tfctl: " << message << "\n";
  return kExitUsage;
}

// An option that is a number in [least, most]; absent: `value` stays.
template <typename T>
bool take_number(const Invocation& call, std::string_view name, int64_t least, int64_t most,
                 T& value) {
  if (!call.has(name)) return true;
  const std::string text = call.get(name);
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number < least || number > most) {
    usage(call, std::string(name) + " needs a number from " + std::to_string(least) + " to " +
                    std::to_string(most) + ", not '" + text + "'");
    return false;
  }
  value = static_cast<T>(number);
  return true;
}

// kExitOk, or the code to end with; messages are written here.
int take_options(const Invocation& call, EvalOptions& o) {
  o.model = call.get("--model");
  o.golden = call.get("--golden");
  o.bounds = call.get("--bounds");
  o.section = call.get("--bounds-section");
  o.units = call.get("--units");
  o.prompts = call.get("--prompts");
  o.prompt = call.get("--prompt");
  if (o.golden.empty() && o.units.empty())
    return usage(call, "nothing to do: give --golden or --units");
  if (!o.golden.empty() && o.model.empty()) return usage(call, "--golden needs --model DIR");
  if (!take_number(call, "--ranks", 1, kRanksMax, o.ranks)) return kExitUsage;
  if (!take_number(call, "--threads", 0, kEvalThreadsMax, o.threads)) return kExitUsage;
  if (!take_number(call, "--chunk", 0, kPrefillRowsMax, o.chunk)) return kExitUsage;
  const std::string scores = call.get("--scores");
  if (scores == "fp32") {
    o.scores = ScorePrecision::kFp32;
  } else if (scores == "bf16") {
    o.scores = ScorePrecision::kBf16;
  } else if (!scores.empty()) {
    return usage(call, "--scores takes fp32 or bf16, not '" + scores + "'");
  }
  o.device = call.get("--device", "cpu");
  if (o.device != "cpu" && o.device != "cuda" && !o.device.starts_with("cuda:")) {
    return usage(call, "--device takes cpu, cuda or cuda:N, not '" + o.device + "'");
  }
  return kExitOk;
}

// How the file's index scores were rounded; without a word of it as the reference does, in bf16.
ScorePrecision scores_of(const TensorFile& file) {
  const auto it = file.metadata().find("index_scores");
  const bool fp32 = it != file.metadata().end() && it->second.starts_with("fp32");
  return fp32 ? ScorePrecision::kFp32 : ScorePrecision::kBf16;
}

// "native" when a projection is stored as FP8 or FP4, so that its inputs are quantised; else
// "bf16". Engram tables don't count: they are read by row, not multiplied.
Result<std::string> weight_kind(const WeightSource& source) {
  for (const WeightInfo& info : source.weights()) {
    const bool table = info.name.ends_with("engram.embed");
    if (!table && (info.kind == WeightKind::kFp8 || info.kind == WeightKind::kFp4)) {
      return std::string("native");
    }
  }
  return std::string("bf16");
}

// The section that was asked for, or the first whose name ends with the kind of weights.
std::string section_for(const EvalOptions& o, const EvalBounds& bounds, const std::string& kind) {
  if (!o.section.empty()) return o.section;
  for (const std::string& name : bounds.sections()) {
    if (name == kind || name.ends_with("_" + kind)) return name;
  }
  return kind;
}

// The file that holds the prompts' ids: the one named, or a golden file beside this one.
Result<std::optional<TensorFile>> prompts_file(const EvalOptions& o, const TensorFile& golden) {
  std::optional<TensorFile> none;
  if (!o.prompts.empty()) {
    TF_ASSIGN_OR_RETURN(TensorFile file, TensorFile::read(o.prompts));
    return std::optional<TensorFile>(std::move(file));
  }
  if (!golden_needs_prompts(golden)) return none;
  const std::filesystem::path folder = std::filesystem::path(golden.path()).parent_path();
  for (const char* name : {"golden.safetensors", "golden.safetensors.xz"}) {
    std::error_code error;
    const std::filesystem::path beside = folder / name;
    if (!std::filesystem::exists(beside, error)) continue;
    TF_ASSIGN_OR_RETURN(TensorFile file, TensorFile::read(beside.string()));
    return std::optional<TensorFile>(std::move(file));
  }
  return none;
}

class GoldenEval {
 public:
  GoldenEval(const EvalOptions& options, EvalBounds& bounds, EvalReport& report)
      : o_(options), bounds_(bounds), report_(report) {}

  Status run();

 private:
  Status run_prompts(const TensorFile& file);
  Status run_teacher(const TensorFile& file);
  Status load_model(int64_t positions, int64_t rows);
  Status choose_bounds(std::string_view part);
  void note_unused_bounds();

  const EvalOptions& o_;
  EvalBounds& bounds_;
  EvalReport& report_;
  ScorePrecision scores_ = ScorePrecision::kBf16;
  std::string kind_;
  std::unique_ptr<WeightSource> source_;
  std::unique_ptr<EvalRanks> ranks_;
};

Status GoldenEval::run() {
  TF_ASSIGN_OR_RETURN(const TensorFile file, TensorFile::read(o_.golden));
  WeightSourceOptions source;
  source.model_path = o_.model;
  TF_ASSIGN_OR_RETURN(source_, WeightSource::open(source));
  TF_ASSIGN_OR_RETURN(kind_, weight_kind(*source_));
  scores_ = o_.scores.value_or(scores_of(file));
  report_.fact("model", o_.model);
  report_.fact("golden", o_.golden);
  report_.fact("weights", kind_);
  report_.fact("scores", scores_ == ScorePrecision::kFp32 ? "fp32" : "bf16");
  report_.fact("ranks", std::to_string(o_.ranks));
  if (o_.chunk > 0) report_.fact("chunk", std::to_string(o_.chunk));
  const bool teacher = is_teacher_forced(file);
  TF_RETURN_IF_ERROR(choose_bounds(teacher ? "teacher_forced" : "golden"));
  TF_RETURN_IF_ERROR(teacher ? run_teacher(file) : run_prompts(file));
  note_unused_bounds();
  return ok_status();
}

Status GoldenEval::choose_bounds(std::string_view part) {
  if (bounds_.sections().empty()) return ok_status();
  const std::string section = section_for(o_, bounds_, kind_);
  report_.fact("bounds_section", section);
  return bounds_.choose(section, part);
}

void GoldenEval::note_unused_bounds() {
  for (const std::string& key : bounds_.unused()) {
    report_.note("bound '" + key + "' was not used: nothing in the file goes by it");
  }
}

Status GoldenEval::load_model(int64_t positions, int64_t rows) {
  ModelOptions options;
  options.model_path = o_.model;
  options.slots = 1;
  options.context =
      (positions + kEvalContextMultiple - 1) / kEvalContextMultiple * kEvalContextMultiple;
  options.rows_max = static_cast<int>(std::clamp<int64_t>(rows, 1, kPrefillRowsMax));
  options.threads = o_.threads;
  options.device = o_.device;
  options.scores = scores_;
  TF_ASSIGN_OR_RETURN(ranks_, EvalRanks::load(options, o_.ranks));
  return ok_status();
}

Status GoldenEval::run_prompts(const TensorFile& file) {
  TF_ASSIGN_OR_RETURN(const std::optional<TensorFile> others, prompts_file(o_, file));
  TF_ASSIGN_OR_RETURN(const std::vector<GoldenPrompt> prompts,
                      golden_prompts(file, others ? &*others : nullptr, o_.prompt, o_.chunk));
  int64_t positions = 0, rows = 0;
  for (const GoldenPrompt& prompt : prompts) {
    positions = std::max(positions, sequence_positions(prompt.spec, source_->config()));
    rows = std::max(rows, static_cast<int64_t>(prompt.spec.prompt.size()));
  }
  TF_RETURN_IF_ERROR(load_model(positions, rows));
  compare_constants(file, *source_, report_);
  for (const GoldenPrompt& prompt : prompts) {
    Result<SequenceRun> run = run_sequence(*ranks_, prompt.spec);
    if (!run.ok()) return run.status().with_context("prompt " + prompt.name);
    compare_golden(file, prompt, *run, ranks_->config(), bounds_, report_);
  }
  return ok_status();
}

Status GoldenEval::run_teacher(const TensorFile& file) {
  TF_ASSIGN_OR_RETURN(const TeacherSpec spec,
                      teacher_spec(file, kind_, source_->config(), o_.chunk));
  TF_RETURN_IF_ERROR(load_model(sequence_positions(spec.sequence, source_->config()),
                                static_cast<int64_t>(spec.sequence.prompt.size())));
  TF_ASSIGN_OR_RETURN(const SequenceRun run, run_sequence(*ranks_, spec.sequence));
  compare_teacher(file, spec, run, ranks_->config(), bounds_, report_);
  return ok_status();
}

Status run_all(const EvalOptions& options, EvalReport& report) {
  EvalBounds bounds;
  if (!options.bounds.empty()) {
    TF_ASSIGN_OR_RETURN(bounds, EvalBounds::read(options.bounds));
  }
  if (!options.golden.empty()) {
    GoldenEval eval(options, bounds, report);
    TF_RETURN_IF_ERROR(eval.run());
  }
  if (!options.units.empty()) {
    report.fact("units", options.units);
    bounds.choose_units();
    TF_ASSIGN_OR_RETURN(const TensorFile file, TensorFile::read(options.units));
    TF_RETURN_IF_ERROR(compare_units(file, bounds, report));
    for (const std::string& key : bounds.unused()) {
      report.note("bound '" + key + "' of units was not used: nothing in the file goes by it");
    }
  }
  return ok_status();
}

}  // namespace

int run_model_eval(const Invocation& call) {
  EvalOptions options;
  if (const int code = take_options(call, options); code != kExitOk) return code;
  EvalReport report;
  const Status status = run_all(options, report);
  if (!status.ok()) return fail(call, status);
  if (call.json) {
    report.print_json(*call.out);
  } else {
    report.print_text(*call.out, call.has("--all"));
  }
  return report.passed() ? kExitOk : kExitFailed;
}

}  // namespace tensorfold::ctl
