#include "ctl/model/verify_image.h"

#include <algorithm>
#include <vector>

#include "ctl/model/file_hash.h"
#include "engine/weights/file.h"
#include "engine/weights/image_format.h"

namespace tensorfold::models {
namespace {

class ImageCheck {
 public:
  ImageCheck(const ReadFile& file, std::atomic<int64_t>* read_bytes)
      : file_(file), read_bytes_(read_bytes) {}

  Status run() {
    std::vector<std::byte> head(static_cast<size_t>(kImageSectionAlignBytes));
    TF_RETURN_IF_ERROR(file_.read(0, head));
    TF_ASSIGN_OR_RETURN(const ImageSuperblock block, decode_superblock(head));
    if (block.file_bytes != file_.size()) {
      return data_loss("has " + std::to_string(file_.size()) + " bytes, its superblock says " +
                       std::to_string(block.file_bytes));
    }
    if (block.directory_bytes < 0 || block.directory_bytes > kImageDirectoryBytesMax ||
        block.directory_offset < 0 ||
        block.directory_offset > file_.size() - block.directory_bytes) {
      return data_loss("its directory lies outside the file");
    }
    std::vector<std::byte> bytes(static_cast<size_t>(block.directory_bytes));
    TF_RETURN_IF_ERROR(file_.read(block.directory_offset, bytes));
    if (sha256_hex(bytes) != block.directory_sha256) return data_loss("its directory is damaged");
    TF_ASSIGN_OR_RETURN(
        const ImageDirectory directory,
        decode_directory({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    for (const ImageWeight& weight : directory.weights) {
      for (const ImagePart& part : weight.parts) {
        TF_RETURN_IF_ERROR(arrays(part, "weight " + weight.info.name));
      }
    }
    TF_RETURN_IF_ERROR(plain(directory.token_map, "token map"));
    for (const ImageTable& table : directory.tables) {
      TF_RETURN_IF_ERROR(plain(table.section, "Engram table " + std::to_string(table.index)));
    }
    return ok_status();
  }

 private:
  Status inside(const ImageSection& section, const std::string& what) const {
    if (section.bytes >= 0 && section.offset >= 0 && section.bytes <= file_.size() &&
        section.offset <= file_.size() - section.bytes) {
      return ok_status();
    }
    return data_loss(what + ": its section lies outside the file");
  }

  Status add(int64_t offset, int64_t bytes, Sha256& hash) {
    for (int64_t at = 0; at < bytes;) {
      block_.resize(static_cast<size_t>(std::min(bytes - at, kHashBlockBytes)));
      TF_RETURN_IF_ERROR(file_.read(offset + at, block_));
      hash.update(block_);
      at += static_cast<int64_t>(block_.size());
      if (read_bytes_ != nullptr) read_bytes_->fetch_add(static_cast<int64_t>(block_.size()));
    }
    file_.drop_pages(offset, bytes);
    return ok_status();
  }

  static Status judge(Sha256& hash, const ImageSection& section, const std::string& what) {
    if (hash.hex() == section.sha256) return ok_status();
    return data_loss(what + ": damaged (its SHA-256 differs)");
  }

  Status plain(const ImageSection& section, const std::string& what) {
    TF_RETURN_IF_ERROR(inside(section, what));
    Sha256 hash;
    TF_RETURN_IF_ERROR(add(section.offset, section.bytes, hash));
    return judge(hash, section, what);
  }

  // Padding between a part's arrays does not count.
  Status arrays(const ImagePart& part, const std::string& what) {
    TF_RETURN_IF_ERROR(inside(part.section, what));
    if (part.section.bytes != section_bytes(part)) {
      return data_loss(what + ": its section has another size than its arrays");
    }
    Sha256 hash;
    int64_t at = part.section.offset;
    for (const int64_t bytes : part_sizes(part)) {
      if (bytes == 0) continue;
      at = (at + kImagePartAlignBytes - 1) / kImagePartAlignBytes * kImagePartAlignBytes;
      TF_RETURN_IF_ERROR(add(at, bytes, hash));
      at += bytes;
    }
    return judge(hash, part.section, what);
  }

  const ReadFile& file_;
  std::atomic<int64_t>* read_bytes_;
  std::vector<std::byte> block_;
};

}  // namespace

Status verify_image(const std::string& path, std::atomic<int64_t>* read_bytes) {
  TF_ASSIGN_OR_RETURN(const std::shared_ptr<const ReadFile> file, ReadFile::open(path));
  return ImageCheck(*file, read_bytes).run();
}

}  // namespace tensorfold::models
