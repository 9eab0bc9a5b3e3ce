// The superblock and directory of a prepared image as data, and their binary form (image.h says
// what they mean). Internal to engine/weights.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/weights/image.h"
#include "engine/weights/partition.h"
#include "engine/weights/weight_source.h"

namespace tensorfold {

struct ImageSection {
  int64_t offset = 0, bytes = 0;
  std::string sha256;  // hex, of the bytes that count (padding between parts does not)
};

// One stored matrix or vector; attn.wo_a has one for each output group of the rank.
struct ImagePart {
  WeightKind kind = WeightKind::kF32;
  int64_t out = 0, in = 0, padded_out = 0, padded_in = 0;
  int scale_rows = 0, half_bits = 0;
  exl3::Codebook codebook = exl3::Codebook::k3inst;
  bool has_bias = false;
  ImageSection section;
};

struct ImageWeight {
  WeightInfo info;
  std::vector<ImagePart> parts;  // none: this rank holds nothing of it
};

struct ImageTable {
  int index = 0;  // into EngramConfig::layers
  WeightKind kind = WeightKind::kFp8;
  Range rows;
  int width = 0;
  ImageSection section;
};

struct ImageDirectory {
  std::string model_digest, config_text;
  int rank = 0, world_size = 1;
  std::vector<std::string> engram_digests;  // one per table; empty text: was not there
  ImageSection token_map;                   // int32; 0 bytes without Engram
  std::vector<ImageWeight> weights;
  std::vector<ImageTable> tables;
};

struct ImageSuperblock {
  int64_t directory_offset = 0, directory_bytes = 0, file_bytes = 0;
  std::string directory_sha256;
};

// The byte counts of a part's arrays, in file order: data, scales, suh, svh, bias.
std::array<int64_t, 5> part_sizes(const ImagePart& part);
// Of the section that holds them: each array begins at a multiple of kImagePartAlignBytes.
int64_t section_bytes(const ImagePart& part);

std::string encode_directory(const ImageDirectory& directory);
// Every count is checked against what is left of `bytes`; an error says what does not fit.
Result<ImageDirectory> decode_directory(std::string_view bytes);

std::array<std::byte, kImageSectionAlignBytes> encode_superblock(const ImageSuperblock& block);
Result<ImageSuperblock> decode_superblock(std::span<const std::byte> bytes);

}  // namespace tensorfold
