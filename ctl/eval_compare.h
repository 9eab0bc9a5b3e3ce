// GridCompare: the comparison of one stored tensor with recorded rows. A tensor is seen as groups
// of rows (a group is a layer, a drafter stage, or everything), and each group gives figures.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ctl/eval_report.h"
#include "ctl/eval_tensor_file.h"

namespace tensorfold::ctl {

struct Grid {
  const StoredTensor* tensor = nullptr;
  std::string prompt;  // for the figures
  std::string quantity;
  int64_t groups = 1;
  int64_t rows = 1;
  int64_t width = 1;  // values in a row
  // First element of a row in the tensor.
  std::function<int64_t(int64_t group, int64_t row)> offset;
  std::function<int(int64_t group)> layer = [](int64_t) { return -1; };
  std::function<std::optional<double>(int64_t group)> bound = [](int64_t) {
    return std::optional<double>();
  };
  // Rows that a rule of the bounds file leaves out; asked only where there is a bound.
  std::function<bool(int64_t group, int64_t row)> exempt = [](int64_t, int64_t) { return false; };
};

using F32Rows = std::function<const std::vector<float>*(int64_t group, int64_t row)>;
using I32Rows = std::function<const std::vector<int32_t>*(int64_t group, int64_t row)>;

// One figure "rel" per group; "max_abs" too when max_abs_bound is given. A row that was not
// recorded, or has another width, makes the group missing.
void compare_f32(const Grid& grid, const F32Rows& ours, EvalReport& report,
                 std::optional<double> max_abs_bound = std::nullopt);

// One figure "differing" (rows) per group, bounded by grid.bound.
void compare_i32(const Grid& grid, const I32Rows& ours, EvalReport& report);

// Lists without order, -1 means nothing. "differing" (lists) bounded by grid.bound and
// "overlap_min" bounded by overlap_bound, per group.
void compare_lists(const Grid& grid, const I32Rows& ours, EvalReport& report,
                   std::optional<double> overlap_bound = std::nullopt);

// The entries of a list, less those that mean nothing.
std::set<int64_t> list_entries(const StoredTensor& tensor, int64_t offset, int64_t width);
std::set<int64_t> list_entries(std::span<const int32_t> list);

}  // namespace tensorfold::ctl
