#include "daemon/preflight/text.h"

#include <cctype>
#include <charconv>
#include <cstdio>

namespace tensorfold::preflight {

std::string trim(std::string_view text) {
  constexpr std::string_view kSpace(" \t\r\n\0", 5);
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(kSpace) - first + 1));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t at = 0;
  for (;;) {
    const size_t end = text.find(separator, at);
    parts.emplace_back(text.substr(at, end == std::string_view::npos ? end : end - at));
    if (end == std::string_view::npos) return parts;
    at = end + 1;
  }
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> out;
  std::string word;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) == 0) {
      word += c;
    } else if (!word.empty()) {
      out.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) out.push_back(std::move(word));
  return out;
}

std::vector<std::string> lines(std::string_view text) {
  std::vector<std::string> out = split(text, '\n');
  if (!out.empty() && out.back().empty()) out.pop_back();
  return out;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::optional<int64_t> to_int(std::string_view text, int base) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string concat(std::initializer_list<std::string_view> parts) {
  std::string out;
  for (const std::string_view part : parts) out += part;
  return out;
}

std::string join(const std::vector<std::string>& parts, std::string_view between) {
  std::string out;
  for (const std::string& part : parts) {
    if (!out.empty()) out += between;
    out += part;
  }
  return out;
}

constexpr int64_t kMeminfoMost = int64_t{1} << 42;  // kB: no machine has so much

std::optional<int64_t> meminfo_bytes(std::string_view meminfo, std::string_view key) {
  for (const std::string& line : lines(meminfo)) {
    const auto parts = words(line);
    if (parts.size() < 2 || parts[0] != std::string(key) + ":") continue;
    const auto value = to_int(parts[1]);
    if (!value || *value < 0 || *value > kMeminfoMost) return std::nullopt;
    return parts.size() > 2 && parts[2] == "kB" ? *value * 1024 : *value;
  }
  return std::nullopt;
}

std::string bytes_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::optional<uint32_t> ipv4(std::string_view address) {
  const auto parts = split(address, '.');
  if (parts.size() != 4) return std::nullopt;
  uint32_t out = 0;
  for (const std::string& part : parts) {
    const auto value = to_int(part);
    if (!value || *value < 0 || *value > 255) return std::nullopt;
    out = out << 8 | static_cast<uint32_t>(*value);
  }
  return out;
}

bool same_subnet(uint32_t a, uint32_t b, int prefix) {
  if (prefix <= 0) return true;
  const uint32_t mask = prefix >= 32 ? ~uint32_t{0} : ~uint32_t{0} << (32 - prefix);
  return (a & mask) == (b & mask);
}

}  // namespace tensorfold::preflight
