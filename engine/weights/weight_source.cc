// What folder and image have in common (see weight_source.h).
#include "engine/weights/weight_source.h"

#include <algorithm>

#include "engine/weights/source_makers.h"

namespace tensorfold {
namespace {

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

int64_t exl3_bytes(const StoredPart& part, int64_t out, int64_t in) {
  const int64_t padded_out = round_up(out, exl3::kDimMultiple);
  const int64_t padded_in = round_up(in, exl3::kDimMultiple);
  constexpr int64_t kTileValues = exl3::kTileValues;
  const int64_t vectors = padded_in + padded_out + (part.bias != nullptr ? padded_out : 0);
  return padded_out * padded_in / kTileValues * exl3::tile_bytes(part.half_bits) + 2 * vectors;
}

int64_t part_bytes(const StoredPart& part, int64_t out, int64_t in) {
  const int64_t scales_in = round_up(in, kScaleBlock) / kScaleBlock;
  switch (part.kind) {
    case WeightKind::kF32:
      return out * in * 4;
    case WeightKind::kF16:
    case WeightKind::kBf16:
      return out * in * 2;
    case WeightKind::kFp8:
      return out * in + round_up(out, part.scale_rows) / part.scale_rows * scales_in;
    case WeightKind::kFp4:
      return out * in / 2 + out * scales_in;
    case WeightKind::kExl3:
      return exl3_bytes(part, out, in);
  }
  return 0;
}

}  // namespace

int64_t slice_bytes(const Checkpoint::Entry& entry, const ModelConfig& config,
                    const Partition& part) {
  const WeightSpec& spec = entry.spec;
  const StoredPart& stored = entry.stored.parts[0];
  if (spec.group_rows != 0) {
    int64_t bytes = 0;
    for (int64_t g = part.o_groups.begin; g < part.o_groups.end; ++g) {
      const bool sliced = entry.stored.parts.size() > 1;
      bytes += part_bytes(sliced ? entry.stored.parts[static_cast<size_t>(g)] : stored,
                          spec.group_rows, spec.in);
    }
    return bytes;
  }
  const TensorSlice slice = slice_of(spec.name, config, part, spec.out, spec.in);
  if (slice.axis == SliceAxis::kAbsent) return 0;
  if (slice.axis == SliceAxis::kInput) return part_bytes(stored, spec.out, slice.range.size());
  return part_bytes(stored, slice.range.size(), spec.in);
}

Result<std::unique_ptr<WeightSource>> WeightSource::open(const WeightSourceOptions& options) {
  if (!options.prepared_path.empty()) return open_image_source(options);
  if (options.model_path.empty()) return invalid_argument("no model folder and no prepared image");
  return open_folder_source(options);
}

TensorSlice WeightSource::slice(std::string_view name) const {
  const WeightInfo* info = find(name);
  TF_CHECK_MSG(info != nullptr, "slice of a weight that does not exist");
  return slice_of(name, config(), part(), info->out, info->in);
}

bool WeightSource::holds(std::string_view name) const {
  return find(name) != nullptr && slice(name).axis != SliceAxis::kAbsent;
}

Result<std::vector<float>> WeightSource::load_f32(std::string_view name) const {
  TF_ASSIGN_OR_RETURN(const Weight weight, load(name));
  std::vector<float> values(static_cast<size_t>(weight.out * weight.in));
  dequantize(weight, values);
  return values;
}

}  // namespace tensorfold
