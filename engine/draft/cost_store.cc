// Reading and replacing row_costs.json. See the header.
#include "engine/draft/cost_store.h"

#include <unistd.h>

#include <cstdio>
#include <memory>

#include "engine/weights/file.h"

namespace tensorfold {
namespace {

Status store(const std::string& path, const std::string& text) {
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file, AtomicFile::create(path));
  TF_RETURN_IF_ERROR(file->append(text));
  return file->commit();
}

// One sequence without and with all drafts, and the drafter: what a reader wants to know first.
std::string summary(const CostTable& table) {
  char text[160];
  std::snprintf(text, sizeof text,
                "a step of 1 row %.2f ms, of %d rows %.2f ms, a drafter's pass %.2f ms",
                table.step_us.front() / 1e3, table.rows.back(),
                table.step_us[table.rows.size() - 1] / 1e3, table.draft_us.front() / 1e3);
  return text;
}

}  // namespace

std::string cost_file_path(const std::string& state_dir) { return state_dir + "/row_costs.json"; }

Result<CostTable> stored_or_measured_costs(const std::string& state_dir, const CostKey& key,
                                           const std::function<Result<MeasuredCosts>()>& measure,
                                           LogSink& log) {
  const std::string path = cost_file_path(state_dir);
  std::string refused;
  if (!state_dir.empty() && access(path.c_str(), F_OK) == 0) {
    const auto text = read_text_file(path, kCostFileBytesMax);
    const auto table = text.ok() ? decode_cost_table(*text, key) : Result<CostTable>(text.status());
    if (table.ok()) {
      log.info("row costs are those of " + path + ": " + summary(*table));
      return table;
    }
    refused = "; " + path + " is not used: " + table.status().message();
  }
  const auto measured = measure();
  if (!measured.ok()) return measured.status().with_context("measuring row costs");
  const std::string busy =
      measured->steady ? "" : " (the machine was busy: measured again at start)";
  log.info("row costs were measured: " + summary(measured->table) + busy + refused);
  if (state_dir.empty() || !measured->steady) return measured->table;
  const Status stored = store(path, encode_cost_table(key, measured->table));
  if (!stored.ok()) log.warning("row costs are not kept: " + stored.message());
  return measured->table;
}

}  // namespace tensorfold
