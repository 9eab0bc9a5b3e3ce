// LDLQ (see ldlq.h): the block factor and the walk over blocks of rows.
#include "engine/weights/ldlq.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>

#include "engine/base/check.h"

namespace tensorfold::exl3 {
namespace {

constexpr int kBlock = kTileSide;
constexpr int kFactorRetries = 10;
constexpr int64_t kStripTiles = 4;  // columns of one work item: 64, so that errors stay in cache

// In place: the upper triangle of a becomes U with a = U^T U. False: not positive definite.
bool cholesky(std::vector<double>& a, int64_t k) {
  for (int64_t j = 0; j < k; ++j) {
    double* pivot = a.data() + j * k;
    if (!(pivot[j] > 0) || !std::isfinite(pivot[j])) return false;
    const double root = std::sqrt(pivot[j]);
    for (int64_t c = j; c < k; ++c) pivot[c] /= root;
    for (int64_t i = j + 1; i < k; ++i) {
      double* row = a.data() + i * k;
      const double f = pivot[i];
      if (f == 0) continue;
      for (int64_t c = i; c < k; ++c) row[c] -= f * pivot[c];
    }
  }
  return true;
}

// Row block [b, b + 16) of L^T is inverse(U_bb) times the same rows of U: back substitution, from
// the block's last row up.
void solve_block(std::vector<double>& u, int64_t k, int64_t b) {
  for (int64_t r = b + kBlock - 1; r >= b; --r) {
    double* row = u.data() + r * k;
    for (int64_t s = r + 1; s < b + kBlock; ++s) {
      const double f = row[s];
      const double* below = u.data() + s * k;
      for (int64_t c = b + kBlock; c < k; ++c) row[c] -= f * below[c];
    }
    const double diagonal = row[r];
    for (int64_t c = b + kBlock; c < k; ++c) row[c] /= diagonal;
  }
}

// The columns of one work item, for one thread.
class Strip {
 public:
  Strip(std::span<const float> weight, int64_t k, int64_t n, const BlockFactor* factor,
        TileEncoder& encoder, const ViterbiTables& tables)
      : weight_(weight), k_(k), n_(n), factor_(factor), encoder_(encoder), tables_(tables) {}

  void run(int64_t first_tile, int64_t tiles, uint16_t* trellis, float* rounded) {
    first_ = first_tile;
    width_ = tiles * kTileSide;
    errors_.assign(static_cast<size_t>(factor_ != nullptr ? k_ * width_ : 0), 0.0f);
    for (int64_t b = k_ / kBlock - 1; b >= 0; --b) {
      set_target(b);
      for (int64_t t = 0; t < tiles; ++t) round_tile(b, t, trellis);
      finish_block(b, rounded);
    }
  }

 private:
  const float* weight_row(int64_t row) const {
    return weight_.data() + row * n_ + first_ * kTileSide;
  }

  void set_target(int64_t b) {
    target_.resize(static_cast<size_t>(kBlock * width_));
    values_.resize(target_.size());
    for (int64_t r = 0; r < kBlock; ++r) {
      std::memcpy(target_.data() + r * width_, weight_row(b * kBlock + r),
                  static_cast<size_t>(width_) * sizeof(float));
    }
    if (factor_ == nullptr) return;
    for (int64_t j = (b + 1) * kBlock; j < k_; ++j) {
      const float* error = errors_.data() + j * width_;
      for (int64_t r = 0; r < kBlock; ++r) {
        const float f = factor_->row(b * kBlock + r)[j];
        float* out = target_.data() + r * width_;
        for (int64_t c = 0; c < width_; ++c) out[c] += f * error[c];
      }
    }
  }

  void round_tile(int64_t b, int64_t t, uint16_t* trellis) {
    std::array<float, kTileValues> stream;
    std::array<uint16_t, kTileValues> states;
    for (int p = 0; p < kTileValues; ++p) stream[static_cast<size_t>(p)] = *at(target_, t, p);
    encoder_.encode(stream, states);
    const auto table = codebook_values(tables_.codebook());
    for (int p = 0; p < kTileValues; ++p)
      *at(values_, t, p) = table[states[static_cast<size_t>(p)]];
    const int words = tile_words(tables_.half_bits());
    const int64_t tile = b * (n_ / kTileSide) + first_ + t;
    pack_tile(states, tables_.half_bits(),
              std::span<uint16_t>(trellis + tile * words, static_cast<size_t>(words)));
  }

