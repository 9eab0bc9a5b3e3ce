// Rows of a step (engine/model/step_rows.h).
#include "engine/model/step_rows.h"

#include <algorithm>
#include <string>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

Status bad_slice(size_t index, const std::string& what) {
  return invalid_argument("slice " + std::to_string(index) + ": " + what);
}

std::span<const int32_t> tokens_of(const StepPlan& plan, size_t index,
                                   std::span<const std::vector<int32_t>> device_tokens) {
  const Slice& s = plan.slices[index];
  const auto rows = static_cast<size_t>(s.rows);
  if (s.source == TokenSource::kDevice) return std::span(device_tokens[index]).first(rows);
  return std::span(plan.tokens).subspan(static_cast<size_t>(s.token_offset), rows);
}

Status check_tokens(const StepPlan& plan, size_t index,
                    std::span<const std::vector<int32_t>> device_tokens, int vocab) {
  const Slice& s = plan.slices[index];
  if (s.source == TokenSource::kDevice) {
    if (device_tokens.size() <= index || device_tokens[index].size() < static_cast<size_t>(s.rows))
      return bad_slice(index, "fewer device tokens than rows");
  } else if (s.token_offset < 0 || static_cast<int64_t>(s.token_offset) + s.rows >
                                       static_cast<int64_t>(plan.tokens.size())) {
    return bad_slice(index, "tokens past the end of the plan's list");
  }
  for (const int32_t id : tokens_of(plan, index, device_tokens))
    if (id < 0 || id >= vocab)
      return bad_slice(index, "token id " + std::to_string(id) + " is not in the vocabulary of " +
                                  std::to_string(vocab));
  return ok_status();
}

}  // namespace

void RowSet::clear() {
  rows = prompt_rows = staged_rows = padding = 0;
  positions_end = 0;
  slices.clear();
  states.clear();
  slots.clear();
  row_slice.clear();
  source_row.clear();
  positions.clear();
  pair_positions.clear();
  image.clear();
}

void RowSet::add_slice(SequenceState& state, SlotId slot, int64_t first_position, int count,
                       int first_source_row, int window, int64_t window_floor, bool is_image) {
  AttentionSlice s;
  s.first_row = rows;
  s.rows = count;
  s.first_position = first_position;
  s.window_floor = window_floor;
  s.staged_first = staged_rows;
  // The first row may reach back this far; later rows reach less.
  s.history =
      static_cast<int32_t>(first_position - window_first(first_position, window, window_floor));
  s.rings = state.ring(0);
  s.pair_rings = state.pairs();
  s.block_table = state.blocks().data();
  staged_rows += s.history + count;
  const auto index = static_cast<int32_t>(slices.size());
  slices.push_back(s);
  states.push_back(&state);
  slots.push_back(slot);
  for (int i = 0; i < count; ++i) {
    row_slice.push_back(index);
    source_row.push_back(first_source_row + i);
    positions.push_back(first_position + i);
    pair_positions.push_back(std::max<int64_t>(0, first_position + i - 1));
    image.push_back(is_image ? 1 : 0);
  }
  rows += count;
  positions_end = std::max(positions_end, first_position + count);
}

void RowSet::pad(size_t slice, int to_rows, int to_slices, int64_t end) {
  TF_CHECK_LE(positions_end, end);
  const AttentionSlice again = slices[slice];
  SequenceState* state = states[slice];
  const SlotId slot = slots[slice];
  const uint8_t is_image = image[static_cast<size_t>(again.first_row)];
  const auto add = [&](int count) {
    AttentionSlice s = again;
    s.first_row = rows;
    s.rows = count;
    if (count == 0) s.history = 0;
    slices.push_back(s);
    states.push_back(state);
    slots.push_back(slot);
    ++padding;
  };
  while (rows < to_rows) {
    row_slice.push_back(static_cast<int32_t>(slices.size()));
    add(1);
    source_row.push_back(rows);
    positions.push_back(again.first_position);
    pair_positions.push_back(std::max<int64_t>(0, again.first_position - 1));
    image.push_back(is_image);
    ++rows;
  }
  while (static_cast<int>(slices.size()) < to_slices) add(0);
  positions_end = end;
}

void StepRows::pad(int to_rows, int to_slices, int64_t end) {
  TF_CHECK_EQ(encoder.rows, decoder.rows);
  size_t least = 0;  // the shortest context costs the least
  for (size_t i = 1; i < encoder.slices.size(); ++i)
    if (encoder.slices[i].first_position < encoder.slices[least].first_position) least = i;
  const int32_t id = ids[static_cast<size_t>(encoder.slices[least].first_row)];
  encoder.pad(least, to_rows, to_slices, end);
  decoder.pad(least, to_rows, to_slices, end);
  ids.resize(static_cast<size_t>(to_rows), id);
}

