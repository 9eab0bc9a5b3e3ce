// Writes safetensors files (see safetensors.h). The file appears under its name only when whole.
#include <array>

#include "engine/base/json.h"
#include "engine/weights/safetensors.h"

namespace tensorfold {
namespace {

constexpr size_t kDataAlignBytes = 64;  // the header is padded with spaces to it

int64_t tensor_bytes(const SafetensorsWriter::Declaration& t) {
  int64_t bytes = dtype_bytes(t.dtype);
  for (int64_t n : t.shape) bytes *= n;
  return bytes;
}

std::string header_text(std::span<const SafetensorsWriter::Declaration> tensors,
                        std::span<const std::pair<std::string, std::string>> metadata,
                        int64_t& total) {
  std::string text = "{\"__metadata__\":{";
  for (size_t i = 0; i < metadata.size(); ++i) {
    if (i > 0) text += ",";
    append_json_string(text, metadata[i].first);
    text += ":";
    append_json_string(text, metadata[i].second);
  }
  text += "}";
  total = 0;
  for (const SafetensorsWriter::Declaration& t : tensors) {
    const int64_t end = total + tensor_bytes(t);
    text += ",";
    append_json_string(text, t.name);
    text += ":{\"dtype\":\"" + std::string(dtype_name(t.dtype)) +
            "\",\"shape\":" + shape_text(t.shape) + ",\"data_offsets\":[" + std::to_string(total) +
            "," + std::to_string(end) + "]}";
    total = end;
  }
  text += "}";
  text.append((kDataAlignBytes - (text.size() + 8) % kDataAlignBytes) % kDataAlignBytes, ' ');
  return text;
}

}  // namespace

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    const std::string& path, std::vector<Declaration> tensors,
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  TF_ASSIGN_OR_RETURN(std::unique_ptr<AtomicFile> file, AtomicFile::create(path));
  int64_t total = 0;
  const std::string header = header_text(tensors, metadata, total);
  if (static_cast<int64_t>(header.size()) > kSafetensorsHeaderBytesMax) {
    return invalid_argument(path + ": the header would be larger than " +
                            std::to_string(kSafetensorsHeaderBytesMax) + " bytes");
  }
  std::array<std::byte, 8> length = {};
  for (size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<std::byte>(uint64_t{header.size()} >> (8 * i));
  }
  TF_RETURN_IF_ERROR(file->append(length));
  TF_RETURN_IF_ERROR(file->append(header));
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter(std::move(file)));
  writer->missing_bytes_ = total;
  return writer;
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  missing_bytes_ -= static_cast<int64_t>(bytes.size());
  TF_CHECK_MSG(missing_bytes_ >= 0, "more bytes than were declared");
  return file_->append(bytes);
}

Status SafetensorsWriter::commit() {
  TF_CHECK_EQ(missing_bytes_, 0);
  return file_->commit();
}

}  // namespace tensorfold
