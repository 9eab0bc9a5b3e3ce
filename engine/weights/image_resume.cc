#include "engine/weights/image_resume.h"

#include <unistd.h>

#include <vector>

#include "engine/weights/image.h"

namespace tensorfold {
namespace {

constexpr size_t kHexBytes = 2 * Sha256::kDigestBytes;
constexpr size_t kPositionDigits = 20;

std::string rows_path(const std::string& image_path) {
  return image_part_path(image_path) + ".rows";
}

bool same_image(const ImageDirectory& a, const ImageDirectory& b) {
  return a.model_digest == b.model_digest && a.config_text == b.config_text && a.rank == b.rank &&
         a.world_size == b.world_size && a.engram_digests == b.engram_digests;
}

std::string position_text(int64_t position) {
  std::string digits = std::to_string(position);
  return std::string(kPositionDigits - digits.size(), '0') + digits;
}

}  // namespace

std::string image_part_path(const std::string& image_path) { return image_path + ".part"; }

// Position, SHA-256 of position and directory, directory.
Status save_unfinished(const std::string& image_path, AtomicFile& file,
                       const ImageDirectory& directory) {
  TF_RETURN_IF_ERROR(file.sync());
  ImageDirectory copy = directory;
  if (copy.token_map.sha256.empty()) copy.token_map.sha256.assign(kHexBytes, '0');
  const std::string rows = encode_directory(copy), position = position_text(file.position());
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> out,
                      AtomicFile::create(rows_path(image_path)));
  TF_RETURN_IF_ERROR(out->append(position));
  TF_RETURN_IF_ERROR(out->append(sha256_hex(bytes_of(position + rows))));
  TF_RETURN_IF_ERROR(out->append(rows));
  return out->commit();
}

int64_t find_unfinished(const std::string& image_path, ImageDirectory& directory) {
  const auto text = read_text_file(rows_path(image_path), kImageDirectoryBytesMax);
  if (!text.ok() || text->size() < kPositionDigits + kHexBytes) return 0;
  const std::string position = text->substr(0, kPositionDigits);
  const std::string digest = text->substr(kPositionDigits, kHexBytes);
  const std::string rows = text->substr(kPositionDigits + kHexBytes);
  if (sha256_hex(bytes_of(position + rows)) != digest) return 0;
  Result<ImageDirectory> found = decode_directory(rows);
  if (!found.ok() || !same_image(*found, directory)) return 0;
  const auto part = ReadFile::open(image_part_path(image_path));
  const int64_t at = std::stoll(position);  // digits: the digest is right
  if (!part.ok() || (*part)->size() < at) return 0;
  directory = std::move(found).value();
  return at;
}

void forget_unfinished(const std::string& image_path) { ::unlink(rows_path(image_path).c_str()); }

bool image_is_of(const std::string& path, const ImageDirectory& wanted, bool with_engram) {
  const auto file = ReadFile::open(path);
  if (!file.ok() || (*file)->size() < kImageSectionAlignBytes) return false;
  std::vector<std::byte> head(static_cast<size_t>(kImageSectionAlignBytes));
  if (!(*file)->read(0, head).ok()) return false;
  const auto block = decode_superblock(head);
  if (!block.ok() || block->file_bytes != (*file)->size() || block->directory_bytes < 0 ||
      block->directory_bytes > kImageDirectoryBytesMax || block->directory_offset < 0 ||
      block->directory_offset > (*file)->size() - block->directory_bytes) {
    return false;
  }
  std::vector<std::byte> bytes(static_cast<size_t>(block->directory_bytes));
  if (!(*file)->read(block->directory_offset, bytes).ok()) return false;
  if (sha256_hex(bytes) != block->directory_sha256) return false;
  const auto directory =
      decode_directory({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!directory.ok() || !same_image(*directory, wanted)) return false;
  const size_t tables = with_engram ? wanted.engram_digests.size() : 0;
  return directory->tables.size() == tables;
}

}  // namespace tensorfold