  // Value p of tile t in a block's rows [16][width].
  float* at(std::vector<float>& rows, int64_t t, int p) const {
    const int position = tile_position(p);
    return rows.data() + (position / kTileSide) * width_ + t * kTileSide + position % kTileSide;
  }

  void finish_block(int64_t b, float* rounded) {
    for (int64_t r = 0; r < kBlock; ++r) {
      const int64_t row = b * kBlock + r;
      const float* values = values_.data() + r * width_;
      if (rounded != nullptr) {
        std::memcpy(rounded + row * n_ + first_ * kTileSide, values,
                    static_cast<size_t>(width_) * sizeof(float));
      }
      if (factor_ == nullptr) continue;
      const float* wanted = weight_row(row);
      float* error = errors_.data() + row * width_;
      for (int64_t c = 0; c < width_; ++c) error[c] = wanted[c] - values[c];
    }
  }

  std::span<const float> weight_;
  const int64_t k_, n_;
  const BlockFactor* factor_;
  TileEncoder& encoder_;
  const ViterbiTables& tables_;
  int64_t first_ = 0, width_ = 0;
  std::vector<float> errors_;           // fp32 [k][width]: W - Wq of the rows done
  std::vector<float> target_, values_;  // fp32 [16][width]
};

}  // namespace

void parallel_for(int64_t items, int threads, const std::function<void(int64_t, int)>& work) {
  TF_CHECK(threads >= 1 && threads <= kQuantizeThreadsMax);
  std::atomic<int64_t> next{0};
  auto run = [&](int worker) {
    for (;;) {
      const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= items) return;
      work(item, worker);
    }
  };
  const int helpers = static_cast<int>(std::min<int64_t>(threads, items)) - 1;
  std::vector<std::thread> pool;
  for (int i = 0; i < helpers; ++i) pool.emplace_back(run, i + 1);
  run(0);
  for (std::thread& thread : pool) thread.join();
}

Result<BlockFactor> BlockFactor::of(std::vector<double> h, int64_t k, double sigma) {
  TF_CHECK(k > 0 && k % kBlock == 0 && h.size() == static_cast<size_t>(k * k));
  double mean = 0;
  for (int64_t i = 0; i < k; ++i) mean += h[static_cast<size_t>(i * k + i)];
  mean /= static_cast<double>(k);
  if (!std::isfinite(mean) || !(mean > 0)) {
    return invalid_argument("second moments have a diagonal mean of " + std::to_string(mean));
  }
  for (int attempt = 0; attempt <= kFactorRetries; ++attempt) {
    std::vector<double> u = h;
    for (int64_t i = 0; i < k; ++i) {
      u[static_cast<size_t>(i * k + i)] += sigma * mean * attempt;
    }
    if (!cholesky(u, k)) continue;
    for (int64_t b = 0; b < k; b += kBlock) solve_block(u, k, b);
    BlockFactor factor;
    factor.k_ = k;
    factor.transposed_.resize(u.size());
    for (size_t i = 0; i < u.size(); ++i) factor.transposed_[i] = static_cast<float>(u[i]);
    return factor;
  }
  return invalid_argument("second moments are not positive definite");
}

std::vector<uint16_t> round_to_trellis(std::span<const float> weight, int64_t k, int64_t n,
                                       const BlockFactor* factor,
                                       const std::shared_ptr<const ViterbiTables>& tables,
                                       int threads, float* rounded) {
  TF_CHECK(k % kTileSide == 0 && n % kTileSide == 0);
  TF_CHECK_EQ(weight.size(), static_cast<size_t>(k * n));
  TF_CHECK(factor == nullptr || factor->k() == k);
  const int64_t tiles = n / kTileSide;
  // Enough items for the threads, wide enough that a row of errors fills vectors.
  const int64_t strip = std::clamp<int64_t>(tiles / (2 * threads), 1, kStripTiles);
  const int64_t items = (tiles + strip - 1) / strip;
  std::vector<uint16_t> trellis(static_cast<size_t>(k / kTileSide * tiles) *
                                static_cast<size_t>(tile_words(tables->half_bits())));
  std::vector<std::unique_ptr<TileEncoder>> encoders(static_cast<size_t>(threads));
  parallel_for(items, threads, [&](int64_t item, int worker) {
    auto& encoder = encoders[static_cast<size_t>(worker)];
    if (encoder == nullptr) encoder = std::make_unique<TileEncoder>(tables);
    Strip one(weight, k, n, factor, *encoder, *tables);
    one.run(item * strip, std::min(strip, tiles - item * strip), trellis.data(), rounded);
  });
  return trellis;
}

}  // namespace tensorfold::exl3
