// LDLQ: rounds a weight to EXL3 tiles, each block of 16 input rows compensating for the errors of
// the blocks already rounded, weighted by the second moments of the layer's inputs.
//
// With H = L D L^T (block size 16, identity diagonal blocks) and W [k][n], blocks of rows are done
// from the last to the first, and block b rounds
//   T_b = W_b + sum over j > b of L[j, b]^T (W_j - Wq_j),
// which is the greedy minimum of tr(E^T H E), E = W - Wq. Columns are independent given L, so
// threads share the columns and the result does not depend on how many there are. Without a factor
// the same code rounds each tile to W itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/weights/exl3_codec.h"
#include "engine/weights/viterbi.h"

namespace tensorfold::exl3 {

inline constexpr int kQuantizeThreadsMax = 256;

// Calls work(item, worker) for every item in [0, items), on `threads` threads at most (the caller
// is one of them). Workers are numbered from 0; items are taken in ascending order.
void parallel_for(int64_t items, int threads, const std::function<void(int64_t, int)>& work);

// The block factor of a symmetric positive definite matrix.
class BlockFactor {
 public:
  // h: double [k][k], symmetric, k a multiple of 16; only entries [i][j >= i] are read. When h is
  // not positive definite, `sigma` times the mean of its diagonal is added to the diagonal, up to
  // ten times. Fails (kInvalidArgument) when that does not help or h is not finite.
  static Result<BlockFactor> of(std::vector<double> h, int64_t k, double sigma);

  int64_t k() const { return k_; }
  // Row i of L^T: entry j is L[j][i]. Valid for j past i's block of 16 (what LDLQ reads).
  const float* row(int64_t i) const { return transposed_.data() + i * k_; }

 private:
  int64_t k_ = 0;
  std::vector<float> transposed_;  // fp32 [k][k]
};

// weight: fp32 [k][n], multiples of 16, in codebook units. factor: nullptr rounds plainly.
// Returns the trellis, int16 [k/16][n/16][8 half_bits]. rounded, when not null, gets Wq [k][n].
std::vector<uint16_t> round_to_trellis(std::span<const float> weight, int64_t k, int64_t n,
                                       const BlockFactor* factor,
                                       const std::shared_ptr<const ViterbiTables>& tables,
                                       int threads, float* rounded);

}  // namespace tensorfold::exl3
