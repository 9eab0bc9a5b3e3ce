// StepPlan: what all ranks do together in one step. Plain data with a stable binary form and a
// digest, so that a plan can be sent, logged, replayed and compared.
//
// The planner (head only) writes it; the step executor of every rank reads it. Nothing in it
// depends on the clock, the device or which rank runs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/cache/block_digest.h"

namespace tensorfold {

using SlotId = int32_t;   // index of a sequence's state, 0..slots-1
using BlockId = int32_t;  // index into the shared block pool

inline constexpr int kSequencesMax = 64;  // sequences in one step
inline constexpr int kDraftRowsMax = 5;   // drafted tokens per sequence and step
inline constexpr int kGeneratedRowsMax = kSequencesMax * (1 + kDraftRowsMax);
inline constexpr int kPrefillRowsMax = 8192;  // prompt rows in one step
inline constexpr int kBlockPositions = 256;   // positions per pool block
inline constexpr int kLogitBiasMax = 1025;    // entries per sequence: a client's and one of ours
inline constexpr int kTopLogprobsMax = 128;   // alternatives per token
inline constexpr int kScoredRowsMax = 64;     // prompt rows that are scored in one step
inline constexpr int kPlanCommandsMax = 1 << 16;
inline constexpr int kPlanNotesMax = 1 << 14;
inline constexpr int kNoteImagesMax = kBlockPositions;  // images that overlap one block
inline constexpr int kMaskWordsMax = 1 << 14;           // words of a mask row: 524,288 tokens
inline constexpr int64_t kPositionsMax = int64_t{1} << 31;

// The numeric class of a row (docs/architecture.md, row invariance): P for prompt rows, D for
// generated rows, whether decoded serially, verified or forced in a replay.
enum class RowClass : uint8_t { kPrompt = 0, kGenerated = 1 };
// kMasked rows only fill a step up to a fixed row count: they touch no sequence.
enum class RowKind : uint8_t { kText = 0, kImage = 1, kMasked = 2 };
enum class TokenSource : uint8_t {
  kGiven = 0,   // ids are in StepPlan::tokens
  kDevice = 1,  // the ids the last step left for this slot: [sampled, draft 0, draft 1, ...]
};

struct Slice {
  SlotId slot = 0;
  int64_t first_position = 0;
  int32_t rows = 0;
  RowClass row_class = RowClass::kPrompt;
  RowKind row_kind = RowKind::kText;
  TokenSource source = TokenSource::kGiven;
  int32_t token_offset = 0;   // into StepPlan::tokens, for kGiven
  int32_t decoder_rows = 0;   // the last n rows run the decoder layers too; 0: encoder only
  int64_t decoder_floor = 0;  // decoder window keys below this position are not read
  int32_t logits_rows = 0;    // the last n rows want logits
};

struct CacheCommand {
  enum class Kind : uint8_t {
    kOpenSlot = 0,     // start a sequence in `slot`, empty
    kCloseSlot = 1,    // end it; its block references are dropped
    kAppendBlock = 2,  // block table of `slot` grows by `block`
    kTruncate = 3,     // length of `slot` becomes `value`
    kSnapshot = 4,     // save rings of `slot` as snapshot `value`; block 1: the encoder's only
    kRestore = 5,  // load rings of `slot` from snapshot `value`, less its last `block` positions
    kDropSnapshot = 6,
    // These have a CacheNote, `value` in StepPlan::notes, and go to the rank's CacheTier.
    kSpillBlock = 7,      // write `block` to disk behind the step
    kFillBlock = 8,       // `block` becomes the staged record
    kCopyBlock = 9,       // `block` becomes a copy of block `value` (no note)
    kSpillSnapshot = 10,  // write snapshot `block` to disk behind the step
    kFillSnapshot = 11,   // snapshot `block` becomes the staged record
    kStage = 12,          // begin to read the record
    kForget = 13,         // the record on disk must not be used again, nor what stands on it
    // Were rows that came from disk what this process computes? Of `slot`, by these two in turn:
    kCompareBlock = 14,  // its last block with block `block`
    kCompareRings = 15,  // its rings with snapshot `block`: the verdict on both, for the note
  };
  Kind kind = Kind::kOpenSlot;
  SlotId slot = 0;
  BlockId block = 0;
  int64_t value = 0;
};

// What a record of the cache is, for those who keep it: engine/cache/block_digest.h has the names.
struct CacheNote {
  enum class Kind : uint8_t { kBlock = 0, kFullSnapshot = 1, kEncoderSnapshot = 2 };
  Kind kind = Kind::kBlock;
  BlockDigest name;            // block: its own; snapshot: of the (partial) block that it ends in
  BlockDigest before;          // block: name of the block before it, or the root of its salt
  int64_t first_position = 0;  // block: its first; snapshot: the first of the block that it ends in
  int32_t positions = 0;       // in the block, 1..kBlockPositions
  int64_t cut_low = 0;         // full snapshot: the shortest length that it can be cut back to
  RowClassBits generated;      // block: its generated rows
  std::vector<ImageSpan> images;

