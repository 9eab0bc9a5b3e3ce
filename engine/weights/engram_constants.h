// The constants of the Engram hash, recomputed from the configuration: nothing of them is stored in
// a checkpoint. Formulas: docs/architecture.md, "Engram"; multipliers are what NumPy's
// default_rng(10007 * layer).integers(0, bound, n) draws, so PCG64 and its seeding are here.
//
// Pure functions; the result never changes. Does not read tables and does not map token ids.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/model/config.h"

namespace tensorfold {

struct EngramConstants {
  struct Layer {
    std::vector<int64_t> multipliers;  // [max_ngram]: one for each look-back
    std::vector<int64_t> primes;       // [columns]: n-gram order major, head minor
    std::vector<int64_t> offsets;      // [columns]: first table row of each column
    int64_t rows = 0;                  // of the table: the sum of the primes
  };
  std::vector<Layer> layers;  // one per EngramConfig::layers
  int max_ngram = 0, heads = 0;

  // Table rows of one position. ids [max_ngram]: the compressed ids at look-back 0, 1, ..; where
  // the look-back is blocked, the pad token's compressed id. rows [columns].
  void hash(int layer_index, std::span<const int32_t> ids, std::span<int64_t> rows) const;
};

// An error when a table of the configuration has another size than the primes give.
Result<EngramConstants> engram_constants(const EngramConfig& config);

// What numpy.random.default_rng(seed).integers(0, bound, count) gives. bound >= 2^32 (checked).
std::vector<int64_t> numpy_integers(uint32_t seed, uint64_t bound, int count);

}  // namespace tensorfold
