// See eval_run.h. Uses slot 0 and block ids from 0: the verb runs one sequence at a time.
#include "ctl/eval_run.h"

#include <algorithm>

namespace tensorfold::ctl {
namespace {

constexpr SlotId kSlot = 0;

class Runner {
 public:
  Runner(EvalRanks& ranks, const SequenceSpec& spec) : ranks_(ranks), spec_(spec) {
    prompt_rows_ = static_cast<int64_t>(spec.prompt.size());
  }

  Status open();
  Status check_chains() const;
  Status prefill();
  Status read_entries();
  Status steps();
  Status draft_at(int64_t position);
  Status close();
  SequenceRun take() { return std::move(run_); }

 private:
  // One slice of `tokens` at `first`; appends the logits of its last `logits_rows` rows.
  Status run_rows(int64_t first, std::span<const int32_t> tokens, RowClass row_class, RowKind kind,
                  int64_t logits_rows, std::vector<std::vector<float>>& logits);
  int64_t chunk_end(int64_t begin) const;
  RowKind kind_of(int64_t row) const {
    const bool image = !spec_.image.empty() && spec_.image[static_cast<size_t>(row)];
    return image ? RowKind::kImage : RowKind::kText;
  }

  EvalRanks& ranks_;
  const SequenceSpec& spec_;
  int64_t prompt_rows_ = 0;
  uint64_t step_ = 0;
  std::vector<std::unique_ptr<ForwardProbe>> other_probes_;  // of ranks 1.. when layers are fed
  std::vector<ForwardProbe*> probes_;
  SequenceRun run_;
};

// The model checks the ids of plans and requests; a chain goes straight to the drafter.
Status Runner::check_chains() const {
  for (const DraftPoint& point : spec_.drafts) {
    for (const int32_t id : point.chain) {
      if (id < 0 || id >= ranks_.config().vocab_size) {
        return invalid_argument("the draft at position " + std::to_string(point.position) +
                                " has the token id " + std::to_string(id) +
                                ", which is not in the vocabulary");
      }
    }
  }
  return ok_status();
}

Status Runner::open() {
  TF_RETURN_IF_ERROR(check_chains());
  if (spec_.fill) {
    run_.rows = std::make_unique<TeacherProbe>(spec_.fill, true);
  } else {
    run_.rows = std::make_unique<EvalRecorder>();
  }
  run_.rows->keep_from(prompt_rows_ - spec_.kept_rows);
  probes_.push_back(run_.rows.get());
  for (int rank = 1; spec_.fill && rank < ranks_.world_size(); ++rank) {
    other_probes_.push_back(std::make_unique<TeacherProbe>(spec_.fill, false));
    probes_.push_back(other_probes_.back().get());
  }
  StepPlan plan;
  plan.step = step_++;
  plan.commands.push_back({CacheCommand::Kind::kOpenSlot, kSlot, 0, 0});
  const int64_t positions = sequence_positions(spec_, ranks_.config());
  const int64_t blocks = (positions + kBlockPositions - 1) / kBlockPositions;
  for (int64_t block = 0; block < blocks; ++block) {
    plan.commands.push_back(
        {CacheCommand::Kind::kAppendBlock, kSlot, static_cast<BlockId>(block), 0});
  }
  StepLogits none;
  return ranks_.forward(plan, none);
}

Status Runner::run_rows(int64_t first, std::span<const int32_t> tokens, RowClass row_class,
                        RowKind kind, int64_t logits_rows,
                        std::vector<std::vector<float>>& logits) {
  StepPlan plan;
  plan.step = step_++;
  plan.tokens.assign(tokens.begin(), tokens.end());
  Slice slice;
  slice.slot = kSlot;
  slice.first_position = first;
  slice.rows = static_cast<int32_t>(tokens.size());
  slice.row_class = row_class;
  slice.row_kind = kind;
  slice.decoder_rows = slice.rows;
  slice.logits_rows = static_cast<int32_t>(logits_rows);
  plan.slices.push_back(slice);
  StepLogits out;
  TF_RETURN_IF_ERROR(ranks_.forward(plan, out, probes_));
  const size_t vocab = static_cast<size_t>(ranks_.config().vocab_size);
  if (out.values.size() != static_cast<size_t>(logits_rows) * vocab) {
    return internal_error("the step at position " + std::to_string(first) + " gave " +
                          std::to_string(out.values.size()) + " logits for " +
                          std::to_string(logits_rows) + " rows");
  }
  for (size_t row = 0; row < static_cast<size_t>(logits_rows); ++row) {
    const auto begin = out.values.begin() + static_cast<std::ptrdiff_t>(row * vocab);
    logits.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(vocab));
  }
  return ranks_.accept(kSlot, first + slice.rows);
}

// A chunk ends where the kind of rows changes: a slice has one kind.
int64_t Runner::chunk_end(int64_t begin) const {
  const int64_t most = spec_.chunk > 0 ? std::min<int64_t>(spec_.chunk, kPrefillRowsMax)
                                       : static_cast<int64_t>(kPrefillRowsMax);
  int64_t end = begin + 1;
  while (end < prompt_rows_ && end - begin < most && kind_of(end) == kind_of(begin)) ++end;
  return end;
}

Status Runner::prefill() {
  const int64_t logits_from = prompt_rows_ - spec_.logits_rows;
  for (int64_t begin = 0; begin < prompt_rows_;) {
    const int64_t end = chunk_end(begin);
    const std::span<const int32_t> tokens =
        std::span(spec_.prompt)
            .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    const int64_t wanted = std::max<int64_t>(0, end - std::max(begin, logits_from));
    TF_RETURN_IF_ERROR(
        run_rows(begin, tokens, RowClass::kPrompt, kind_of(begin), wanted, run_.prompt_logits));
    begin = end;
  }
  return ok_status();
}

Status Runner::read_entries() {
  for (const auto& [layer, entries] : spec_.entries) {
    for (const int64_t entry : entries) {
      CacheEntry& out = run_.entries[{layer, entry}];
      Status status = ranks_.rank0().read_entry(kSlot, layer, entry, out.main, out.index_key);
      if (!status.ok()) {
        return status.with_context("entry " + std::to_string(entry) + " of layer " +
                                   std::to_string(layer));
      }
    }
  }
  return ok_status();
}

Status Runner::draft_at(int64_t position) {
  for (const DraftPoint& point : spec_.drafts) {
    if (point.position != position) continue;
    run_.draft_rows.push_back(std::make_unique<DraftProbe>(position + 1, point.chain));
    std::vector<std::unique_ptr<ForwardProbe>> others;
    std::vector<ForwardProbe*> probes = {run_.draft_rows.back().get()};
    for (int rank = 1; rank < ranks_.world_size(); ++rank) {
      others.push_back(std::make_unique<DraftProbe>(position + 1, point.chain));
      probes.push_back(others.back().get());
    }
    DraftRequest request;
    request.slot = kSlot;
    request.position = position;
    request.token = point.token;
    request.rows = std::min(ranks_.config().dspark.block_size, kDraftRowsMax);
    DraftResult result;
    TF_RETURN_IF_ERROR(ranks_.draft(request, result, probes));
    run_.drafts.push_back(std::move(result));
  }
  return ok_status();
}

Status Runner::steps() {
  TF_RETURN_IF_ERROR(draft_at(prompt_rows_ - 1));
  for (size_t s = 0; s < spec_.steps.size(); ++s) {
    const int64_t position = prompt_rows_ + static_cast<int64_t>(s);
    TF_RETURN_IF_ERROR(run_rows(position, std::span(spec_.steps).subspan(s, 1),
                                RowClass::kGenerated, RowKind::kText, 1, run_.step_logits));
    TF_RETURN_IF_ERROR(draft_at(position));
  }
  return ok_status();
}

Status Runner::close() {
  StepPlan plan;
  plan.step = step_++;
  plan.commands.push_back({CacheCommand::Kind::kCloseSlot, kSlot, 0, 0});
  StepLogits none;
  return ranks_.forward(plan, none);
}

}  // namespace

int64_t sequence_positions(const SequenceSpec& spec, const ModelConfig& config) {
  return static_cast<int64_t>(spec.prompt.size() + spec.steps.size()) + config.dspark.block_size +
         1;
}

Result<SequenceRun> run_sequence(EvalRanks& ranks, const SequenceSpec& spec) {
  Runner runner(ranks, spec);
  TF_RETURN_IF_ERROR(runner.open());
  TF_RETURN_IF_ERROR(runner.prefill());
  TF_RETURN_IF_ERROR(runner.read_entries());
  TF_RETURN_IF_ERROR(runner.steps());
  TF_RETURN_IF_ERROR(runner.close());
  return runner.take();
}

}  // namespace tensorfold::ctl