Status StepRows::check(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                       const ModelConfig& config, int rows_max, SequenceCache& cache) {
  int64_t total = 0;
  std::vector<SlotId> seen;
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    const Slice& s = plan.slices[i];
    if (s.row_kind == RowKind::kMasked) continue;
    if (s.rows < 1) return bad_slice(i, "it has no rows");
    SequenceState* state = cache.find(s.slot);
    if (state == nullptr) return bad_slice(i, "slot " + std::to_string(s.slot) + " is not open");
    if (std::find(seen.begin(), seen.end(), s.slot) != seen.end())
      return bad_slice(i, "a second slice of slot " + std::to_string(s.slot));
    seen.push_back(s.slot);
    if (s.first_position != state->length())
      return bad_slice(i, "first position " + std::to_string(s.first_position) +
                              ", but the sequence has " + std::to_string(state->length()));
    if (s.decoder_rows < 0 || s.decoder_rows > s.rows)
      return bad_slice(i, "decoder_rows outside 0.." + std::to_string(s.rows));
    if (s.logits_rows < 0 || s.logits_rows > s.decoder_rows)
      return bad_slice(i, "logits_rows outside 0.." + std::to_string(s.decoder_rows));
    TF_RETURN_IF_ERROR(check_tokens(plan, i, device_tokens, config.vocab_size));
    const Status writable =
        cache.check_writable(*state, s.first_position, s.first_position + s.rows);
    if (!writable.ok()) return writable.with_context("slice " + std::to_string(i));
    total += s.rows;
  }
  if (total > rows_max)
    return invalid_argument("the step has " + std::to_string(total) + " rows, more than " +
                            std::to_string(rows_max));
  return ok_status();
}

// The rows of one slice, behind those that are there.
void StepRows::add_slice(const Slice& slice, std::span<const int32_t> tokens,
                         const ModelConfig& config, std::span<const int32_t> token_map,
                         SequenceState& state) {
  const bool is_image = slice.row_kind == RowKind::kImage;
  const int first_row = encoder.rows;
  slices.push_back({&slice, &state});
  for (const int32_t id : tokens) {
    ids.push_back(id);
    const bool hashed = !is_image && !token_map.empty();
    state.append(id, hashed ? token_map[static_cast<size_t>(id)] : -1);
  }
  encoder.add_slice(state, slice.slot, slice.first_position, slice.rows, first_row, config.window,
                    0, is_image);
  if (slice.decoder_rows == 0) return;
  const int skipped = slice.rows - slice.decoder_rows;
  const int64_t first = slice.first_position + skipped;
  state.note_decoder_rows(first, first + slice.decoder_rows);
  const int64_t floor = std::max(slice.decoder_floor, state.decoder_low());
  decoder.add_slice(state, slice.slot, first, slice.decoder_rows, first_row + skipped,
                    config.window, std::min(floor, first), is_image);
}

Status StepRows::build(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                       const ModelConfig& config, std::span<const int32_t> token_map, int rows_max,
                       SequenceCache& cache) {
  slices.clear();
  ids.clear();
  encoder.clear();
  decoder.clear();
  logits_rows.clear();
  TF_RETURN_IF_ERROR(check(plan, device_tokens, config, rows_max, cache));
  std::vector<int> decoder_end(plan.slices.size(), 0);  // of each slice's rows
  for (const RowClass row_class : {RowClass::kPrompt, RowClass::kGenerated}) {
    for (size_t i = 0; i < plan.slices.size(); ++i) {
      const Slice& s = plan.slices[i];
      if (s.row_kind == RowKind::kMasked || s.row_class != row_class) continue;
      add_slice(s, tokens_of(plan, i, device_tokens), config, token_map, *cache.find(s.slot));
      decoder_end[i] = decoder.rows;
    }
    if (row_class != RowClass::kPrompt) continue;
    encoder.prompt_rows = encoder.rows;
    decoder.prompt_rows = decoder.rows;
  }
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    const Slice& s = plan.slices[i];
    if (s.row_kind == RowKind::kMasked) continue;
    for (int r = 0; r < s.logits_rows; ++r)
      logits_rows.push_back(decoder_end[i] - s.logits_rows + r);
  }
  return ok_status();
}

}  // namespace tensorfold
