// See section_reader.h.
#include "engine/weights/section_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "engine/base/positioned_io.h"

namespace tensorfold {
namespace {

constexpr int64_t kBlockBytes = 4096;  // O_DIRECT: places, sizes and memory are multiples of it

}  // namespace

void SectionReader::FreeBuffer::operator()(void* p) const { std::free(p); }

SectionReader::SectionReader(std::shared_ptr<const ReadFile> file) : file_(std::move(file)) {
  direct_ = ::open(file_->path().c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(
      static_cast<size_t>(kBlockBytes), static_cast<size_t>(kSectionPieceBytes))));
}

SectionReader::~SectionReader() {
  if (direct_ >= 0) ::close(direct_);
}

Result<int64_t> SectionReader::read_piece(int64_t offset, int64_t wanted) {
  if (buffer_ == nullptr) return unavailable("no memory to read " + file_->path());
  const int64_t bytes = std::min(wanted, kSectionPieceBytes);
  if (direct_ >= 0) {
    const int64_t whole = (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    const IoOutcome done =
        read_at(direct_, offset, std::span(buffer_.get(), static_cast<size_t>(whole)));
    if (done.error == 0 && static_cast<int64_t>(done.bytes) >= bytes) return bytes;
    // A file system that opens files so and cannot read them, a file that is not as it was when it
    // was opened: the plain way works or knows what to say.
    ::close(direct_);
    direct_ = -1;
  }
  TF_RETURN_IF_ERROR(file_->read(offset, std::span(buffer_.get(), static_cast<size_t>(bytes))));
  file_->drop_pages(offset, bytes);
  return bytes;
}

Status SectionReader::read(int64_t offset, std::span<const SectionArray> arrays, Sha256& hash) {
  if (arrays.empty()) return ok_status();
  const auto end_of = [](const SectionArray& a) {
    return a.offset + static_cast<int64_t>(a.bytes.size());
  };
  const int64_t end = end_of(arrays.back());
  size_t next = 0;  // the first array that is not complete
  for (int64_t at = 0; at < end;) {
    TF_ASSIGN_OR_RETURN(const int64_t got, read_piece(offset + at, end - at));
    while (next < arrays.size() && arrays[next].offset < at + got) {
      const SectionArray& a = arrays[next];
      const int64_t first = std::max(a.offset, at), last = std::min(end_of(a), at + got);
      const std::span<std::byte> part =
          a.bytes.subspan(static_cast<size_t>(first - a.offset), static_cast<size_t>(last - first));
      std::memcpy(part.data(), buffer_.get() + (first - at), part.size());
      hash.update(part);
      if (last < end_of(a)) break;
      ++next;
    }
    at += got;
  }
  return ok_status();
}

}  // namespace tensorfold
