// The EXL3 tile codec (see exl3_codec.h). Bit order of a tile: its int16 words in pairs make
// little-endian 32-bit words, each read from its most significant bit; value p's state is the 16
// stream bits that end where its new bits end, around the ring.
#include "engine/weights/exl3_codec.h"

#include <memory>
#include <string>

#include "engine/base/check.h"
#include "engine/base/half.h"
#include "engine/weights/hadamard.h"

namespace tensorfold::exl3 {
namespace {

struct Table {
  std::array<uint16_t, kStates> bits;
  std::array<float, kStates> values;
};

// 3inst and mcg: two halves cut out of one product, added with one rounding.
uint16_t masked_sum(uint32_t x) {
  const uint32_t y = (x & 0x8FFF8FFFu) ^ 0x3B603B60u;
  const double low = static_cast<double>(fp16_to_fp32(static_cast<uint16_t>(y & 0xFFFFu)));
  const double high = static_cast<double>(fp16_to_fp32(static_cast<uint16_t>(y >> 16)));
  return fp64_to_fp16(low + high);  // the sum of two halves is exact in double
}

// mul1: the sum of the product's bytes as 1024 + sum, then one fused multiply-add in fp16.
uint16_t byte_sum(uint32_t x) {
  const uint32_t sum = (x & 0xFFu) + ((x >> 8) & 0xFFu) + ((x >> 16) & 0xFFu) + (x >> 24);
  const double slope = static_cast<double>(fp16_to_fp32(0x1EEEu));
  const double offset = static_cast<double>(fp16_to_fp32(0xC931u));
  return fp64_to_fp16((1024.0 + sum) * slope + offset);  // exact in double before rounding
}

uint16_t codebook_entry(Codebook codebook, uint32_t state) {
  switch (codebook) {
    case Codebook::k3inst:
      return masked_sum(state * 89226354u + 64248484u);
    case Codebook::kMcg:
      return masked_sum(state * kMcgMultiplier);
    case Codebook::kMul1:
      return byte_sum(state * kMul1Multiplier);
  }
  TF_CHECK_MSG(false, "unknown codebook");
  return 0;
}

std::unique_ptr<const Table> build_table(Codebook codebook) {
  auto table = std::make_unique<Table>();
  for (uint32_t s = 0; s < kStates; ++s) {
    table->bits[s] = codebook_entry(codebook, s);
    table->values[s] = fp16_to_fp32(table->bits[s]);
  }
  return table;
}

const Table& table_of(Codebook codebook) {
  static const std::unique_ptr<const Table> tables[] = {
      build_table(Codebook::k3inst), build_table(Codebook::kMcg), build_table(Codebook::kMul1)};
  return *tables[static_cast<size_t>(codebook)];
}

constexpr int word_of_bit(int stream_bit) {
  // 16-bit words go in swapped pairs: the high half of each 32-bit word comes first.
  return (stream_bit / 16) ^ 1;
}

constexpr std::array<uint8_t, kTileValues> make_positions() {
  std::array<uint8_t, kTileValues> positions{};
  for (int p = 0; p < kTileValues; ++p) {
    positions[static_cast<size_t>(p)] = static_cast<uint8_t>(tile_position(p));
  }
  return positions;
}
constexpr std::array<uint8_t, kTileValues> kPositions = make_positions();

}  // namespace

std::string_view codebook_name(Codebook codebook) {
  constexpr std::string_view kNames[] = {"3inst", "mcg", "mul1"};
  return kNames[static_cast<size_t>(codebook)];
}

std::optional<Codebook> codebook_by_name(std::string_view name) {
  for (Codebook c : {Codebook::k3inst, Codebook::kMcg, Codebook::kMul1}) {
    if (codebook_name(c) == name) return c;
  }
  return std::nullopt;
}

uint32_t codebook_marker(Codebook codebook) {
  if (codebook == Codebook::k3inst) return 0;
  return codebook == Codebook::kMcg ? kMcgMultiplier : kMul1Multiplier;
}

bool is_width(int half_bits, Codebook codebook) {
  if (half_bits < kHalfBitsMin || half_bits > kHalfBitsMax) return false;
  if (half_bits % 2 == 0) return true;
  return codebook == Codebook::kMul1 && half_bits <= 7;
}

std::span<const uint16_t, kStates> codebook_bits(Codebook codebook) {
  return table_of(codebook).bits;
}
std::span<const float, kStates> codebook_values(Codebook codebook) {
  return table_of(codebook).values;
}

void tile_states(std::span<const uint16_t> words, int half_bits,
                 std::span<uint16_t, kTileValues> states) {
  const int count = tile_words(half_bits);
  TF_CHECK_EQ(static_cast<int>(words.size()), count);
  // Two stream-ordered words before the start, so that every window is one 32-bit read.
  uint16_t stream[kTileWordsMax + 2];
  for (int i = 0; i < count; ++i) {
    stream[i + 2] = words[static_cast<size_t>(word_of_bit(16 * i))];
  }
  stream[0] = stream[count];
  stream[1] = stream[count + 1];
  for (int p = 0; p < kTileValues; ++p) {
    const int begin = end_bit(half_bits, p) + 16;  // first bit of the window, 32 bits of lead-in
    const int word = begin / 16, shift = begin % 16;
    const uint32_t low = shift == 0 ? 0u : stream[word + 1];
    const uint32_t pair = (static_cast<uint32_t>(stream[word]) << 16) | low;
    states[static_cast<size_t>(p)] = static_cast<uint16_t>(pair >> (16 - shift));
  }
}

bool is_ring(std::span<const uint16_t, kTileValues> states, int half_bits) {
  uint32_t before = states[kTileValues - 1];
  for (int p = 0; p < kTileValues; ++p) {
    const uint32_t now = states[static_cast<size_t>(p)];
    const int bits = new_bits(half_bits, p);
    const uint32_t old_part = 0xFFFFu >> bits;
    if ((now >> bits) != (before & old_part)) return false;
    before = now;
  }
  return true;
}

void pack_tile(std::span<const uint16_t, kTileValues> states, int half_bits,
               std::span<uint16_t> words) {
  TF_CHECK_EQ(static_cast<int>(words.size()), tile_words(half_bits));
  TF_CHECK_MSG(is_ring(states, half_bits), "states do not form a ring");
  uint64_t pending = 0;
  int pending_bits = 0, word = 0;
  for (int p = 0; p < kTileValues; ++p) {
    const int bits = new_bits(half_bits, p);
    pending = (pending << bits) | (states[static_cast<size_t>(p)] & ((1u << bits) - 1u));
    pending_bits += bits;
    while (pending_bits >= 16) {
      pending_bits -= 16;
      words[static_cast<size_t>(word ^ 1)] = static_cast<uint16_t>(pending >> pending_bits);
      ++word;
    }
  }
  TF_CHECK_EQ(word, tile_words(half_bits));
}

void decode_tile_bits(std::span<const uint16_t> words, int half_bits, Codebook codebook,
                      std::span<uint16_t, kTileValues> out) {
  std::array<uint16_t, kTileValues> states;
  tile_states(words, half_bits, states);
  const auto table = codebook_bits(codebook);
  for (size_t p = 0; p < kTileValues; ++p) out[kPositions[p]] = table[states[p]];
}

void decode_tile(std::span<const uint16_t> words, int half_bits, Codebook codebook,
                 std::span<float, kTileValues> out) {
  std::array<uint16_t, kTileValues> states;
  tile_states(words, half_bits, states);
  const auto table = codebook_values(codebook);
  for (size_t p = 0; p < kTileValues; ++p) out[kPositions[p]] = table[states[p]];
}

std::vector<uint16_t> expand_signs(std::span<const uint16_t> words) {
  constexpr uint16_t kPlusOne = 0x3C00, kMinusOne = 0xBC00;
  std::vector<uint16_t> out;
  out.reserve(words.size() * 16);
  for (uint16_t word : words) {
    for (int b = 0; b < 16; ++b) out.push_back(((word >> b) & 1) != 0 ? kMinusOne : kPlusOne);
  }
  return out;
}

Status check_layer(const LayerView& layer) {
  auto bad = [](std::string what) { return data_loss("EXL3 layer: " + std::move(what)); };
  if (!is_width(layer.half_bits, layer.codebook)) {
    return bad("a width of " + std::to_string(layer.half_bits) + " half bits does not exist for " +
               std::string(codebook_name(layer.codebook)));
  }
  if (layer.k_in <= 0 || layer.k_in % kDimMultiple != 0) {
    return bad("k_in " + std::to_string(layer.k_in) + " is not a positive multiple of 128");
  }
  if (layer.n_out <= 0 || layer.n_out % kDimMultiple != 0) {
    return bad("n_out " + std::to_string(layer.n_out) + " is not a positive multiple of 128");
  }
  const uint64_t tiles = static_cast<uint64_t>(layer.k_in / kTileSide) *
                         static_cast<uint64_t>(layer.n_out / kTileSide);
  if (layer.trellis.size() != tiles * static_cast<uint64_t>(tile_words(layer.half_bits))) {
    return bad("trellis has " + std::to_string(layer.trellis.size()) + " words, expected " +
               std::to_string(tiles * static_cast<uint64_t>(tile_words(layer.half_bits))));
  }
  if (layer.suh.size() != static_cast<uint64_t>(layer.k_in)) {
    return bad("suh has " + std::to_string(layer.suh.size()) + " values, expected " +
               std::to_string(layer.k_in));
  }
  if (layer.svh.size() != static_cast<uint64_t>(layer.n_out)) {
    return bad("svh has " + std::to_string(layer.svh.size()) + " values, expected " +
               std::to_string(layer.n_out));
  }
  return ok_status();
}

void decode_region(const LayerView& layer, int64_t kt0, int64_t kt1, int64_t nt0, int64_t nt1,
                   float* out, int64_t ld) {
  TF_CHECK(kt0 >= 0 && kt0 <= kt1 && kt1 * kTileSide <= layer.k_in);
  TF_CHECK(nt0 >= 0 && nt0 <= nt1 && nt1 * kTileSide <= layer.n_out);
  const int64_t columns = layer.n_out / kTileSide;
  const auto words = static_cast<size_t>(tile_words(layer.half_bits));
  const auto table = codebook_values(layer.codebook);
  std::array<uint16_t, kTileValues> states;
  for (int64_t kt = kt0; kt < kt1; ++kt) {
    for (int64_t nt = nt0; nt < nt1; ++nt) {
      const size_t tile = static_cast<size_t>(kt * columns + nt);
      tile_states(layer.trellis.subspan(tile * words, words), layer.half_bits, states);
      float* corner = out + (kt - kt0) * kTileSide * ld + (nt - nt0) * kTileSide;
      for (size_t p = 0; p < kTileValues; ++p) {
        const int at = kPositions[p];
        corner[(at / kTileSide) * ld + at % kTileSide] = table[states[p]];
      }
    }
  }
}

namespace {

constexpr int kBlock = kHadamardSize;

// One 128x128 block of W at (k, n), transposed into `out`.
void effective_block(const LayerView& layer, int64_t k, int64_t n, float* block, float* out,
                     int64_t ld) {
  decode_region(layer, k / kTileSide, (k + kBlock) / kTileSide, n / kTileSide,
                (n + kBlock) / kTileSide, block, kBlock);
  hadamard_columns(block, kBlock, kBlock, kBlock);
  for (int64_t i = 0; i < kBlock; ++i) hadamard128(block + i * kBlock);
  for (int64_t j = 0; j < kBlock; ++j) {
    const float sv = fp16_to_fp32(layer.svh[static_cast<size_t>(n + j)]);
    for (int64_t i = 0; i < kBlock; ++i) {
      const float su = fp16_to_fp32(layer.suh[static_cast<size_t>(k + i)]);
      out[j * ld + i] = block[i * kBlock + j] * su * sv;
    }
  }
}

}  // namespace

void effective_weight(const LayerView& layer, int64_t n0, int64_t n1, int64_t k0, int64_t k1,
                      float* out, int64_t ld) {
  TF_CHECK(n0 % kBlock == 0 && n1 % kBlock == 0 && n0 <= n1 && n1 <= layer.n_out && n0 >= 0);
  TF_CHECK(k0 % kBlock == 0 && k1 % kBlock == 0 && k0 <= k1 && k1 <= layer.k_in && k0 >= 0);
  std::vector<float> block(static_cast<size_t>(kBlock) * kBlock);
  for (int64_t n = n0; n < n1; n += kBlock) {
    for (int64_t k = k0; k < k1; k += kBlock) {
      effective_block(layer, k, n, block.data(), out + (n - n0) * ld + (k - k0), ld);
    }
  }
}

}  // namespace tensorfold::exl3
