// Bytes of spill files (see spill_format.h).
#include "engine/cache/spill/spill_format.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

static_assert(std::endian::native == std::endian::little, "ids are copied as they are");

constexpr std::array<char, 8> kMagic = {'T', 'F', 'S', 'P', 'I', 'L', 'L', '1'};
constexpr size_t kFixedBytes = 8 + 4 + 4 + sizeof(SpillSum);  // magic, version, length, checksum
constexpr size_t kSumOffset = 16;

int64_t paged(int64_t bytes) {
  return (bytes + kSpillPageBytes - 1) / kSpillPageBytes * kSpillPageBytes;
}

SpillSum sum_of(const XXH128_hash_t& hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  SpillSum out;
  static_assert(sizeof(canonical.digest) == sizeof(SpillSum));
  std::memcpy(out.data(), canonical.digest, sizeof(SpillSum));
  return out;
}

SpillSum sum_of(std::span<const std::byte> bytes) {
  return sum_of(XXH3_128bits(bytes.data(), bytes.size()));
}

// Of a header: everything but the place of the checksum itself.
SpillSum header_sum(std::span<const std::byte> header) {
  std::vector<std::byte> copy(header.begin(), header.end());
  std::fill_n(copy.begin() + kSumOffset, sizeof(SpillSum), std::byte{0});
  return sum_of(std::span<const std::byte>(copy));
}

// Walks fields in order; the same function writes and reads them.
class Writer {
 public:
  static constexpr bool kReads = false;
  template <typename T>
  void field(const T& value) {
    const size_t at = out.size();
    out.resize(at + sizeof(T));
    std::memcpy(out.data() + at, &value, sizeof(T));
  }
  std::vector<std::byte> out;
};

class Reader {
 public:
  static constexpr bool kReads = true;
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  void field(T& value) {
    if (at_ + sizeof(T) > bytes_.size()) {
      short_ = true;
      return;
    }
    std::memcpy(static_cast<void*>(&value), bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
  }
  bool ran_out() const { return short_; }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool short_ = false;
};

template <typename Io, typename Image>
void walk_image(Io& io, Image& image) {
  io.field(image.first_position);
  io.field(image.rows);
  io.field(image.digest.bytes);
}

template <typename Io, typename Entry>
void walk_entry(Io& io, Entry& e) {
  io.field(e.note.kind);
  io.field(e.note.name.bytes);
  io.field(e.note.before.bytes);
  io.field(e.note.first_position);
  io.field(e.note.positions);
  io.field(e.note.cut_low);
  io.field(e.note.generated.words);
  io.field(e.fingerprint);
  io.field(e.stem);
  io.field(e.bytes);
  io.field(e.sum);
}

template <typename Io, typename Entry>
void walk_images(Io& io, Entry& e) {
  auto count = static_cast<uint32_t>(e.note.images.size());
  io.field(count);
  if constexpr (Io::kReads) {
    e.note.images.resize(std::min<size_t>(count, kNoteImagesMax));
  }
  for (auto& image : e.note.images) walk_image(io, image);
}

std::vector<std::byte> fields_of(const SpillHeader& header) {
  Writer w;
  w.field(kMagic);
  w.field(kSpillFormatVersion);
  w.field(uint32_t{0});  // length, filled in by encode_header()
  w.field(SpillSum{});
  w.field(header.identity.bytes);
  w.field(static_cast<uint32_t>(header.entries.size()));
  for (const SpillEntry& e : header.entries) walk_entry(w, e);
  for (const SpillEntry& e : header.entries) walk_images(w, e);
  return std::move(w.out);
}

Status bad(const std::string& what) { return data_loss("header: " + what); }

Status check_entry(const SpillEntry& e) {
  const CacheNote& n = e.note;
  if (n.kind > CacheNote::Kind::kEncoderSnapshot) return bad("kind of a record");
  if (n.first_position < 0 || n.first_position >= kPositionsMax ||
      n.first_position % kBlockPositions != 0)
    return bad("first position");
  if (n.positions < 1 || n.positions > kBlockPositions) return bad("positions");
  if (n.cut_low < 0 || n.cut_low > n.length()) return bad("shortest length");
  if (e.bytes < 1 || e.bytes > kSpillRecordBytesMax) return bad("bytes of a record");
  return ok_status();
}

// Blocks follow each other; a snapshot is alone.
Status check_order(const SpillHeader& h) {
  for (size_t i = 0; i < h.entries.size(); ++i) {
    const CacheNote& n = h.entries[i].note;
    if (n.kind != CacheNote::Kind::kBlock)
      return h.entries.size() == 1 ? ok_status() : bad("a snapshot among other records");
    if (i == 0) continue;
    const CacheNote& last = h.entries[i - 1].note;
    if (n.before != last.name || n.first_position != last.first_position + kBlockPositions ||
        last.positions != kBlockPositions)
      return bad("blocks that do not follow each other");
  }
  return ok_status();
}

// Of records.
bool sum_matches(const SpillSum& sum, std::span<const std::byte> bytes) {
#ifdef TF_PLANTED_FAULT  // tests: whatever the disk gives is believed
  (void)sum;
  (void)bytes;
  return true;
#else
  return sum_of(bytes) == sum;
#endif
}

std::span<const int32_t> ids_at(const SpillEntry& entry, std::span<const std::byte> record,
                                bool engram) {
  const auto count = static_cast<size_t>(entry.ids());
  const auto* first = reinterpret_cast<const int32_t*>(record.data());
  return {first + (engram ? count : 0), count};
}

BlockText text_of(const SpillEntry& entry, std::span<const std::byte> record) {
  BlockText text;
  text.first_position = entry.note.first_position;
  text.ids = ids_at(entry, record, false);
  text.generated = entry.note.generated;
  text.images = entry.note.images;
  return text;
}

}  // namespace

