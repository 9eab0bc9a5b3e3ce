// The files of the spill tier, as bytes. Pure: no files, no clock.
//
// One format: a header, then 1..kSpillRecordsMax records. A *blocks* file holds consecutive blocks
// of one digest chain, a *rings* file one snapshot. A record is the token ids and engram ids of its
// positions (blocks only) and the bytes as the cache gave them.
//
// Everything is little-endian and aligned to kSpillPageBytes. Every byte is covered by an XXH3-128
// checksum: the header by its own, each record (padding included) by the one in the header. The
// header says whose the file is (identity) and has all notes, so an index is made from headers
// alone; one page is enough unless a block overlaps many images. Names are SHA-256 over ids,
// classes, images and everything before (engine/cache/block_digest.h): check_record() computes them
// again, so a record can't pass for another text, user or place, whatever its checksum says.
// Readers trust nothing: each error is kDataLoss and names the region.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/cache/cache_tier.h"

namespace tensorfold {

inline constexpr int64_t kSpillPageBytes = 4096;
inline constexpr uint32_t kSpillFormatVersion = 1;
inline constexpr int kSpillRecordsMax = 24;                          // that fit a header of a page
inline constexpr int64_t kSpillRecordBytesMax = int64_t{256} << 20;  // of one record
inline constexpr int64_t kSpillHeaderBytesMax = int64_t{1} << 20;

using SpillSum = std::array<std::byte, 16>;  // XXH3-128, canonical

// Page-aligned memory: what is handed to the disk and comes from it.
class PageBuffer {
 public:
  PageBuffer() = default;
  // Whole pages; the last one zeroed, the others not. Empty when there is no memory.
  explicit PageBuffer(int64_t bytes);
  std::span<std::byte> bytes() { return {data_.get(), size_}; }
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  int64_t size() const { return static_cast<int64_t>(size_); }
  bool empty() const { return size_ == 0; }

 private:
  struct Free {
    // NOLINTNEXTLINE: from aligned_alloc
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

struct SpillEntry {
  CacheNote note;
  uint64_t fingerprint = 0;  // text_fingerprint() of a block
  uint64_t stem = 0;         // of all but its last kStemCutPositions positions; 0: none
  int64_t bytes = 0;         // as the cache gave them
  SpillSum sum{};            // of the whole record

  int64_t ids() const { return note.kind == CacheNote::Kind::kBlock ? note.positions : 0; }
  int64_t record_bytes() const;
  bool operator==(const SpillEntry&) const = default;
};

struct SpillHeader {
  BlockDigest identity;
  std::vector<SpillEntry> entries;  // 1..kSpillRecordsMax

  bool blocks() const { return entries.front().note.kind == CacheNote::Kind::kBlock; }
  int64_t header_bytes() const;
  int64_t record_offset(size_t entry) const;
  int64_t file_bytes() const;
  std::string file_name() const;  // says what is in it, so a file can't stand for another
  bool operator==(const SpillHeader&) const = default;
};

// A block's text without its last kStemCutPositions positions; it has more.
BlockText stem_of(const BlockText& text);

// ids as fed, engram ids with -1 at image rows; both [note.positions] for blocks, else empty.
PageBuffer encode_record(const CacheNote& note, std::span<const int32_t> ids,
                         std::span<const int32_t> engram_ids, std::span<const std::byte> bytes);
// Checksum and fingerprint: the costly part, for the thread that writes.
void seal_entry(SpillEntry& entry, std::span<const std::byte> record);
PageBuffer encode_header(const SpillHeader& header);

// How long the header is, from its first page.
Result<int64_t> header_bytes_of(std::span<const std::byte> page);
Result<SpillHeader> decode_header(std::span<const std::byte> bytes);

// Whether the record is what its entry says.
Status check_record(const SpillEntry& entry, std::span<const std::byte> record);
void decode_record(const SpillEntry& entry, std::span<const std::byte> record, CacheRecord& out);

}  // namespace tensorfold
