// A stand-in for NCCL over host memory, with its names and calling conventions: communicators that
// are made while one looks, operations that end when all ranks have queued theirs, errors and waits
// without end where the test asks for them. What it deliberately is not: a proof of anything about
// GPUs or the network.
#include "tests/engine/cluster/fake_nccl.h"

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/cluster/nccl/nccl_abi.h"

namespace {

using namespace tensorfold;
using fake_nccl::Control;
using fake_nccl::Queue;

// An operation that some ranks have queued.
struct Meeting {
  struct Part {
    const void* in = nullptr;
    void* out = nullptr;
    Queue* queue = nullptr;
  };
  std::vector<Part> parts;
  size_t here = 0, count = 0;
  int root = -1;  // -1: all-gather
};

struct Clique {
  int ranks = 0;
  int joined = 0;
  std::map<uint64_t, Meeting> meetings;  // by number
};

struct Communicator {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int looks = 0;
  uint64_t number = 0;  // of its last operation
  std::vector<Queue*> waits;
};

Control control;
std::mutex mutex;
std::map<std::string, std::shared_ptr<Clique>> cliques;
uint64_t ids = 0;

Communicator* of(NcclComm comm) { return reinterpret_cast<Communicator*>(comm); }

void run(const Meeting& m) {
  for (size_t to = 0; to < m.parts.size(); ++to) {
    auto* out = static_cast<std::byte*>(m.parts[to].out);
    if (m.root >= 0) {
      std::memcpy(out, m.parts[static_cast<size_t>(m.root)].in, m.count);
    } else {
      for (size_t from = 0; from < m.parts.size(); ++from)
        std::memcpy(out + from * m.count, m.parts[from].in, m.count);
    }
  }
  // Whose wait is over may change what it gave.
  for (const auto& part : m.parts) part.queue->waiting.store(false, std::memory_order_release);
}

NcclCode queue_one(const void* in, void* out, size_t count, int root, NcclComm comm, void* queue) {
  const std::lock_guard lock(mutex);
  Communicator& c = *of(comm);
  auto* q = static_cast<Queue*>(queue);
  Meeting& m = c.clique->meetings[++c.number];
  m.parts.resize(static_cast<size_t>(c.clique->ranks));
  if (m.here > 0 && (m.count != count || m.root != root)) return kNcclInternalError;
  m.count = count;
  m.root = root;
  m.parts[static_cast<size_t>(c.rank)] = {in, out, q};
  q->waiting.store(true, std::memory_order_release);
  c.waits.push_back(q);
  if (++m.here == m.parts.size()) {
    run(m);
    c.clique->meetings.erase(c.number);
  }
  return kNcclSuccess;
}

}  // namespace

extern "C" {

Control* fake_nccl_control() { return &control; }

NcclCode ncclGetVersion(int* version) {
  *version = control.version;
  return kNcclSuccess;
}

NcclCode ncclGetUniqueId(NcclId* id) {
  const std::lock_guard lock(mutex);
  std::memset(id->bytes, 0, sizeof id->bytes);
  ++ids;
  std::memcpy(id->bytes, &ids, sizeof ids);
  return kNcclSuccess;
}

NcclCode ncclCommInitRankConfig(NcclComm* comm, int ranks, NcclId id, int rank,
                                NcclConfig* config) {
  control.config_size = static_cast<int>(config->size);
  control.config_version = static_cast<int>(config->version);
  control.config_magic = config->magic;
  control.blocking = config->blocking;
  if (control.refuse_init != 0) return static_cast<NcclCode>(control.refuse_init.load());
  const std::lock_guard lock(mutex);
  auto& clique = cliques[std::string(id.bytes, sizeof id.bytes)];
  if (!clique) clique = std::make_shared<Clique>();
  clique->ranks = ranks;
  ++clique->joined;
  auto* made = new Communicator;
  made->clique = clique;
  made->rank = rank;
  ++control.made;
  *comm = reinterpret_cast<NcclComm>(made);
  return kNcclInProgress;
}

NcclCode ncclCommGetAsyncError(NcclComm comm, NcclCode* error) {
  const std::lock_guard lock(mutex);
  Communicator& c = *of(comm);
  const bool all = c.clique->joined >= c.clique->ranks && ++c.looks > control.looks_until_made;
  *error = control.never_made || !all ? kNcclInProgress
                                      : static_cast<NcclCode>(control.async_code.load());
  return kNcclSuccess;
}

NcclCode ncclCommAbort(NcclComm comm) {
  const std::lock_guard lock(mutex);
  Communicator* c = of(comm);
  // Its operations end, done or not; nobody writes to its memory any more.
  for (Queue* q : c->waits) q->waiting.store(false, std::memory_order_release);
  std::erase_if(c->clique->meetings, [&](const auto& m) {
    return m.second.parts[static_cast<size_t>(c->rank)].queue != nullptr;
  });
  ++control.aborted;
  delete c;
  return kNcclSuccess;
}

NcclCode ncclAllGather(const void* in, void* out, size_t count, int type, NcclComm comm,
                       void* queue) {
  if (type != kNcclByteType) return kNcclInternalError;
  ++control.all_gathers;
  return queue_one(in, out, count, -1, comm, queue);
}

NcclCode ncclBroadcast(const void* in, void* out, size_t count, int type, int root, NcclComm comm,
                       void* queue) {
  if (type != kNcclByteType) return kNcclInternalError;
  ++control.broadcasts;
  return queue_one(in, out, count, root, comm, queue);
}

const char* ncclGetErrorString(NcclCode code) {
  return code == kNcclRemoteError ? "remote process exited" : "stand-in error";
}

const char* ncclGetLastError(NcclComm) { return "a detail of the stand-in"; }

}  // extern "C"
