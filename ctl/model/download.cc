#include "ctl/model/download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <future>
#include <memory>

#include "ctl/model/record.h"
#include "engine/base/positioned_io.h"

namespace tensorfold::models {
namespace {

enum class Stage : unsigned char { kWaiting, kRunning, kWhole, kHashing, kPlaced, kFailed };

// One file on its way. Everything but `hashed` belongs to the turning thread.
struct Item {
  const DownloadFile* file = nullptr;
  Stage stage = Stage::kWaiting;
  std::string part;
  int fd = -1;
  int64_t have = 0;        // bytes in the part file
  int64_t asked_from = 0;  // of the running try
  int64_t best = 0;        // the most bytes that were ever there
  bool checked = false;    // the running try's answer fits
  bool paused = false;
  bool wrong_range = false;
  int tries = 0, wrong_hashes = 0;
  int64_t not_before_ms = 0;
  Fault fault;  // of the running try
  std::unique_ptr<HttpTransfer> transfer;
  std::future<Result<FileHashes>> hashed;
};

int64_t part_bytes(const std::string& path) { return std::max<int64_t>(0, file_state(path).bytes); }

Status sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error(folder, errno);
  const int code = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  return code == 0 ? ok_status() : io_error(folder + ": fsync", error);
}

// Runs on a thread of its own.
Result<FileHashes> sync_and_hash(const std::string& path, const std::atomic<bool>* stop) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return io_error(path, errno);
  const int code = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  if (code != 0) return io_error(path + ": fsync", error);
  return hash_file(path, nullptr, stop);
}

class Downloader {
 public:
  Downloader(const std::vector<DownloadFile>& files, const DownloadOptions& options,
             const Clock& clock, const DownloadEvents& events)
      : options_(options), clock_(clock), events_(events), multi_(curl_multi_init()) {
    TF_CHECK(multi_ != nullptr);
    items_.resize(files.size());
    for (size_t i = 0; i < files.size(); ++i) {
      items_[i].file = &files[i];
      items_[i].part = part_path(files[i]);
    }
    filled_ms_ = now_ms();
  }
  ~Downloader() {
    cancel_ = true;
    for (Item& item : items_) {
      if (item.transfer) curl_multi_remove_handle(multi_, item.transfer->handle());
      item.transfer.reset();
      if (item.fd >= 0) ::close(item.fd);
      if (item.hashed.valid()) item.hashed.wait();
    }
    curl_multi_cleanup(multi_);
  }
  Downloader(const Downloader&) = delete;
  Downloader& operator=(const Downloader&) = delete;

  Status run() {
    while (!stop_ && left() > 0) {
      start_due();
      refill();
      int running = 0;
      curl_multi_perform(multi_, &running);
      finish_transfers();
      start_hashes();
      finish_hashes();
      if (events_.turn) events_.turn();
      if (!stop_ && left() > 0) curl_multi_poll(multi_, nullptr, 0, poll_ms(), nullptr);
    }
    return outcome();
  }

 private:
  int64_t now_ms() const { return clock_.monotonic_us() / 1000; }
  size_t count(Stage stage) const {
    return static_cast<size_t>(std::count_if(items_.begin(), items_.end(),
                                             [&](const Item& i) { return i.stage == stage; }));
  }
  size_t left() const { return items_.size() - count(Stage::kPlaced) - count(Stage::kFailed); }

  int poll_ms() const {
    const bool paused = std::any_of(items_.begin(), items_.end(), [](const Item& i) {
      return i.stage == Stage::kRunning && i.paused;
    });
    return paused ? 20 : static_cast<int>(kTurnMs);
  }

  // A budget of bytes for all files together; a negative one is paid back first.
  void refill() {
    if (options_.bytes_per_second == 0) return;
    const int64_t now = now_ms();
    const int64_t burst = std::max(kLimitedReceiveBytes, options_.bytes_per_second / 10);
    budget_ = std::min(burst, budget_ + options_.bytes_per_second * (now - filled_ms_) / 1000);
    // Time that gave no whole byte is kept.
    if (options_.bytes_per_second * (now - filled_ms_) >= 1000) filled_ms_ = now;
    for (Item& item : items_) {
      if (budget_ <= 0) return;
      if (item.stage != Stage::kRunning || !item.paused) continue;
      item.paused = false;
      curl_easy_pause(item.transfer->handle(), CURLPAUSE_CONT);
    }
  }

  void start_due() {
    for (Item& item : items_) {
      if (count(Stage::kRunning) >= static_cast<size_t>(options_.parallel)) return;
      if (item.stage == Stage::kWaiting && item.not_before_ms <= now_ms()) start(item);
      if (stop_) return;
    }
  }

