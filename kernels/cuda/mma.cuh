// The tensor-core product of the dense kernels: m16n8k16, bf16 in, fp32 out.
//
// Products of bf16 values are exact, sums are fp32 with a compensation. Operands are read 16
// bytes a lane: in a chunk of 32 inputs a lane holds inputs 8c..8c+7, c its place among four lanes,
// of one row; the chunk's first product takes 8c..8c+3 and the second 8c+4..8c+7. Any such deal of
// inputs to the instruction's slots is right as long as both operands follow it; this one is part
// of the order in which a result is summed, so all kernels that must agree use it.
#pragma once

#include <cstdint>

namespace tensorfold::cuda {

inline constexpr int kChunk = 32;  // inputs of two products

__device__ inline void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A sum with what rounding took from it (Knuth's two-sum).
struct Sum {
  float value = 0, rest = 0;
  __device__ void add(float v) {
    const float total = value + v;
    const float seen = total - value;
    rest += (value - (total - seen)) + (v - seen);
    value = total;
  }
  __device__ float total() const { return value + rest; }
};

// sum += the product of one instruction. The instruction starts from zero and the addition is made
// outside: inside, what is added to a large sum is cut off at the sum's last bits, always toward
// zero. A result so hardly ever differs from the exact sum rounded once, which is what the CPU
// gives; the quantisers behind it turn a difference in the last bit into one of a percent.
__device__ inline void mma_add(Sum (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                               uint32_t b0, uint32_t b1) {
  float d[4] = {0, 0, 0, 0};
  mma_bf16(d, a0, a1, a2, a3, b0, b1);
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i].add(d[i]);
}

// 16 rows times 8 outputs over a chunk: top, bottom are the lane's 16 bytes of rows g and g + 8, b
// of output g, g = lane / 4. sum: rows g, g + 8; outputs 2 (lane % 4) + {0, 1}.
__device__ inline void mma_chunk(Sum (&sum)[4], const uint4& top, const uint4& bottom,
                                 const uint4& b) {
  mma_add(sum, top.x, bottom.x, top.y, bottom.y, b.x, b.y);
  mma_add(sum, top.z, bottom.z, top.w, bottom.w, b.z, b.w);
}

// The same without compensation: a chunk's two products are one chain, which starts from zero.
__device__ inline void mma_chunk(float (&d)[4], const uint4& top, const uint4& bottom,
                                 const uint4& b) {
  mma_bf16(d, top.x, bottom.x, top.y, bottom.y, b.x, b.y);
  mma_bf16(d, top.z, bottom.z, top.w, bottom.w, b.z, b.w);
}

// sum += one chunk, rounded to nearest: a product's own addition to a large sum cuts off.
__device__ inline void add_chunk(float (&sum)[4], const uint4& top, const uint4& bottom,
                                 const uint4& b) {
  float d[4] = {};
  mma_chunk(d, top, bottom, b);
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] += d[i];
}

}  // namespace tensorfold::cuda
