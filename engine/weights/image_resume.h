// What is on disk of an image that is being written: the image itself as NAME.part and, beside it
// as NAME.part.rows, how far it is and the directory so far. A run that was ended goes on from
// there, at a weight or table; the rows are written after the bytes that they speak of are safe.
// Internal to engine/weights.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/status.h"
#include "engine/weights/file.h"
#include "engine/weights/image_format.h"

namespace tensorfold {

inline constexpr int kImageSavesMax = 32;                          // of the rows, in one image
inline constexpr int64_t kImageSaveLeastBytes = int64_t{1} << 20;  // between two of them

std::string image_part_path(const std::string& image_path);

// Makes what `file` has safe and then says so in the rows.
Status save_unfinished(const std::string& image_path, AtomicFile& file,
                       const ImageDirectory& directory);

// Sets `directory` and the position that can be gone on from, when the rows are whole and of the
// same model, rank and world as `directory` says; else leaves it alone and gives 0.
int64_t find_unfinished(const std::string& image_path, ImageDirectory& directory);

void forget_unfinished(const std::string& image_path);  // the rows only

// Whether the image at `path` is whole by its superblock and directory, and what `wanted` says:
// same model, rank, world, tables. Sections are not read.
bool image_is_of(const std::string& path, const ImageDirectory& wanted, bool with_engram);

}  // namespace tensorfold
