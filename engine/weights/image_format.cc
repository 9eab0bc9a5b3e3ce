// Binary form of the image's superblock and directory (see image_format.h). Little-endian, fixed
// widths, length-prefixed texts.
#include "engine/weights/image_format.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>

#include "engine/weights/file.h"

namespace tensorfold {
namespace {

constexpr std::string_view kMagic = "TFIMAGE\n";
constexpr size_t kLayoutBytes = 16;
constexpr size_t kHexBytes = 2 * Sha256::kDigestBytes;
constexpr int64_t kDimensionMax = int64_t{1} << 40;
constexpr int64_t kPartDimensionMax = int64_t{1} << 30;  // so that byte counts fit int64

class Writer {
 public:
  void number(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    for (int i = 0; i < 8; ++i) out_.push_back(static_cast<char>(bits >> (8 * i)));
  }
  void text(std::string_view value) {
    number(static_cast<int64_t>(value.size()));
    out_.append(value);
  }
  void section(const ImageSection& s) {
    number(s.offset);
    number(s.bytes);
    text(s.sha256);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// After the first thing that does not fit every read gives zeros; ok() tells.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  int64_t number(int64_t low, int64_t high) {
    if (!ok_ || bytes_.size() < 8) return stop();
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; ++i) {
      bits |= uint64_t{static_cast<unsigned char>(bytes_[i])} << (8 * i);
    }
    bytes_.remove_prefix(8);
    const auto value = static_cast<int64_t>(bits);
    return value >= low && value <= high ? value : stop();
  }
  int small(int low, int high) { return static_cast<int>(number(low, high)); }
  // A count of things of at least 8 bytes each.
  size_t count() { return static_cast<size_t>(number(0, static_cast<int64_t>(bytes_.size() / 8))); }
  std::string text() {
    const auto length = static_cast<size_t>(number(0, static_cast<int64_t>(bytes_.size())));
    if (!ok_ || length > bytes_.size()) return stop(), std::string();
    std::string value(bytes_.substr(0, length));
    bytes_.remove_prefix(length);
    return value;
  }
  ImageSection section() {
    ImageSection s;
    s.offset = number(0, INT64_MAX);
    s.bytes = number(0, INT64_MAX);
    s.sha256 = text();
    if (s.sha256.size() != kHexBytes) stop();
    return s;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  int64_t stop() {
    ok_ = false;
    return 0;
  }
  std::string_view bytes_;
  bool ok_ = true;
};

void put_part(Writer& w, const ImagePart& p) {
  for (int64_t n : {int64_t{static_cast<int>(p.kind)}, p.out, p.in, p.padded_out, p.padded_in,
                    int64_t{p.scale_rows}, int64_t{p.half_bits},
                    int64_t{static_cast<int>(p.codebook)}, int64_t{p.has_bias}}) {
    w.number(n);
  }
  w.section(p.section);
}

ImagePart get_part(Reader& r) {
  ImagePart p;
  p.kind = static_cast<WeightKind>(r.small(0, kWeightKinds - 1));
  p.out = r.number(0, kPartDimensionMax);
  p.in = r.number(0, kPartDimensionMax);
  p.padded_out = r.number(0, kPartDimensionMax);
  p.padded_in = r.number(0, kPartDimensionMax);
  p.scale_rows = r.small(0, kScaleBlock);
  p.half_bits = r.small(0, exl3::kHalfBitsMax);
  p.codebook = static_cast<exl3::Codebook>(r.small(0, 2));
  p.has_bias = r.number(0, 1) != 0;
  p.section = r.section();
  return p;
}

void put_weight(Writer& w, const ImageWeight& weight) {
  const WeightInfo& info = weight.info;
  w.text(info.name);
  for (int64_t n :
       {int64_t{static_cast<int>(info.kind)}, info.out, info.in, int64_t{info.half_bits},
        int64_t{static_cast<int>(info.codebook)}, info.stored_bytes, int64_t{info.optional},
        static_cast<int64_t>(weight.parts.size())}) {
    w.number(n);
  }
  for (const ImagePart& part : weight.parts) put_part(w, part);
}

ImageWeight get_weight(Reader& r) {
  ImageWeight weight;
  WeightInfo& info = weight.info;
  info.name = r.text();
  info.kind = static_cast<WeightKind>(r.small(0, kWeightKinds - 1));
  info.out = r.number(0, kDimensionMax);
  info.in = r.number(0, kDimensionMax);
  info.half_bits = r.small(0, exl3::kHalfBitsMax);
  info.codebook = static_cast<exl3::Codebook>(r.small(0, 2));
  info.stored_bytes = r.number(0, INT64_MAX);
  info.optional = r.number(0, 1) != 0;
  const size_t parts = r.count();
  for (size_t i = 0; i < parts && r.ok(); ++i) weight.parts.push_back(get_part(r));
  return weight;
}

void put_table(Writer& w, const ImageTable& t) {
  for (int64_t n : {int64_t{t.index}, int64_t{static_cast<int>(t.kind)}, t.rows.begin, t.rows.end,
                    int64_t{t.width}}) {
    w.number(n);
  }
  w.section(t.section);
}

ImageTable get_table(Reader& r) {
  ImageTable t;
  t.index = r.small(0, kLayersMax);
  t.kind = static_cast<WeightKind>(r.small(0, static_cast<int>(WeightKind::kFp8)));
  t.rows.begin = r.number(0, kDimensionMax);
  t.rows.end = r.number(t.rows.begin, kDimensionMax);
  t.width = r.small(1, 1 << 20);
  t.section = r.section();
  return t;
}

}  // namespace

std::array<int64_t, 5> part_sizes(const ImagePart& p) {
  const int64_t scales_in = (p.in + kScaleBlock - 1) / kScaleBlock;
  switch (p.kind) {
    case WeightKind::kF32:
      return {4 * p.out * p.in, 0, 0, 0, 0};
    case WeightKind::kF16:
    case WeightKind::kBf16:
      return {2 * p.out * p.in, 0, 0, 0, 0};
    case WeightKind::kFp8: {
      const int64_t rows = std::max(p.scale_rows, 1);
      return {p.out * p.in, (p.out + rows - 1) / rows * scales_in, 0, 0, 0};
    }
    case WeightKind::kFp4:
      return {p.out * p.in / 2, p.out * scales_in, 0, 0, 0};
    case WeightKind::kExl3:
      return {p.padded_out * p.padded_in / exl3::kTileValues * exl3::tile_bytes(p.half_bits), 0,
              2 * p.padded_in, 2 * p.padded_out, p.has_bias ? 2 * p.padded_out : 0};
  }
  return {};
}

int64_t section_bytes(const ImagePart& part) {
  int64_t end = 0;
  for (int64_t size : part_sizes(part)) {
    if (size == 0) continue;
    end = (end + kImagePartAlignBytes - 1) / kImagePartAlignBytes * kImagePartAlignBytes + size;
  }
  return end;
}

std::string encode_directory(const ImageDirectory& d) {
  Writer w;
  w.text(d.model_digest);
  w.text(d.config_text);
  w.number(d.rank);
  w.number(d.world_size);
  w.number(static_cast<int64_t>(d.engram_digests.size()));
  for (const std::string& digest : d.engram_digests) w.text(digest);
  w.section(d.token_map);
  w.number(static_cast<int64_t>(d.weights.size()));
  for (const ImageWeight& weight : d.weights) put_weight(w, weight);
  w.number(static_cast<int64_t>(d.tables.size()));
  for (const ImageTable& table : d.tables) put_table(w, table);
  return w.take();
}

Result<ImageDirectory> decode_directory(std::string_view bytes) {
  Reader r(bytes);
  ImageDirectory d;
  d.model_digest = r.text();
  d.config_text = r.text();
  d.rank = r.small(0, 1 << 16);
  d.world_size = r.small(1, 1 << 16);
  const size_t digests = r.count();
  for (size_t i = 0; i < digests && r.ok(); ++i) d.engram_digests.push_back(r.text());
  d.token_map = r.section();
  const size_t weights = r.count();
  for (size_t i = 0; i < weights && r.ok(); ++i) d.weights.push_back(get_weight(r));
  const size_t tables = r.count();
  for (size_t i = 0; i < tables && r.ok(); ++i) d.tables.push_back(get_table(r));
  if (!r.ok() || !r.at_end()) return data_loss("the directory is damaged");
  return d;
}

std::array<std::byte, kImageSectionAlignBytes> encode_superblock(const ImageSuperblock& block) {
  Writer w;
  w.number(kImageVersion);
  w.number(block.directory_offset);
  w.number(block.directory_bytes);
  w.number(block.file_bytes);
  std::string layout(kImageLayout);
  layout.resize(kLayoutBytes, '\0');
  std::string text = std::string(kMagic) + layout + w.take() + block.directory_sha256;
  text += sha256_hex(bytes_of(text));
  std::array<std::byte, kImageSectionAlignBytes> bytes = {};
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

Result<ImageSuperblock> decode_superblock(std::span<const std::byte> bytes) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kMagic)) return data_loss("not a prepared image");
  const size_t numbers = kMagic.size() + kLayoutBytes;
  constexpr size_t kNumberBytes = size_t{4} * 8;
  const size_t checked = numbers + kNumberBytes + kHexBytes;
  if (text.size() < checked + kHexBytes) return data_loss("truncated: no superblock");
  Reader r(text.substr(numbers, kNumberBytes));
  const int64_t version = r.number(0, UINT32_MAX);
  if (version != kImageVersion) {
    return unsupported("an image of version " + std::to_string(version) +
                       "; this program reads version " + std::to_string(kImageVersion) +
                       " (prepare it again)");
  }
  std::string layout(text.substr(kMagic.size(), kLayoutBytes));
  layout.resize(std::strlen(layout.c_str()));
  if (layout != kImageLayout) {
    return unsupported("an image of layout \"" + layout + "\"; this program reads \"" +
                       std::string(kImageLayout) + "\" (prepare it again)");
  }
  if (sha256_hex(bytes.first(checked)) != text.substr(checked, kHexBytes)) {
    return data_loss("the superblock is damaged (its SHA-256 differs)");
  }
  ImageSuperblock block;
  block.directory_offset = r.number(0, INT64_MAX);
  block.directory_bytes = r.number(0, kImageDirectoryBytesMax);
  block.file_bytes = r.number(0, INT64_MAX);
  block.directory_sha256 = text.substr(checked - kHexBytes, kHexBytes);
  if (!r.ok()) return data_loss("the superblock is damaged");
  return block;
}

}  // namespace tensorfold
