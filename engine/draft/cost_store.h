// The measured cost table across restarts: one file in the state directory, written whole or not
// at all. A file that is damaged, or measured on another model, device or number of threads, is
// not used: it is measured again and replaced, and one line says why.
#pragma once

#include <functional>
#include <string>

#include "engine/base/log_sink.h"
#include "engine/draft/cost_table.h"
#include "engine/draft/measure_costs.h"

namespace tensorfold {

inline constexpr int64_t kCostFileBytesMax = 64 * 1024;

// STATE_DIR/row_costs.json
std::string cost_file_path(const std::string& state_dir);

// The stored table, or `measure`'s, stored if it is steady. Not ok: measuring failed. An empty
// state_dir keeps nothing; a file that cannot be written is a line in the log.
Result<CostTable> stored_or_measured_costs(const std::string& state_dir, const CostKey& key,
                                           const std::function<Result<MeasuredCosts>()>& measure,
                                           LogSink& log);

}  // namespace tensorfold
