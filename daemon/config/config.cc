// TOML -> Config over the key table. toml++'s exceptions end here.
#include "daemon/config/config.h"

#include <toml++/toml.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "daemon/config/key_table.h"
#include "engine/base/check.h"
#include "engine/base/utf8.h"

namespace tensorfold::config {
namespace {

constexpr size_t kFileBytesMax = 1024 * 1024;

constexpr size_t kComplaintBytesMax = 240;  // of what a settings file is told to have wrong

struct Reader {
  const std::string& file;
  Loaded& out;

  Status error(const toml::source_region& at, const std::string& message) const {
    return invalid_argument(file + ":" + std::to_string(at.begin.line) + ":" +
                            std::to_string(at.begin.column) + ": " +
                            shown_text(message, kComplaintBytesMax));
  }
};

std::string_view type_word(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::boolean:
      return "a boolean";
    default:
      return "a date or time";
  }
}

std::string number_text(double value) {
  char text[40];
  std::snprintf(text, sizeof text, value == std::floor(value) ? "%.0f" : "%g", value);
  return text;
}

bool is_choice(std::string_view choices, std::string_view value) {
  while (!choices.empty()) {
    const size_t bar = choices.find('|');
    if (choices.substr(0, bar) == value) return true;
    choices = bar == std::string_view::npos ? "" : choices.substr(bar + 1);
  }
  return false;
}

std::string wrong_type(const Key& key, std::string_view wanted, const toml::node& node) {
  return std::string(key.name) + " must be " + std::string(wanted) + ", not " +
         std::string(type_word(node));
}

std::string check_range(const Key& key, double value) {
  if (value >= key.least && value <= key.most) return "";
  return std::string(key.name) + " must be " + number_text(key.least) + ".." +
         number_text(key.most) + ", not " + number_text(value);
}

// Each set_value() gives the complaint, or nothing.
std::string set_value(const Key& key, std::string& target, const toml::node& node) {
  const auto value = node.value_exact<std::string>();
  if (!value) return wrong_type(key, "a string", node);
  if (!key.choices.empty() && !is_choice(key.choices, *value)) {
    return std::string(key.name) + " must be one of " + std::string(key.choices) + ", not \"" +
           *value + "\"";
  }
  if (value->find('\0') != std::string::npos) return std::string(key.name) + " holds a NUL byte";
  target = *value;
  return "";
}

std::string set_value(const Key& key, int64_t& target, const toml::node& node) {
  const auto value = node.value_exact<int64_t>();
  if (!value) return wrong_type(key, "an integer", node);
  if (auto complaint = check_range(key, static_cast<double>(*value)); !complaint.empty()) {
    return complaint;
  }
  target = *value;
  return "";
}

std::string set_value(const Key& key, double& target, const toml::node& node) {
  if (!node.is_number()) return wrong_type(key, "a number", node);
  const double value = *node.value<double>();
  if (auto complaint = check_range(key, value); !complaint.empty()) return complaint;
  target = value;
  return "";
}

std::string set_value(const Key& key, bool& target, const toml::node& node) {
  const auto value = node.value_exact<bool>();
  if (!value) return wrong_type(key, "true or false", node);
  target = *value;
  return "";
}

std::string set_value(const Key& key, std::vector<std::string>& target, const toml::node& node) {
  const toml::array* list = node.as_array();
  if (list == nullptr) return wrong_type(key, "a list of strings", node);
  if (auto complaint = check_range(key, static_cast<double>(list->size())); !complaint.empty()) {
    return complaint + " entries";
  }
  std::vector<std::string> values;
  for (const toml::node& item : *list) {
    const auto value = item.value_exact<std::string>();
    if (!value) {
      return std::string(key.name) + "[" + std::to_string(values.size()) +
             "] must be a string, not " + std::string(type_word(item));
    }
    values.push_back(*value);
  }
  target = std::move(values);
  return "";
}

Status read_key(const Reader& reader, const std::string& name, const toml::key& where,
                const toml::node& node) {
  const Key* key = find_key(name);
  if (key == nullptr) return reader.error(where.source(), "unknown key " + name);
  const std::string complaint = std::visit(
      [&](auto member) { return set_value(*key, reader.out.config.*member, node); }, key->target);
  if (!complaint.empty()) return reader.error(node.source(), complaint);
  if (key->effect == Effect::kReserved) {
    reader.out.warnings.push_back(reader.file + ":" + std::to_string(where.source().begin.line) +
                                  ": " + name + " has no effect in this version");
  }
  return ok_status();
}

bool is_section(std::string_view name) {
  for (const Key& key : key_table())
    if (key.name.substr(0, key.name.find('.')) == name) return true;
  return false;
}

Status read_document(const Reader& reader, const toml::table& document) {
  for (const auto& [section, node] : document) {
    const std::string section_name(section.str());
    if (!is_section(section_name)) {
      return reader.error(
          section.source(),
          "unknown " + std::string(node.is_table() ? "section" : "key") + " " + section_name);
    }
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      return reader.error(node.source(),
                          section_name + " must be a section, not " + std::string(type_word(node)));
    }
    for (const auto& [key, value] : *table) {
      TF_RETURN_IF_ERROR(read_key(reader, section_name + "." + std::string(key.str()), key, value));
    }
  }
  return ok_status();
}

