// The prepared image: one file per rank with exactly the slices that the rank holds, as stored, so
// that a start is one sequential read of one file. `tfctl model prepare` writes it; WeightSource
// reads it.
//
// Form (little-endian): a superblock of 4 KiB (magic, version, layout, where the directory is, the
// file's size, SHA-256 of the directory and of the superblock itself), then sections, each
// beginning at a multiple of 4 KiB and with its own SHA-256 in the directory, then the directory.
// A section is one weight (values, scales, suh, svh, bias, each beginning at a multiple of 256
// bytes), the token map, or rows of an Engram table (values and scales of a row side by side).
// Sections stand in the order in which a forward pass needs them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold {

inline constexpr uint32_t kImageVersion = 1;
inline constexpr std::string_view kImageLayout = "stored-1";  // slices as in the checkpoint
inline constexpr int64_t kImageSectionAlignBytes = 4096;
inline constexpr int64_t kImagePartAlignBytes = 256;
inline constexpr int64_t kImageDirectoryBytesMax = 256 << 20;

struct PrepareOptions {
  std::string model_path, engram_path, out_path;  // folders
  int world_size = 1;
  int rank = -1;             // -1: every rank
  bool with_engram = false;  // put the rows of this rank's hash columns into the image, too
};

// "rank-0-of-2.tfimage"
std::string image_file_name(int rank, int world_size);

// What writing would take: an image that is there and of the same model needs nothing.
struct ImageNeed {
  int rank = 0;
  std::string path;
  bool there = false;
  int64_t bytes = 0;       // of the image, without its directory
  int64_t part_bytes = 0;  // of it already on disk, from a run that was ended
};
Result<std::vector<ImageNeed>> images_needed(const PrepareOptions& options);

struct PrepareEvents {
  std::function<void(std::string_view line)> line;  // one per image, and what is gone on with
  std::function<void(int rank, int64_t done_bytes)> moved;  // of ImageNeed::bytes
};

// Writes the image of one or every rank into out_path (made when it does not exist); one that is
// there stays, one that was begun is gone on with.
Status prepare_images(const PrepareOptions& options, const PrepareEvents& events);

}  // namespace tensorfold
