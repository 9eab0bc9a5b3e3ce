// Small readers of the text that /proc, /sys and configuration files hold.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold::preflight {

std::string trim(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);  // empty parts stay
std::vector<std::string> words(std::string_view text);                  // by white space
std::vector<std::string> lines(std::string_view text);
bool contains(std::string_view text, std::string_view part);
bool starts_with(std::string_view text, std::string_view start);
std::string lower(std::string_view text);
std::optional<int64_t> to_int(std::string_view text, int base = 10);  // the whole text
// Parts after each other: for loops, where + makes a string per part.
std::string concat(std::initializer_list<std::string_view> parts);
std::string join(const std::vector<std::string>& parts, std::string_view between);

// "MemAvailable:   123 kB" of /proc/meminfo, in bytes.
std::optional<int64_t> meminfo_bytes(std::string_view meminfo, std::string_view key);
std::string bytes_text(int64_t bytes);  // "104.2 GiB"

// IPv4 as a number, or nothing.
std::optional<uint32_t> ipv4(std::string_view address);
bool same_subnet(uint32_t a, uint32_t b, int prefix);

}  // namespace tensorfold::preflight
