// NumPy's PCG64 with SeedSequence, the primes, and the hash (see engram_constants.h).
#include "engine/weights/engram_constants.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

using Uint128 = unsigned __int128;

constexpr uint32_t kLayerSeedFactor = 10007;

// SeedSequence: a pool of four words mixed from the entropy (one word here), then stretched.
class SeedSequence {
 public:
  explicit SeedSequence(uint32_t entropy) {
    pool_[0] = hash(entropy);
    for (size_t i = 1; i < pool_.size(); ++i) pool_[i] = hash(0);
    for (size_t from = 0; from < pool_.size(); ++from) {
      for (size_t to = 0; to < pool_.size(); ++to) {
        if (from != to) pool_[to] = mix(pool_[to], hash(pool_[from]));
      }
    }
  }

  std::array<uint64_t, 4> generate() const {
    std::array<uint64_t, 4> words = {};
    uint32_t factor = 0x8B51F9DDu;
    for (size_t i = 0; i < 2 * words.size(); ++i) {
      uint32_t value = pool_[i % pool_.size()] ^ factor;
      factor *= 0x58F38DEDu;
      value *= factor;
      value ^= value >> 16;
      words[i / 2] |= uint64_t{value} << (32 * (i % 2));
    }
    return words;
  }

 private:
  uint32_t hash(uint32_t value) {
    value ^= factor_;
    factor_ *= 0x931E8875u;
    value *= factor_;
    return value ^ (value >> 16);
  }
  static uint32_t mix(uint32_t x, uint32_t y) {
    const uint32_t value = 0xCA01F9DDu * x - 0x4973F715u * y;
    return value ^ (value >> 16);
  }
  std::array<uint32_t, 4> pool_ = {};
  uint32_t factor_ = 0x43B0D7E5u;
};

// PCG XSL-RR 128/64.
class Pcg64 {
 public:
  explicit Pcg64(uint32_t seed) {
    const std::array<uint64_t, 4> words = SeedSequence(seed).generate();
    increment_ = (join(words[2], words[3]) << 1) | 1;
    step();
    state_ += join(words[0], words[1]);
    step();
  }

  uint64_t next() {
    step();
    const uint64_t folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    const unsigned turn = static_cast<unsigned>(state_ >> 122);
    return (folded >> turn) | (folded << ((64 - turn) & 63));
  }

  // Uniform below `bound`: the high half of a product, redrawn where it would be uneven.
  uint64_t below(uint64_t bound) {
    Uint128 product = Uint128{next()} * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t uneven = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < uneven) product = Uint128{next()} * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  static Uint128 join(uint64_t high, uint64_t low) { return (Uint128{high} << 64) | low; }
  void step() { state_ = state_ * join(0x2360ED051FC65DA4ull, 0x4385DF649FCCF645ull) + increment_; }
  Uint128 state_ = 0, increment_ = 0;
};

bool is_prime(int64_t n) {
  if (n < 4) return n >= 2;
  if (n % 2 == 0 || n % 3 == 0) return false;
  for (int64_t d = 5; d * d <= n; d += 6) {
    if (n % d == 0 || n % (d + 2) == 0) return false;
  }
  return true;
}

}  // namespace

std::vector<int64_t> numpy_integers(uint32_t seed, uint64_t bound, int count) {
  TF_CHECK_MSG(bound > std::numeric_limits<uint32_t>::max(), "smaller bounds draw 32-bit words");
  Pcg64 generator(seed);
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (int64_t& value : values) value = static_cast<int64_t>(generator.below(bound));
  return values;
}

Result<EngramConstants> engram_constants(const EngramConfig& config) {
  EngramConstants all;
  all.max_ngram = config.max_ngram;
  all.heads = config.heads;
  const uint64_t bound = static_cast<uint64_t>(std::numeric_limits<int64_t>::max() /
                                               std::max(1, config.compressed_vocab_size) / 2);
  int64_t prime = config.vocab_size - 1;  // primes are handed out in order, across layers
  for (size_t i = 0; i < config.layers.size(); ++i) {
    EngramConstants::Layer layer;
    const uint32_t seed = kLayerSeedFactor * static_cast<uint32_t>(config.layers[i]);
    for (int64_t value : numpy_integers(seed, bound, config.max_ngram)) {
      layer.multipliers.push_back(2 * value + 1);
    }
    for (int column = 0; column < config.columns(); ++column) {
      do ++prime;
      while (!is_prime(prime));
      layer.primes.push_back(prime);
      layer.offsets.push_back(layer.rows);
      layer.rows += prime;
    }
    if (layer.rows != config.table_rows[i]) {
      return invalid_argument("config: engram_num_embeddings[" + std::to_string(i) + "] is " +
                              std::to_string(config.table_rows[i]) + ", but the primes above " +
                              "engram_vocab_size add up to " + std::to_string(layer.rows));
    }
    all.layers.push_back(std::move(layer));
  }
  return all;
}

void EngramConstants::hash(int layer_index, std::span<const int32_t> ids,
                           std::span<int64_t> rows) const {
  const Layer& layer = layers[static_cast<size_t>(layer_index)];
  TF_CHECK_EQ(ids.size(), layer.multipliers.size());
  TF_CHECK_EQ(rows.size(), layer.primes.size());
  int64_t mixed = ids[0] * layer.multipliers[0];
  size_t column = 0;
  for (size_t back = 1; back < ids.size(); ++back) {
    mixed ^= ids[back] * layer.multipliers[back];
    for (int head = 0; head < heads; ++head, ++column) {
      rows[column] = mixed % layer.primes[column] + layer.offsets[column];
    }
  }
}

}  // namespace tensorfold