BlockText stem_of(const BlockText& text) {
  TF_CHECK_LT(static_cast<size_t>(kStemCutPositions), text.ids.size());
  BlockText stem = text;
  stem.ids = text.ids.first(text.ids.size() - kStemCutPositions);
  const int64_t end = text.first_position + static_cast<int64_t>(stem.ids.size());
  stem.images = images_in(text.images, text.first_position, end);
  return stem;
}

PageBuffer::PageBuffer(int64_t bytes) {
  const auto size = static_cast<size_t>(paged(bytes));
  if (size == 0) return;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kSpillPageBytes, size)));
  if (data_ == nullptr) return;
  size_ = size;
  std::memset(data_.get() + size - kSpillPageBytes, 0, kSpillPageBytes);
}

int64_t SpillEntry::record_bytes() const {
  return paged(2 * ids() * int64_t{sizeof(int32_t)} + bytes);
}

int64_t SpillHeader::header_bytes() const {
  return paged(static_cast<int64_t>(fields_of(*this).size()));
}

int64_t SpillHeader::record_offset(size_t entry) const {
  int64_t offset = header_bytes();
  for (size_t i = 0; i < entry; ++i) offset += entries[i].record_bytes();
  return offset;
}

int64_t SpillHeader::file_bytes() const { return record_offset(entries.size()); }

std::string SpillHeader::file_name() const {
  const CacheNote& last = entries.back().note;
  static constexpr std::array<const char*, 3> kStarts = {"blocks-", "rings-", "encoder-"};
  return kStarts[static_cast<size_t>(last.kind)] + last.name.hex().substr(0, 32) + "-" +
         std::to_string(entries.front().note.first_position) + "-" + std::to_string(last.length()) +
         ".tfs";
}

// ---------------------------------------------------------------- writing

PageBuffer encode_record(const CacheNote& note, std::span<const int32_t> ids,
                         std::span<const int32_t> engram_ids, std::span<const std::byte> bytes) {
  SpillEntry entry;
  entry.note.kind = note.kind;
  entry.note.positions = note.positions;
  entry.bytes = static_cast<int64_t>(bytes.size());
  TF_CHECK_EQ(static_cast<int64_t>(ids.size()), entry.ids());
  TF_CHECK_EQ(engram_ids.size(), ids.size());
  PageBuffer buffer(entry.record_bytes());
  if (buffer.empty()) return buffer;
  std::byte* at = buffer.bytes().data();
  if (!ids.empty()) {
    std::memcpy(at, ids.data(), ids.size_bytes());
    std::memcpy(at + ids.size_bytes(), engram_ids.data(), engram_ids.size_bytes());
  }
  if (!bytes.empty()) std::memcpy(at + 2 * ids.size_bytes(), bytes.data(), bytes.size());
  return buffer;
}

