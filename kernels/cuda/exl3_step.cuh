// The inner step of the class D (generated rows) EXL3 products: exact integers inside a block of
// 128 inputs. After it, experts add blocks in fp32 in a fixed order (Chunk), dense products as
// integers (exl3_fixed.cuh).
//
// The rotated row is held as 16-bit integers, one scale per block of 128, cut into a high and a low
// signed byte. A mul1 weight is slope * (sum of the four bytes of its product - center), so the
// product's bytes are the left operand of m16n8k32.u8.s8 as they come: no byte sum, no conversion.
// The eight columns of the right operand are four rows, high and low. All sums inside a block are
// exact, hence the same for any row count, tiling or instruction order. The fp16 rounding of the
// codebook's table is left out (2.1e-4 of a weight's size: what rounding the row to fp16 costs on
// the usual path).
//
// A warp's step: 64 outputs x 128 inputs x 4 RG rows. Instructions a weight and lane at RG = 1,
// 3 bit (sm_90): window 2, product 1, matrix 1/4, splats 1/8, block end 1/8, loads and loop 1/8.
#pragma once

#include "kernels/cuda/exl3_decode.cuh"
#include "kernels/cuda/exl3_layout.h"
#include "kernels/cuda/stream_hint.cuh"

namespace tensorfold::cuda {

inline constexpr float kHadamard128Scale = 0.08838834764831845f;  // 1 / sqrt(128)
inline constexpr float kQuantMax = 32512.0f;                      // 127 * 256: the high byte fits

// x[4 lane .. 4 lane + 3] of a block over a warp: H x / sqrt(128). Strides 1, 2, 4 .. 64.
__device__ __forceinline__ void hadamard_block(float (&v)[4], int lane) {
  const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
  v[0] = a + c;
  v[1] = b + d;
  v[2] = a - c;
  v[3] = b - d;
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
    const float sign = (lane & mask) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = fmaf(v[i], sign, __shfl_xor_sync(0xffffffffu, v[i], mask));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= kHadamard128Scale;
}

struct QuantBlock {
  uint32_t high, low;  // 4 bytes each: this lane's four values
  float scale;         // value = scale * (256 high + low)
  float shift;         // scale * kMul1Center * sum of the block's integers
};

// A NaN or an infinity makes the scale NaN or infinite, and so every output of this row.
__device__ __forceinline__ QuantBlock quantise_block(const float (&v)[4]) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) bits = max(bits, __float_as_uint(fabsf(v[i])));
  const float top = __uint_as_float(__reduce_max_sync(0xffffffffu, bits));
  const float inverse = top < 1e-30f ? 0.0f : kQuantMax / top;
  QuantBlock out;
  out.high = out.low = 0;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int q = __float2int_rn(v[i] * inverse);
    const int low = static_cast<signed char>(q & 0xff);
    sum += q;
    out.low |= static_cast<uint32_t>(q & 0xff) << (8 * i);
    out.high |= static_cast<uint32_t>(((q - low) >> 8) & 0xff) << (8 * i);
  }
  out.scale = top / kQuantMax;
  out.shift = out.scale * kMul1Center * static_cast<float>(__reduce_add_sync(0xffffffffu, sum));
  return out;
}

__device__ __forceinline__ void mma_u8s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The chunks of one unit for this lane; `p` points at the lane's first.
template <int K>
struct UnitWords {
  uint4 v[K];
  __device__ __forceinline__ void load(const uint4* p, uint64_t policy) {
#pragma unroll
    for (int c = 0; c < K; ++c) {
      asm volatile(
          "ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
          : "=r"(v[c].x), "=r"(v[c].y), "=r"(v[c].z), "=r"(v[c].w)
          : "l"(p + c * 32), "l"(policy));
    }
  }
  __device__ __forceinline__ uint32_t word(int i) const {
    const uint4& u = v[i / 4];
    return i % 4 == 0 ? u.x : i % 4 == 1 ? u.y : i % 4 == 2 ? u.z : u.w;
  }
};

// acc[rg][i] += codes of tile column i (64 outputs: i = 0..3) times rows 4 rg .. 4 rg + 3; x[rg]:
// this lane's 16 input bytes.
template <int K, int RG>
__device__ __forceinline__ void unit_product(const UnitWords<K>& w, const uint4 (&x)[RG], int lane,
                                             int (&acc)[RG][4][4]) {
  uint32_t run[4][K + 1];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < K; ++j) run[i][j + 1] = w.word(i * K + j);
    run[i][0] = __shfl_sync(0xffffffffu, run[i][K], (lane + 28) & 31);
  }
  uint32_t rows[RG][4];
#pragma unroll
  for (int rg = 0; rg < RG; ++rg) {
    rows[rg][0] = x[rg].x;
    rows[rg][1] = x[rg].y;
    rows[rg][2] = x[rg].z;
    rows[rg][3] = x[rg].w;
  }
