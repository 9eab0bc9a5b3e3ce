// WireWriter, WireReader: little-endian numbers and bounded texts, for the bodies of link frames.
// The reader never reads past its span: after the first failure every call says no.
// Owner: the caller. Deliberately has no schema: messages.h has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

void append_bytes(std::vector<std::byte>& to, std::span<const std::byte> bytes);

class WireWriter {
 public:
  void u8(uint8_t value) { number(value, 1); }
  void u16(uint16_t value) { number(value, 2); }
  void u32(uint32_t value) { number(value, 4); }
  void u64(uint64_t value) { number(value, 8); }
  void text(std::string_view value) {
    u32(static_cast<uint32_t>(value.size()));
    bytes(std::as_bytes(std::span(value.data(), value.size())));
  }
  void bytes(std::span<const std::byte> value);
  const std::vector<std::byte>& out() const { return out_; }

 private:
  void number(uint64_t value, int count);
  std::vector<std::byte> out_;
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> in) : in_(in) {}

  bool u8(uint8_t& value) { return number(value, 1); }
  bool u16(uint16_t& value) { return number(value, 2); }
  bool u32(uint32_t& value) { return number(value, 4); }
  bool u64(uint64_t& value) { return number(value, 8); }
  bool i64(int64_t& value) {
    uint64_t bits = 0;
    if (!u64(bits)) return false;
    value = static_cast<int64_t>(bits);
    return true;
  }
  bool bytes(size_t count, std::span<const std::byte>& value) {
    if (failed_ || count > in_.size()) return fail();
    value = in_.first(count);
    in_ = in_.subspan(count);
    return true;
  }
  bool text(size_t bytes_max, std::string& value) {
    uint32_t count = 0;
    std::span<const std::byte> part;
    if (!u32(count) || count > bytes_max || !bytes(count, part)) return fail();
    value.assign(reinterpret_cast<const char*>(part.data()), part.size());
    return true;
  }
  // Everything was read and nothing failed.
  bool done() const { return !failed_ && in_.empty(); }

 private:
  bool fail() {
    failed_ = true;
    return false;
  }
  template <typename T>
  bool number(T& value, size_t count) {
    std::span<const std::byte> part;
    if (!bytes(count, part)) return false;
    uint64_t bits = 0;
    for (size_t i = 0; i < count; ++i) bits |= std::to_integer<uint64_t>(part[i]) << (8 * i);
    value = static_cast<T>(bits);
    return true;
  }

  std::span<const std::byte> in_;
  bool failed_ = false;
};

}  // namespace tensorfold
