// Reads of files below the root; the same code for the live and for a recorded machine.
#include "daemon/preflight/machine.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "daemon/preflight/text.h"

namespace tensorfold::preflight {

std::optional<std::string> Machine::read_head(const std::string& path, int64_t bytes) const {
  std::ifstream in(at(path), std::ios::binary);
  if (!in) return std::nullopt;
  // Files of /proc have no size: read until the end or the bound.
  std::string out;
  char block[16 * 1024];
  while (static_cast<int64_t>(out.size()) < bytes) {
    const auto left = bytes - static_cast<int64_t>(out.size());
    in.read(block, std::min<int64_t>(sizeof block, left));
    if (in.gcount() <= 0) break;
    out.append(block, static_cast<size_t>(in.gcount()));
  }
  if (in.bad()) return std::nullopt;
  return out;
}

std::optional<std::string> Machine::read(const std::string& path) const {
  std::error_code error;
  if (!std::filesystem::is_regular_file(at(path), error)) return std::nullopt;
  return read_head(path, kMachineFileBytesMax);
}

std::string Machine::line(const std::string& path) const {
  const auto text = read(path);
  if (!text) return "";
  return trim(text->substr(0, text->find('\n')));
}

std::vector<std::string> Machine::list(const std::string& path) const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator it(at(path), error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Machine::exists(const std::string& path) const {
  std::error_code error;
  return std::filesystem::exists(at(path), error);
}

std::string Machine::link(const std::string& path) const {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(at(path), error);
  return error ? "" : target.string();
}

std::optional<int64_t> Machine::file_bytes(const std::string& path) const {
  std::error_code error;
  const auto size = std::filesystem::file_size(at(path), error);
  if (error) return std::nullopt;
  return static_cast<int64_t>(size);
}

}  // namespace tensorfold::preflight
