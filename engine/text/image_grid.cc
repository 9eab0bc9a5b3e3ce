#include "engine/text/image_grid.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace tensorfold {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

ImageGrid grid_of(int64_t patches_h, int64_t patches_w, const ImageGridConfig& config) {
  ImageGrid grid;
  grid.vit_h = patches_h;
  grid.vit_w = patches_w;
  grid.llm_h = ceil_div(patches_h, config.downsample);
  grid.llm_w = ceil_div(patches_w, config.downsample);
  grid.tokens = grid.llm_h * (grid.llm_w + 1) + 2;
  return grid;
}

// The largest grid of the image's shape that stays within the token limit.
ImageGrid shrunk(double width, double height, const ImageGridConfig& config) {
  const double cells = static_cast<double>(config.max_tokens - 2);
  const int64_t cell = config.downsample;  // patches
  const double ratio = height / width;
  const double x = std::sqrt(cells / ratio + 0.25) - 0.5;
  const double y = x * ratio;
  if (x < 1) return grid_of((config.max_tokens - 2) / 2 * cell, cell, config);
  if (y < 1) return grid_of(cell, (config.max_tokens - 3) * cell, config);
  const double cell_pixels = static_cast<double>(cell * config.patch_pixels);
  const double scale =
      std::min(std::floor(x) * cell_pixels / width, std::floor(y) * cell_pixels / height);
  const auto patches = [&](double side) {
    return static_cast<int64_t>(std::floor(side * scale / config.patch_pixels));
  };
  return grid_of(patches(height), patches(width), config);
}

}  // namespace

Result<ImageGrid> image_grid(int64_t width, int64_t height, const ImageGridConfig& config) {
  if (width < 1 || height < 1 || width > kImageSideMaxPixels || height > kImageSideMaxPixels) {
    return invalid_argument("an image side of 1 to " + std::to_string(kImageSideMaxPixels) +
                            " pixels expected, found " + std::to_string(width) + " x " +
                            std::to_string(height));
  }
  auto w = static_cast<double>(width), h = static_cast<double>(height);
  if (config.max_wh_ratio > 0 && w > h * config.max_wh_ratio) w = h * config.max_wh_ratio;
  if (w * h < static_cast<double>(config.min_pixels)) {
    const double grow = std::sqrt(static_cast<double>(config.min_pixels) / (w * h));
    w = std::trunc(w * grow);
    h = std::trunc(h * grow);
  }
  const auto patches = [&](double side) {
    return static_cast<int64_t>(std::ceil(side / config.patch_pixels));
  };
  ImageGrid grid = grid_of(patches(h), patches(w), config);
  if (grid.tokens > config.max_tokens) grid = shrunk(w, h, config);
  if (grid.tokens > config.max_tokens || grid.vit_h < 1 || grid.vit_w < 1) {
    return internal_error("no grid for an image of " + std::to_string(width) + " x " +
                          std::to_string(height) + " pixels");
  }
  return grid;
}

}  // namespace tensorfold
