// Reading of bounds files. See eval_bounds.h.
#include "ctl/eval_bounds.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>

namespace tensorfold::ctl {
namespace {

// Numbers, lists of numbers and texts are bounds; anything else is refused with its place.
Status check_part(const std::string& path, const std::string& place, const Json& part) {
  if (!part.is_object()) return data_loss(path + ": " + place + " is no object");
  for (const auto& [key, value] : part.as_object()) {
    bool good = value.is_number() || value.is_string();
    if (value.is_array()) {
      good = true;
      for (const Json& item : value.as_array()) good = good && item.is_number();
    }
    if (!good) {
      return data_loss(path + ": " + place + "." + key +
                       " is neither a number, nor a list of numbers, nor a text");
    }
  }
  return ok_status();
}

}  // namespace

Result<EvalBounds> EvalBounds::read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return io_error(path, errno);
  std::string text;
  text.resize(static_cast<size_t>(kEvalBoundsBytesMax) + 1);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (static_cast<int64_t>(text.size()) > kEvalBoundsBytesMax) {
    return data_loss(path + ": larger than " + std::to_string(kEvalBoundsBytesMax) + " bytes");
  }
  Result<Json> json = parse_json(text);
  if (!json.ok()) return json.status().with_context(path);
  if (!json->is_object()) return data_loss(path + ": no JSON object");
  EvalBounds out;
  out.path_ = path;
  out.root_ = std::move(json).value();
  for (const std::string& section : out.sections()) {
    const Json& value = *out.root_.find(section);
    if (!value.is_object()) return data_loss(path + ": " + section + " is no object");
    for (const auto& [part, bounds] : value.as_object()) {
      TF_RETURN_IF_ERROR(check_part(path, section + "." + part, bounds));
    }
  }
  if (const Json* units = out.root_.find("units")) {
    TF_RETURN_IF_ERROR(check_part(path, "units", *units));
  }
  return out;
}

std::vector<std::string> EvalBounds::sections() const {
  std::vector<std::string> out;
  if (!root_.is_object()) return out;
  for (const auto& [key, value] : root_.as_object()) {
    if (key != "readme" && key != "units") out.push_back(key);
  }
  return out;
}

Status EvalBounds::choose(std::string_view section, std::string_view part) {
  asked_.clear();
  part_ = Json();
  if (!root_.is_object()) return ok_status();
  const Json* found = root_.find(section);
  if (found == nullptr) {
    std::string names;
    for (const std::string& name : sections()) names += (names.empty() ? "" : ", ") + name;
    return invalid_argument(path_ + ": no section '" + std::string(section) + "' (it has " + names +
                            ")");
  }
  if (const Json* bounds = found->find(part)) part_ = *bounds;
  return ok_status();
}

void EvalBounds::choose_units() {
  asked_.clear();
  part_ = Json();
  if (const Json* bounds = root_.find("units")) part_ = *bounds;
}

const Json* EvalBounds::get(std::string_view key) {
  const Json* value = part_.find(key);
  if (value != nullptr) asked_.emplace(key);
  return value;
}

std::optional<double> EvalBounds::number(std::string_view key) {
  const Json* value = get(key);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->as_double();
}

std::optional<double> EvalBounds::by_layer(std::string_view key, int layer) {
  const Json* value = get(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->as_double();
  if (!value->is_array() || layer < 0) return std::nullopt;
  const size_t i = static_cast<size_t>(layer);
  if (i >= value->as_array().size()) return std::nullopt;
  return value->as_array()[i].as_double();
}

bool EvalBounds::has_text(std::string_view key, std::string_view text) {
  const Json* value = get(key);
  return value != nullptr && value->is_string() && value->as_string() == text;
}

std::string EvalBounds::key_ending(std::string_view suffix) const {
  if (!part_.is_object()) return {};
  for (const auto& [key, value] : part_.as_object()) {
    if (key.size() > suffix.size() && std::string_view(key).ends_with(suffix)) return key;
  }
  return {};
}

std::string EvalBounds::key_starting(std::string_view prefix) const {
  if (!part_.is_object()) return {};
  for (const auto& [key, value] : part_.as_object()) {
    if (key.size() > prefix.size() && std::string_view(key).starts_with(prefix)) return key;
  }
  return {};
}

std::vector<std::string> EvalBounds::unused() const {
  std::vector<std::string> out;
  if (!part_.is_object()) return out;
  for (const auto& [key, value] : part_.as_object()) {
    if (asked_.find(key) == asked_.end()) out.push_back(key);
  }
  return out;
}

}  // namespace tensorfold::ctl
