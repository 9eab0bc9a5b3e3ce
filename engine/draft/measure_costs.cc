// The grid of steps and their times. See the header.
#include "engine/draft/measure_costs.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kTimeLeastUs = 0.1;  // a clock may not move between two readings

// The sequences of one group: all have the same number of rows in every step.
class Group {
 public:
  Group(StepRunner& runner, const Clock& clock, int32_t count, int draft_rows)
      : runner_(runner), clock_(clock), draft_rows_(draft_rows), sequences_(Count(count)) {}

  // Prompts of `tokens` ids each.
  Status begin(std::span<const std::vector<int32_t>> prompts, int tokens, double& us) {
    StepPlan plan = new_plan();
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const auto slot = static_cast<SlotId>(i);
      const std::vector<int32_t>& prompt = prompts[i % prompts.size()];
      plan.commands.push_back({CacheCommand::Kind::kOpenSlot, slot, 0, 0});
      plan.commands.push_back({CacheCommand::Kind::kAppendBlock, slot, slot, 0});
      Slice slice;
      slice.slot = slot;
      slice.rows = tokens;
      slice.decoder_rows = tokens;
      slice.logits_rows = 1;
      slice.token_offset = static_cast<int32_t>(plan.tokens.size());
      for (int t = 0; t < tokens; ++t)
        plan.tokens.push_back(prompt[static_cast<size_t>(t) % prompt.size()]);
      plan.slices.push_back(slice);
      sequences_[i].length = tokens;
      add_sample(plan, slot, tokens, 1, draft_rows_);
    }
    opened_ = true;
    return run(plan, us);
  }

  // `rows` of each sequence; drafts are made behind it or not.
  Status step(int32_t rows, bool drafting, double& us) {
    StepPlan plan = new_plan();
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const auto slot = static_cast<SlotId>(i);
      Slice slice;
      slice.slot = slot;
      slice.first_position = sequences_[i].length;
      slice.rows = std::min(rows, 1 + sequences_[i].drafts);
      slice.row_class = RowClass::kGenerated;
      slice.source = TokenSource::kDevice;
      slice.decoder_rows = slice.rows;
      slice.logits_rows = slice.rows;
      plan.slices.push_back(slice);
      add_sample(plan, slot, slice.first_position + 1, slice.rows, drafting ? draft_rows_ : 0);
    }
    return run(plan, us);
  }

  Status end() {
    if (!opened_) return ok_status();
    StepPlan plan = new_plan();
    for (size_t i = 0; i < sequences_.size(); ++i)
      plan.commands.push_back({CacheCommand::Kind::kCloseSlot, static_cast<SlotId>(i), 0, 0});
    double us = 0;
    return run(plan, us);
  }

  int64_t longest() const {
    int64_t most = 0;
    for (const Sequence& s : sequences_) most = std::max(most, s.length);
    return most;
  }

 private:
  using Count = size_t;
  struct Sequence {
    int64_t length = 0;  // positions that the model holds
    int32_t drafts = 0;  // left by the last step
  };

  StepPlan new_plan() {
    StepPlan plan;
    plan.step = ++steps_;
    return plan;
  }

  void add_sample(StepPlan& plan, SlotId slot, int64_t position, int32_t rows, int draft_rows) {
    SampleSpec s;
    s.slot = slot;
    s.position = position;
    s.reply_position = position;
    s.verify_rows = rows;
    s.temperature = 0;
    s.draft_rows = draft_rows;
    plan.samples.push_back(std::move(s));
  }

  Status run(const StepPlan& plan, double& us) {
    const int64_t begin = clock_.monotonic_us();
    TF_RETURN_IF_ERROR(runner_.run(plan, results_));
    us = std::max(kTimeLeastUs, static_cast<double>(clock_.monotonic_us() - begin));
    if (results_.size() != plan.samples.size())
      return internal_error("a step gave results for other sequences than it was asked for");
    for (size_t i = 0; i < results_.size(); ++i) {
      if (!results_[i].status.ok()) return results_[i].status;
      Sequence& s = sequences_[i];
      // What the prompt's step sampled is not computed yet, as ever the last token.
      if (plan.slices[i].row_class == RowClass::kGenerated)
        s.length += static_cast<int64_t>(results_[i].accepted.size());
      s.drafts = static_cast<int32_t>(results_[i].drafts.size());
    }
    return ok_status();
  }

  StepRunner& runner_;
  const Clock& clock_;
  const int draft_rows_;
  std::vector<Sequence> sequences_;
  std::vector<SampledTokens> results_;
  bool opened_ = false;
  uint64_t steps_ = 0;
};

std::vector<int32_t> row_grid(int draft_rows) {
  std::vector<int32_t> rows;
  for (const int32_t r : {1, 2, 3, 4, 6}) {
    if (r <= 1 + draft_rows) rows.push_back(r);
  }
  if (rows.back() < 1 + draft_rows) rows.push_back(1 + draft_rows);
  return rows;
}

std::vector<int32_t> sequence_grid(int64_t most) {
  std::vector<int32_t> counts;
  for (int32_t n = 1; n < most; n *= 2) counts.push_back(n);
  counts.push_back(static_cast<int32_t>(most));
  return counts;
}

