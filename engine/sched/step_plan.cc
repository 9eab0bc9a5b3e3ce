// The stable binary form of a StepPlan, its checks and its digest. Pure.
//
// Form: every field little-endian, in the order of the structs, vectors as a u32 count and their
// elements; a magic and a version in front, nothing behind. A decoded plan has been checked as far
// as a plan can be without the state that it applies to; what refers to state (is the slot open?)
// is checked by the executor. Encoding a decoded plan gives the same bytes.
#include "engine/sched/step_plan.h"

#include <xxhash.h>

#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

constexpr uint32_t kPlanMagic = 0x50535446;  // "FTSP"
constexpr uint32_t kPlanVersion = 3;
constexpr size_t kPlanTokensMax = kPrefillRowsMax + kGeneratedRowsMax + 1;  // one behind a prompt
constexpr size_t kMaskRowsMax = kGeneratedRowsMax;

// ---------------------------------------------------------------- one field list for both ways

class Writer {
 public:
  static constexpr bool kReads = false;
  std::vector<std::byte> bytes;

  template <typename T>
  void field(const T& value, const char* /*name*/) {
    if constexpr (std::is_enum_v<T>) {
      put(static_cast<uint64_t>(value), 1);
    } else if constexpr (std::is_same_v<T, float>) {
      put(std::bit_cast<uint32_t>(value), 4);
    } else {
      put(static_cast<uint64_t>(value), sizeof(T));
    }
  }
  template <typename T>
  void count(const std::vector<T>& v, size_t /*max*/, size_t /*element*/, const char* /*name*/) {
    put(v.size(), 4);
  }

 private:
  void put(uint64_t value, size_t width) {
    for (size_t i = 0; i < width; ++i) bytes.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
};

class Reader {
 public:
  static constexpr bool kReads = true;
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  const Status& status() const { return status_; }
  bool failed() const { return !status_.ok(); }
  size_t left() const { return bytes_.size() - at_; }
  size_t at() const { return at_; }
  void fail(const char* name, const std::string& what) {
    if (status_.ok()) status_ = data_loss("step plan: " + std::string(name) + " " + what);
  }

  template <typename T>
  void field(T& value, const char* name) {
    if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(get(1, name));
    } else if constexpr (std::is_same_v<T, float>) {
      value = std::bit_cast<float>(static_cast<uint32_t>(get(4, name)));
    } else {
      value = static_cast<T>(get(sizeof(T), name));
    }
  }
  // `element`: the least number of bytes of one element, so that a count is believed only as far
  // as bytes are there and no hostile count allocates.
  template <typename T>
  void count(std::vector<T>& v, size_t max, size_t element, const char* name) {
    const auto n = static_cast<size_t>(get(4, name));
    if (failed()) return;
    if (n > max) return fail(name, "has " + std::to_string(n) + " entries");
    if (n * element > left()) return fail(name, "is cut short");
    v.resize(n);
  }

 private:
  uint64_t get(size_t width, const char* name) {
    if (failed()) return 0;
    if (left() < width) {
      fail(name, "is missing: the plan ends at byte " + std::to_string(bytes_.size()));
      return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < width; ++i) value |= static_cast<uint64_t>(bytes_[at_ + i]) << (8 * i);
    at_ += width;
    return value;
  }

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  Status status_;
};

constexpr size_t kImageBytes = 8 + 4 + 32;
constexpr size_t kNoteBytes = 1 + 32 + 32 + 8 + 4 + 8 + 32 + 4;

template <typename Io, typename C>
void command_fields(Io& io, C& c) {
  io.field(c.kind, "command.kind");
  io.field(c.slot, "command.slot");
  io.field(c.block, "command.block");
  io.field(c.value, "command.value");
}

template <typename Io, typename D>
void digest_fields(Io& io, D& d, const char* name) {
  for (auto& byte : d.bytes) io.field(byte, name);
}

template <typename Io, typename N>
void note_fields(Io& io, N& n) {
  io.field(n.kind, "note.kind");
  digest_fields(io, n.name, "note.name");
  digest_fields(io, n.before, "note.before");
  io.field(n.first_position, "note.first_position");
  io.field(n.positions, "note.positions");
  io.field(n.cut_low, "note.cut_low");
  for (auto& word : n.generated.words) io.field(word, "note.generated");
  io.count(n.images, kNoteImagesMax, kImageBytes, "note.images");
  for (auto& image : n.images) {
    io.field(image.first_position, "note.image.first_position");
    io.field(image.rows, "note.image.rows");
    digest_fields(io, image.digest, "note.image.digest");
  }
}