#pragma unroll
  for (int h = 0; h < 8; ++h) {
    constexpr uint32_t kSplat[4] = {0x0000, 0x1111, 0x2222, 0x3333};
    const int tt = h >> 1, half = h & 1, v = tt * 8 + half * 2;
    uint32_t b[RG][2];
#pragma unroll
    for (int rg = 0; rg < RG; ++rg) {
      const uint32_t word = rows[rg][(tt >> 1) + 2 * half];
      b[rg][0] = __byte_perm(word, 0, kSplat[2 * (tt & 1)]);
      b[rg][1] = __byte_perm(word, 0, kSplat[2 * (tt & 1) + 1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t a0 = window_at(run[i], K, v) * kMul1;
      const uint32_t a1 = window_at(run[i], K, v + 4) * kMul1;
      const uint32_t a2 = window_at(run[i], K, v + 1) * kMul1;
      const uint32_t a3 = window_at(run[i], K, v + 5) * kMul1;
#pragma unroll
      for (int rg = 0; rg < RG; ++rg) mma_u8s8(acc[rg][i], a0, a1, a2, a3, b[rg][0], b[rg][1]);
    }
  }
}

// What a lane holds of a chunk: outputs 16 i + g + 8 h (g = lane / 4) of rows 4 rg + lane % 4;
// shift is used inside run().
template <int RG>
struct ChunkSums {
  float v[RG][4][2];
  float shift[RG];
  __device__ __forceinline__ float& at(int rg, int i, int h) { return v[rg][i][h]; }
};

// Where a lane finds its rows at the start of a chunk, in shared or global memory. Lane (c, t) with
// c = lane / 4, t = lane % 4 reads column c of a group (row 4 rg + c / 2, high or low byte) from
// input 16 t on, and the scales of row 4 rg + t. Rows that are not there point at any that is.
template <int RG>
struct LaneRows {
  const uint8_t* q[RG];     // advances by 128 bytes a block
  const float2* scale[RG];  // scale and shift of each block
};

// Chunks of blocks of 128 inputs by 64 outputs, one after the other. start() begins the first
// loads, so that they run while the caller prepares the rows; run() adds the blocks of each chunk
// in ascending order from zero.
template <int K, int RG, bool kSeveral>
struct Chunks {
  UnitWords<K> a, b;
  uint64_t policy;  // stream_policy()

  // `w`: the lane's first piece (a strip's units are contiguous along the inputs).
  __device__ __forceinline__ void start(const uint4* w) {
    a.load(w, policy);
    b.load(w + K * 32, policy);
  }

  // `count` blocks: one chunk, or (kSeveral) every `each` of them; keep(sums, its last block) once
  // a chunk.
  template <typename Keep>
  __device__ __forceinline__ void run(const uint4* w, int count, int each, const LaneRows<RG>& rows,
                                      int lane, const Keep& keep) {
    ChunkSums<RG> out = {};
    uint4 xa[RG], xb[RG];
    float2 scale[RG];
#pragma unroll
    for (int rg = 0; rg < RG; ++rg) {
      xa[rg] = *reinterpret_cast<const uint4*>(rows.q[rg]);
      xb[rg] = *reinterpret_cast<const uint4*>(rows.q[rg] + 64);
      scale[rg] = rows.scale[rg][0];
    }
    int left = each;  // of the chunk
#pragma unroll 1
    for (int block = 0; block < count; ++block) {
      int acc[RG][4][4];
#pragma unroll
      for (int rg = 0; rg < RG; ++rg)
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) acc[rg][i][j] = 0;
      const bool more = block + 1 < count;
      const int next = (block + 1) * 128;
      w += 2 * K * 32;
      unit_product<K, RG>(a, xa, lane, acc);
      if (more) {
        a.load(w, policy);
#pragma unroll
        for (int rg = 0; rg < RG; ++rg) xa[rg] = *reinterpret_cast<const uint4*>(rows.q[rg] + next);
      }
      unit_product<K, RG>(b, xb, lane, acc);
      if (more) {
        b.load(w + K * 32, policy);
#pragma unroll
        for (int rg = 0; rg < RG; ++rg)
          xb[rg] = *reinterpret_cast<const uint4*>(rows.q[rg] + next + 64);
      }
#pragma unroll
      for (int rg = 0; rg < RG; ++rg) {
        const float2 s = scale[rg];
        if (more) scale[rg] = rows.scale[rg][block + 1];
        out.shift[rg] += s.y;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const float high = static_cast<float>(acc[rg][i][2 * h]);
            const float both = fmaf(high, 256.0f, static_cast<float>(acc[rg][i][2 * h + 1]));
            out.at(rg, i, h) = fmaf(s.x, both, out.at(rg, i, h));
          }
      }
      if (more && (!kSeveral || --left > 0)) continue;
      left = each;
#pragma unroll
      for (int rg = 0; rg < RG; ++rg)
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h) out.at(rg, i, h) -= out.shift[rg];
      keep(out, block);
      out = {};
    }
  }
};

// Programmatic launches: the next kernel of the stream may begin (its weight loads, say) while this
// one runs; what it reads of this one's results comes after wait_for_previous().
__device__ __forceinline__ void allow_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace tensorfold::cuda
