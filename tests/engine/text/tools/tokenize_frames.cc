// A filter for the differential test: texts in, token ids out, in binary frames.
//
// usage: tokenize_frames TOKENIZER_JSON < frames > ids
// Input: per text a little-endian u32 of bytes, then the bytes. Output: per text a u32 of ids, then
// the ids as u32. Exits 1 when decoding the ids does not give the text back.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "engine/text/tokenizer.h"

namespace {

bool read_u32(uint32_t* value) {
  unsigned char raw[4];
  if (std::fread(raw, 1, 4, stdin) != 4) return false;
  *value = static_cast<uint32_t>(raw[0]) | static_cast<uint32_t>(raw[1]) << 8 |
           static_cast<uint32_t>(raw[2]) << 16 | static_cast<uint32_t>(raw[3]) << 24;
  return true;
}

void write_u32(uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) std::putchar(static_cast<int>(value >> shift & 0xFF));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tokenize_frames TOKENIZER_JSON\n");
    return 2;
  }
  const auto tokenizer = tensorfold::Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().to_string().c_str());
    return 1;
  }
  uint32_t bytes = 0;
  while (read_u32(&bytes)) {
    std::string text(bytes, '\0');
    if (std::fread(text.data(), 1, bytes, stdin) != bytes) return 1;
    const auto ids = (*tokenizer)->encode(text);
    if ((*tokenizer)->decode(ids) != text) {
      std::fprintf(stderr, "decode(encode(text)) is not the text\n");
      return 1;
    }
    write_u32(static_cast<uint32_t>(ids.size()));
    for (const auto id : ids) write_u32(static_cast<uint32_t>(id));
  }
  return 0;
}
