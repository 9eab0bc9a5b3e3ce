// Writes a model folder: a list of tensors, each with a function that gives its bytes, dealt to
// shards of bounded size with an index. Internal to engine/weights.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/weights/safetensors.h"

namespace tensorfold {

struct OutTensor {
  SafetensorsWriter::Declaration declaration;
  std::function<Status(SafetensorsWriter&)> write;  // appends all of its bytes, in order
  int64_t bytes() const;
};

// Makes `folder` when needed; an error when it holds a model already.
Status prepare_model_folder(const std::string& folder);

// model.safetensors, or model-0000I-of-0000N.safetensors and the index when one shard is too small.
// The index is written last.
Status write_model_files(const std::string& folder, const std::vector<OutTensor>& tensors,
                         int64_t shard_bytes_max,
                         const std::function<void(std::string_view)>& progress);

// Copies tokenizer.json, tokenizer_config.json, generation_config.json and the token map when they
// are there.
Status copy_side_files(const std::string& from, const std::string& to);

// config.json as it is, but for quantization_config: replaced, or removed when `quantization` is
// empty (else JSON text).
Status write_config(const std::string& from, const std::string& to,
                    const std::string& quantization);

// Tensor `t` as it is stored.
OutTensor copy_tensor(const Safetensors& files, const TensorInfo& t);

}  // namespace tensorfold
