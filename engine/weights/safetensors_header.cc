// Parses safetensors headers and indexes with simdjson, whose objects keep repeated keys, so that
// a tensor declared twice is seen. Pure functions of text; no file is touched here.
#include "engine/weights/safetensors_header.h"

#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <set>

namespace tensorfold {
namespace {

constexpr size_t kHeaderDepthMax = 16;
constexpr size_t kMetadataEntriesMax = 1024;

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int bytes;
};

constexpr DTypeRow kDTypes[] = {
    {DType::kBool, "BOOL", 1},      {DType::kU8, "U8", 1},          {DType::kI8, "I8", 1},
    {DType::kF8E4M3, "F8_E4M3", 1}, {DType::kF8E5M2, "F8_E5M2", 1}, {DType::kF8E8M0, "F8_E8M0", 1},
    {DType::kI16, "I16", 2},        {DType::kU16, "U16", 2},        {DType::kF16, "F16", 2},
    {DType::kBf16, "BF16", 2},      {DType::kI32, "I32", 4},        {DType::kU32, "U32", 4},
    {DType::kF32, "F32", 4},        {DType::kF64, "F64", 8},        {DType::kI64, "I64", 8},
    {DType::kU64, "U64", 8},
};

const DTypeRow& row_of(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row;
  }
  TF_CHECK_MSG(false, "a DType without a row");
  return kDTypes[0];
}

std::optional<DType> dtype_by_name(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

Status tensor_error(std::string_view name, const std::string& what) {
  return data_loss("tensor " + std::string(name) + ": " + what);
}

// A whole number >= 0 that fits int64, or nothing.
std::optional<int64_t> natural(simdjson::dom::element value) {
  int64_t n = 0;
  if (value.get_int64().get(n) != simdjson::SUCCESS || n < 0) return std::nullopt;
  return n;
}

Status read_shape(std::string_view name, simdjson::dom::element value, TensorInfo& t) {
  simdjson::dom::array list;
  if (value.get_array().get(list) != simdjson::SUCCESS) {
    return tensor_error(name, "shape is not a list");
  }
  for (simdjson::dom::element item : list) {
    const std::optional<int64_t> n = natural(item);
    if (!n.has_value()) return tensor_error(name, "shape is not a list of natural numbers");
    if (t.shape.size() == static_cast<size_t>(kTensorRankMax)) {
      return tensor_error(name, "more than " + std::to_string(kTensorRankMax) + " dimensions");
    }
    t.shape.push_back(*n);
  }
  return ok_status();
}

Status read_offsets(std::string_view name, simdjson::dom::element value, int64_t data_bytes,
                    TensorInfo& t) {
  simdjson::dom::array list;
  std::vector<int64_t> ends;
  if (value.get_array().get(list) == simdjson::SUCCESS && list.size() == 2) {
    for (simdjson::dom::element item : list) {
      if (const std::optional<int64_t> n = natural(item)) ends.push_back(*n);
    }
  }
  if (ends.size() != 2) {
    return tensor_error(name, "data_offsets is not a list of two natural numbers");
  }
  if (ends[0] > ends[1]) return tensor_error(name, "data_offsets end before they begin");
  if (ends[1] > data_bytes) {
    return tensor_error(name, "truncated: its data ends at byte " + std::to_string(ends[1]) +
                                  " of a buffer of " + std::to_string(data_bytes));
  }
  t.offset = ends[0];
  t.bytes = ends[1] - ends[0];
  return ok_status();
}

Status check_size(const TensorInfo& t) {
  int64_t bytes = dtype_bytes(t.dtype);
  bool overflow = false;
  for (int64_t n : t.shape) overflow = __builtin_mul_overflow(bytes, n, &bytes) || overflow;
  // With a zero dimension the others may be anything.
  if (std::find(t.shape.begin(), t.shape.end(), 0) != t.shape.end()) overflow = false, bytes = 0;
  if (!overflow && bytes == t.bytes) return ok_status();
  return tensor_error(t.name, "shape " + shape_text(t.shape) + " of " +
                                  std::string(dtype_name(t.dtype)) + " does not take the " +
                                  std::to_string(t.bytes) + " bytes of its data_offsets");
}

Status read_tensor(std::string_view name, simdjson::dom::element value, int64_t data_bytes,
                   TensorInfo& t) {
  simdjson::dom::object fields;
  if (value.get_object().get(fields) != simdjson::SUCCESS) {
    return tensor_error(name, "its entry is not an object");
  }
  bool has_dtype = false, has_shape = false, has_offsets = false;
  for (const auto& [key, field] : fields) {
    bool& seen = key == "dtype" ? has_dtype : key == "shape" ? has_shape : has_offsets;
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return tensor_error(name, "unknown field \"" + std::string(key) + "\"");
    }
    if (seen) return tensor_error(name, "field \"" + std::string(key) + "\" comes twice");
    seen = true;
    if (key == "dtype") {
      std::string_view text;
      if (field.get_string().get(text) != simdjson::SUCCESS) {
        return tensor_error(name, "dtype is not a string");
      }
      const std::optional<DType> dtype = dtype_by_name(text);
      if (!dtype) return tensor_error(name, "unknown dtype \"" + std::string(text) + "\"");
      t.dtype = *dtype;
    } else if (key == "shape") {
      TF_RETURN_IF_ERROR(read_shape(name, field, t));
    } else {
      TF_RETURN_IF_ERROR(read_offsets(name, field, data_bytes, t));
    }
  }
  if (!has_dtype || !has_shape || !has_offsets) {
    return tensor_error(name, "dtype, shape or data_offsets is missing");
  }
  t.name = name;
  return check_size(t);
}

