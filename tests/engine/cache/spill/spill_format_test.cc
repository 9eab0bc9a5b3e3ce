// Files of the spill tier as bytes: they come back as they were, every flipped byte and every other
// length is found, hostile headers are refused by field, and each part of the identity counts. With
// TF_PLANTED_FAULT nothing is checked in records, which must show.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <functional>

#include "tests/engine/cache/spill/spill_world.h"

namespace tensorfold {
namespace {

struct File {
  SpillHeader header;
  std::vector<std::byte> bytes;
};

std::span<const std::byte> view(const PageBuffer& buffer) { return buffer.bytes(); }

File make_file(const std::vector<CacheRecord>& records) {
  File f;
  f.header.identity = root_digest("identity");
  std::vector<PageBuffer> bodies;
  for (const CacheRecord& r : records) {
    SpillEntry e;
    e.note = r.note;
    e.bytes = static_cast<int64_t>(r.bytes.size());
    bodies.push_back(encode_record(r.note, r.ids, r.engram_ids, r.bytes));
    seal_entry(e, view(bodies.back()));
    f.header.entries.push_back(e);
  }
  const PageBuffer head = encode_header(f.header);
  f.bytes.assign(view(head).begin(), view(head).end());
  for (const PageBuffer& b : bodies) f.bytes.insert(f.bytes.end(), view(b).begin(), view(b).end());
  return f;
}

// What a reader makes of the bytes: all records that pass its checks.
std::vector<CacheRecord> read_file(std::span<const std::byte> bytes) {
  std::vector<CacheRecord> out;
  if (bytes.size() < static_cast<size_t>(kSpillPageBytes)) return out;
  const auto length = header_bytes_of(bytes.first(kSpillPageBytes));
  if (!length.ok() || static_cast<size_t>(*length) > bytes.size()) return out;
  const auto header = decode_header(bytes.first(static_cast<size_t>(*length)));
  if (!header.ok() || header->file_bytes() != static_cast<int64_t>(bytes.size())) return out;
  for (size_t i = 0; i < header->entries.size(); ++i) {
    const SpillEntry& e = header->entries[i];
    PageBuffer record(e.record_bytes());
    const auto from = bytes.subspan(static_cast<size_t>(header->record_offset(i)),
                                    static_cast<size_t>(e.record_bytes()));
    std::memcpy(record.bytes().data(), from.data(), from.size());
    if (check_record(e, view(record)).ok()) decode_record(e, view(record), out.emplace_back());
  }
  return out;
}

std::vector<CacheRecord> blocks_of(const Turn& turn) {
  std::vector<CacheRecord> out;
  for (const CacheRecord& r : turn)
    if (r.note.kind == CacheNote::Kind::kBlock) out.push_back(r);
  return out;
}

// Files of each kind: blocks with a partial one, one of images with a long header, rings.
std::vector<std::vector<CacheRecord>> samples() {
  Conversations c;
  std::vector<std::vector<CacheRecord>> out;
  const Turn turn = c.turn(0, 256 + 100);
  out.push_back(blocks_of(turn));
  out.push_back({turn.back()});
  out.push_back(blocks_of(c.turn_with_images(1)));
  return out;
}

BOOST_AUTO_TEST_CASE(records_come_back) {
  for (const auto& records : samples()) {
    const File f = make_file(records);
    const auto got = read_file(f.bytes);
    BOOST_REQUIRE(got.size() == records.size());
    for (size_t i = 0; i < got.size(); ++i) BOOST_TEST(same_record(got[i], records[i]));
    BOOST_TEST(f.bytes.size() % kSpillPageBytes == 0u);
    BOOST_TEST(f.header.file_bytes() == static_cast<int64_t>(f.bytes.size()));
  }
  BOOST_TEST(make_file(samples()[2]).header.header_bytes() > kSpillPageBytes);
}

BOOST_AUTO_TEST_CASE(the_longest_file_has_a_header_of_one_page) {
  Conversations c;
  const auto records = blocks_of(c.turn(0, kSpillRecordsMax * 256));
  BOOST_REQUIRE(records.size() == static_cast<size_t>(kSpillRecordsMax));
  BOOST_TEST(make_file(records).header.header_bytes() == kSpillPageBytes);
}

BOOST_AUTO_TEST_CASE(every_flipped_byte_is_found) {
  int64_t wrong = 0, flips = 0;
  for (const auto& records : samples()) {
    File f = make_file(records);
    int64_t kept = 0;
    for (size_t at = 0; at < f.bytes.size(); ++at) {
      f.bytes[at] ^= std::byte{0x10};
      for (const CacheRecord& r : read_file(f.bytes)) {
        const auto same = [&](const CacheRecord& x) { return same_record(x, r); };
        const bool right = std::any_of(records.begin(), records.end(), same);
        wrong += right ? 0 : 1;
        kept += right ? 1 : 0;
      }
      f.bytes[at] ^= std::byte{0x10};
      ++flips;
    }
    // A flip costs its record, be it in the padding; in the header it costs all of them.
    [[maybe_unused]] const int64_t body =
        static_cast<int64_t>(f.bytes.size()) - f.header.header_bytes();
    [[maybe_unused]] const auto n = static_cast<int64_t>(records.size());
#ifndef TF_PLANTED_FAULT
    BOOST_TEST(kept == body * (n - 1));
#endif
  }
  BOOST_TEST_MESSAGE(flips << " flips");
#ifdef TF_PLANTED_FAULT
  BOOST_TEST(wrong > 0);
#else
  BOOST_TEST(wrong == 0);
#endif
}

BOOST_AUTO_TEST_CASE(every_other_length_is_found) {
  for (const auto& records : samples()) {
    const File f = make_file(records);
    for (size_t size = 0; size < f.bytes.size(); size += 97)
      BOOST_TEST(read_file(std::span(f.bytes).first(size)).empty());
    std::vector<std::byte> longer = f.bytes;
    longer.resize(longer.size() + 1);
    BOOST_TEST(read_file(longer).empty());
  }
}

#ifndef TF_PLANTED_FAULT
// Checksums are no signatures: a record whose checksums were made to fit is found by its name.
BOOST_AUTO_TEST_CASE(a_block_with_another_text_has_another_name) {
  auto records = samples()[0];
  const auto reseal = [&] { return read_file(make_file(records).bytes).size(); };
  BOOST_TEST(reseal() == 2u);
  records[1].ids[5] ^= 1;
  BOOST_TEST(reseal() == 1u);
  records[1].ids[5] ^= 1;
  records[1].note.generated.set(7);
  BOOST_TEST(reseal() == 1u);
  records = samples()[0];
  records[0].note.before = root_digest("another user");  // and all that follows
  BOOST_TEST(reseal() == 1u);
}
#endif

BOOST_AUTO_TEST_CASE(hostile_headers_are_refused_by_field) {
  const auto refused = [](const std::function<void(SpillHeader&)>& change, const char* what) {
    SpillHeader h = make_file(samples()[0]).header;
    change(h);
    const PageBuffer page = encode_header(h);
    const auto got = decode_header(view(page));
    BOOST_REQUIRE(!got.ok());
    BOOST_TEST((got.status().code() == StatusCode::kDataLoss));
    BOOST_TEST(got.status().message().find(what) != std::string::npos, got.status().message());
  };
  using H = SpillHeader;
  refused([](H& h) { h.entries[0].note.kind = static_cast<CacheNote::Kind>(3); }, "kind");
  refused([](H& h) { h.entries[0].note.first_position = -256; }, "first position");
  refused([](H& h) { h.entries[0].note.first_position = 1; }, "first position");
  refused([](H& h) { h.entries[0].note.first_position = kPositionsMax; }, "first position");
  refused([](H& h) { h.entries[1].note.positions = 0; }, "positions");
  refused([](H& h) { h.entries[1].note.positions = 257; }, "positions");
  refused([](H& h) { h.entries[1].note.cut_low = 1 << 20; }, "shortest length");
  refused([](H& h) { h.entries[1].bytes = 0; }, "bytes");
  refused([](H& h) { h.entries[1].bytes = kSpillRecordBytesMax + 1; }, "bytes");
  refused([](H& h) { h.entries[1].note.before = {}; }, "follow");
  refused([](H& h) { h.entries[1].note.first_position += 256; }, "follow");
  refused([](H& h) { h.entries[0].note.positions = 255; }, "follow");
  refused([](H& h) { h.entries[1].note.kind = CacheNote::Kind::kFullSnapshot; }, "snapshot");
  refused([](H& h) { h.entries.resize(kSpillRecordsMax + 1); }, "record count");
}

BOOST_AUTO_TEST_CASE(every_part_of_the_identity_counts) {
  const std::vector<std::function<void(SpillIdentity&)>> changes = {
      [](SpillIdentity& i) { i.model_fingerprint = "n"; },
      [](SpillIdentity& i) { i.formats = "g"; },
      [](SpillIdentity& i) { ++i.numeric_revision; },
      [](SpillIdentity& i) { i.device = "sm_121"; },
      [](SpillIdentity& i) { i.prefill = "replay"; },
      [](SpillIdentity& i) { i.reuse_replies = !i.reuse_replies; },
      [](SpillIdentity& i) { i.index_scores = "bf16"; },
      [](SpillIdentity& i) { i.exchange = "bf16"; },
      [](SpillIdentity& i) { i.world_size = 2; },
      [](SpillIdentity& i) { i.rank = 1; },
      // The end of one field is not the start of the next.
      [](SpillIdentity& i) { std::swap(i.model_fingerprint, i.formats); },
  };
  SpillIdentity base;
  base.model_fingerprint = "m";
  base.formats = "f";
  base.device = "cpu";
  base.prefill = "exact";
  std::set<std::string> digests = {base.digest().hex()};
  for (const auto& change : changes) {
    SpillIdentity other = base;
    change(other);
    BOOST_TEST(digests.insert(other.digest().hex()).second);
  }
  BOOST_TEST((base.digest() == base.digest()));
}

}  // namespace
}  // namespace tensorfold
