// The disk behind the prefix cache: how long the index takes to come back, how fast a document is
// written behind and read back, beside the disk's own rate for the same bytes in one file.
//
//   spill_bench FOLDER [ENTRIES] [TOKENS]
//
// ENTRIES (10,000): prefixes for the index, two files each. TOKENS (100,000): a document in blocks
// of the published model's size. Data pages are dropped from the page cache before reads.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/cache/spill/spill_identity.h"
#include "engine/cache/spill/spill_tier.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockBytes = 227'840;    // of the published model: 890 bytes a token
constexpr int64_t kRingsBytes = 4'600'000;  // a full snapshot of it
constexpr int64_t kSmallBytes = 2'000;
constexpr int kRounds = 3;

double now_s() { return static_cast<double>(system_clock().monotonic_us()) / 1e6; }

SpillOptions options_in(const std::string& root) {
  SpillOptions o;
  o.root = root;
  o.bytes_max = int64_t{1} << 40;
  o.free_bytes_min = 0;
  SpillIdentity identity;
  identity.model_fingerprint = "bench";
  o.identity = identity.digest();
  return o;
}

CacheRecord block_of(const BlockDigest& before, int64_t first, int32_t seed, int64_t bytes) {
  CacheRecord r;
  std::mt19937 random(static_cast<uint32_t>(seed));
  r.ids.resize(kBlockPositions);
  for (int32_t& id : r.ids) id = static_cast<int32_t>(random() % 100'000);
  r.engram_ids = r.ids;
  r.note.before = before;
  r.note.first_position = first;
  r.note.positions = kBlockPositions;
  BlockText text;
  text.first_position = first;
  text.ids = r.ids;
  r.note.name = block_digest(before, text);
  r.bytes.resize(static_cast<size_t>(bytes));
  for (std::byte& b : r.bytes) b = static_cast<std::byte>(random());
  return r;
}

CacheRecord rings_of(const CacheNote& block, int64_t bytes) {
  CacheRecord r;
  r.note = block;
  r.note.kind = CacheNote::Kind::kFullSnapshot;
  r.bytes.assign(static_cast<size_t>(bytes), std::byte{7});
  return r;
}

// Takes events while it waits for room.
void offer(SpillTier& tier, const CacheRecord& r) {
  while (!tier.spill(r.note, r.ids, r.engram_ids, r.bytes)) {
    (void)tier.take_events();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  (void)tier.take_events();
}

void drop_pages(const std::string& folder) {
  for (const auto& e : fs::recursive_directory_iterator(folder)) {
    if (!e.is_regular_file()) continue;
    const int fd = ::open(e.path().c_str(), O_RDONLY);
    if (fd < 0) continue;
    (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

void index_rows(const std::string& root, int64_t entries) {
  {
    // Written without syncing: only their number matters here.
    const SpillOptions o = options_in(root);
    SpillTier tier(o, disk_file_system(), system_clock(), null_log());
    tier.wait_for_index(10'000'000);
    const std::string folder = root + "/v1-" + o.identity.hex().substr(0, 16);
    for (int64_t i = 0; i < entries; ++i) {
      const CacheRecord block =
          block_of(root_digest("bench"), 0, static_cast<int32_t>(i), kSmallBytes);
      for (const CacheRecord& r : {block, rings_of(block.note, kSmallBytes)}) {
        SpillHeader header;
        header.identity = o.identity;
        SpillEntry entry;
        entry.note = r.note;
        entry.bytes = static_cast<int64_t>(r.bytes.size());
        const PageBuffer record = encode_record(r.note, r.ids, r.engram_ids, r.bytes);
        seal_entry(entry, record.bytes());
        header.entries.push_back(entry);
        const PageBuffer head = encode_header(header);
        auto file = disk_file_system().create(folder + "/" + header.file_name());
        if (!file.ok() || !(*file)->write(0, head.bytes()).ok() ||
            !(*file)->write(head.size(), record.bytes()).ok())
          std::abort();
      }
    }
    ::sync();
  }
  for (const bool dropped : {true, false}) {
    for (int round = 0; round < kRounds; ++round) {
      if (dropped) drop_pages(root);
      const double begin = now_s();
      SpillTier tier(options_in(root), disk_file_system(), system_clock(), null_log());
      tier.wait_for_index(600'000'000);
      const SpillStats s = tier.stats();
      std::printf("index    %8ld entries in %ld files, pages %-7s %8.3f s\n",
                  static_cast<long>(s.files / 2), static_cast<long>(s.files),
                  dropped ? "dropped" : "cached", now_s() - begin);
    }
  }
  fs::remove_all(root);
}

// Bytes per second of one file of the same size: written in one go and synced, and read back.
struct DiskRate {
  double write = 0, read = 0;
};

DiskRate disk_rate(const std::string& folder, int64_t bytes) {
  const std::string path = folder + "/plain";
  const std::vector<std::byte> chunk(8 << 20, std::byte{5});
  double begin = now_s();
  {
    auto file = std::move(disk_file_system().create(path)).value();
    for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(chunk.size()))
      if (!file->write(at, chunk).ok()) std::abort();
    if (!file->sync().ok()) std::abort();
  }
  const auto size = static_cast<double>(fs::file_size(path));
  DiskRate rate;
  rate.write = size / (now_s() - begin);
  drop_pages(folder);
  begin = now_s();
  {
    auto file = std::move(disk_file_system().open(path)).value();
    std::vector<std::byte> in(chunk.size());
    for (int64_t at = 0; at < file->size(); at += static_cast<int64_t>(in.size()))
      if (!file->read(at, in).ok()) std::abort();
  }
  rate.read = size / (now_s() - begin);
  fs::remove(path);
  return rate;
}

void document_rows(const std::string& root, const std::string& folder, int64_t tokens) {
  std::vector<CacheNote> notes;
  const int64_t blocks = tokens / kBlockPositions;
  const int64_t bytes = blocks * kBlockBytes + kRingsBytes;
  for (int round = 0; round < kRounds; ++round) {
    fs::remove_all(root);
    notes.clear();
    const DiskRate disk = disk_rate(folder, bytes);
    double busy = 0;  // of the caller, in spill() itself
    double write_s = 0;
    {
      SpillTier tier(options_in(root), disk_file_system(), system_clock(), null_log());
      tier.wait_for_index(10'000'000);
      BlockDigest before = root_digest("bench");
      CacheRecord block;
      const double begin = now_s();
      double made = 0;
      for (int64_t i = 0; i < blocks; ++i) {
        const double a = now_s();
        block = block_of(before, i * kBlockPositions, static_cast<int32_t>(i), kBlockBytes);
        before = block.note.name;
        const double b = now_s();
        made += b - a;
        offer(tier, block);
        busy += now_s() - b;
        notes.push_back(block.note);
      }
      const CacheRecord rings = rings_of(block.note, kRingsBytes);
      offer(tier, rings);
      notes.push_back(rings.note);
      tier.finish_writing(600'000'000);
      write_s = now_s() - begin - made;
    }
    std::printf("write    %8ld tokens, %6.1f MB: %7.1f MB/s, disk's own %7.1f MB/s, ratio %.2f\n",
                static_cast<long>(blocks * kBlockPositions), static_cast<double>(bytes) / 1e6,
                static_cast<double>(bytes) / write_s / 1e6, disk.write / 1e6,
                static_cast<double>(bytes) / write_s / disk.write);
    drop_pages(root);
    SpillTier tier(options_in(root), disk_file_system(), system_clock(), null_log());
    tier.wait_for_index(10'000'000);
    const double begin = now_s();
    for (const CacheNote& n : notes) tier.stage(n);
    for (const CacheNote& n : notes) {
      while (tier.staged(n.name, n.kind) == CacheTier::Staged::kReading) {
        (void)tier.take_events();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      if (tier.record(n.name, n.kind) == nullptr) std::abort();
    }
    const double read_s = now_s() - begin;
    std::printf(
        "restore  %8ld tokens, %6.1f MB: %7.1f MB/s, disk's own %7.1f MB/s, ratio %.2f, "
        "%.3f s\n",
        static_cast<long>(blocks * kBlockPositions), static_cast<double>(bytes) / 1e6,
        static_cast<double>(bytes) / read_s / 1e6, disk.read / 1e6,
        static_cast<double>(bytes) / read_s / disk.read, read_s);
  }
  fs::remove_all(root);
}

}  // namespace
}  // namespace tensorfold

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: spill_bench FOLDER [ENTRIES] [TOKENS]\n");
    return 2;
  }
  const std::string folder = std::string(argv[1]) + "/spill-bench";
  std::filesystem::create_directories(folder);
  tensorfold::index_rows(folder + "/index", argc > 2 ? std::atoll(argv[2]) : 10'000);
  tensorfold::document_rows(folder + "/document", folder, argc > 3 ? std::atoll(argv[3]) : 100'000);
  std::filesystem::remove_all(folder);
  return 0;
}
