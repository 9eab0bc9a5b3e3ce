// How one logical weight is stored in a checkpoint: which tensors, in which kind, with which padded
// sizes; and the read of a slice of it. Internal to engine/weights.
//
// The kind is decided from suffixes, types and shapes of the tensors themselves:
//   NAME.trellis, .suh or .su, .svh or .sv, .mcg or .mul1 or neither, .bias    EXL3
//   NAME.weight F8_E4M3 + NAME.scale (F8_E8M0 or U8) per 32x32 or per 1x32     fp8
//   NAME.weight I8 [out, in/2] + NAME.scale [out, in/32]                       fp4
//   NAME.weight (or NAME itself for parameters) BF16, F16, F32                 values
// attn.wo_a may be NAME.slice.0 .. NAME.slice.(o_groups-1), one per output group.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/weights/partition.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/tensor_table.h"
#include "engine/weights/weight.h"

namespace tensorfold {

// Tensors of one stored matrix; nullptr: not there. They live in a Safetensors.
struct StoredPart {
  const TensorInfo* data = nullptr;  // values or trellis
  const TensorInfo* scale = nullptr;
  const TensorInfo* suh = nullptr;     // or the old `su`
  const TensorInfo* svh = nullptr;     // or the old `sv`
  const TensorInfo* marker = nullptr;  // mcg or mul1
  const TensorInfo* bias = nullptr;
  WeightKind kind = WeightKind::kF32;
  int64_t out = 0, in = 0;                // logical
  int64_t padded_out = 0, padded_in = 0;  // kExl3
  int scale_rows = 0;                     // kFp8
  int half_bits = 0;
  exl3::Codebook codebook = exl3::Codebook::k3inst;
};

struct StoredWeight {
  const Safetensors* files = nullptr;
  std::vector<StoredPart> parts;  // one; or one per o_group

  WeightKind kind() const { return parts.front().kind; }
  int64_t stored_bytes() const;
  std::vector<const TensorInfo*> tensors() const;
};

// What `spec` is stored as in `files`. nullopt: none of its tensors is there. An error names the
// file and the tensor whose type, shape or company is wrong.
Result<std::optional<StoredWeight>> find_stored(const Safetensors& files, const WeightSpec& spec);

// Outputs [rows) x inputs [columns) of one part, as stored. Ranges begin at multiples of the kind's
// block (32, EXL3 128) and end at one or at the weight's end. Scales are read and checked before
// the data is allocated: a NaN in them, or a value that is not finite, is kDataLoss.
Result<Weight> read_stored(const Safetensors& files, const StoredPart& part, Range rows,
                           Range columns);

}  // namespace tensorfold