Result<Loaded> parse_over(Config base, const std::string& text, const std::string& file) {
  Loaded out{std::move(base), {}};
  try {
    const toml::table document = toml::parse(text, file);
    TF_RETURN_IF_ERROR(read_document(Reader{file, out}, document));
  } catch (const toml::parse_error& error) {
    const auto& at = error.source().begin;
    return invalid_argument(file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) +
                            ": " + shown_text(error.description(), kComplaintBytesMax));
  }
  return out;
}

}  // namespace

Config default_config() {
  std::string text;
  std::string section;
  for (const Key& key : key_table()) {
    text += std::string(key.name) + " = " + std::string(key.default_toml) + "\n";
  }
  auto loaded = parse_over(Config(), text, "defaults");
  TF_CHECK_MSG(loaded.ok(), loaded.status().message().c_str());
  return loaded->config;
}

Result<Loaded> parse_config(const std::string& text, const std::string& file) {
  return parse_over(default_config(), text, file);
}

Result<Loaded> load_config(const std::string& file) {
  // Opening a pipe would wait for whoever writes into it, and with it every reply.
  std::error_code unknown;
  const auto kind = std::filesystem::status(file, unknown).type();
  if (kind == std::filesystem::file_type::fifo || kind == std::filesystem::file_type::socket)
    return invalid_argument(file + " is not a regular file");
  std::ifstream in(file, std::ios::binary);
  if (!in) return io_error("reading " + file, errno);
  std::string text(kFileBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return io_error("reading " + file, errno);
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kFileBytesMax) {
    return invalid_argument(file + " is longer than " + std::to_string(kFileBytesMax) + " bytes");
  }
  return parse_config(text, file);
}

bool is_loopback(const std::string& listen) {
  const std::string host = listen.substr(0, listen.rfind(':'));
  return host.rfind("127.", 0) == 0 || host == "localhost" || host == "[::1]";
}

Status check_config(const Config& config) {
  const size_t colon = config.http_listen.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == config.http_listen.size()) {
    return invalid_argument("http.listen: '" + shown_text(config.http_listen, kComplaintBytesMax) +
                            "' is not an address of the form 127.0.0.1:8888");
  }
  if (!is_loopback(config.http_listen) && config.http_keys_file.empty()) {
    return invalid_argument("http.listen: " + shown_text(config.http_listen, kComplaintBytesMax) +
                            " is reachable from other machines; set http.keys_file, or listen on "
                            "127.0.0.1");
  }
  if (config.sampling_top_p <= 0) return invalid_argument("sampling.top_p must be above 0");
  return check_cluster(config);
}

std::string render_default_file() {
  std::ostringstream out;
  out << "# tensorfoldd's settings. Every key is here, commented, with its default.\n"
         "# 'tensorfoldd --check-config' says whether a file is right.\n";
  std::string_view section;
  for (const Key& key : key_table()) {
    const std::string_view of = key.name.substr(0, key.name.find('.'));
    if (of != section) out << "\n[" << of << "]\n";
    section = of;
    out << "# " << key.doc;
    if (key.effect == Effect::kReserved) out << " (No effect in this version.)";
    if (key.effect == Effect::kReload) out << " (Taken over by a reload.)";
    out << "\n#" << key.name.substr(of.size() + 1) << " = " << key.default_toml << "\n";
  }
  return out.str();
}

}  // namespace tensorfold::config
