// Reads token maps (see token_map.h). The built-in one is linked in from
// packaging/engram-map/v41.map, so that the running program needs no file for it.
#include "engine/weights/token_map.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "engine/weights/file.h"

// NOLINTNEXTLINE(hicpp-no-assembler): the assembler is what can include a binary file
asm(".pushsection .rodata\n"
    ".balign 16\n"
    ".global tf_v41_map_begin\n"
    "tf_v41_map_begin:\n"
    ".incbin \"" TF_SOURCE_DIR
    "/packaging/engram-map/v41.map\"\n"
    ".global tf_v41_map_end\n"
    "tf_v41_map_end:\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" const std::byte tf_v41_map_begin[];
extern "C" const std::byte tf_v41_map_end[];

namespace tensorfold {
namespace {

constexpr std::string_view kMagic = "TFEMAP1\n";
constexpr size_t kHeadBytes = 16;
constexpr size_t kIdBytes = 3;
constexpr uint32_t kMapTokensMax = 1 << 24;

uint32_t little_endian(std::span<const std::byte> bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) value |= std::to_integer<uint32_t>(bytes[i]) << (8 * i);
  return value;
}

Result<std::vector<int32_t>> read_map_file(const ModelConfig& config, const std::string& path) {
  TF_ASSIGN_OR_RETURN(const std::shared_ptr<const ReadFile> file, ReadFile::open(path));
  const size_t bytes = static_cast<size_t>(config.vocab_size) * 4;
  if (static_cast<size_t>(file->size()) != bytes) {
    return data_loss(path + ": " + std::to_string(file->size()) + " bytes, expected " +
                     std::to_string(bytes) + " (one int32 for each of " +
                     std::to_string(config.vocab_size) + " tokens)");
  }
  std::vector<std::byte> raw(bytes);
  TF_RETURN_IF_ERROR(file->read(0, raw));
  std::vector<int32_t> map(static_cast<size_t>(config.vocab_size));
  for (size_t i = 0; i < map.size(); ++i) {
    map[i] = static_cast<int32_t>(little_endian(std::span(raw).subspan(4 * i, 4)));
  }
  TF_RETURN_IF_ERROR(check_token_map(config, map, path));
  return map;
}

}  // namespace

Result<std::vector<int32_t>> unpack_token_map(std::span<const std::byte> packed) {
  if (packed.size() < kHeadBytes || std::memcmp(packed.data(), kMagic.data(), kMagic.size()) != 0) {
    return data_loss("token map: not a packed map");
  }
  const uint32_t tokens = little_endian(packed.subspan(8, 4));
  const uint32_t classes = little_endian(packed.subspan(12, 4));
  const size_t bit_bytes = (size_t{tokens} + 7) / 8;
  if (tokens > kMapTokensMax || classes > tokens ||
      packed.size() != kHeadBytes + bit_bytes + size_t{tokens - classes} * kIdBytes) {
    return data_loss("token map: its size does not fit its counts");
  }
  const std::span<const std::byte> bits = packed.subspan(kHeadBytes, bit_bytes);
  std::span<const std::byte> repeats = packed.subspan(kHeadBytes + bit_bytes);
  std::vector<int32_t> map(tokens);
  uint32_t next = 0;
  for (size_t token = 0; token < map.size(); ++token) {
    const bool begins = (std::to_integer<unsigned>(bits[token / 8]) >> (token % 8) & 1) != 0;
    if (!begins && repeats.empty()) return data_loss("token map: too few repeated ids");
    map[token] = static_cast<int32_t>(begins ? next : little_endian(repeats.first(kIdBytes)));
    if (!begins) repeats = repeats.subspan(kIdBytes);
    if (begins) ++next;
    if (static_cast<uint32_t>(map[token]) >= next) return data_loss("token map: id out of order");
  }
  if (next != classes) return data_loss("token map: another number of classes than it says");
  return map;
}

std::span<const std::byte> builtin_token_map() {
  return {tf_v41_map_begin, static_cast<size_t>(tf_v41_map_end - tf_v41_map_begin)};
}

Status check_token_map(const ModelConfig& config, std::span<const int32_t> map,
                       const std::string& where) {
  if (map.size() != static_cast<size_t>(config.vocab_size)) {
    return data_loss(where + ": " + std::to_string(map.size()) + " entries for a vocabulary of " +
                     std::to_string(config.vocab_size));
  }
  for (size_t token = 0; token < map.size(); ++token) {
    if (map[token] < 0 || map[token] >= config.engram.compressed_vocab_size) {
      return data_loss(where + ": entry " + std::to_string(token) + " is " +
                       std::to_string(map[token]) + ", not below engram_compressed_vocab_size " +
                       std::to_string(config.engram.compressed_vocab_size));
    }
  }
  return ok_status();
}

Result<std::vector<int32_t>> load_token_map(const ModelConfig& config, const std::string& folder) {
  if (config.engram.layers.empty()) return std::vector<int32_t>();
  const std::string path = folder + "/" + kTokenMapFileName;
  struct stat info = {};
  if (!folder.empty() && ::stat(path.c_str(), &info) == 0) return read_map_file(config, path);
  TF_ASSIGN_OR_RETURN(std::vector<int32_t> map, unpack_token_map(builtin_token_map()));
  const int32_t classes = *std::max_element(map.begin(), map.end()) + 1;
  if (map.size() != static_cast<size_t>(config.vocab_size) ||
      classes != config.engram.compressed_vocab_size) {
    return Status(StatusCode::kNotFound,
                  path + ": missing, and the built-in token map is of another vocabulary (" +
                      std::to_string(map.size()) + " tokens, " + std::to_string(classes) +
                      " classes)");
  }
  return map;
}

}  // namespace tensorfold
