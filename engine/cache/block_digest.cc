// Digest chain of cached blocks (engine/cache/block_digest.h).
#include "engine/cache/block_digest.h"

#include <openssl/evp.h>

#include <cstring>

#include "engine/base/check.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {
namespace {

static_assert(kDigestBlockPositions == kBlockPositions);

constexpr std::string_view kRootTag = "tensorfold cache root";
constexpr std::string_view kBlockTag = "tensorfold cache block";

void put(std::vector<uint8_t>& out, uint64_t value, int width) {
  for (int i = 0; i < width; ++i) out.push_back(static_cast<uint8_t>(value >> (8 * i)));
}

void put_text(std::vector<uint8_t>& out, std::string_view text) {
  put(out, text.size(), 8);
  out.insert(out.end(), text.begin(), text.end());
}

void put_digest(std::vector<uint8_t>& out, const BlockDigest& digest) {
  out.insert(out.end(), digest.bytes.begin(), digest.bytes.end());
}

// Images by their distance from the block, so that the same picture that began before it differs
// from one that begins in it.
void put_content(std::vector<uint8_t>& out, const BlockText& text) {
  put(out, text.ids.size(), 8);
  for (const int32_t id : text.ids) put(out, static_cast<uint32_t>(id), 4);
  put(out, text.images.size(), 8);
  for (const ImageSpan& image : text.images) {
    put(out, static_cast<uint64_t>(image.first_position - text.first_position), 8);
    put(out, static_cast<uint32_t>(image.rows), 4);
    put_digest(out, image.digest);
  }
}

BlockDigest sha256(const std::vector<uint8_t>& bytes) {
  BlockDigest digest;
  unsigned int length = 0;
  TF_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.bytes.data(), &length, EVP_sha256(),
                      nullptr) == 1);
  TF_CHECK_EQ(length, digest.bytes.size());
  return digest;
}

}  // namespace

std::string BlockDigest::hex() const {
  std::string text;
  for (const uint8_t byte : bytes) {
    text.push_back("0123456789abcdef"[byte >> 4]);
    text.push_back("0123456789abcdef"[byte & 15]);
  }
  return text;
}

size_t BlockDigestHash::operator()(const BlockDigest& d) const {
  size_t value = 0;
  std::memcpy(&value, d.bytes.data(), sizeof(value));
  return value;
}

std::vector<ImageSpan> images_in(std::span<const ImageSpan> images, int64_t first, int64_t end) {
  std::vector<ImageSpan> out;
  for (const ImageSpan& image : images) {
    if (image.first_position < end && image.first_position + image.rows > first)
      out.push_back(image);
  }
  return out;
}

BlockDigest root_digest(std::string_view salt) {
  std::vector<uint8_t> bytes;
  put_text(bytes, kRootTag);
  put_text(bytes, salt);
  return sha256(bytes);
}

BlockDigest block_digest(const BlockDigest& before, const BlockText& text) {
  TF_CHECK(!text.ids.empty() && text.ids.size() <= static_cast<size_t>(kBlockPositions));
  TF_CHECK_EQ(text.first_position % kBlockPositions, 0);
  std::vector<uint8_t> bytes;
  bytes.reserve(256 + 4 * text.ids.size());
  put_text(bytes, kBlockTag);
  put_digest(bytes, before);
  put(bytes, static_cast<uint64_t>(text.first_position), 8);
  put_content(bytes, text);
  for (const uint64_t word : text.generated.words) put(bytes, word, 8);
  return sha256(bytes);
}

uint64_t text_fingerprint(const BlockText& text) {
  std::vector<uint8_t> bytes;
  bytes.reserve(64 + 4 * text.ids.size());
  put_content(bytes, text);
  uint64_t h = 0x9E3779B97F4A7C15ULL ^ bytes.size();
  for (size_t i = 0; i < bytes.size(); i += 4) {
    uint32_t word = 0;
    for (size_t k = 0; k < 4 && i + k < bytes.size(); ++k)
      word |= static_cast<uint32_t>(bytes[i + k]) << (8 * k);
    h = (h ^ word) * 0xBF58476D1CE4E5B9ULL;
    h ^= h >> 29;
  }
  return h;
}

}  // namespace tensorfold
