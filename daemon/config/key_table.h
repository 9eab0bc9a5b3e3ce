// The one table of configuration keys: the parser, etc/tensorfoldd.toml's check and the documents
// derive from it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "daemon/config/config.h"

namespace tensorfold::config {

enum class Effect : unsigned char {
  kRestart,   // read at start
  kReload,    // also taken over by a reload
  kReserved,  // accepted; no effect in this version, and setting it is warned about
};

using Target = std::variant<std::string Config::*, int64_t Config::*, double Config::*,
                            bool Config::*, std::vector<std::string> Config::*>;

struct Key {
  std::string_view name;  // "http.listen"
  Target target;
  std::string_view default_toml;  // as written in TOML
  double least, most;             // numbers only, inclusive; of a string list: its count
  std::string_view choices;       // strings only: "auto|cpu|cuda", or empty
  Effect effect;
  std::string_view doc;  // one line
};

std::span<const Key> key_table();
const Key* find_key(std::string_view name);

// The key's value as JSON, which is TOML as well.
std::string value_text(const Config& config, const Key& key);
void copy_value(const Key& key, const Config& from, Config& to);

}  // namespace tensorfold::config
