// The EXL3 tile codec: codebooks, the ring of trellis states, the order of values inside a tile,
// and the weight that a layer's tensors stand for. Pure functions; tables are built once on first
// use (thread-safe) and never change.
//
// A layer y = x W with W [k_in, n_out] is stored as 16x16 tiles of W_q, with
//   W = diag(suh) H W_q H diag(svh),  H = 128-point Hadamard blocks (hadamard.h).
// Widths are counted in half bits: half_bits = 2 * bits per weight (K2), so 3 for 1.5 bits.
// It does not read files and does not know tensor names (safetensors and the weight source do).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold::exl3 {

enum class Codebook : unsigned char { k3inst = 0, kMcg = 1, kMul1 = 2 };

inline constexpr uint32_t kMcgMultiplier = 0xCBAC1FEDu;   // value of the `.mcg` tensor
inline constexpr uint32_t kMul1Multiplier = 0x83DCD12Du;  // value of the `.mul1` tensor
inline constexpr int kTileSide = 16;                      // rows (k) and columns (n) of a tile
inline constexpr int kTileValues = 256;
inline constexpr int kStates = 65536;                      // a state is 16 bits
inline constexpr int kDimMultiple = 128;                   // stored k_in and n_out
inline constexpr int kHalfBitsMin = 2, kHalfBitsMax = 16;  // 1 .. 8 bits
inline constexpr int kTileWordsMax = 8 * kHalfBitsMax;     // int16 words of a tile

std::string_view codebook_name(Codebook codebook);  // "3inst", "mcg", "mul1"
std::optional<Codebook> codebook_by_name(std::string_view name);
// The marker tensor's value; 0 for 3inst, which has no marker.
uint32_t codebook_marker(Codebook codebook);

// Widths that the format has: 1..8 bits for every codebook, 1.5, 2.5 and 3.5 with mul1 only.
bool is_width(int half_bits, Codebook codebook);

// int16 words of one tile: 8 * half_bits. The last dimension of the `trellis` tensor.
constexpr int tile_words(int half_bits) { return 8 * half_bits; }
constexpr int64_t tile_bytes(int half_bits) { return 16 * int64_t{half_bits}; }

// New bits that value p of a tile appends to the stream. Half widths alternate floor and ceil.
constexpr int new_bits(int half_bits, int p) { return (half_bits + (p & 1)) / 2; }
// Stream bit just after value p's new bits.
constexpr int end_bit(int half_bits, int p) {
  return (p / 2) * half_bits + ((p & 1) != 0 ? half_bits : half_bits / 2);
}

// Where value p (0..255, stream order) sits in the tile: row * 16 + column, row along k.
constexpr int tile_position(int p) {
  const int lane = p >> 3, j = p & 7;
  const int row = 2 * (lane & 3) + (j & 1) + 8 * ((j >> 1) & 1);
  const int col = (lane >> 2) + 8 * (j >> 2);
  return row * kTileSide + col;
}

// state -> fp16 bits, and the same values widened (exact).
std::span<const uint16_t, kStates> codebook_bits(Codebook codebook);
std::span<const float, kStates> codebook_values(Codebook codebook);

// Tile words (tile_words(half_bits) of them, as stored) -> the 256 states in stream order.
void tile_states(std::span<const uint16_t> words, int half_bits,
                 std::span<uint16_t, kTileValues> states);

// True when each state continues the one before it and state 0 continues state 255: only such
// states can be stored.
bool is_ring(std::span<const uint16_t, kTileValues> states, int half_bits);

// The inverse of tile_states. Precondition (checked): is_ring(states, half_bits).
void pack_tile(std::span<const uint16_t, kTileValues> states, int half_bits,
               std::span<uint16_t> words);

// Tile words -> W_q[16][16] row-major ([k][n]), as fp16 bits or widened to fp32 (exact).
void decode_tile_bits(std::span<const uint16_t> words, int half_bits, Codebook codebook,
                      std::span<uint16_t, kTileValues> out);
void decode_tile(std::span<const uint16_t> words, int half_bits, Codebook codebook,
                 std::span<float, kTileValues> out);

// The sign words of old files (`su`, `sv`): bit b of word w set -> element 16 w + b is -1, else +1.
// Gives fp16 bits, 16 per word.
std::vector<uint16_t> expand_signs(std::span<const uint16_t> words);

// One layer's tensors, as stored. Does not own its memory.
struct LayerView {
  std::span<const uint16_t> trellis;  // int16 [k_in/16, n_out/16, 8 half_bits], row-major
  std::span<const uint16_t> suh;      // fp16 [k_in]
  std::span<const uint16_t> svh;      // fp16 [n_out]
  int64_t k_in = 0, n_out = 0;        // padded: multiples of 128
  int half_bits = 0;
  Codebook codebook = Codebook::kMul1;
};

// Ok when sizes, multiples and width agree with each other.
Status check_layer(const LayerView& layer);

// W_q of tiles [kt0, kt1) x [nt0, nt1) as fp32, row-major ([k][n]) with row pitch `ld` values:
// 16 (kt1-kt0) rows of 16 (nt1-nt0). Exact. Precondition (checked): check_layer is ok.
void decode_region(const LayerView& layer, int64_t kt0, int64_t kt1, int64_t nt0, int64_t nt1,
                   float* out, int64_t ld);

// The effective weight for outputs [n0, n1) and inputs [k0, k1), both multiples of 128, in [out,
// in] order: out[(n - n0) * ld + (k - k0)] = W[k][n]. fp32 butterflies on both sides, then suh and
// svh: relative norm of the error below 1e-6 against exact arithmetic. Deterministic, and a part
// equals the same part of the whole bit for bit.
void effective_weight(const LayerView& layer, int64_t n0, int64_t n1, int64_t k0, int64_t k1,
                      float* out, int64_t ld);

}  // namespace tensorfold::exl3
