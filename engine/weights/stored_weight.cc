// Recognises how a weight is stored (see stored_weight.h). Looks at headers only.
#include "engine/weights/stored_weight.h"

#include <array>

namespace tensorfold {
namespace {

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

Status wrong(const Safetensors& files, const TensorInfo& t, const std::string& what) {
  return data_loss(files.where(t) + ": " + what);
}

Status check_tensor(const Safetensors& files, const TensorInfo& t, std::span<const DType> dtypes,
                    const std::vector<int64_t>& shape) {
  bool known = false;
  std::string names;
  for (DType dtype : dtypes) {
    known = known || t.dtype == dtype;
    names += (names.empty() ? "" : " or ") + std::string(dtype_name(dtype));
  }
  if (!known) {
    return wrong(files, t, "dtype is " + std::string(dtype_name(t.dtype)) + ", expected " + names);
  }
  if (t.shape != shape) {
    return wrong(files, t, "shape is " + shape_text(t.shape) + ", expected " + shape_text(shape));
  }
  return ok_status();
}

constexpr std::array kScaleTypes = {DType::kF8E8M0, DType::kU8};

// The tensors of one stored matrix named `name`, wherever they are.
class Finder {
 public:
  Finder(const Safetensors& files, const WeightSpec& spec, std::string name, int64_t rows)
      : files_(files), spec_(spec), name_(std::move(name)) {
    part_.out = rows;
    part_.in = spec.in;
  }

  Result<std::optional<StoredPart>> find() {
    const TensorInfo* trellis = get(".trellis");
    const TensorInfo* values = files_.find(spec_.bare ? name_ : name_ + ".weight");
    if (trellis != nullptr && values != nullptr) {
      return wrong(files_, *values, "the same weight is also stored as " + trellis->name);
    }
    if (trellis == nullptr && values == nullptr) return lonely_parts();
    part_.data = trellis != nullptr ? trellis : values;
    part_.kind = WeightKind::kExl3;
    if (trellis != nullptr) TF_RETURN_IF_ERROR(check_kind());
    TF_RETURN_IF_ERROR(trellis != nullptr ? exl3() : plain_or_block());
    TF_RETURN_IF_ERROR(check_kind());
    return std::optional<StoredPart>(part_);
  }

 private:
  Status check_kind() const {
    if (kind_allowed(spec_.weight_class, part_.kind)) return ok_status();
    return wrong(
        files_, *part_.data,
        "stored as " + std::string(weight_kind_name(part_.kind)) + ", which this weight cannot be");
  }
  const TensorInfo* get(std::string_view suffix) const {
    return files_.find(name_ + std::string(suffix));
  }
  const TensorInfo* get_either(std::string_view a, std::string_view b) const {
    const TensorInfo* t = get(a);
    return t != nullptr ? t : get(b);
  }

  // Neither trellis nor values: scales or signs without them are a damaged checkpoint.
  Result<std::optional<StoredPart>> lonely_parts() const {
    for (std::string_view suffix : {".suh", ".svh", ".su", ".sv", ".mcg", ".mul1", ".scale"}) {
      if (const TensorInfo* t = get(suffix)) {
        return wrong(files_, *t, "there, but " + name_ + ".trellis or .weight is missing");
      }
    }
    return std::optional<StoredPart>();
  }

  Status exl3() {
    const TensorInfo& t = *part_.data;
    part_.kind = WeightKind::kExl3;
    part_.padded_in = round_up(part_.in, exl3::kDimMultiple);
    part_.padded_out = round_up(part_.out, exl3::kDimMultiple);
    if (get(".scale") != nullptr) {
      return wrong(files_, *get(".scale"), "EXL3 with a scale tensor is not supported");
    }
    const TensorInfo* mcg = get(".mcg");
    const TensorInfo* mul1 = get(".mul1");
    if (mcg != nullptr && mul1 != nullptr) {
      return wrong(files_, t, "both codebook markers, .mcg and .mul1, are there");
    }
    part_.marker = mcg != nullptr ? mcg : mul1;
    part_.codebook = mcg != nullptr    ? exl3::Codebook::kMcg
                     : mul1 != nullptr ? exl3::Codebook::kMul1
                                       : exl3::Codebook::k3inst;
    if (part_.marker != nullptr &&
        (part_.marker->dtype != DType::kI32 || part_.marker->elements() != 1)) {
      return wrong(files_, *part_.marker, "a codebook marker is one I32");
    }
    TF_RETURN_IF_ERROR(trellis_shape(t));
    TF_RETURN_IF_ERROR(signs(".suh", ".su", part_.padded_in, part_.suh));
    TF_RETURN_IF_ERROR(signs(".svh", ".sv", part_.padded_out, part_.svh));
    part_.bias = get(".bias");
    if (part_.bias == nullptr) return ok_status();
    constexpr std::array kTypes = {DType::kF16, DType::kF32};
    return check_tensor(files_, *part_.bias, kTypes, {part_.padded_out});
  }

