// How many patches and prompt tokens an image of a given size takes.
//
// Pure arithmetic of the V4.1 vision input (docs/prompt-format.md): 14-pixel patches, three by
// three patches to one language-model cell, one start token, one line end per row, one end token.
#pragma once

#include <cstdint>

#include "engine/base/status.h"

namespace tensorfold {

inline constexpr int64_t kImageSideMaxPixels = 1 << 20;

struct ImageGridConfig {
  int patch_pixels = 14;
  int downsample = 3;  // patches per cell side
  int64_t max_tokens = 1024;
  int64_t min_pixels = 544 * 544;
  double max_wh_ratio = 0;  // wider images count as this ratio; 0: no limit
};

struct ImageGrid {
  int64_t vit_h = 0, vit_w = 0;  // patches
  int64_t llm_h = 0, llm_w = 0;  // cells
  int64_t tokens = 0;            // llm_h * (llm_w + 1) + 2
};

// width and height in pixels, 1..kImageSideMaxPixels.
Result<ImageGrid> image_grid(int64_t width, int64_t height, const ImageGridConfig& config = {});

}  // namespace tensorfold