Status read_metadata(simdjson::dom::element value,
                     std::map<std::string, std::string, std::less<>>& metadata) {
  simdjson::dom::object fields;
  if (value.get_object().get(fields) != simdjson::SUCCESS) {
    return data_loss("__metadata__ is not an object");
  }
  for (const auto& [key, field] : fields) {
    std::string_view text;
    if (field.get_string().get(text) != simdjson::SUCCESS) {
      return data_loss("__metadata__: \"" + std::string(key) + "\" is not a string");
    }
    if (metadata.size() < kMetadataEntriesMax) {
      metadata.emplace(std::string(key), std::string(text));
    }
  }
  return ok_status();
}

// The tensors must fill the buffer one after the other.
Status check_layout(std::span<const TensorInfo> tensors, int64_t data_bytes) {
  std::vector<const TensorInfo*> order;
  order.reserve(tensors.size());
  for (const TensorInfo& t : tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes;
  });
  int64_t end = 0;
  const TensorInfo* last = nullptr;
  for (const TensorInfo* t : order) {
    if (t->offset < end) {
      return tensor_error(t->name, "its data overlaps that of tensor " + last->name);
    }
    if (t->offset > end) {
      return tensor_error(
          t->name, "a hole of " + std::to_string(t->offset - end) + " bytes before its data");
    }
    end = t->offset + t->bytes;
    last = t;
  }
  if (end != data_bytes) {
    return data_loss(std::to_string(data_bytes - end) + " bytes after the last tensor" +
                     (last == nullptr ? "" : " (" + last->name + ")"));
  }
  return ok_status();
}

Status check_names(std::span<const TensorInfo> tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorInfo& t : tensors) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return ok_status();
  return tensor_error(*twice, "duplicate: it is declared twice");
}

Status parse_json_object(simdjson::dom::parser& parser, std::string_view text,
                         simdjson::dom::object& root) {
  simdjson::dom::element element;
  simdjson::error_code error = parser.allocate(std::max<size_t>(text.size(), 64), kHeaderDepthMax);
  if (error == simdjson::SUCCESS) {
    error = parser.parse(text.data(), text.size(), true).get(element);
  }
  if (error == simdjson::SUCCESS) error = element.get_object().get(root);
  if (error != simdjson::SUCCESS) {
    return data_loss(std::string("not a JSON object: ") + simdjson::error_message(error));
  }
  return ok_status();
}

}  // namespace

std::string_view dtype_name(DType dtype) { return row_of(dtype).name; }
int dtype_bytes(DType dtype) { return row_of(dtype).bytes; }

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

Status parse_safetensors_header(std::string_view text, int64_t data_offset, int64_t file_bytes,
                                int file, std::vector<TensorInfo>& tensors,
                                std::map<std::string, std::string, std::less<>>& metadata) {
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  const Status parsed = parse_json_object(parser, text, root);
  if (!parsed.ok()) return parsed.with_context("header");
  const int64_t data_bytes = file_bytes - data_offset;
  TF_CHECK(data_bytes >= 0);
  const size_t first = tensors.size();
  for (const auto& [key, value] : root) {
    if (key == "__metadata__") {
      TF_RETURN_IF_ERROR(read_metadata(value, metadata));
      continue;
    }
    if (key.empty() || key.size() > static_cast<size_t>(kTensorNameBytesMax)) {
      return data_loss("a tensor name of " + std::to_string(key.size()) + " bytes; 1.." +
                       std::to_string(kTensorNameBytesMax) + " are allowed");
    }
    if (tensors.size() == static_cast<size_t>(kTensorsMax)) {
      return data_loss("more than " + std::to_string(kTensorsMax) + " tensors");
    }
    TensorInfo t;
    TF_RETURN_IF_ERROR(read_tensor(key, value, data_bytes, t));
    t.file = file;
    tensors.push_back(std::move(t));
  }
  const std::span<TensorInfo> added = std::span(tensors).subspan(first);
  TF_RETURN_IF_ERROR(check_names(added));
  TF_RETURN_IF_ERROR(check_layout(added, data_bytes));
  for (TensorInfo& t : added) t.offset += data_offset;
  return ok_status();
}

Status parse_safetensors_index(std::string_view text, IndexMap& index) {
  simdjson::dom::parser parser;
  simdjson::dom::object root, map;
  TF_RETURN_IF_ERROR(parse_json_object(parser, text, root));
  if (root.at_key("weight_map").get_object().get(map) != simdjson::SUCCESS) {
    return data_loss("no weight_map object");
  }
  std::set<std::string_view> seen;
  for (const auto& [tensor, file] : map) {
    std::string_view name;
    if (file.get_string().get(name) != simdjson::SUCCESS) {
      return data_loss("tensor " + std::string(tensor) + ": its file is not a string");
    }
    if (!seen.insert(tensor).second) {
      return data_loss("tensor " + std::string(tensor) + ": duplicate: it is listed twice");
    }
    if (seen.size() > static_cast<size_t>(kTensorsMax)) {
      return data_loss("more than " + std::to_string(kTensorsMax) + " tensors");
    }
    index.emplace_back(tensor, name);
  }
  return ok_status();
}

}  // namespace tensorfold
