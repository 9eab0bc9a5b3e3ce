// See eval_compare.h.
#include "ctl/eval_compare.h"

#include <algorithm>

namespace tensorfold::ctl {
namespace {

Figure figure_of(const Grid& grid, int64_t group, std::string measure) {
  Figure f;
  f.prompt = grid.prompt;
  f.quantity = grid.quantity;
  f.layer = grid.layer(group);
  f.measure = std::move(measure);
  return f;
}

void not_recorded(const Grid& grid, int64_t group, int64_t row, bool has_row, size_t width,
                  EvalReport& report) {
  std::string note = "row " + std::to_string(row) + " of " + std::to_string(grid.rows) + ": ";
  note += has_row ? "the model gave " + std::to_string(width) + " values, the file has " +
                        std::to_string(grid.width)
                  : "the model did not give it";
  report.missing(grid.prompt, grid.quantity, grid.layer(group), std::move(note));
}

// Rows of one group: calls `add` for each that counts. False when a row was not there.
template <typename Rows, typename Add>
bool walk_rows(const Grid& grid, int64_t group, const Rows& ours, bool any_width, Figure& figure,
               EvalReport& report, const Add& add) {
  for (int64_t row = 0; row < grid.rows; ++row) {
    const auto* values = ours(group, row);
    const bool fits =
        values != nullptr && (any_width || static_cast<int64_t>(values->size()) == grid.width);
    if (!fits) {
      not_recorded(grid, group, row, values != nullptr, values == nullptr ? 0 : values->size(),
                   report);
      return false;
    }
    if (figure.bound && grid.exempt(group, row)) {
      ++figure.exempt;
      continue;
    }
    ++figure.compared;
    add(row, *values);
  }
  return true;
}

}  // namespace

void compare_f32(const Grid& grid, const F32Rows& ours, EvalReport& report,
                 std::optional<double> max_abs_bound) {
  const StoredTensor& tensor = *grid.tensor;
  for (int64_t group = 0; group < grid.groups; ++group) {
    Figure figure = figure_of(grid, group, "rel");
    figure.bound = grid.bound(group);
    Distance distance;
    const auto add = [&](int64_t row, const std::vector<float>& values) {
      const int64_t at = grid.offset(group, row);
      for (int64_t i = 0; i < grid.width; ++i) {
        distance.add(static_cast<double>(values[static_cast<size_t>(i)]),
                     static_cast<double>(tensor.f32(at + i)));
      }
    };
    if (!walk_rows(grid, group, ours, false, figure, report, add)) continue;
    figure.value = distance.rel();
    report.add(figure);
    if (max_abs_bound) {
      figure.measure = "max_abs";
      figure.value = distance.max_abs();
      figure.bound = max_abs_bound;
      report.add(std::move(figure));
    }
  }
}

void compare_i32(const Grid& grid, const I32Rows& ours, EvalReport& report) {
  const StoredTensor& tensor = *grid.tensor;
  for (int64_t group = 0; group < grid.groups; ++group) {
    Figure figure = figure_of(grid, group, "differing");
    figure.bound = grid.bound(group);
    int64_t differing = 0;
    const auto add = [&](int64_t row, const std::vector<int32_t>& values) {
      const int64_t at = grid.offset(group, row);
      for (int64_t i = 0; i < grid.width; ++i) {
        if (values[static_cast<size_t>(i)] != tensor.i64(at + i)) {
          ++differing;
          break;
        }
      }
    };
    if (!walk_rows(grid, group, ours, false, figure, report, add)) continue;
    figure.value = static_cast<double>(differing);
    figure.note = "of " + std::to_string(figure.compared);
    report.add(std::move(figure));
  }
}

std::set<int64_t> list_entries(const StoredTensor& tensor, int64_t offset, int64_t width) {
  std::set<int64_t> out;
  for (int64_t i = 0; i < width; ++i) {
    const int64_t entry = tensor.i64(offset + i);
    if (entry >= 0) out.insert(entry);
  }
  return out;
}

std::set<int64_t> list_entries(std::span<const int32_t> list) {
  std::set<int64_t> out;
  for (const int32_t entry : list) {
    if (entry >= 0) out.insert(entry);
  }
  return out;
}

void compare_lists(const Grid& grid, const I32Rows& ours, EvalReport& report,
                   std::optional<double> overlap_bound) {
  for (int64_t group = 0; group < grid.groups; ++group) {
    Figure figure = figure_of(grid, group, "differing");
    figure.bound = grid.bound(group);
    int64_t differing = 0;
    double overlap_min = 1;
    const auto add = [&](int64_t row, const std::vector<int32_t>& values) {
      const std::set<int64_t> theirs =
          list_entries(*grid.tensor, grid.offset(group, row), grid.width);
      const std::set<int64_t> mine = list_entries(values);
      if (mine == theirs) return;
      ++differing;
      const auto both = std::count_if(mine.begin(), mine.end(),
                                      [&](int64_t entry) { return theirs.contains(entry); });
      const size_t size = std::max(mine.size(), theirs.size());
      overlap_min = std::min(overlap_min, static_cast<double>(both) / static_cast<double>(size));
    };
    if (!walk_rows(grid, group, ours, true, figure, report, add)) continue;
    figure.value = static_cast<double>(differing);
    figure.note = "of " + std::to_string(figure.compared) + " lists";
    report.add(figure);
    figure.measure = "overlap_min";
    figure.value = overlap_min;
    figure.bound = overlap_bound;
    figure.at_least = true;
    figure.note.clear();
    report.add(std::move(figure));
  }
}

}  // namespace tensorfold::ctl
