// The file of input second moments that a calibration run leaves and the quantizer reads. One
// safetensors file; for a key K
//   K.hessian  F32 [k, k]  sum over rows x of x^T x, x the input of the weight (k = its inputs)
//   K.count    F32, F64, I32 or I64, one value: the rows summed
// K is the weight's name ("layers.3.attn.wq_b", "layers.3.attn.wo_a.slice.1",
// "layers.3.ffn.experts.7.w2", "head") or, for weights that share their input, a group's name:
//   layers.L.attn.input      wq_a, wkv, compressor.wkv, compressor.wgate
//   layers.L.attn.q_latent   wq_b, indexer.wq_b
//   layers.L.ffn.input       w1 and w3 of every expert, routed and shared
//   layers.L.ffn.experts.w2  w2 of every routed expert
// with mtp.J in place of layers.L for the drafter. The weight's own name comes first.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/weights/quantize.h"
#include "engine/weights/safetensors.h"

namespace tensorfold::exl3 {

// Keys to look under for a weight, in order.
std::vector<std::string> moment_keys(std::string_view weight_name);

class MomentsFile {
 public:
  static Result<MomentsFile> open(const std::string& path);

  // The moments of the inputs of a weight with `in` inputs; nullopt when the file has none for it.
  // A wrong type or shape, or a missing count, is an error that names file and tensor.
  Result<std::optional<InputMoments>> find(std::string_view weight_name, int64_t in) const;

 private:
  explicit MomentsFile(Safetensors files) : files_(std::move(files)) {}
  Result<double> count_of(const std::string& key) const;
  Safetensors files_;
};

}  // namespace tensorfold::exl3