// The two least times of a step.
struct Least {
  double us = kNever;
  double second_us = kNever;
  void take(double time_us) {
    second_us = std::min(second_us, std::max(us, time_us));
    us = std::min(us, time_us);
  }
  bool steady() const { return second_us <= kMeasureSteadyRatio * us; }
};

struct Times {
  std::vector<Least> step;  // by row count
  Least drafting;           // one row each, and a drafter's pass
  double prompt_us = kNever;

  bool complete() const {
    return !step.empty() &&
           std::all_of(step.begin(), step.end(), [](const Least& l) { return l.us < kNever; });
  }
  bool steady() const {
    return drafting.steady() &&
           std::all_of(step.begin(), step.end(), [](const Least& l) { return l.steady(); });
  }
};

struct Deadlines {
  int64_t soft_us = 0;  // of this group
  int64_t hard_us = 0;
  bool over(int repetition, int64_t now_us) const {
    return repetition > 0 && (now_us >= hard_us || (repetition > 1 && now_us >= soft_us));
  }
};

Status measure_group(Group& group, std::span<const std::vector<int32_t>> prompts, int tokens,
                     int64_t positions, std::span<const int32_t> rows, const Deadlines& deadlines,
                     const Clock& clock, Times& times) {
  double us = 0;
  TF_RETURN_IF_ERROR(group.begin(prompts, tokens, us));
  times.prompt_us = us;
  times.step.resize(rows.size());
  for (int repetition = 0; repetition < kMeasureRepetitions; ++repetition) {
    if (deadlines.over(repetition, clock.monotonic_us())) break;
    for (size_t i = rows.size(); i-- > 0;) {
      // A step leaves at most all its rows and one more of the next.
      if (group.longest() + rows[i] + 2 > positions) return ok_status();
      TF_RETURN_IF_ERROR(group.step(rows[i], false, us));
      times.step[i].take(us);
      TF_RETURN_IF_ERROR(group.step(1, true, us));
      times.drafting.take(us);
    }
  }
  return ok_status();
}

void add_group(const Times& times, int32_t count, CostTable& table) {
  const size_t width = times.step.size();
  const bool first = table.sequences.empty();
  double least = 0;
  for (size_t i = 0; i < width; ++i) {
    // More rows or more sequences never cost less; what says so is noise.
    double us = std::max(times.step[i].us, least);
    if (!first) us = std::max(us, table.step_us[table.step_us.size() - width]);
    table.step_us.push_back(us);
    least = us;
  }
  const double plain = table.step_us[table.step_us.size() - width];
  double draft = std::max(0.0, times.drafting.us - plain);
  if (!first) draft = std::max(draft, table.draft_us.back());
  table.draft_us.push_back(draft);
  table.sequences.push_back(count);
}

}  // namespace

Result<MeasuredCosts> measure_costs(StepRunner& runner, const MeasureLimits& limits,
                                    std::span<const std::vector<int32_t>> prompts,
                                    const Clock& clock) {
  TF_CHECK(!prompts.empty() && limits.slots >= 1 && limits.draft_rows >= 1);
  const std::vector<int32_t> rows = row_grid(limits.draft_rows);
  const int64_t positions = std::min<int64_t>(limits.positions, kBlockPositions);
  const std::vector<int32_t> counts =
      sequence_grid(std::min<int64_t>({limits.slots, limits.pool_blocks, kSequencesMax}));
  const auto share = kMeasureCostsUs / static_cast<int64_t>(counts.size());
  const int64_t begin = clock.monotonic_us();
  MeasuredCosts out = {{{}, rows, {}, {}, 0}, true};
  CostTable& table = out.table;
  for (const int32_t count : counts) {
    const int64_t now = clock.monotonic_us();
    const auto room =
        std::min<int64_t>({kMeasurePromptTokens, limits.prefill_rows / count, positions / 2});
    if (room < 1 || (count > 1 && now - begin >= kMeasureCostsHardUs)) {
      out.steady = false;
      break;
    }
    Group group(runner, clock, count, limits.draft_rows);
    Times times;
    const Status status = measure_group(group, prompts, static_cast<int>(room), positions, rows,
                                        {now + share, begin + kMeasureCostsHardUs}, clock, times);
    const Status closed = group.end();
    TF_RETURN_IF_ERROR(status);
    TF_RETURN_IF_ERROR(closed);
    if (!times.complete()) break;
    out.steady = out.steady && times.steady();
    add_group(times, count, table);
    table.prompt_row_us = times.prompt_us / static_cast<double>(count * room);
  }
  if (table.sequences.empty()) return unsupported("a sequence is too short to measure steps");
  // A row among prompt rows costs no more than one among few.
  const double row_us =
      (table.step_us[rows.size() - 1] - table.step_us[0]) / std::max(1, rows.back() - 1);
  table.prompt_row_us = std::max(kTimeLeastUs, std::min(table.prompt_row_us, row_us));
  TF_RETURN_IF_ERROR(table.check());
  return out;
}

}  // namespace tensorfold