  void start(Item& item) {
    if (item.fd < 0) {
      item.fd = ::open(item.part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
      if (item.fd < 0) return fail(item, {false, true, io_error(item.part, errno).message()});
      item.have = item.best = part_bytes(item.part);
    }
    if (item.have > item.file->bytes) discard(item);
    if (item.stage == Stage::kFailed) return;
    if (item.have == item.file->bytes) {
      item.stage = Stage::kWhole;
      return;
    }
    item.transfer = std::make_unique<HttpTransfer>(options_.http, item.file->url);
    item.transfer->receive_buffer(options_.bytes_per_second > 0 ? kLimitedReceiveBytes
                                                                : kReceiveBytes);
    item.transfer->set_sink(
        [this, &item](std::span<const std::byte> bytes) { return take(item, bytes); });
    item.asked_from = item.have;
    item.checked = item.paused = false;
    item.fault = {};
    if (item.have > 0) item.transfer->ask_from(item.have);
    curl_easy_setopt(item.transfer->handle(), CURLOPT_PRIVATE, &item);
    curl_multi_add_handle(multi_, item.transfer->handle());
    item.stage = Stage::kRunning;
  }

  // What is on disk of it is of no use.
  void discard(Item& item) {
    if (item.have > 0 && events_.moved) events_.moved(-std::min(item.have, item.file->bytes));
    item.have = 0;
    if (::ftruncate(item.fd, 0) != 0)
      fail(item, {false, true, io_error(item.part, errno).message()});
  }

  // Whether the answer is about the bytes that were asked for; sets the fault.
  bool fits(Item& item) {
    const HttpTransfer::Answer& answer = item.transfer->answer();
    const int64_t bytes = item.file->bytes;
    if (!answer.encoding.empty()) {
      item.fault = encoding_fault(answer.encoding);
      return false;
    }
    if (answer.status == 206) {
      const auto& range = answer.range;
      if (!range || range->first != item.asked_from || range->last >= bytes ||
          (range->total >= 0 && range->total != bytes)) {
        item.fault = {true, false, "the server answered another range than was asked for"};
        item.wrong_range = true;
        return false;
      }
      return true;
    }
    if (answer.content_length >= 0 && answer.content_length != bytes) {
      item.fault = {true, false,
                    "the server has " + std::to_string(answer.content_length) + " bytes of it, " +
                        "the repository says " + std::to_string(bytes)};
      return false;
    }
    if (item.asked_from > 0) {  // a whole file where the rest was asked for
      discard(item);
      item.asked_from = 0;
    }
    return item.stage == Stage::kRunning;
  }

  HttpTransfer::Take take(Item& item, std::span<const std::byte> bytes) {
    if (!item.checked && !fits(item)) return HttpTransfer::Take::kStop;
    item.checked = true;
    if (options_.bytes_per_second > 0) {
      if (budget_ <= 0) {
        item.paused = true;
        return HttpTransfer::Take::kPause;
      }
      budget_ -= static_cast<int64_t>(bytes.size());
    }
    if (item.have + static_cast<int64_t>(bytes.size()) > item.file->bytes) {
      item.fault = {true, false, "more bytes came than the repository says it has"};
      return HttpTransfer::Take::kStop;
    }
    const IoOutcome done = write_at(item.fd, item.have, bytes);
    if (done.error != 0) {
      item.fault = {false, true, io_error(item.part, done.error).message()};
      return HttpTransfer::Take::kStop;
    }
    item.have += static_cast<int64_t>(bytes.size());
    if (events_.moved) events_.moved(static_cast<int64_t>(bytes.size()));
    return HttpTransfer::Take::kTaken;
  }

  void finish_transfers() {
    int queued = 0;
    while (CURLMsg* message = curl_multi_info_read(multi_, &queued)) {
      if (message->msg != CURLMSG_DONE) continue;
      void* owner = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &owner);
      Item& item = *static_cast<Item*>(owner);
      const CURLcode code = message->data.result;
      curl_multi_remove_handle(multi_, item.transfer->handle());
      ended(item, code);
    }
  }

  void ended(Item& item, CURLcode code) {
    const std::unique_ptr<HttpTransfer> transfer = std::move(item.transfer);
    const long status = transfer->answer().status;
    if (item.stage == Stage::kFailed) return;
    if (item.fault.what.empty() && code != CURLE_OK) {
      item.fault = curl_fault(code, transfer->curl_detail());
    } else if (item.fault.what.empty() && (status < 200 || status > 299)) {
      item.fault = http_fault(status, transfer->answer().error_body);
      if (status == 416) discard(item);
    }
    if (item.have == item.file->bytes && item.fault.what.empty()) {
      item.stage = Stage::kWhole;
      return;
    }
    if (item.fault.what.empty()) {
      item.fault = {true, false,
                    "it ended " + std::to_string(item.file->bytes - item.have) + " bytes early"};
    }
    retry(item, transfer->answer().retry_after);
  }

