// CostTable: what a step and a drafter's pass cost, measured or given. Pure data, made at start,
// constant afterwards.
//
// A step of n sequences and r rows (n of them one per sequence, the others drafts to verify) is
// looked up by n and by r / n, and interpolated: rows of one sequence share experts, rows of
// different sequences do so less, so neither number alone tells the cost. Draft rows are taken as
// evenly spread; which sequence has them is not looked at.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold {

inline constexpr int kCostPointsMax = 64;            // sequence counts, or row counts, of a table
inline constexpr double kCostMicrosecondsMax = 1e9;  // of one entry

struct CostTable {
  std::vector<int32_t> sequences = {1};      // ascending, from 1
  std::vector<int32_t> rows = {1, 2};        // per sequence, ascending, from 1
  std::vector<double> step_us = {1.2, 1.4};  // [sequences, rows], without drafting behind it
  std::vector<double> draft_us = {0.0};      // [sequences]: a drafter's pass for all of them
  double prompt_row_us = 0.2;                // one more row in a step that has prompt rows anyway

  // Time of a step: base + per_row * rows; `draft` for each sequence that drafts.
  static CostTable linear(double base, double per_row, double draft = 0);

  double step(int32_t sequence_count, int32_t row_count) const;
  double draft(int32_t sequence_count) const;

  // Not ok: sizes, order or values that no measurement gives; the message names the field.
  Status check() const;
};

// What a measured table belongs to. A table of another key is not used.
struct CostKey {
  std::string version;      // of the program
  std::string fingerprint;  // of the model
  std::string device;
  int threads = 0;
  int slots = 0;
  int draft_rows = 0;
  bool operator==(const CostKey&) const = default;
};

// One line of JSON with a format number and a SHA-256 over key and table.
std::string encode_cost_table(const CostKey& key, const CostTable& table);
// Refuses what is damaged, of another format or of another key, naming what differs.
Result<CostTable> decode_cost_table(std::string_view text, const CostKey& key);

}  // namespace tensorfold
