// The inner loop of the tile encoder (see viterbi_steps.h), in GCC's vector extensions. On x86 the
// same loop is compiled for three instruction sets and chosen at run time; elsewhere 4 lanes.
#include "engine/weights/viterbi_steps.h"

#include <cstring>

#include "engine/base/check.h"

namespace tensorfold::exl3 {
namespace {

constexpr int kStateBits = 16;
constexpr int kAccumulators = 8;  // vectors of running minima kept in registers

template <int W>
struct Lanes {
  typedef float F __attribute__((vector_size(W * sizeof(float))));
  typedef int32_t I __attribute__((vector_size(W * sizeof(int32_t))));
};

template <int W>
[[gnu::always_inline]] inline typename Lanes<W>::F load(const float* p) {
  typename Lanes<W>::F v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// Costs are never negative and never NaN, so their bits compare as integers do: one instruction
// with fixed semantics on every processor but plain SSE2, which has a float minimum instead.
template <int W>
[[gnu::always_inline]] inline typename Lanes<W>::F minimum(typename Lanes<W>::F a,
                                                           typename Lanes<W>::F b) {
#if defined(__x86_64__)
  if constexpr (W == 4) return a < b ? a : b;
#endif
  using I = typename Lanes<W>::I;
  const I x = reinterpret_cast<I>(a), y = reinterpret_cast<I>(b);
  return reinterpret_cast<typename Lanes<W>::F>(x < y ? x : y);
}

// Lane l of part v takes entering cost v * (W >> A) + (l >> A): each is shared by 2^A lanes.
template <int W, int A>
[[gnu::always_inline]] inline typename Lanes<W>::F spread(typename Lanes<W>::F costs, int part) {
  typename Lanes<W>::I index;
  for (int l = 0; l < W; ++l) index[l] = part * (W >> A) + (l >> A);
  return __builtin_shuffle(costs, index);
}

// Leaving nodes of one group fill whole vectors: the entering cost is one scalar.
template <int W, int A, int C>
[[gnu::always_inline]] inline void wide_step(const float* in, float* out, const float* table,
                                             float target) {
  using F = typename Lanes<W>::F;
  constexpr int kGroupBits = kStateBits - A - C;
  constexpr int kVectors = (1 << A) / W;
  constexpr int kChunk = kVectors < kAccumulators ? kVectors : kAccumulators;
  const F t = F{} + target;
  for (int g = 0; g < (1 << kGroupBits); ++g) {
    for (int v0 = 0; v0 < kVectors; v0 += kChunk) {
      F best[kChunk];
      for (int k = 0; k < (1 << C); ++k) {
        const F cost = F{} + in[(k << kGroupBits) | g];
#pragma GCC unroll 8
        for (int v = 0; v < kChunk; ++v) {
          const F d = load<W>(table + v * W) - t;
          const F e = d * d + cost;
          best[v] = k == 0 ? e : minimum<W>(best[v], e);
        }
        table += kChunk * W;
      }
#pragma GCC unroll 8
      for (int v = 0; v < kChunk; ++v) {
        std::memcpy(out + (g << A) + (v0 + v) * W, &best[v], sizeof(F));
      }
    }
  }
}

// A vector spans several groups: W groups at a time, their entering costs spread over the lanes.
template <int W, int A, int C>
[[gnu::always_inline]] inline void narrow_step(const float* in, float* out, const float* table,
                                               float target) {
  using F = typename Lanes<W>::F;
  constexpr int kGroupBits = kStateBits - A - C;
  constexpr int kParts = 1 << A;
  const F t = F{} + target;
  for (int g = 0; g < (1 << kGroupBits); g += W) {
    F best[kParts];
    for (int k = 0; k < (1 << C); ++k) {
      const F costs = load<W>(in + (k << kGroupBits) + g);
#pragma GCC unroll 8
      for (int v = 0; v < kParts; ++v) {
        const F d = load<W>(table + v * W) - t;
        const F e = d * d + spread<W, A>(costs, v);
        best[v] = k == 0 ? e : minimum<W>(best[v], e);
      }
      table += kParts * W;
    }
#pragma GCC unroll 8
    for (int v = 0; v < kParts; ++v) std::memcpy(out + (g << A) + v * W, &best[v], sizeof(F));
  }
}

template <int W, int A, int C>
[[gnu::always_inline]] inline void any_step(const float* in, float* out, const float* table,
                                            float target) {
  if constexpr ((1 << A) >= W) {
    wide_step<W, A, C>(in, out, table, target);
  } else {
    narrow_step<W, A, C>(in, out, table, target);
  }
}

template <int A, int C>
void step4(const float* in, float* out, const float* table, float target) {
  any_step<4, A, C>(in, out, table, target);
}

#if defined(__x86_64__)
template <int A, int C>
__attribute__((target("avx2"))) void step8(const float* in, float* out, const float* table,
                                           float target) {
  any_step<8, A, C>(in, out, table, target);
}

template <int A, int C>
__attribute__((target("avx2,avx512f,prefer-vector-width=512"))) void step16(const float* in,
                                                                            float* out,
                                                                            const float* table,
                                                                            float target) {
  any_step<16, A, C>(in, out, table, target);
}
#endif

template <int A, int C>
ViterbiStep step_of(int lanes) {
  if (lanes == 4) return step4<A, C>;
#if defined(__x86_64__)
  if (lanes == 8 && __builtin_cpu_supports("avx2")) return step8<A, C>;
  if (lanes == 16 && __builtin_cpu_supports("avx512f")) return step16<A, C>;
#endif
  return nullptr;
}

}  // namespace

ViterbiStep viterbi_step(int lanes, int a_bits, int c_bits) {
  switch (a_bits * 16 + c_bits) {
    case 0x11:
      return step_of<1, 1>(lanes);
    case 0x12:
      return step_of<1, 2>(lanes);
    case 0x21:
      return step_of<2, 1>(lanes);
    case 0x22:
      return step_of<2, 2>(lanes);
    case 0x23:
      return step_of<2, 3>(lanes);
    case 0x32:
      return step_of<3, 2>(lanes);
    case 0x33:
      return step_of<3, 3>(lanes);
    case 0x34:
      return step_of<3, 4>(lanes);
    case 0x43:
      return step_of<4, 3>(lanes);
    case 0x44:
      return step_of<4, 4>(lanes);
    case 0x55:
      return step_of<5, 5>(lanes);
    case 0x66:
      return step_of<6, 6>(lanes);
    case 0x77:
      return step_of<7, 7>(lanes);
    case 0x88:
      return step_of<8, 8>(lanes);
    default:
      return nullptr;
  }
}

void arrange_codebook(int lanes, int a_bits, int c_bits, std::span<const float> codebook,
                      float* out) {
  TF_CHECK_EQ(codebook.size(), size_t{1} << kStateBits);
  // The leaving nodes in runs that the loop holds in registers, and for each run every k.
  const int leaving = 1 << (kStateBits - c_bits);
  const int group = 1 << a_bits;
  int run = lanes * group;  // narrow: `lanes` groups
  if (group >= lanes) {
    run = group / lanes < kAccumulators ? group : lanes * kAccumulators;
  }
  for (int o = 0; o < leaving; o += run) {
    for (int k = 0; k < (1 << c_bits); ++k) {
      const int first = (k << (kStateBits - c_bits)) + o;
      std::memcpy(out, codebook.data() + first, static_cast<size_t>(run) * sizeof(float));
      out += run;
    }
  }
}

}  // namespace tensorfold::exl3
