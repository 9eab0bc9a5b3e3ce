// A machine as a folder: its files, and facts.json for what no file tells.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "daemon/preflight/machine.h"
#include "daemon/preflight/text.h"
#include "engine/base/json.h"

namespace tensorfold::preflight {
namespace {

int64_t int_of(const Json& object, std::string_view key, int64_t otherwise) {
  const Json* value = object.find(key);
  if (value == nullptr || !value->is_int()) return otherwise;
  return value->as_int64().value_or(otherwise);
}

std::string text_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

const Json::Array& array_of(const Json& object, std::string_view key) {
  static const Json::Array kEmpty;
  const Json* value = object.find(key);
  return value != nullptr && value->is_array() ? value->as_array() : kEmpty;
}

bool bool_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->is_bool() && value->as_bool();
}

double real_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->is_number() ? value->as_double() : 0;
}

class RecordedMachine final : public Machine {
 public:
  RecordedMachine(const std::string& folder, Json facts)
      : Machine(folder), facts_(std::move(facts)) {}

  std::optional<Disk> disk(const std::string& path) const override {
    const Json* disks = facts_.find("disks");
    if (disks == nullptr || !disks->is_object()) return std::nullopt;
    std::optional<Disk> best;
    size_t length = 0;
    for (const auto& [mount, disk] : disks->as_object()) {
      const bool above = mount == "/" || path == mount || starts_with(path, mount + "/");
      if (!above || mount.size() < length) continue;
      length = mount.size();
      best = Disk{int_of(disk, "total_bytes", 0), int_of(disk, "free_bytes", 0)};
    }
    return best;
  }

  std::vector<std::string> environment() const override {
    std::vector<std::string> out;
    for (const Json& entry : array_of(facts_, "environment"))
      if (entry.is_string()) out.push_back(entry.as_string());
    return out;
  }

  std::vector<Interface> interfaces() const override {
    std::vector<Interface> out;
    for (const Json& one : array_of(facts_, "interfaces"))
      out.push_back({text_of(one, "name"), text_of(one, "address"),
                     static_cast<int>(int_of(one, "prefix", 24))});
    return out;
  }

  int64_t page_bytes() const override { return int_of(facts_, "page_bytes", 4096); }

  std::optional<bool> clock_synchronized() const override {
    const Json* value = facts_.find("clock_synchronized");
    if (value == nullptr || !value->is_bool()) return std::nullopt;
    return value->as_bool();
  }

  int64_t unix_ms() const override { return int_of(facts_, "unix_ms", 0); }

  std::optional<double> read_bytes_per_second(const std::string& file) const override {
    const Json* rates = facts_.find("read_bytes_per_second");
    const Json* rate = rates == nullptr ? nullptr : rates->find(file);
    if (rate == nullptr || !rate->is_number()) return std::nullopt;
    return rate->as_double();
  }

  std::optional<RdmaMemory> register_memory(const std::string& device) const override {
    const Json* all = facts_.find("registered_memory");
    const Json* one = all == nullptr ? nullptr : all->find(device);
    if (one == nullptr) return std::nullopt;
    return RdmaMemory{int_of(*one, "registered_bytes", 0), int_of(*one, "refused_bytes", 0),
                      text_of(*one, "problem"), int_of(*one, "limit_bytes", 0)};
  }

  std::optional<LinkProbe> probe(const std::string& /*host*/, const std::string& here,
                                 const std::string& there) const override {
    for (const Json& one : array_of(facts_, "link_probes")) {
      if (text_of(one, "here") != here || text_of(one, "there") != there) continue;
      return LinkProbe{text_of(one, "problem"), bool_of(one, "reached_here"),
                       bool_of(one, "reached_there"), real_of(one, "out"), real_of(one, "in")};
    }
    return std::nullopt;
  }

  std::optional<CommandResult> command(const std::vector<std::string>& argv) const override {
    const std::string wanted = join(argv, " ");
    for (const Json& one : array_of(facts_, "commands")) {
      if (text_of(one, "argv") != wanted) continue;
      return CommandResult{static_cast<int>(int_of(one, "exit_code", 0)), text_of(one, "output")};
    }
    return std::nullopt;
  }

 private:
  const Json facts_;
};

}  // namespace

Result<std::unique_ptr<Machine>> recorded_machine(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return invalid_argument(folder + " is no folder");
  }
  std::ifstream in(folder + "/facts.json", std::ios::binary);
  if (!in) return invalid_argument(folder + "/facts.json cannot be read");
  std::ostringstream text;
  text << in.rdbuf();
  auto facts = parse_json(text.str());
  if (!facts.ok()) return facts.status().with_context(folder + "/facts.json");
  if (!facts->is_object()) return invalid_argument(folder + "/facts.json is no JSON object");
  return std::unique_ptr<Machine>(
      std::make_unique<RecordedMachine>(folder, std::move(facts).value()));
}

}  // namespace tensorfold::preflight
