#include "ctl/model/file_hash.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/weights/file.h"

namespace tensorfold::models {
namespace {

// Whoever keeps a model on disk keeps it there: what was hashed leaves the page cache every so
// often.
constexpr int64_t kDropBytes = int64_t{64} << 20;

class Sha1 {
 public:
  Sha1() : context_(EVP_MD_CTX_new()) {
    TF_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_, EVP_sha1(), nullptr) == 1);
  }
  ~Sha1() { EVP_MD_CTX_free(context_); }
  Sha1(const Sha1&) = delete;
  Sha1& operator=(const Sha1&) = delete;

  void update(std::span<const std::byte> bytes) {
    TF_CHECK(EVP_DigestUpdate(context_, bytes.data(), bytes.size()) == 1);
  }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
    unsigned int length = 0;
    TF_CHECK(EVP_DigestFinal_ex(context_, digest.data(), &length) == 1);
    std::string out;
    for (unsigned int i = 0; i < length; ++i) {
      out += "0123456789abcdef"[digest[i] >> 4];
      out += "0123456789abcdef"[digest[i] & 15];
    }
    return out;
  }

 private:
  EVP_MD_CTX* context_;
};

}  // namespace

Result<FileHashes> hash_file(const std::string& path, std::atomic<int64_t>* read_bytes,
                             const std::atomic<bool>* stop) {
  TF_ASSIGN_OR_RETURN(const std::shared_ptr<const ReadFile> file, ReadFile::open(path));
  // Git names small files only; a large one's name in it is of a pointer, so its SHA-1 is no use.
  constexpr int64_t kGitBytesMax = int64_t{64} << 20;
  const bool git = file->size() <= kGitBytesMax;
  Sha256 sha256;
  Sha1 sha1;
  const std::string head = "blob " + std::to_string(file->size()) + '\0';
  sha1.update(bytes_of(head));
  std::vector<std::byte> block(
      static_cast<size_t>(std::min(kHashBlockBytes, std::max<int64_t>(1, file->size()))));
  int64_t dropped = 0;
  for (int64_t at = 0; at < file->size();) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
      return Status(StatusCode::kCancelled, path + ": stopped");
    }
    const auto part = std::span(block).first(
        static_cast<size_t>(std::min<int64_t>(file->size() - at, kHashBlockBytes)));
    TF_RETURN_IF_ERROR(file->read(at, part));
    sha256.update(part);
    if (git) sha1.update(part);
    at += static_cast<int64_t>(part.size());
    if (read_bytes != nullptr) read_bytes->fetch_add(static_cast<int64_t>(part.size()));
    if (at - dropped >= kDropBytes || at == file->size()) {
      file->drop_pages(dropped, at - dropped);
      dropped = at;
    }
  }
  return FileHashes{file->size(), sha256.hex(), git ? sha1.hex() : ""};
}

void hash_files(std::vector<HashJob>& jobs, int threads, int64_t look_ms,
                const std::function<void(int64_t read_bytes)>& look) {
  std::atomic<size_t> next{0};
  std::atomic<int64_t> read_bytes{0};
  std::mutex mutex;
  std::condition_variable ended;
  int running =
      std::clamp(threads, 1, std::min(kHashThreadsMax, std::max(1, static_cast<int>(jobs.size()))));
  std::vector<std::thread> workers;
  const auto work = [&] {
    for (size_t i = next.fetch_add(1); i < jobs.size(); i = next.fetch_add(1)) {
      jobs[i].hashes = hash_file(jobs[i].path, &read_bytes, nullptr);
    }
    std::lock_guard lock(mutex);
    --running;
    ended.notify_all();
  };
  const int count = running;
  workers.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) workers.emplace_back(work);
  {
    std::unique_lock lock(mutex);
    while (running > 0) {
      ended.wait_for(lock, std::chrono::milliseconds(look_ms));
      lock.unlock();
      if (look) look(read_bytes.load());
      lock.lock();
    }
  }
  for (std::thread& worker : workers) worker.join();
}

}  // namespace tensorfold::models
