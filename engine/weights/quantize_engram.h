// Engram tables on their way into a pack: rows of 16 or 32 bit values become e4m3 with a UE8M0
// scale per 32 values. Internal to the quantizer.
#pragma once

#include <cstdint>
#include <span>

#include "engine/base/status.h"
#include "engine/weights/safetensors.h"

namespace tensorfold::exl3 {

// Whether `table` ([rows, width], "...engram.embed.weight") is to be converted: values in F32, F16
// or BF16 and a width that is a multiple of 32.
bool engram_convertible(const TensorInfo& table);

// Appends all e4m3 values [rows, width], or all scales [rows, width / 32], of the converted table.
// A value that is not finite is kDataLoss, naming the row.
Status append_engram_values(const Safetensors& files, const TensorInfo& table,
                            SafetensorsWriter& writer);
Status append_engram_scales(const Safetensors& files, const TensorInfo& table,
                            SafetensorsWriter& writer);

}  // namespace tensorfold::exl3