  Status trellis_shape(const TensorInfo& t) {
    const int64_t last = t.shape.empty() ? 0 : t.shape.back();
    constexpr int64_t kWordsPerHalfBit = 8;
    part_.half_bits = last % kWordsPerHalfBit == 0 && last <= exl3::kTileWordsMax
                          ? static_cast<int>(last / kWordsPerHalfBit)
                          : 0;
    if (!exl3::is_width(part_.half_bits, part_.codebook)) {
      return wrong(files_, t,
                   "shape is " + shape_text(t.shape) + ": its last dimension is no width of the " +
                       std::string(exl3::codebook_name(part_.codebook)) + " codebook");
    }
    constexpr std::array kTypes = {DType::kI16};
    return check_tensor(
        files_, t, kTypes,
        {part_.padded_in / exl3::kTileSide, part_.padded_out / exl3::kTileSide, last});
  }

  // fp16 scales with signs, or the sign words of old files.
  Status signs(std::string_view scaled, std::string_view old, int64_t n, const TensorInfo*& out) {
    out = get_either(scaled, old);
    if (out == nullptr) {
      return wrong(files_, *part_.data,
                   "there, but " + name_ + std::string(scaled) + " is missing");
    }
    if (get(scaled) != nullptr) {
      constexpr std::array kTypes = {DType::kF16};
      return check_tensor(files_, *out, kTypes, {n});
    }
    constexpr std::array kTypes = {DType::kI16, DType::kU16};
    return check_tensor(files_, *out, kTypes, {n / 16});
  }

  Status plain_or_block() {
    const TensorInfo& t = *part_.data;
    switch (t.dtype) {
      case DType::kF32:
        return plain(WeightKind::kF32);
      case DType::kF16:
        return plain(WeightKind::kF16);
      case DType::kBf16:
        return plain(WeightKind::kBf16);
      case DType::kF8E4M3:
        return fp8();
      case DType::kI8:
      case DType::kU8:
        return fp4();
      default:
        return wrong(files_, t,
                     "dtype " + std::string(dtype_name(t.dtype)) + " is not one of a weight");
    }
  }

  Status plain(WeightKind kind) {
    part_.kind = kind;
    std::vector<int64_t> shape = {part_.out};
    if (!spec_.vector) shape.push_back(part_.in);
    const std::array types = {part_.data->dtype};
    return check_tensor(files_, *part_.data, types, shape);
  }

  Result<const TensorInfo*> scale_tensor() const {
    if (const TensorInfo* second = get(".weight_scale_2")) {
      return unsupported(files_.where(*second) +
                         ": an NVFP4 checkpoint; it cannot be served, only quantized from");
    }
    for (std::string_view suffix : {".scale", ".weight_scale", ".weight_scale_inv"}) {
      if (const TensorInfo* t = get(suffix)) return t;
    }
    return wrong(files_, *part_.data, "there, but " + name_ + ".scale is missing");
  }

  Status fp8() {
    part_.kind = WeightKind::kFp8;
    constexpr std::array kTypes = {DType::kF8E4M3};
    TF_RETURN_IF_ERROR(check_tensor(files_, *part_.data, kTypes, {part_.out, part_.in}));
    TF_ASSIGN_OR_RETURN(part_.scale, scale_tensor());
    const int64_t columns = round_up(part_.in, kScaleBlock) / kScaleBlock;
    const int64_t blocks = round_up(part_.out, kScaleBlock) / kScaleBlock;
    const bool by_row = part_.scale->shape == std::vector<int64_t>{part_.out, columns};
    part_.scale_rows = by_row && part_.out != blocks ? 1 : kScaleBlock;
    return check_tensor(files_, *part_.scale, kScaleTypes,
                        {part_.scale_rows == 1 ? part_.out : blocks, columns});
  }

