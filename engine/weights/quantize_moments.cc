// Reads the file of input second moments (see quantize_moments.h).
#include "engine/weights/quantize_moments.h"

#include <array>
#include <cstring>
#include <utility>

namespace tensorfold::exl3 {
namespace {

struct Sharing {
  std::string_view suffix, group;
};

// "PREFIX" + suffix shares the input called "PREFIX" + group.
constexpr std::array<Sharing, 8> kSharing = {{
    {"attn.wq_a", "attn.input"},
    {"attn.wkv", "attn.input"},
    {"attn.compressor.wkv", "attn.input"},
    {"attn.compressor.wgate", "attn.input"},
    {"attn.wq_b", "attn.q_latent"},
    {"attn.indexer.wq_b", "attn.q_latent"},
    {"ffn.shared_experts.w1", "ffn.input"},
    {"ffn.shared_experts.w3", "ffn.input"},
}};

}  // namespace

std::vector<std::string> moment_keys(std::string_view name) {
  std::vector<std::string> keys = {std::string(name)};
  constexpr std::string_view kExperts = ".ffn.experts.";
  const size_t experts = name.find(kExperts);
  if (experts != std::string_view::npos) {
    const std::string prefix(name.substr(0, experts + 1));
    keys.push_back(prefix + (name.ends_with(".w2") ? "ffn.experts.w2" : "ffn.input"));
    return keys;
  }
  for (const Sharing& s : kSharing) {
    if (!name.ends_with(s.suffix)) continue;
    const size_t at = name.size() - s.suffix.size();
    if (at == 0 || name[at - 1] != '.') continue;
    keys.push_back(std::string(name.substr(0, at)) + std::string(s.group));
    break;
  }
  return keys;
}

Result<MomentsFile> MomentsFile::open(const std::string& path) {
  TF_ASSIGN_OR_RETURN(Safetensors files, Safetensors::open(path));
  return MomentsFile(std::move(files));
}

Result<double> MomentsFile::count_of(const std::string& key) const {
  const TensorInfo* t = files_.find(key + ".count");
  if (t == nullptr) {
    return data_loss(files_.path() + ": " + key + ".hessian comes without " + key + ".count");
  }
  if (t->elements() != 1) {
    return data_loss(files_.where(*t) + ": shape " + shape_text(t->shape) + ", expected one value");
  }
  std::array<std::byte, 8> raw = {};
  TF_RETURN_IF_ERROR(
      files_.read(*t, 0, std::span<std::byte>(raw).first(static_cast<size_t>(t->bytes))));
  auto as = [&raw]<typename T>(T value) {
    std::memcpy(&value, raw.data(), sizeof(value));
    return static_cast<double>(value);
  };
  switch (t->dtype) {
    case DType::kF32:
      return as(float{});
    case DType::kF64:
      return as(double{});
    case DType::kI32:
      return as(int32_t{});
    case DType::kI64:
      return as(int64_t{});
    default:
      return data_loss(files_.where(*t) + ": type " + std::string(dtype_name(t->dtype)) +
                       ", expected F32, F64, I32 or I64");
  }
}

Result<std::optional<InputMoments>> MomentsFile::find(std::string_view weight_name,
                                                      int64_t in) const {
  for (const std::string& key : moment_keys(weight_name)) {
    const TensorInfo* t = files_.find(key + ".hessian");
    if (t == nullptr) continue;
    if (t->dtype != DType::kF32 || t->shape != std::vector<int64_t>{in, in}) {
      return data_loss(files_.where(*t) + ": " + std::string(dtype_name(t->dtype)) + " " +
                       shape_text(t->shape) + ", expected F32 [" + std::to_string(in) + ", " +
                       std::to_string(in) + "] for " + std::string(weight_name));
    }
    TF_ASSIGN_OR_RETURN(const double rows, count_of(key));
    InputMoments moments{in, std::vector<float>(static_cast<size_t>(in * in)), rows};
    TF_RETURN_IF_ERROR(files_.read(*t, 0, std::as_writable_bytes(std::span(moments.sum))));
    return std::optional<InputMoments>(std::move(moments));
  }
  return std::optional<InputMoments>();
}

}  // namespace tensorfold::exl3
