// A stand-in for NCCL over host memory, with its names and calling conventions. Ranks are threads
// or processes of one machine: rank 0 listens on a socket in the file system, whose path is the
// unique id; what ranks give goes to it and comes back. A thread of the communicator does that
// while the caller's queue waits, as a kernel would. Errors and waits without end where the test
// asks for them. What it deliberately is not: a proof of anything about GPUs or the network.
#include "tests/engine/cluster/fake_nccl.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/cluster/nccl/nccl_abi.h"

namespace {

using namespace tensorfold;
using fake_nccl::Control;
using fake_nccl::Queue;

Control control;
std::atomic<uint64_t> ids{0};
// Made with the id, taken by the communicator of rank 0.
std::mutex listeners_mutex;
std::vector<std::pair<std::string, int>> listeners;

struct Operation {
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;
  int root = -1;  // -1: all-gather
  Queue* queue = nullptr;
};

bool write_all(int fd, const void* data, size_t bytes) {
  for (const char* p = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t n = ::send(fd, p, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    p += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool read_all(int fd, void* data, size_t bytes) {
  for (char* p = static_cast<char*>(data); bytes > 0;) {
    const ssize_t n = ::recv(fd, p, bytes, 0);
    if (n <= 0) return false;
    p += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  std::memcpy(out.sun_path, path.data(), std::min(path.size(), sizeof out.sun_path - 1));
  return out;
}

class Communicator {
 public:
  Communicator(int ranks, std::string path, int rank)
      : ranks_(ranks), rank_(rank), path_(std::move(path)), peers_(static_cast<size_t>(ranks), -1) {
    if (rank_ == 0) take_listener();
    thread_ = std::thread([this] { work(); });
  }
  ~Communicator() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      for (const int fd : peers_)
        if (fd >= 0) ::shutdown(fd, SHUT_RDWR);
      if (listener_ >= 0) ::shutdown(listener_, SHUT_RDWR);
    }
    changed_.notify_all();
    thread_.join();
    for (const int fd : peers_)
      if (fd >= 0) ::close(fd);
    if (listener_ >= 0) ::close(listener_);
    if (rank_ == 0) ::unlink(path_.c_str());
    // Its operations end, done or not.
    for (const Operation& o : queued_) o.queue->waiting.fetch_sub(1, std::memory_order_release);
  }

  NcclCode state() {
    const std::lock_guard lock(mutex_);
    if (control.never_made) return kNcclInProgress;
    if (failed_) return kNcclRemoteError;
    if (!joined_ || ++looks_ <= control.looks_until_made) return kNcclInProgress;
    return static_cast<NcclCode>(control.async_code.load());
  }
  NcclCode queue(const Operation& operation) {
    const std::lock_guard lock(mutex_);
    queued_.push_back(operation);
    operation.queue->waiting.fetch_add(1, std::memory_order_release);
    changed_.notify_all();
    return kNcclSuccess;
  }

 private:
  void take_listener() {
    const std::lock_guard lock(listeners_mutex);
    for (auto it = listeners.begin(); it != listeners.end(); ++it) {
      if (it->first != path_) continue;
      listener_ = it->second;
      listeners.erase(it);
      return;
    }
  }
  void keep(int peer, int fd) {
    const std::lock_guard lock(mutex_);
    peers_[static_cast<size_t>(peer)] = fd;
    if (ended_) ::shutdown(fd, SHUT_RDWR);
  }
  bool join() {
    if (rank_ != 0) {
      const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const sockaddr_un to = address_of(path_);
      keep(0, fd);
      return ::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 &&
             write_all(fd, &rank_, sizeof rank_);
    }
    for (int here = 1; here < ranks_; ++here) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      int peer = 0;
      if (fd < 0) return false;
      if (!read_all(fd, &peer, sizeof peer) || peer < 1 || peer >= ranks_) {
        ::close(fd);
        return false;
      }
      keep(peer, fd);
    }
    return true;
  }
  // Ahead of the bytes of every rank: which operation it means.
  struct Head {
    uint64_t count;
    int64_t root;
  };
  bool run(const Operation& o) {
    const Head head{o.count, o.root};
    const size_t all = o.root >= 0 ? o.count : o.count * static_cast<size_t>(ranks_);
    if (rank_ != 0) {
      return write_all(peers_[0], &head, sizeof head) && write_all(peers_[0], o.in, o.count) &&
             read_all(peers_[0], o.out, all);
    }
    std::vector<std::byte> parts(o.count * static_cast<size_t>(ranks_));
    std::memcpy(parts.data(), o.in, o.count);
    for (size_t r = 1; r < peers_.size(); ++r) {
      Head theirs{};
      if (!read_all(peers_[r], &theirs, sizeof theirs) || theirs.count != head.count ||
          theirs.root != head.root || !read_all(peers_[r], parts.data() + r * o.count, o.count))
        return false;
    }
    const std::byte* out =
        parts.data() + (o.root >= 0 ? static_cast<size_t>(o.root) * o.count : size_t{0});
    for (size_t r = 1; r < peers_.size(); ++r)
      if (!write_all(peers_[r], out, all)) return false;
    std::memcpy(o.out, out, all);
    return true;
  }
  void work() {
    bool good = join();
    std::unique_lock lock(mutex_);
    for (joined_ = good; good && !ended_;) {
      changed_.wait(lock, [this] { return ended_ || !queued_.empty(); });
      if (ended_) return;
      const Operation operation = queued_.front();
      lock.unlock();
      good = run(operation);
      lock.lock();
      if (!good) break;
      queued_.pop_front();
      operation.queue->waiting.fetch_sub(1, std::memory_order_release);
    }
    failed_ = !ended_;
  }

  const int ranks_, rank_;
  const std::string path_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> peers_;  // by rank; on a rank other than 0 its connection to it
  int listener_ = -1;
  bool joined_ = false, failed_ = false, ended_ = false;
  int looks_ = 0;
  std::deque<Operation> queued_;  // the first one is being done
  std::thread thread_;
};

Communicator* of(NcclComm comm) { return reinterpret_cast<Communicator*>(comm); }

}  // namespace

extern "C" {

Control* fake_nccl_control() { return &control; }

NcclCode ncclGetVersion(int* version) {
  *version = control.version;
  return kNcclSuccess;
}

NcclCode ncclGetUniqueId(NcclId* id) {
  const char* folder = std::getenv("FAKE_NCCL_FOLDER");
  const std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/fake-nccl-" +
                           std::to_string(::getpid()) + "-" + std::to_string(++ids);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un at = address_of(path);
  (void)::unlink(path.c_str());
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 || ::listen(fd, 16) != 0)
    return kNcclInternalError;
  std::memset(id->bytes, 0, sizeof id->bytes);
  std::memcpy(id->bytes, path.data(), path.size());
  const std::lock_guard lock(listeners_mutex);
  for (const auto& [unused, listener] : listeners) {
    ::close(listener);
    ::unlink(unused.c_str());
  }
  listeners.clear();
  listeners.emplace_back(path, fd);
  return kNcclSuccess;
}

NcclCode ncclCommInitRankConfig(NcclComm* comm, int ranks, NcclId id, int rank,
                                NcclConfig* config) {
  control.config_size = static_cast<int>(config->size);
  control.config_version = static_cast<int>(config->version);
  control.config_magic = config->magic;
  control.blocking = config->blocking;
  if (control.refuse_init != 0) return static_cast<NcclCode>(control.refuse_init.load());
  ++control.made;
  *comm = reinterpret_cast<NcclComm>(new Communicator(ranks, id.bytes, rank));
  return kNcclInProgress;
}

NcclCode ncclCommGetAsyncError(NcclComm comm, NcclCode* error) {
  *error = of(comm)->state();
  return kNcclSuccess;
}

NcclCode ncclCommAbort(NcclComm comm) {
  while (control.held > 0) std::this_thread::yield();
  delete of(comm);
  ++control.aborted;
  return kNcclSuccess;
}

NcclCode ncclAllGather(const void* in, void* out, size_t count, int type, NcclComm comm,
                       void* queue) {
  if (type != kNcclByteType) return kNcclInternalError;
  ++control.all_gathers;
  return of(comm)->queue({in, out, count, -1, static_cast<Queue*>(queue)});
}

NcclCode ncclBroadcast(const void* in, void* out, size_t count, int type, int root, NcclComm comm,
                       void* queue) {
  if (type != kNcclByteType) return kNcclInternalError;
  ++control.broadcasts;
  return of(comm)->queue({in, out, count, root, static_cast<Queue*>(queue)});
}

const char* ncclGetErrorString(NcclCode code) {
  return code == kNcclRemoteError ? "remote process exited" : "stand-in error";
}

const char* ncclGetLastError(NcclComm) { return "a detail of the stand-in"; }

}  // extern "C"