template <typename Io, typename S>
void slice_fields(Io& io, S& s) {
  io.field(s.slot, "slice.slot");
  io.field(s.first_position, "slice.first_position");
  io.field(s.rows, "slice.rows");
  io.field(s.row_class, "slice.row_class");
  io.field(s.row_kind, "slice.row_kind");
  io.field(s.source, "slice.source");
  io.field(s.token_offset, "slice.token_offset");
  io.field(s.decoder_rows, "slice.decoder_rows");
  io.field(s.decoder_floor, "slice.decoder_floor");
  io.field(s.logits_rows, "slice.logits_rows");
}

template <typename Io, typename S>
void sample_fields(Io& io, S& s) {
  io.field(s.slot, "sample.slot");
  io.field(s.verify_rows, "sample.verify_rows");
  io.field(s.scored_rows, "sample.scored_rows");
  io.field(s.prompt_logprobs, "sample.prompt_logprobs");
  io.field(s.position, "sample.position");
  io.field(s.reply_position, "sample.reply_position");
  io.field(s.seed, "sample.seed");
  io.field(s.choice_index, "sample.choice_index");
  io.field(s.temperature, "sample.temperature");
  io.field(s.top_p, "sample.top_p");
  io.field(s.min_p, "sample.min_p");
  io.field(s.top_k, "sample.top_k");
  io.field(s.presence_penalty, "sample.presence_penalty");
  io.field(s.frequency_penalty, "sample.frequency_penalty");
  io.field(s.repetition_penalty, "sample.repetition_penalty");
  io.field(s.top_logprobs, "sample.top_logprobs");
  io.field(s.mask_slot, "sample.mask_slot");
  io.field(s.draft_rows, "sample.draft_rows");
  io.count(s.logit_bias, kLogitBiasMax, 8, "sample.logit_bias");
  for (auto& [token, bias] : s.logit_bias) {
    io.field(token, "sample.logit_bias.token");
    io.field(bias, "sample.logit_bias.bias");
  }
}

constexpr size_t kCommandBytes = 1 + 4 + 4 + 8;
constexpr size_t kSliceBytes = 4 + 8 + 4 + 3 + 4 + 4 + 8 + 4;
constexpr size_t kSampleBytes = 4 + 4 + 8 + 8 + 8 + 8 + 4 + 12 + 4 + 12 + 4 + 4 + 4 + 4;

template <typename Io, typename P>
void plan_fields(Io& io, P& plan) {
  io.field(plan.step, "step");
  io.count(plan.commands, kPlanCommandsMax, kCommandBytes, "commands");
  for (auto& c : plan.commands) command_fields(io, c);
  io.count(plan.notes, kPlanNotesMax, kNoteBytes, "notes");
  for (auto& n : plan.notes) {
    note_fields(io, n);
    if constexpr (Io::kReads) {
      if (io.failed()) return;
    }
  }
  io.count(plan.slices, kSequencesMax, kSliceBytes, "slices");
  for (auto& s : plan.slices) slice_fields(io, s);
  io.count(plan.tokens, kPlanTokensMax, 4, "tokens");
  for (auto& t : plan.tokens) io.field(t, "tokens");
  io.count(plan.samples, kSequencesMax, kSampleBytes, "samples");
  for (auto& s : plan.samples) {
    sample_fields(io, s);
    if constexpr (Io::kReads) {
      if (io.failed()) return;
    }
  }
  io.field(plan.mask_words, "mask_words");
  io.count(plan.masks, kMaskRowsMax * kMaskWordsMax, 4, "masks");
  for (auto& w : plan.masks) io.field(w, "masks");
}

// ---------------------------------------------------------------- checks

std::string at(const char* list, size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "].";
}

Status out_of_range(const std::string& name, int64_t value) {
  return data_loss("step plan: " + name + " is out of range: " + std::to_string(value));
}

