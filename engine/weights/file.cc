// Positioned reads, atomic writes and SHA-256 (see file.h). System calls are retried on EINTR; a
// short read or write goes on where it stopped.
#include "engine/weights/file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "engine/base/positioned_io.h"

namespace tensorfold {
namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error(folder, errno);
  const int rc = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  return rc == 0 ? ok_status() : io_error(folder + ": fsync", error);
}

}  // namespace

ReadFile::ReadFile(std::string path, int fd, int64_t size)
    : path_(std::move(path)), fd_(fd), size_(size) {}

ReadFile::~ReadFile() { ::close(fd_); }

Result<std::shared_ptr<const ReadFile>> ReadFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return io_error(path, errno);
  struct stat info = {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    const int error = errno;
    const bool is_file = S_ISREG(info.st_mode);
    ::close(fd);
    if (is_file) return io_error(path, error);
    return invalid_argument(path + ": not a regular file");
  }
  return std::shared_ptr<const ReadFile>(new ReadFile(path, fd, info.st_size));
}

Status ReadFile::read(int64_t offset, std::span<std::byte> out) const {
  const IoOutcome done = read_at(fd_, offset, out);
  if (done.error != 0) return io_error(path_, done.error);
  if (done.bytes < out.size()) {
    return data_loss(path_ + ": truncated: it ends before byte " +
                     std::to_string(offset + static_cast<int64_t>(out.size())));
  }
  return ok_status();
}

void ReadFile::drop_pages(int64_t offset, int64_t bytes) const {
  (void)::posix_fadvise(fd_, offset, bytes, POSIX_FADV_DONTNEED);  // advice only
}

Result<std::string> read_text_file(const std::string& path, int64_t bytes_max) {
  TF_ASSIGN_OR_RETURN(const std::shared_ptr<const ReadFile> file, ReadFile::open(path));
  if (file->size() > bytes_max) {
    return invalid_argument(path + ": larger than " + std::to_string(bytes_max) + " bytes");
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  TF_RETURN_IF_ERROR(file->read(0, std::as_writable_bytes(std::span<char>(text))));
  return text;
}

AtomicFile::AtomicFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!keep_) ::unlink(temporary_.c_str());
}

Result<std::unique_ptr<AtomicFile>> AtomicFile::create(const std::string& path) {
  std::string temporary = path + ".tmp-" + std::to_string(::getpid());
  const int fd = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return io_error(temporary, errno);
  return std::unique_ptr<AtomicFile>(new AtomicFile(path, std::move(temporary), fd));
}

Result<std::unique_ptr<AtomicFile>> AtomicFile::go_on(const std::string& path,
                                                      const std::string& temporary,
                                                      int64_t position) {
  const int fd = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return io_error(temporary, errno);
  auto file = std::unique_ptr<AtomicFile>(new AtomicFile(path, temporary, fd));
  file->keep_ = true;
  file->position_ = position;
  if (::ftruncate(fd, position) != 0) return io_error(temporary, errno);
  return file;
}

Status AtomicFile::append(std::span<const std::byte> bytes) {
  TF_RETURN_IF_ERROR(write_at(position_, bytes));
  position_ += static_cast<int64_t>(bytes.size());
  return ok_status();
}

Status AtomicFile::append(std::string_view text) { return append(bytes_of(text)); }

Status AtomicFile::pad_to(int64_t multiple) {
  static constexpr std::array<std::byte, 4096> kZeros = {};
  int64_t missing = (multiple - position_ % multiple) % multiple;
  while (missing > 0) {
    const int64_t n = std::min<int64_t>(missing, kZeros.size());
    TF_RETURN_IF_ERROR(append(std::span(kZeros).first(static_cast<size_t>(n))));
    missing -= n;
  }
  return ok_status();
}

Status AtomicFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  const IoOutcome done = tensorfold::write_at(fd_, offset, bytes);
  if (done.error != 0) return io_error(temporary_, done.error);
  return ok_status();
}

Status AtomicFile::sync() {
  return ::fdatasync(fd_) == 0 ? ok_status() : io_error(temporary_ + ": fdatasync", errno);
}

Status AtomicFile::commit() {
  if (::fsync(fd_) != 0) return io_error(temporary_ + ": fsync", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return io_error(path_, errno);
  ::close(std::exchange(fd_, -1));
  return sync_folder(folder_of(path_));
}

struct Sha256::State {
  EVP_MD_CTX* context = nullptr;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  state_->context = EVP_MD_CTX_new();
  TF_CHECK(state_->context != nullptr);
  TF_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(state_->context); }

void Sha256::update(std::span<const std::byte> bytes) {
  TF_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

void Sha256::update(std::string_view text) { update(bytes_of(text)); }

void Sha256::update_u64(uint64_t value) {
  std::array<std::byte, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
  update(bytes);
}

std::string Sha256::hex() {
  std::array<unsigned char, kDigestBytes> digest = {};
  unsigned int length = 0;
  TF_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &length) == 1);
  TF_CHECK_EQ(length, kDigestBytes);
  std::string text;
  for (unsigned char byte : digest) {
    text.push_back("0123456789abcdef"[byte >> 4]);
    text.push_back("0123456789abcdef"[byte & 15]);
  }
  return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

}  // namespace tensorfold
