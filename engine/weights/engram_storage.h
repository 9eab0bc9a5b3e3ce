// Where the rows of an Engram table lie, and the table made of it. Internal to engine/weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/model/config.h"
#include "engine/weights/engram_table.h"
#include "engine/weights/file.h"
#include "engine/weights/partition.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/weight.h"

namespace tensorfold {

// One row is the pieces of its segments, one after the other: values, then scales.
struct EngramStorage {
  struct Segment {
    std::shared_ptr<const ReadFile> file;
    int64_t offset = 0;  // of the first row's piece
    int64_t pitch = 0;   // from row to row
    int64_t bytes = 0;   // of one piece
    std::string name;    // of the tensor or section
  };
  std::vector<Segment> segments;
  WeightKind kind = WeightKind::kFp8;  // kFp8 (with scales), kBf16, kF16 or kF32
  Range rows;                          // that are stored
  int width = 0;                       // values per row

  int64_t row_bytes() const;
};

// The table of EngramConfig::layers[index] in `files`; kNotFound when it is not there.
Result<EngramStorage> find_engram(const Safetensors& files, const ModelConfig& config, int index);

// `use_ring`: io_uring where the kernel allows it; false: pread only.
std::unique_ptr<EngramTable> make_engram_table(EngramStorage storage, int64_t cache_rows,
                                               bool use_ring = true);

}  // namespace tensorfold