#define TF_RANGE(where, object, member, low, high)                       \
  if (const auto v_ = static_cast<int64_t>((object).member);             \
      v_ < static_cast<int64_t>(low) || v_ > static_cast<int64_t>(high)) \
  return out_of_range((where) + #member, v_)

bool has_note(CacheCommand::Kind kind) {
  using Kind = CacheCommand::Kind;
  return kind == Kind::kSpillBlock || kind == Kind::kFillBlock || kind == Kind::kSpillSnapshot ||
         kind == Kind::kFillSnapshot || kind == Kind::kStage || kind == Kind::kForget ||
         kind == Kind::kCompareBlock || kind == Kind::kCompareRings;
}

Status check_command(const std::string& where, const CacheCommand& c, size_t notes) {
  TF_RANGE(where, c, kind, 0, CacheCommand::Kind::kCompareRings);
  TF_RANGE(where, c, slot, 0, kSequencesMax - 1);
  TF_RANGE(where, c, block, 0, INT32_MAX);
  TF_RANGE(where, c, value, 0, kPositionsMax);
  if (has_note(c.kind) && c.value >= static_cast<int64_t>(notes))
    return out_of_range(where + "value", c.value);
  return ok_status();
}

Status check_note(const std::string& where, const CacheNote& n) {
  TF_RANGE(where, n, kind, 0, CacheNote::Kind::kEncoderSnapshot);
  TF_RANGE(where, n, first_position, 0, kPositionsMax);
  TF_RANGE(where, n, positions, 1, kBlockPositions);
  TF_RANGE(where, n, cut_low, 0, kPositionsMax);
  if (n.first_position % kBlockPositions != 0)
    return out_of_range(where + "first_position", n.first_position);
  for (const ImageSpan& image : n.images) {
    if (image.first_position < 0 || image.first_position > kPositionsMax || image.rows < 1)
      return out_of_range(where + "image.first_position", image.first_position);
  }
  return ok_status();
}

Status check_slice(const std::string& where, const Slice& s, size_t tokens) {
  TF_RANGE(where, s, slot, 0, kSequencesMax - 1);
  TF_RANGE(where, s, first_position, 0, kPositionsMax);
  TF_RANGE(where, s, rows, 1, kPrefillRowsMax);
  TF_RANGE(where, s, row_class, 0, RowClass::kGenerated);
  TF_RANGE(where, s, row_kind, 0, RowKind::kMasked);
  TF_RANGE(where, s, source, 0, TokenSource::kDevice);
  TF_RANGE(where, s, token_offset, 0, kPlanTokensMax);
  TF_RANGE(where, s, decoder_rows, 0, s.rows);
  TF_RANGE(where, s, decoder_floor, 0, kPositionsMax);
  TF_RANGE(where, s, logits_rows, 0, s.decoder_rows);
  if (s.source == TokenSource::kGiven &&
      static_cast<size_t>(s.token_offset) + static_cast<size_t>(s.rows) > tokens)
    return out_of_range(where + "token_offset", s.token_offset);
  if (s.source == TokenSource::kDevice && s.rows > 1 + kDraftRowsMax)
    return out_of_range(where + "rows", s.rows);
  return ok_status();
}

Status check_finite(const std::string& where, const SampleSpec& s) {
  const std::array<std::pair<const char*, float>, 6> values = {
      {{"temperature", s.temperature},
       {"top_p", s.top_p},
       {"min_p", s.min_p},
       {"presence_penalty", s.presence_penalty},
       {"frequency_penalty", s.frequency_penalty},
       {"repetition_penalty", s.repetition_penalty}}};
  for (const auto& [name, value] : values) {
    if (!std::isfinite(value)) return data_loss("step plan: " + where + name + " is not finite");
  }
  if (s.temperature < 0 || s.repetition_penalty <= 0 || s.min_p < 0)
    return data_loss("step plan: " + where +
                     "temperature, repetition_penalty or min_p is negative");
  for (const auto& [token, bias] : s.logit_bias) {
    if (token < 0 || !std::isfinite(bias))
      return data_loss("step plan: " + where + "logit_bias holds no token and finite bias");
  }
  return ok_status();
}

// Where the ids stand that follow scored rows.
Status check_scored(const std::string& where, const SampleSpec& s, const Slice& slice,
                    size_t tokens) {
  if (slice.row_class != RowClass::kPrompt || slice.source != TokenSource::kGiven ||
      s.verify_rows > 1)
    return data_loss("step plan: " + where + "scored_rows are not of prompt rows");
  const size_t more = s.verify_rows == 0 ? 1 : 0;
  if (static_cast<size_t>(slice.token_offset) + static_cast<size_t>(slice.rows) + more > tokens)
    return out_of_range(where + "scored_rows", s.scored_rows);
  return ok_status();
}

Status check_sample(const std::string& where, const SampleSpec& s, const StepPlan& plan) {
  TF_RANGE(where, s, slot, 0, kSequencesMax - 1);
  TF_RANGE(where, s, scored_rows, 0, kScoredRowsMax);
  TF_RANGE(where, s, verify_rows, s.scored_rows > 0 ? 0 : 1, 1 + kDraftRowsMax);
  TF_RANGE(where, s, prompt_logprobs, -1, kTopLogprobsMax);
  TF_RANGE(where, s, position, 1, kPositionsMax);
  TF_RANGE(where, s, reply_position, 0, s.position);
  TF_RANGE(where, s, choice_index, 0, INT32_MAX);
  TF_RANGE(where, s, top_k, 0, INT32_MAX);
  TF_RANGE(where, s, top_logprobs, -1, kTopLogprobsMax);
  TF_RANGE(where, s, mask_slot, -1, kGeneratedRowsMax - 1);
  TF_RANGE(where, s, draft_rows, 0, kDraftRowsMax);
  TF_RETURN_IF_ERROR(check_finite(where, s));
  for (const Slice& slice : plan.slices) {
    if (slice.slot != s.slot) continue;
    if (slice.logits_rows != s.scored_rows + s.verify_rows)
      return data_loss("step plan: " + where +
                       "verify_rows (and scored_rows) differ from its slice's logits_rows");
    if (s.scored_rows > 0) TF_RETURN_IF_ERROR(check_scored(where, s, slice, plan.tokens.size()));
    const auto mask_rows = static_cast<int64_t>(s.mask_slot) + s.verify_rows;
    if (s.mask_slot >= 0 && mask_rows * plan.mask_words > static_cast<int64_t>(plan.masks.size()))
      return out_of_range(where + "mask_slot", s.mask_slot);
    return ok_status();
  }
  return data_loss("step plan: " + where + "slot " + std::to_string(s.slot) + " has no slice");
}

Status check_plan(const StepPlan& plan) {
  for (size_t i = 0; i < plan.commands.size(); ++i)
    TF_RETURN_IF_ERROR(check_command(at("commands", i), plan.commands[i], plan.notes.size()));
  for (size_t i = 0; i < plan.notes.size(); ++i)
    TF_RETURN_IF_ERROR(check_note(at("notes", i), plan.notes[i]));
  std::array<bool, kSequencesMax> seen{};
  int64_t rows = 0;
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    const Slice& s = plan.slices[i];
    TF_RETURN_IF_ERROR(check_slice(at("slices", i), s, plan.tokens.size()));
    bool& taken = seen[static_cast<size_t>(s.slot)];
    if (taken) return data_loss("step plan: slot " + std::to_string(s.slot) + " has two slices");
    taken = true;
    rows += s.rows;
  }
  if (rows > static_cast<int64_t>(kPlanTokensMax)) return out_of_range("rows", rows);
  for (const int32_t t : plan.tokens) {
    if (t < 0) return out_of_range("tokens", t);
  }
  TF_RANGE(std::string(""), plan, mask_words, 0, kMaskWordsMax);
  if (plan.mask_words == 0 ? !plan.masks.empty()
                           : plan.masks.size() % static_cast<size_t>(plan.mask_words) != 0)
    return data_loss("step plan: masks is not a whole number of rows");
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    TF_RETURN_IF_ERROR(check_sample(at("samples", i), plan.samples[i], plan));
    if (i > 0 && plan.samples[i].slot <= plan.samples[i - 1].slot)
      return data_loss("step plan: samples are not ascending by slot");
  }
  return ok_status();
}