  void retry(Item& item, const std::string& retry_after) {
    // Farther than ever before: a server that breaks off again and again must end some time.
    const bool moved = item.have > item.best;
    item.best = std::max(item.best, item.have);
    item.tries = moved ? 1 : item.tries + 1;
    if (!item.fault.again) return fail(item, item.fault);
    if (item.tries >= kTriesMax) {
      item.fault.what += "; given up after " + std::to_string(item.tries) + " tries";
      return fail(item, item.fault);
    }
    int64_t wait_ms = retry_after_ms(retry_after, clock_.unix_us() / 1000);
    if (wait_ms > kRetryAfterMostMs) {
      item.fault.what +=
          "; the server asks to come back in " + std::to_string(wait_ms / 1000) + " s";
      return fail(item, item.fault);
    }
    if (wait_ms < 0) wait_ms = moved ? kResumeDelayMs : backoff_ms(item.tries);
    // A server that answers other ranges than asked for may know none: the whole file then.
    if (std::exchange(item.wrong_range, false) && item.tries >= 2) discard(item);
    if (item.stage == Stage::kFailed) return;
    item.not_before_ms = now_ms() + wait_ms;
    item.stage = Stage::kWaiting;
    note(item, item.fault.what + "; again in " + std::to_string((wait_ms + 999) / 1000) +
                   " s, at byte " + std::to_string(item.have));
  }

  void start_hashes() {
    for (Item& item : items_) {
      if (count(Stage::kHashing) >= static_cast<size_t>(kHashAtOnceMax)) return;
      if (item.stage != Stage::kWhole) continue;
      item.stage = Stage::kHashing;
      item.hashed = std::async(std::launch::async, sync_and_hash, item.part, &cancel_);
    }
  }

  void finish_hashes() {
    for (Item& item : items_) {
      if (item.stage != Stage::kHashing) continue;
      if (item.hashed.wait_for(std::chrono::seconds(0)) != std::future_status::ready) continue;
      const Result<FileHashes> hashes = item.hashed.get();
      if (!hashes.ok()) {
        fail(item, {false, true, hashes.status().message()});
      } else {
        judge(item, *hashes);
      }
    }
  }

  void judge(Item& item, const FileHashes& hashes) {
    const DownloadFile& file = *item.file;
    const bool large = !file.sha256.empty();
    const std::string& wanted = large ? file.sha256 : file.git_sha1;
    const std::string& found = large ? hashes.sha256 : hashes.git_sha1;
    if (wanted == found) return place(item, hashes);
    discard(item);
    if (item.stage == Stage::kFailed) return;
    Fault fault{
        false, false,
        std::string(large ? "SHA-256 " : "git SHA-1 ") + found + ", the repository says " + wanted};
    if (++item.wrong_hashes >= kWrongHashTriesMax) return fail(item, fault);
    item.stage = Stage::kWaiting;
    item.tries = 0;
    item.best = 0;
    note(item, fault.what + "; once more from the start");
  }

  void place(Item& item, const FileHashes& hashes) {
    ::close(std::exchange(item.fd, -1));
    if (::rename(item.part.c_str(), item.file->target.c_str()) != 0) {
      return fail(item, {false, true, io_error(item.file->target, errno).message()});
    }
    Status status = sync_folder_of(item.file->target);
    if (status.ok() && events_.placed) {
      status = events_.placed(static_cast<size_t>(&item - items_.data()), hashes);
    }
    if (!status.ok()) return fail(item, {false, true, status.message()});
    item.stage = Stage::kPlaced;
  }

  void fail(Item& item, const Fault& fault) {
    item.stage = Stage::kFailed;
    item.fault = fault;
    stop_ = stop_ || fault.all;
    note(item, fault.what);
  }

  void note(const Item& item, const std::string& what) const {
    if (events_.note) events_.note(item.file->target + ": " + what);
  }

  Status outcome() const {
    std::string text;
    size_t failed = 0;
    for (const Item& item : items_) {
      if (item.stage != Stage::kFailed) continue;
      if (failed++ > 0) text += "; ";
      text += item.file->target + ": " + item.fault.what;
    }
    if (failed == 0) return ok_status();
    return unavailable(text);
  }

  const DownloadOptions& options_;
  const Clock& clock_;
  const DownloadEvents& events_;
  CURLM* multi_;
  std::vector<Item> items_;
  int64_t budget_ = 0, filled_ms_ = 0;
  bool stop_ = false;
  std::atomic<bool> cancel_{false};
};

}  // namespace

std::string part_path(const DownloadFile& file) {
  constexpr size_t kIdDigits = 16;
  const std::string& hash = file.sha256.empty() ? file.git_sha1 : file.sha256;
  return file.target + ".part-" + hash.substr(0, kIdDigits);
}

Status download_files(const std::vector<DownloadFile>& files, const DownloadOptions& options,
                      const Clock& clock, const DownloadEvents& events) {
  return Downloader(files, options, clock, events).run();
}

}  // namespace tensorfold::models
