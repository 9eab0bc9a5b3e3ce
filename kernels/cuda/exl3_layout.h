// The order "lanes" of an EXL3 trellis: the codes of a stored matrix put so that a warp reads them
// as whole 512-byte lines and every lane gets a run of 32 consecutive values. Pure functions on
// host memory; lossless, the same number of bytes. Only whole bits 1..8 have it.
//
// A unit is 64 outputs by 64 inputs: tiles nt = 4 nb + i, kt = 4 kb + t with i, t in 0..3. Lane
// L = 4 g + t holds, for each i, the 32-bit words K g .. K g + K - 1 of tile (kt, nt): the codes of
// outputs 16 nt + g and 16 nt + g + 8 at all 16 inputs of kt. Its 4 K words make K chunks of 16
// bytes. Units go along the inputs first:
//   chunk (nb, kb, c, L) at 16 * (((nb * (in / 64) + kb) * K + c) * 32 + L) bytes.
// A lane's first window reaches into the word before its run: that is the last word of lane L - 4
// (of lane L + 28 for g = 0: the stream is a ring), fetched by one shuffle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/host_device.h"
#include "kernels/weight_view.h"

namespace tensorfold::cuda {

inline constexpr int kExl3UnitSide = 64;
inline constexpr int kExl3Block = 128;  // outputs and inputs of a rotation block

// Words (32-bit) of a trellis of `in` x `out` values of `bits` bits.
TF_HOST_DEVICE constexpr int64_t exl3_trellis_words(int in, int out, int bits) {
  return int64_t{in} * out * bits / 32;
}

// Where word `word` (0 .. 8 bits - 1) of tile (kt, nt) lies in the order "lanes".
TF_HOST_DEVICE constexpr int64_t exl3_lane_word(int in, int bits, int kt, int nt, int word) {
  const int64_t unit = int64_t{nt / 4} * (in / kExl3UnitSide) + kt / 4;
  const int lane = 4 * (word / bits) + kt % 4;
  const int mine = (nt % 4) * bits + word % bits;  // 0 .. 4 bits - 1
  return ((unit * bits + mine / 4) * 32 + lane) * 4 + mine % 4;
}

// tiles -> lanes and back. Both spans have exl3_trellis_words(in, out, bits) words; in and out are
// multiples of 128, bits 1..8 (checked by the caller).
inline void exl3_lanes_from_tiles(std::span<const uint32_t> tiles, int in, int out, int bits,
                                  std::span<uint32_t> lanes) {
  size_t at = 0;
  for (int kt = 0; kt < in / 16; ++kt)
    for (int nt = 0; nt < out / 16; ++nt)
      for (int w = 0; w < 8 * bits; ++w)
        lanes[static_cast<size_t>(exl3_lane_word(in, bits, kt, nt, w))] = tiles[at++];
}

// The trellis of a stored weight (order kTiles, whole bits) in order "lanes"; any alignment.
inline void exl3_pack_lanes(const Exl3Parts& stored, std::byte* to) {
  const int bits = stored.half_bits / 2;
  const auto* from = static_cast<const std::byte*>(stored.trellis);
  for (int kt = 0; kt < stored.padded_in / 16; ++kt)
    for (int nt = 0; nt < stored.padded_out / 16; ++nt)
      for (int w = 0; w < 8 * bits; ++w, from += 4)
        std::memcpy(to + 4 * exl3_lane_word(stored.padded_in, bits, kt, nt, w), from, 4);
}

inline void exl3_tiles_from_lanes(std::span<const uint32_t> lanes, int in, int out, int bits,
                                  std::span<uint32_t> tiles) {
  size_t at = 0;
  for (int kt = 0; kt < in / 16; ++kt)
    for (int nt = 0; nt < out / 16; ++nt)
      for (int w = 0; w < 8 * bits; ++w)
        tiles[at++] = lanes[static_cast<size_t>(exl3_lane_word(in, bits, kt, nt, w))];
}

}  // namespace tensorfold::cuda