  int64_t length() const { return first_position + positions; }
  bool operator==(const CacheNote&) const = default;
};

// How a sequence's rows with logits become tokens.
struct SampleSpec {
  SlotId slot = 0;
  // Rows of the slice with logits: first `scored_rows` of which the next ids are known and get
  // log-probabilities (behind the last row's id stands one more in StepPlan::tokens when none is
  // verified), then `verify_rows`.
  int32_t verify_rows = 1;       // 1 + drafts to verify in this step; 0: only scored
  int32_t scored_rows = 0;       // of prompt rows, at most kScoredRowsMax
  int32_t prompt_logprobs = -1;  // of scored rows, as top_logprobs
  int64_t position = 0;          // position of the first token that is sampled
  int64_t reply_position = 0;    // first position of the reply: penalties count from here
  uint64_t seed = 0;
  int32_t choice_index = 0;
  float temperature = 1, top_p = 1, min_p = 0;
  int32_t top_k = 0;
  float presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  int32_t top_logprobs = -1;
  int32_t mask_slot = -1;  // first of verify_rows rows of StepPlan::masks; -1: unconstrained
  int32_t draft_rows = 0;  // drafts to propose after this step, 0..kDraftRowsMax
  std::vector<std::pair<int32_t, float>> logit_bias;
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<CacheCommand> commands;  // in order, before the slices run
  std::vector<CacheNote> notes;        // of the commands that have one
  std::vector<Slice> slices;           // at most one per slot
  std::vector<int32_t> tokens;
  std::vector<SampleSpec> samples;  // ascending by slot
  int32_t mask_words = 0;           // words of one mask row, ceil(vocab / 32)
  std::vector<uint32_t> masks;      // [mask rows, mask_words]: bit set, the token may follow

  int32_t total_rows() const;
};

// Stable little-endian form; decode refuses anything out of bounds, naming the field.
std::vector<std::byte> encode_step_plan(const StepPlan& plan);
Result<StepPlan> decode_step_plan(std::span<const std::byte> bytes);
// 128 bits as 32 hex digits over the encoded form.
std::string step_plan_digest(const StepPlan& plan);

// Of the model's own distribution: before penalties, biases, masks and temperature.
struct SampledLogprob {
  float logprob = 0;                           // of the sampled token
  std::vector<std::pair<int32_t, float>> top;  // descending; ties to the lower id
  int32_t rank = 0;                            // of a scored token: 1 + those likelier than it
};

// What a step left, equal on every rank.
struct SampledTokens {
  SlotId slot = 0;
  std::vector<int32_t> accepted;         // 1..verify_rows tokens, in order; none of 0
  std::vector<SampledLogprob> logprobs;  // one per accepted token when asked for, else empty
  std::vector<SampledLogprob> scores;    // of the scored rows
  std::vector<int32_t> drafts;           // proposals for the next step
  std::vector<float> draft_confidence;   // logits of P(draft i accepted | earlier accepted)
  Status status;                         // not ok: this sequence failed (NaN row, grammar dead end)
};

}  // namespace tensorfold
