// The tile encoder (see viterbi.h): drives the two passes and traces back.
#include "engine/weights/viterbi.h"

#include <cstdlib>
#include <limits>
#include <new>

#include "engine/base/check.h"
#include "engine/weights/viterbi_steps.h"

namespace tensorfold::exl3 {
namespace {

constexpr int kStateBits = 16;
constexpr size_t kAlignmentBytes = 64;

// Steps that pass 1 looks to each side of the tile's first value, by half_bits. The memory of the
// code is 16 bits; these are several times that, where twice as many gain less than 1% of the
// error.
constexpr int kLookSteps[kHalfBitsMax + 1] = {0,  0,  128, 128, 96, 96, 96, 80, 64,
                                              64, 64, 48,  48,  40, 32, 32, 32};

std::shared_ptr<float> aligned_floats(size_t count) {
  const size_t bytes =
      (count * sizeof(float) + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  void* memory = std::aligned_alloc(kAlignmentBytes, bytes);
  TF_CHECK_MSG(memory != nullptr, "out of memory");
  return {static_cast<float*>(memory), [](float* p) { std::free(p); }};
}

}  // namespace

int viterbi_lanes() {
  for (int lanes : {16, 8}) {
    if (viterbi_step(lanes, 1, 1) != nullptr) return lanes;
  }
  return 4;
}

ViterbiTables::ViterbiTables(int half_bits, Codebook codebook, int lanes)
    : half_bits_(half_bits), codebook_(codebook) {
  TF_CHECK(is_width(half_bits, codebook));
  if (lanes == 0) lanes = viterbi_lanes();
  for (int parity = 0; parity < 2; ++parity) {
    const int a = new_bits(half_bits, parity), c = new_bits(half_bits, parity + 1);
    steps_[parity] = viterbi_step(lanes, a, c);
    TF_CHECK_MSG(steps_[parity] != nullptr, "no step for these lanes and bits");
    if (parity == 1 && a == c) {
      tables_[1] = tables_[0];
      continue;
    }
    const auto table = aligned_floats(kStates);
    arrange_codebook(lanes, a, c, codebook_values(codebook), table.get());
    tables_[parity] = table;
  }
}

void ViterbiTables::step(int p, const float* in, float* out, float target) const {
  steps_[p & 1](in, out, tables_[p & 1].get(), target);
}

TileEncoder::TileEncoder(std::shared_ptr<const ViterbiTables> tables)
    : tables_(std::move(tables)),
      row_floats_(static_cast<size_t>(kStates) >> new_bits(tables_->half_bits(), 0)),
      rows_(aligned_floats(row_floats_ * (kTileValues + 1))) {}

// Given that the best path leaves value p through `node`, finds the state of value p and the node
// it came from. in: costs of the nodes entering p. The first of equal candidates wins.
uint32_t TileEncoder::step_back(int p, uint32_t node, float target, const float* in,
                                uint16_t* state) const {
  const auto values = codebook_values(tables_->codebook());
  const int a = new_bits(tables_->half_bits(), p), c = new_bits(tables_->half_bits(), p + 1);
  float best = std::numeric_limits<float>::infinity();
  uint32_t winner = node;
  for (uint32_t k = 0; k < (1u << c); ++k) {
    const uint32_t s = (k << (kStateBits - c)) | node;
    const float d = values[s] - target;
    const float e = d * d + in[s >> a];
    if (e < best) {
      best = e;
      winner = s;
    }
  }
  *state = static_cast<uint16_t>(winner);
  return winner >> a;
}

int TileEncoder::look_steps(int half_bits) { return kLookSteps[half_bits]; }

uint32_t TileEncoder::find_entry_node(std::span<const float, kTileValues> target) {
  const int half_bits = tables_->half_bits();
  const int look = look_steps(half_bits);
  // The last two rows take turns before the tile's first value; from it on every row is kept.
  const int first = kTileValues - look;
  float* before = row(kTileValues - 1);
  float* after = row(kTileValues);
  const size_t nodes = static_cast<size_t>(kStates) >> new_bits(half_bits, first);
  for (size_t i = 0; i < nodes; ++i) before[i] = 0;
  for (int p = first; p < kTileValues; ++p) {
    float* out = p + 1 == kTileValues ? row(0) : after;
    tables_->step(p, before, out, target[static_cast<size_t>(p)]);
    std::swap(before, after);
  }
  for (int p = 0; p < look; ++p) {
    tables_->step(p, row(p), row(p + 1), target[static_cast<size_t>(p)]);
  }
  const float* last = row(look);
  const uint32_t last_nodes = static_cast<uint32_t>(kStates) >> new_bits(half_bits, look);
  uint32_t node = 0;
  for (uint32_t i = 1; i < last_nodes; ++i) {
    if (last[i] < last[node]) node = i;
  }
  uint16_t unused = 0;
  for (int p = look - 1; p >= 0; --p) {
    node = step_back(p, node, target[static_cast<size_t>(p)], row(p), &unused);
  }
  return node;
}

float TileEncoder::encode(std::span<const float, kTileValues> target,
                          std::span<uint16_t, kTileValues> states) {
  const int half_bits = tables_->half_bits();
  const uint32_t entry = find_entry_node(target);
  const size_t nodes = static_cast<size_t>(kStates) >> new_bits(half_bits, 0);
  float* start = row(0);
  for (size_t i = 0; i < nodes; ++i) start[i] = std::numeric_limits<float>::infinity();
  start[entry] = 0;
  for (int p = 0; p < kTileValues; ++p) {
    tables_->step(p, row(p), row(p + 1), target[static_cast<size_t>(p)]);
  }
  uint32_t node = entry;
  for (int p = kTileValues - 1; p >= 0; --p) {
    const auto at = static_cast<size_t>(p);
    node = step_back(p, node, target[at], row(p), &states[at]);
  }
  TF_CHECK_EQ(node, entry);
  return row(kTileValues)[entry];
}

}  // namespace tensorfold::exl3
