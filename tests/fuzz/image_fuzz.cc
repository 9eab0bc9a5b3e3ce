// The prepared image's superblock and directory from any bytes: decoded or refused, and what was
// decoded survives being written and read again.
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/base/check.h"
#include "engine/weights/image_format.h"
#include "engine/weights/token_map.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tensorfold;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  if (const auto directory = decode_directory(text); directory.ok()) {
    TF_CHECK(encode_directory(*directory) == text);
    for (const ImageWeight& weight : directory->weights) {
      for (const ImagePart& part : weight.parts) (void)section_bytes(part);
    }
  }
  (void)decode_superblock(bytes).ok();
  (void)unpack_token_map(bytes).ok();
  return 0;
}
