// What the golden tests share: model folders made from the recorded small model, faults planted in
// a copy of its weights, and one run of `tfctl model eval` with its report.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "tests/temp_folder.h"

namespace tensorfold::test {

// The path of a file under tests/data/golden.
std::string golden_path(std::string_view name);

// The device that these tests run on: "cpu", or what TENSORFOLD_TEST_DEVICE names. Where that is a
// GPU and there is none, the program ends with the skip code.
std::string test_device();

// The recorded model widened to BF16, in `folder`; config: a file under golden/ to use as its
// config.json, or empty.
void make_bf16_twin(const std::string& folder, std::string_view config = "");

enum class Fault : unsigned char {
  kNoSink,          // attention sinks that never count
  kCombTransposed,  // hyper-connections mixed with the transposed matrix
  kNoRouteBias,     // experts chosen by unbiased scores
};
// A copy of the model folder `from` in `to` with a fault in its weights: what a model with the
// fault in its code would compute.
void plant_fault(const std::string& from, const std::string& to, Fault fault);

struct EvalOutcome {
  int exit_code = -1;
  std::string error;  // what went to stderr
  Json report;

  int64_t number(std::string_view key) const;  // of the report's root, e.g. "within"
  // Figures of a quantity ("" for all) with this verdict ("within", "PAST", ..).
  int64_t figures(std::string_view quantity, std::string_view verdict) const;
  std::string summary() const;  // every figure that is past or missing, for messages
};

// Runs `tfctl model eval --json` with these arguments.
EvalOutcome run_eval(std::vector<std::string> args);

// Checks that the run passed, compared something under each of these quantities, and left no
// tensor of the file missing or without a rule.
void check_passed(const EvalOutcome& outcome, const std::vector<std::string>& within);
// Checks that the run failed by its bounds, not by an error.
void check_fails_bounds(const EvalOutcome& outcome);

}  // namespace tensorfold::test
