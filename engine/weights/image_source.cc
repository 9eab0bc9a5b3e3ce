#include "engine/weights/source_makers.h"

namespace tensorfold {
Result<std::unique_ptr<WeightSource>> open_image_source(const WeightSourceOptions& options) {
  return unsupported(options.prepared_path + ": prepared images cannot be read yet");
}
}  // namespace tensorfold
