// Appending to a frame's body. Owner: see the header.
#include "engine/cluster/wire.h"

namespace tensorfold {

// Here and not inline: GCC 12 sees overflows in the inlined form that can't happen.
void append_bytes(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

void WireWriter::bytes(std::span<const std::byte> value) { append_bytes(out_, value); }

void WireWriter::number(uint64_t value, int count) {
  for (int i = 0; i < count; ++i)
    out_.push_back(static_cast<std::byte>(static_cast<uint8_t>(value >> (8 * i))));
}

}  // namespace tensorfold
