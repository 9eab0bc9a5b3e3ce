// Appending to a frame's body. Owner: see the header.
#include "engine/cluster/wire.h"

namespace tensorfold {

void WireWriter::bytes(std::span<const std::byte> value) {
  out_.insert(out_.end(), value.begin(), value.end());
}

void WireWriter::number(uint64_t value, int count) {
  for (int i = 0; i < count; ++i)
    out_.push_back(static_cast<std::byte>(static_cast<uint8_t>(value >> (8 * i))));
}

}  // namespace tensorfold
