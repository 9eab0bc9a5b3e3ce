// The two kinds of WeightSource and the slice loading they share. Internal to engine/weights and
// its tests; everything else includes weight_source.h.
#pragma once

#include <memory>
#include <vector>

#include "engine/base/status.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/weight_source.h"

namespace tensorfold {

Result<std::unique_ptr<WeightSource>> open_folder_source(const WeightSourceOptions& options);
Result<std::unique_ptr<WeightSource>> open_image_source(const WeightSourceOptions& options);

// The rank's slice of an entry that is not stored by output groups and not absent on this rank.
Result<Weight> load_slice(const Checkpoint::Entry& entry, const ModelConfig& config,
                          const Partition& part);
// The rank's output groups of attn.wo_a, one weight each.
Result<std::vector<Weight>> load_group_slices(const Checkpoint::Entry& entry,
                                              const Partition& part);
// Bytes of the rank's slice, as stored (signs of old EXL3 files widened). 0: absent.
int64_t slice_bytes(const Checkpoint::Entry& entry, const ModelConfig& config,
                    const Partition& part);

}  // namespace tensorfold