#undef TF_RANGE

}  // namespace

int32_t StepPlan::total_rows() const {
  int32_t rows = 0;
  for (const Slice& s : slices) rows += s.rows;
  return rows;
}

std::vector<std::byte> encode_step_plan(const StepPlan& plan) {
  Writer out;
  out.field(kPlanMagic, "magic");
  out.field(kPlanVersion, "version");
  plan_fields(out, plan);
  return std::move(out.bytes);
}

Result<StepPlan> decode_step_plan(std::span<const std::byte> bytes) {
  Reader in(bytes);
  uint32_t magic = 0;
  uint32_t version = 0;
  in.field(magic, "magic");
  in.field(version, "version");
  if (!in.failed() && magic != kPlanMagic) return data_loss("step plan: magic is not a plan's");
  if (!in.failed() && version != kPlanVersion)
    return data_loss("step plan: version is " + std::to_string(version) + ", not " +
                     std::to_string(kPlanVersion));
  StepPlan plan;
  plan_fields(in, plan);
  if (in.failed()) return in.status();
  if (in.left() != 0)
    return data_loss("step plan: " + std::to_string(in.left()) + " bytes follow the plan");
  TF_RETURN_IF_ERROR(check_plan(plan));
  return plan;
}

std::string step_plan_digest(const StepPlan& plan) {
  const std::vector<std::byte> bytes = encode_step_plan(plan);
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  constexpr char kHex[] = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : canonical.digest) {
    hex.push_back(kHex[byte >> 4]);
    hex.push_back(kHex[byte & 15]);
  }
  return hex;
}

}  // namespace tensorfold