  Status fp4() {
    part_.kind = WeightKind::kFp4;
    constexpr std::array kTypes = {DType::kI8, DType::kU8};
    TF_ASSIGN_OR_RETURN(part_.scale, scale_tensor());
    if (part_.in % kScaleBlock != 0) {
      return wrong(files_, *part_.data, "fp4 needs inputs in multiples of 32");
    }
    TF_RETURN_IF_ERROR(check_tensor(files_, *part_.data, kTypes, {part_.out, part_.in / 2}));
    return check_tensor(files_, *part_.scale, kScaleTypes, {part_.out, part_.in / kScaleBlock});
  }

  const Safetensors& files_;
  const WeightSpec& spec_;
  const std::string name_;
  StoredPart part_;
};

// "head" is also published as "lm_head".
std::string_view other_name(std::string_view name) {
  return name == "head" ? std::string_view("lm_head") : std::string_view();
}

Result<std::optional<StoredWeight>> find_slices(const Safetensors& files, const WeightSpec& spec) {
  StoredWeight weight;
  weight.files = &files;
  const int64_t groups = spec.out / spec.group_rows;
  for (int64_t g = 0; g < groups; ++g) {
    const std::string name = spec.name + ".slice." + std::to_string(g);
    TF_ASSIGN_OR_RETURN(std::optional<StoredPart> part,
                        Finder(files, spec, name, spec.group_rows).find());
    if (!part.has_value() && g == 0) return std::optional<StoredWeight>();
    if (!part.has_value()) {
      return data_loss(files.where(*weight.parts.front().data) + ": there, but slice " +
                       std::to_string(g) + " of " + std::to_string(groups) + " is missing");
    }
    if (g > 0 && part->kind != weight.kind()) {
      return wrong(files, *part->data, "slices of one weight are stored in different kinds");
    }
    weight.parts.push_back(*part);
  }
  return std::optional<StoredWeight>(std::move(weight));
}

Status check_whole_groups(const Safetensors& files, const WeightSpec& spec,
                          const StoredPart& part) {
  const int block = part.kind == WeightKind::kExl3  ? exl3::kDimMultiple
                    : part.kind == WeightKind::kFp8 ? kScaleBlock
                                                    : 1;
  if (spec.group_rows == 0 || spec.group_rows % block == 0) return ok_status();
  return wrong(files, *part.data,
               "output groups of " + std::to_string(spec.group_rows) +
                   " rows cannot be cut out of a " + std::string(weight_kind_name(part.kind)) +
                   " weight");
}

}  // namespace

int64_t StoredWeight::stored_bytes() const {
  int64_t bytes = 0;
  for (const TensorInfo* t : tensors()) bytes += t->bytes;
  return bytes;
}

std::vector<const TensorInfo*> StoredWeight::tensors() const {
  std::vector<const TensorInfo*> list;
  for (const StoredPart& p : parts) {
    for (const TensorInfo* t : {p.data, p.scale, p.suh, p.svh, p.marker, p.bias}) {
      if (t != nullptr) list.push_back(t);
    }
  }
  return list;
}

Result<std::optional<StoredWeight>> find_stored(const Safetensors& files, const WeightSpec& spec) {
  std::vector<std::string> names = {spec.name};
  if (!other_name(spec.name).empty()) names.emplace_back(other_name(spec.name));
  std::optional<StoredWeight> found;
  for (const std::string& name : names) {
    TF_ASSIGN_OR_RETURN(const std::optional<StoredPart> part,
                        Finder(files, spec, name, spec.out).find());
    if (!part.has_value()) continue;
    if (found.has_value()) {
      return wrong(files, *part->data,
                   "the same weight is also stored as " + found->parts[0].data->name);
    }
    TF_RETURN_IF_ERROR(check_whole_groups(files, spec, *part));
    found = StoredWeight{&files, {*part}};
  }
  if (spec.group_rows == 0) return found;
  TF_ASSIGN_OR_RETURN(std::optional<StoredWeight> slices, find_slices(files, spec));
  if (found.has_value() && slices.has_value()) {
    return wrong(files, *slices->parts[0].data,
                 "the same weight is also stored as " + found->parts[0].data->name);
  }
  return found.has_value() ? found : slices;
}

}  // namespace tensorfold
