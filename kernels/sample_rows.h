// sample_rows: rows of logits become tokens on the device, and drafts are accepted. The same ids,
// bit for bit, as engine/sample/sampler.h and verify.h: its steps 1 to 4, 7 and 8, in fp64, by the
// functions below, which both call or are tested against. What decides is a maximum under a total
// order (larger score, then lower id), so neither the number of threads nor their order matters.
//
// Not here: top_k and top_p (the nucleus is a sum in the order of the candidates), which take the
// host's sampler; log-probabilities.
//
// Bytes of a row: its logits once, twice with min_p; its mask once or twice.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/op.h"
#include "kernels/sample_noise.h"

namespace tensorfold {

inline constexpr int kSampleVocabMax = 1 << 18;  // a bit for each lies in shared memory

// A token whose logit is not taken as it is.
struct SampleChange {
  int32_t token = 0;  // each at most once in a row
  int32_t reply = 0;  // how often it is in the reply
  float bias = 0;     // logit_bias; 0: none
  int32_t seen = 0;   // 1: in prompt or reply, so the repetition penalty applies
};

struct SampleRow {
  uint64_t seed = 0;
  int64_t position = 0;
  int32_t choice_index = 0;
  float temperature = 1, min_p = 0;
  float presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  int32_t greedy = 0;                     // 1: the temperature means 0
  int32_t changes = 0, first_change = 0;  // in SampleRowsParams::change
  int32_t mask_row = -1;                  // of SampleRowsParams::masks; -1: everything is allowed
};

enum class SampleState : int32_t { kDone = 0, kNonFinite = 1, kDeadEnd = 2 };

// One sequence's rows in a step: row i + 1 counts if draft i is row i's token.
struct SampleSequence {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t first_draft = 0;  // in SampleRowsParams::draft; rows - 1 of them
};

struct SampleRowsParams {
  int rows = 0;
  int vocab = 0;
  const float* logits = nullptr;  // [rows, vocab], logits_stride apart, a multiple of 4
  int64_t logits_stride = 0;
  const SampleRow* row = nullptr;        // [rows]
  const SampleChange* change = nullptr;  // of all rows
  const uint32_t* masks = nullptr;       // [mask rows, mask_words]
  int mask_words = 0;
  int sequences = 0;
  const SampleSequence* sequence = nullptr;
  const int32_t* draft = nullptr;
  int32_t* token = nullptr;     // out [rows]; -1 where there is none
  int32_t* state = nullptr;     // out [rows] SampleState
  int32_t* accepted = nullptr;  // out [sequences] tokens that count; a failed row ends them
};

// ---------------------------------------------------------------- one token
// Sampler's step 1 and 2.
TF_HOST_DEVICE inline double sample_adjusted(double l, const SampleRow& row,
                                             const SampleChange& change) {
  if (change.seen != 0) {
    const double r = row.repetition_penalty;
    l = l > 0 ? l / r : l * r;
    if (change.reply > 0)
      l -= static_cast<double>(row.frequency_penalty) * change.reply +
           static_cast<double>(row.presence_penalty);
  }
  return change.bias != 0 ? l + static_cast<double>(change.bias) : l;
}

TF_HOST_DEVICE inline bool sample_allowed(const uint32_t* mask, int32_t id) {
  return mask == nullptr || ((mask[id / 32] >> (id % 32)) & 1U) != 0;
}

struct SampleBest {
  double score = 0;
  int32_t id = -1;  // -1: none yet
};

// Larger score, then lower id.
TF_HOST_DEVICE inline SampleBest sample_better(const SampleBest& a, const SampleBest& b) {
  if (a.id < 0) return b;
  if (b.id < 0) return a;
  if (a.score != b.score) return a.score > b.score ? a : b;
  return a.id < b.id ? a : b;
}

// What a lane looks for: the largest z, or the largest z plus noise among those that min_p leaves.
struct SampleScan {
  SampleRow row;
  const uint32_t* mask = nullptr;  // of the row
  bool draw = false;
  double largest = 0;  // z of the largest, when min_p > 0
};

TF_HOST_DEVICE inline void sample_consider(const SampleScan& scan, int32_t id, double adjusted,
                                           SampleBest& best) {
  if (!sample_allowed(scan.mask, id)) return;
  const double z =
      adjusted / (scan.row.greedy != 0 ? 1.0 : static_cast<double>(scan.row.temperature));
  SampleBest mine{z, id};
  if (scan.draw) {
    const double min_p = scan.row.min_p;
    if (min_p > 0 && z != scan.largest && portable_exp(z - scan.largest) < min_p) return;
    if (best.id >= 0 && z + kGumbelMax < best.score) return;  // it can't win
    mine.score = z + NoiseKey{scan.row.seed, scan.row.choice_index, scan.row.position}.noise(id);
  }
  best = sample_better(best, mine);
}

// ---------------------------------------------------------------- one lane of `lanes`
// Tokens that are taken as they are; `changed`: a bit for each that is not.
TF_HOST_DEVICE inline void sample_plain(const SampleScan& scan, const float* logits, int vocab,
                                        const uint32_t* changed, int lane, int lanes,
                                        SampleBest& best, bool& finite) {
  for (int32_t id = lane; id < vocab; id += lanes) {
    const float l = logits[id];
    finite = finite && l - l == 0.0F;
    if (((changed[id / 32] >> (id % 32)) & 1U) == 0) sample_consider(scan, id, l, best);
  }
}

TF_HOST_DEVICE inline void sample_changed(const SampleScan& scan, const float* logits, int vocab,
                                          const SampleChange* change, int lane, int lanes,
                                          SampleBest& best) {
  for (int i = lane; i < scan.row.changes; i += lanes) {
    const SampleChange& c = change[scan.row.first_change + i];
    if (c.token < 0 || c.token >= vocab) continue;
    sample_consider(scan, c.token, sample_adjusted(logits[c.token], scan.row, c), best);
  }
}

// ---------------------------------------------------------------- one sequence
TF_HOST_DEVICE inline int32_t sample_accepted(const SampleSequence& s, const int32_t* draft,
                                              const int32_t* token, const int32_t* state) {
  for (int32_t i = 0; i < s.rows; ++i) {
    if (state[s.first_row + i] != static_cast<int32_t>(SampleState::kDone)) return i;
    if (i + 1 < s.rows && draft[s.first_draft + i] != token[s.first_row + i]) return i + 1;
  }
  return s.rows;
}

}  // namespace tensorfold
