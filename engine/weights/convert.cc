// Dequantizing a model folder (see convert.h).
#include "engine/weights/convert.h"

#include <sys/stat.h>

#include <algorithm>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "engine/weights/model_writer.h"

namespace tensorfold {
namespace {

bool same_folder(const std::string& a, const std::string& b) {
  struct stat x = {}, y = {};
  return ::stat(a.c_str(), &x) == 0 && ::stat(b.c_str(), &y) == 0 && x.st_dev == y.st_dev &&
         x.st_ino == y.st_ino;
}

bool quantised(WeightKind kind) {
  return kind == WeightKind::kFp8 || kind == WeightKind::kFp4 || kind == WeightKind::kExl3;
}

// Rows that fit the bound, in whole Hadamard blocks.
int64_t rows_at_once(int64_t in) {
  const int64_t rows = kConvertRowsBytesMax / (4 * std::max<int64_t>(in, 1));
  return std::max<int64_t>(rows / exl3::kDimMultiple, 1) * exl3::kDimMultiple;
}

Status append_bf16(SafetensorsWriter& writer, std::span<const float> values) {
  std::vector<uint16_t> words(values.size());
  std::transform(values.begin(), values.end(), words.begin(), fp32_to_bf16);
  return writer.append(std::as_bytes(std::span<const uint16_t>(words)));
}

Status write_part(const StoredWeight& stored, const StoredPart& part, SafetensorsWriter& writer) {
  const int64_t step = rows_at_once(part.in);
  for (int64_t begin = 0; begin < part.out; begin += step) {
    const int64_t end = std::min(part.out, begin + step);
    TF_ASSIGN_OR_RETURN(const Weight rows,
                        read_stored(*stored.files, part, {begin, end}, {0, part.in}));
    std::vector<float> values(static_cast<size_t>(rows.out * rows.in));
    dequantize(rows, values);
    TF_RETURN_IF_ERROR(append_bf16(writer, values));
  }
  return ok_status();
}

Result<OutTensor> dequantized(const Checkpoint::Entry& entry) {
  for (const StoredPart& part : entry.stored.parts) {
    if (part.bias != nullptr) {
      return unsupported(entry.stored.files->where(*part.bias) +
                         ": a bias cannot be kept with a plain weight");
    }
  }
  const auto write = [&entry](SafetensorsWriter& writer) -> Status {
    for (const StoredPart& part : entry.stored.parts) {
      TF_RETURN_IF_ERROR(write_part(entry.stored, part, writer));
    }
    return ok_status();
  };
  std::vector<int64_t> shape = {entry.spec.out};
  if (!entry.spec.vector) shape.push_back(entry.spec.in);
  return OutTensor{
      {entry.spec.name + (entry.spec.bare ? "" : ".weight"), DType::kBf16, std::move(shape)},
      write};
}

OutTensor dequantized_table(const std::string& name, const EngramStorage& storage) {
  const auto write = [&storage](SafetensorsWriter& writer) -> Status {
    const std::unique_ptr<EngramTable> table = make_engram_table(storage, /*cache_rows=*/0);
    const int64_t step = std::clamp<int64_t>(kConvertRowsBytesMax / (int64_t{4} * storage.width), 1,
                                             kEngramBatchRowsMax);
    const auto width = static_cast<size_t>(storage.width);
    const auto row_bytes = static_cast<size_t>(table->row_bytes());
    for (int64_t begin = 0; begin < storage.rows.end; begin += step) {
      const int64_t end = std::min(storage.rows.end, begin + step);
      std::vector<int64_t> rows;
      for (int64_t r = begin; r < end; ++r) rows.push_back(r);
      std::vector<std::byte> raw(rows.size() * row_bytes);
      TF_RETURN_IF_ERROR(table->read(rows, raw));
      std::vector<float> values(rows.size() * width);
      for (size_t r = 0; r < rows.size(); ++r) {
        table->decode_row(std::span(raw).subspan(r * row_bytes, row_bytes),
                          std::span(values).subspan(r * width, width));
      }
      TF_RETURN_IF_ERROR(append_bf16(writer, values));
    }
    return ok_status();
  };
  return {{name + ".weight", DType::kBf16, {storage.rows.end, storage.width}}, write};
}

}  // namespace

Result<ConvertReport> dequantize_model(const std::string& in, const std::string& out,
                                       const std::function<void(std::string_view)>& progress) {
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> model, Checkpoint::open(in, ""));
  TF_RETURN_IF_ERROR(model->complete(/*with_engram=*/false));
  if (same_folder(in, out)) return invalid_argument(out + ": is the folder to read from");
  TF_RETURN_IF_ERROR(prepare_model_folder(out));
  ConvertReport report;
  std::vector<OutTensor> tensors;
  for (const Checkpoint::Entry& entry : model->entries()) {
    if (quantised(entry.stored.kind())) {
      TF_ASSIGN_OR_RETURN(OutTensor tensor, dequantized(entry));
      tensors.push_back(std::move(tensor));
      ++report.converted;
      continue;
    }
    for (const TensorInfo* t : entry.stored.tensors()) {
      tensors.push_back(copy_tensor(model->files(), *t));
      ++report.copied;
    }
  }
  for (size_t i = 0; i < model->engram().size(); ++i) {
    const std::optional<EngramStorage>& storage = model->engram()[i];
    if (!storage.has_value()) continue;
    const std::string name = engram_table_name(model->config(), static_cast<int>(i));
    if (storage->kind == WeightKind::kFp8) {
      tensors.push_back(dequantized_table(name, *storage));
      ++report.converted;
    } else {
      tensors.push_back(copy_tensor(model->files(), *model->files().find(name + ".weight")));
      ++report.copied;
    }
  }
  for (const TensorInfo& t : model->files().tensors()) {
    if (!is_vision_tensor(t.name)) continue;
    tensors.push_back(copy_tensor(model->files(), t));
    ++report.copied;
  }
  for (const OutTensor& t : tensors) report.bytes += t.bytes();
  TF_RETURN_IF_ERROR(write_model_files(out, tensors, kShardBytesMax, progress));
  TF_RETURN_IF_ERROR(copy_side_files(in, out));
  TF_RETURN_IF_ERROR(write_config(in, out, ""));
  return report;
}

}  // namespace tensorfold
