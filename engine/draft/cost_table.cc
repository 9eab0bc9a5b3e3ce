// Lookup and the stored form of measured costs. See the header.
#include "engine/draft/cost_table.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/base/json.h"
#include "engine/weights/file.h"

namespace tensorfold {
namespace {

constexpr int64_t kFormat = 1;

// Where x lies among ascending points: between `low` and low + 1, at `part` of the way. Outside of
// them the nearest two points are continued.
struct Place {
  size_t low = 0;
  double part = 0;
};

Place place_of(const std::vector<int32_t>& points, double x) {
  if (points.size() < 2) return {};
  const auto at = std::upper_bound(points.begin(), points.end(), x);
  const auto after =
      std::clamp<ptrdiff_t>(at - points.begin(), 1, static_cast<ptrdiff_t>(points.size()) - 1);
  const auto low = static_cast<size_t>(after) - 1;
  const double width = points[low + 1] - points[low];
  return {low, (x - points[low]) / width};
}

double between(double a, double b, double part) { return a + (b - a) * part; }

Json numbers(const std::vector<int32_t>& values) {
  Json::Array out;
  for (const int32_t v : values) out.push_back(Json::integer(v));
  return Json::array(std::move(out));
}

Json numbers(const std::vector<double>& values) {
  Json::Array out;
  for (const double v : values) out.push_back(Json::real(v));
  return Json::array(std::move(out));
}

Json key_json(const CostKey& key) {
  return Json::object({{"version", Json::string(key.version)},
                       {"fingerprint", Json::string(key.fingerprint)},
                       {"device", Json::string(key.device)},
                       {"threads", Json::integer(key.threads)},
                       {"slots", Json::integer(key.slots)},
                       {"draft_rows", Json::integer(key.draft_rows)}});
}

Json table_json(const CostTable& table) {
  return Json::object({{"sequences", numbers(table.sequences)},
                       {"rows", numbers(table.rows)},
                       {"step_us", numbers(table.step_us)},
                       {"draft_us", numbers(table.draft_us)},
                       {"prompt_row_us", Json::real(table.prompt_row_us)}});
}

std::string digest_of(const Json& key, const Json& table) {
  Sha256 sha;
  sha.update(dump_json_compact(key));
  sha.update(dump_json_compact(table));
  return sha.hex();
}

const Json& member(const Json& json, std::string_view name) {
  static const Json kNothing;
  const Json* found = json.find(name);
  return found ? *found : kNothing;
}

Status read_points(const Json& json, const char* name, std::vector<int32_t>& out) {
  out.clear();
  const Json& list = member(json, name);
  if (!list.is_array()) return data_loss(std::string(name) + " is not a list");
  for (const Json& v : list.as_array()) {
    const auto value = v.as_int64();
    if (!value || *value < 1 || *value > INT32_MAX)
      return data_loss(std::string(name) + " has an entry that is no count");
    out.push_back(static_cast<int32_t>(*value));
  }
  return ok_status();
}

Status read_times(const Json& json, const char* name, std::vector<double>& out) {
  out.clear();
  const Json& list = member(json, name);
  if (!list.is_array()) return data_loss(std::string(name) + " is not a list");
  for (const Json& v : list.as_array()) {
    if (!v.is_number()) return data_loss(std::string(name) + " has an entry that is no number");
    out.push_back(v.as_double());
  }
  return ok_status();
}

Status check_points(const std::vector<int32_t>& points, const char* name) {
  const bool sizes = !points.empty() && points.size() <= kCostPointsMax && points[0] == 1;
  const bool ascending =
      std::adjacent_find(points.begin(), points.end(), std::greater_equal<>()) == points.end();
  if (!sizes || !ascending) return data_loss(std::string(name) + " does not ascend from 1");
  return ok_status();
}

bool is_time(double us, double least) {
  return std::isfinite(us) && us >= least && us <= kCostMicrosecondsMax;
}

}  // namespace

CostTable CostTable::linear(double base, double per_row, double draft) {
  TF_CHECK(base >= 0 && per_row > 0 && draft >= 0);
  CostTable t;
  t.sequences = {1, 2};
  t.rows = {1, 2};
  t.step_us = {base + per_row, base + 2 * per_row, base + 2 * per_row, base + 4 * per_row};
  t.draft_us = {draft, 2 * draft};
  t.prompt_row_us = per_row;
  return t;
}

double CostTable::step(int32_t sequence_count, int32_t row_count) const {
  const Place s = place_of(sequences, sequence_count);
  // Measured with one sequence alone: as if all rows were its own.
  const double divisor = sequences.size() > 1 ? std::max(sequence_count, 1) : 1;
  const Place r = place_of(rows, row_count / divisor);
  const auto at = [&](size_t sequence, size_t row) {
    return step_us[std::min(sequence, sequences.size() - 1) * rows.size() +
                   std::min(row, rows.size() - 1)];
  };
  const double low = between(at(s.low, r.low), at(s.low, r.low + 1), r.part);
  const double high = between(at(s.low + 1, r.low), at(s.low + 1, r.low + 1), r.part);
  return between(low, high, s.part);
}

double CostTable::draft(int32_t sequence_count) const {
  const Place s = place_of(sequences, sequence_count);
  const double high = draft_us[std::min(s.low + 1, draft_us.size() - 1)];
  return sequence_count == 0 ? 0 : between(draft_us[s.low], high, s.part);
}

Status CostTable::check() const {
  TF_RETURN_IF_ERROR(check_points(sequences, "sequences"));
  TF_RETURN_IF_ERROR(check_points(rows, "rows"));
  if (step_us.size() != sequences.size() * rows.size())
    return data_loss("step_us has " + std::to_string(step_us.size()) + " entries");
  if (draft_us.size() != sequences.size())
    return data_loss("draft_us has " + std::to_string(draft_us.size()) + " entries");
  for (size_t i = 0; i < step_us.size(); ++i) {
    const size_t row = i % rows.size();
    const double least = std::max(row > 0 ? step_us[i - 1] : 1e-9,
                                  i >= rows.size() ? step_us[i - rows.size()] : 1e-9);
    if (!is_time(step_us[i], least))
      return data_loss("step_us[" + std::to_string(i) + "] is no time, or falls with more rows");
  }
  for (size_t i = 0; i < draft_us.size(); ++i) {
    if (!is_time(draft_us[i], i > 0 ? draft_us[i - 1] : 0))
      return data_loss("draft_us[" + std::to_string(i) + "] is no time, or falls");
  }
  if (!is_time(prompt_row_us, 1e-9)) return data_loss("prompt_row_us is no time");
  return ok_status();
}

std::string encode_cost_table(const CostKey& key, const CostTable& table) {
  const Json k = key_json(key);
  const Json t = table_json(table);
  return dump_json_compact(Json::object({{"format", Json::integer(kFormat)},
                                         {"sha256", Json::string(digest_of(k, t))},
                                         {"key", k},
                                         {"table", t}})) +
         "\n";
}

Result<CostTable> decode_cost_table(std::string_view text, const CostKey& key) {
  const auto parsed = parse_json(text);
  if (!parsed.ok()) return data_loss("not JSON: " + parsed.status().message());
  const auto format = member(*parsed, "format").as_int64();
  if (format != kFormat)
    return data_loss("format " + (format ? std::to_string(*format) : "missing") + ", not " +
                     std::to_string(kFormat));
  const Json& k = member(*parsed, "key");
  const Json& t = member(*parsed, "table");
  const Json& digest = member(*parsed, "sha256");
  if (!digest.is_string() || digest.as_string() != digest_of(k, t))
    return data_loss("the checksum does not match");
  const Json wanted = key_json(key);
  for (const auto& [name, value] : wanted.as_object()) {
    if (member(k, name) == value) continue;
    return data_loss("measured with another " + name + ": " + dump_json_compact(member(k, name)) +
                     ", here " + dump_json_compact(value));
  }
  CostTable table;
  TF_RETURN_IF_ERROR(read_points(t, "sequences", table.sequences));
  TF_RETURN_IF_ERROR(read_points(t, "rows", table.rows));
  TF_RETURN_IF_ERROR(read_times(t, "step_us", table.step_us));
  TF_RETURN_IF_ERROR(read_times(t, "draft_us", table.draft_us));
  const Json& prompt_row = member(t, "prompt_row_us");
  if (!prompt_row.is_number()) return data_loss("prompt_row_us is no number");
  table.prompt_row_us = prompt_row.as_double();
  TF_RETURN_IF_ERROR(table.check());
  return table;
}

}  // namespace tensorfold
