// Names of cached blocks: a chain of SHA-256 digests over what a sequence's positions hold.
//
// What goes in, so that equal names mean equal bits (of one model identity):
//   root   = H("tensorfold cache root", bytes of the cache salt, salt)
//   block  = H("tensorfold cache block", name of the block before it (or the root),
//              first position, positions, ids as fed, one bit per position: generated row (class
//              D), the images that overlap the block: first position, rows, digest of the pixels)
// Every field has a fixed width or its length in front, and every kind its own tag. A block of
// kBlockPositions positions is whole; one of fewer names a sequence that ends inside it, which is
// what snapshots between two block edges are named by.
//
// What does not go in: the model's identity (fingerprint, formats, numeric revision, device,
// prefill mode, world size, rank), which is constant for a process and named by the folder on disk;
// sampling; who asked. The salt itself is not kept, only its root.
//
// Pure. Names are never trusted alone in memory: the index compares ids.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

inline constexpr int kDigestBlockPositions = 256;  // kBlockPositions

struct BlockDigest {
  std::array<uint8_t, 32> bytes{};

  auto operator<=>(const BlockDigest&) const = default;
  std::string hex() const;  // 64 lower-case digits
};

struct BlockDigestHash {
  size_t operator()(const BlockDigest& d) const;
};

// Rows of a sequence whose embeddings come from an image.
struct ImageSpan {
  int64_t first_position = 0;
  int32_t rows = 0;
  BlockDigest digest;  // of the decoded pixels

  bool operator==(const ImageSpan&) const = default;
};

// Bit i: position i of the block is a generated row (RowClass::kGenerated).
struct RowClassBits {
  std::array<uint64_t, kDigestBlockPositions / 64> words{};

  bool any() const { return (words[0] | words[1] | words[2] | words[3]) != 0; }
  bool get(int position) const {
    return (words[static_cast<size_t>(position / 64)] >> (position % 64) & 1) != 0;
  }
  void set(int position) {
    words[static_cast<size_t>(position / 64)] |= uint64_t{1} << (position % 64);
  }
  bool operator==(const RowClassBits&) const = default;
};

struct BlockText {
  int64_t first_position = 0;    // of the block; a multiple of kBlockPositions
  std::span<const int32_t> ids;  // 1..kBlockPositions
  RowClassBits generated;
  std::vector<ImageSpan> images;  // that overlap it, ascending
};

// Those that overlap positions [first, end).
std::vector<ImageSpan> images_in(std::span<const ImageSpan> images, int64_t first, int64_t end);

BlockDigest root_digest(std::string_view salt);
BlockDigest block_digest(const BlockDigest& before, const BlockText& text);

// 64 bits over ids and images, without the classes: finds candidates, proves nothing.
uint64_t text_fingerprint(const BlockText& text);

}  // namespace tensorfold