void seal_entry(SpillEntry& entry, std::span<const std::byte> record) {
  entry.sum = sum_of(record);
  if (entry.note.kind != CacheNote::Kind::kBlock) return;
  BlockText text = text_of(entry, record);
  entry.fingerprint = text_fingerprint(text);
  if (entry.note.positions <= kStemCutPositions) return;
  entry.stem = text_fingerprint(stem_of(text));
}

PageBuffer encode_header(const SpillHeader& header) {
  const std::vector<std::byte> fields = fields_of(header);
  PageBuffer buffer(static_cast<int64_t>(fields.size()));
  if (buffer.empty()) return buffer;
  const auto length = static_cast<uint32_t>(buffer.size());
  std::memcpy(buffer.bytes().data(), fields.data(), fields.size());
  std::memcpy(buffer.bytes().data() + 12, &length, sizeof(length));
  const SpillSum sum = header_sum(std::as_const(buffer).bytes());
  std::memcpy(buffer.bytes().data() + kSumOffset, sum.data(), sizeof(sum));
  return buffer;
}

// ---------------------------------------------------------------- reading

Result<int64_t> header_bytes_of(std::span<const std::byte> page) {
  TF_CHECK_GE(page.size(), kFixedBytes);
  Reader r(page);
  std::array<char, 8> magic{};
  uint32_t version = 0;
  uint32_t length = 0;
  r.field(magic);
  r.field(version);
  r.field(length);
  if (magic != kMagic) return bad("not a file of the spill tier");
  if (version != kSpillFormatVersion) return bad("version " + std::to_string(version));
  if (length == 0 || length > kSpillHeaderBytesMax || length % kSpillPageBytes != 0)
    return bad("length");
  return static_cast<int64_t>(length);
}

Result<SpillHeader> decode_header(std::span<const std::byte> bytes) {
  TF_ASSIGN_OR_RETURN(const int64_t length, header_bytes_of(bytes));
  if (length != static_cast<int64_t>(bytes.size())) return bad("length");
  SpillSum sum{};
  std::memcpy(sum.data(), bytes.data() + kSumOffset, sizeof(sum));
  if (header_sum(bytes) != sum) return bad("the checksum is wrong");
  Reader r(bytes.subspan(kFixedBytes));
  SpillHeader h;
  uint32_t count = 0;
  r.field(h.identity.bytes);
  r.field(count);
  if (count < 1 || count > static_cast<uint32_t>(kSpillRecordsMax)) return bad("record count");
  h.entries.resize(count);
  for (SpillEntry& e : h.entries) walk_entry(r, e);
  for (SpillEntry& e : h.entries) walk_images(r, e);
  if (r.ran_out()) return bad("it ends early");
  for (const SpillEntry& e : h.entries) TF_RETURN_IF_ERROR(check_entry(e));
  TF_RETURN_IF_ERROR(check_order(h));
  return h;
}

Status check_record(const SpillEntry& entry, std::span<const std::byte> record) {
  TF_CHECK_EQ(static_cast<int64_t>(record.size()), entry.record_bytes());
  const std::string where = "record at position " + std::to_string(entry.note.first_position);
  if (!sum_matches(entry.sum, record)) return data_loss(where + ": the checksum is wrong");
#ifndef TF_PLANTED_FAULT
  if (entry.note.kind == CacheNote::Kind::kBlock &&
      block_digest(entry.note.before, text_of(entry, record)) != entry.note.name)
    return data_loss(where + ": its name does not belong to its text");
#endif
  return ok_status();
}

void decode_record(const SpillEntry& entry, std::span<const std::byte> record, CacheRecord& out) {
  out.note = entry.note;
  const auto ids = ids_at(entry, record, false);
  const auto engram_ids = ids_at(entry, record, true);
  out.ids.assign(ids.begin(), ids.end());
  out.engram_ids.assign(engram_ids.begin(), engram_ids.end());
  const auto bytes = record.subspan(2 * ids.size_bytes(), static_cast<size_t>(entry.bytes));
  out.bytes.assign(bytes.begin(), bytes.end());
}

}  // namespace tensorfold
