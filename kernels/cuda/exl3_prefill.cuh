// The tile product of class P: 128 outputs of a weight (order "lanes") by TN rows of fp16, the
// weights as the left operand, decoded by the warp that multiplies them.
//
// A warp owns 16 outputs. A step is 64 inputs: lane (g, t) holds the codes of outputs g and g + 8
// at the 16 inputs of tile t, so product s of the step takes inputs 16 t + 2 s + {0, 1, 8, 9} from
// every t; the rows lie permuted to match (prefill_place). Steps come through a ring of stages in
// shared memory by cp.async: TN rows of 128 bytes, 16-byte pieces swizzled by row, and the raw
// codes. sm_90a: wgmma, rows read by the matrix unit from shared memory. Elsewhere mma.sync with
// ldmatrix. Instructions a weight: 5 (windows 2, product 1, byte sum 1, half a permute, half an
// fp16 fma).
#pragma once

#include "kernels/cuda/exl3_rotate.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TF_WGMMA 1
#else
#define TF_WGMMA 0
#endif

namespace tensorfold::cuda {

// Where input k (0..63) of a step lies in a row's 64 values.
__host__ __device__ constexpr int prefill_place(int k) {
  const int t = k / 16, in = k % 16;  // in = 2 s + (0, 1, 8, 9)
  const int s = (in % 8) / 2;
  return 16 * s + 2 * t + in % 2 + 8 * (in / 8);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from));
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;"); }
template <int N>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// One weight matrix's share of a stage: rows first (1024-byte aligned), then the codes.
template <int TN>
struct PrefillStage {
  static constexpr int kRowBytes = TN * 128;
  static constexpr int kCodeBytes = 2 * 6 * 512;  // two units of up to 6 bits
  static constexpr int kBytes = kRowBytes + kCodeBytes;
  static_assert(kBytes % 1024 == 0);
};

// The codes of a step: 128 outputs of a weight, two strips of `bits` times 32 pieces of 16 bytes.
__device__ __forceinline__ void copy_codes(const Exl3Parts& w, int column, int step, int thread,
                                           int threads, uint32_t to) {
  const int pieces = w.half_bits * 16;  // of one strip
  const int units_in = w.padded_in / 64;
  const auto* from = static_cast<const uint4*>(w.trellis);
  for (int i = thread; i < 2 * pieces; i += threads) {
    const int strip = i >= pieces, piece = strip != 0 ? i - pieces : i;
    copy16(to + i * 16, from + (int64_t{2 * column + strip} * units_in + step) * pieces + piece);
  }
}

// Pieces of TN rows of a step; from(r) is row r's first value of input 0.
template <int TN, typename From>
__device__ __forceinline__ void copy_rows(const From& from, int step, int thread, int threads,
                                          uint32_t to) {
  for (int i = thread; i < TN * 8; i += threads) {
    const int r = i >> 3, piece = i & 7;
    copy16(to + r * 128 + ((piece ^ (r & 7)) << 4), from(r) + step * 64 + piece * 8);
  }
}

#if TF_WGMMA
__device__ __forceinline__ uint64_t row_descriptor(uint32_t address) {
  return (static_cast<uint64_t>((address & 0x3FFFF) >> 4)) | (uint64_t{1} << 16) |
         (uint64_t{64} << 32) | (uint64_t{1} << 62);  // 8 rows 1024 bytes apart, 128-byte swizzle
}
#define TF_D8(i)                                                                              \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
__device__ __forceinline__ void wgmma_f16(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,"
      "%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
      : TF_D8(0), TF_D8(8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_f16(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,"
      "%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
      : TF_D8(0), TF_D8(8), TF_D8(16), TF_D8(24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_f16(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,"
      "%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,"
      "%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,"
      "%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
      : TF_D8(0), TF_D8(8), TF_D8(16), TF_D8(24), TF_D8(32), TF_D8(40), TF_D8(48), TF_D8(56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef TF_D8
#endif

__device__ __forceinline__ void mma_f16(float* c, const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four products of a step. d[4 j + i]: output g (i = 0, 1) or g + 8 (2, 3), row 8 j + 2 t + i % 2.
template <int K, int TN>
__device__ __forceinline__ void prefill_step(const uint8_t* stage, int tile, int lane,
                                             float (&d)[TN / 2]) {
  const uint8_t* codes = stage + PrefillStage<TN>::kRowBytes + (tile >> 2) * (K * 512);
  uint32_t run[K + 1];
#pragma unroll
  for (int j = 0; j < K; ++j) {
    const int mine = (tile & 3) * K + j;
    run[j + 1] =
        *reinterpret_cast<const uint32_t*>(codes + (mine >> 2) * 512 + lane * 16 + (mine & 3) * 4);
  }
  run[0] = __shfl_sync(0xffffffffu, run[K], (lane + 28) & 31);
  const uint32_t rows = shared_address(stage);
  uint32_t a[4][4];
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const int v = 8 * s;
    a[s][0] = mul1_pair(window_at(run, K, v), window_at(run, K, v + 1));
    a[s][2] = mul1_pair(window_at(run, K, v + 2), window_at(run, K, v + 3));
    a[s][1] = mul1_pair(window_at(run, K, v + 4), window_at(run, K, v + 5));
    a[s][3] = mul1_pair(window_at(run, K, v + 6), window_at(run, K, v + 7));
#if TF_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    wgmma_f16(d, a[s], row_descriptor(rows) + 2 * s);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    const int row = (lane & 7) + ((lane >> 4) << 3);
#pragma unroll
    for (int j = 0; j < TN / 16; ++j) {
      const int r = 16 * j + row, piece = (2 * s + ((lane >> 3) & 1)) ^ (r & 7);
      uint32_t b[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                   : "r"(rows + r * 128 + piece * 16));
      mma_f16(d + 8 * j, a[s], b[0], b[1]);
      mma_f16(d + 8 * j + 4, a[s], b[2], b[3]);
    }
#endif
  }
#if TF_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  // The operands stay in their registers until here.
#pragma unroll
  for (int s = 0; s < 4; ++s)
    asm volatile("" ::"r"(a[s][0]), "r"(a[s][1]), "r"(a[s][2]), "r"(a[s][3]));
#endif
}

// All steps of a tile. `load(step)` starts the copies of a step into its stage (every thread, its
// share; nothing past the end) and commits them. `ring`: this matrix's part of stage 0.
template <int K, int TN, int kStages, typename Load>
__device__ __forceinline__ void prefill_run(const uint8_t* ring, int stage_bytes, int steps,
                                            int tile, int lane, const Load& load,
                                            float (&d)[TN / 2]) {
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    copy_wait<kStages - 2>();
#if TF_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
    load(step + kStages - 1);
    prefill_step<K, TN>(ring + (step % kStages) * stage_bytes, tile, lane, d);
  }
}

// The width of the weight picks the instance. Every warp of the block makes the same number of
// steps, so the barriers inside match whatever the widths.
template <int TN, int kStages, typename Load>
__device__ __forceinline__ void prefill_product(int bits, const uint8_t* ring, int stage_bytes,
                                                int steps, int tile, int lane, const Load& load,
                                                float (&d)[TN / 2]) {
#pragma unroll
  for (int i = 0; i < TN / 2; ++i) d[i] = 0;
  for (int step = 0; step < kStages - 1; ++step) load(step);
  switch (bits) {
#define TF_CASE(K)                                                              \
  case K:                                                                       \
    prefill_run<K, TN, kStages>(ring, stage_bytes, steps, tile, lane, load, d); \
    break;
    TF_CASE(2)
    TF_CASE(3) TF_CASE(4) TF_CASE(5) TF_CASE(6)
#undef TF_CASE
        default : break;
  }
  copy_wait<0>();
}

inline constexpr int kPrefillSumStride = 132;  // floats of a row in the epilogue

// A warp's 16 outputs by TN rows into shared memory [TN][kPrefillSumStride].
template <int TN>
__device__ __forceinline__ void prefill_store(const float (&d)[TN / 2], int tile, int lane,
                                              float* sums) {
  float* to = sums + 2 * (lane & 3) * kPrefillSumStride + 16 * tile + (lane >> 2);
#pragma unroll
  for (int j = 0; j < TN / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[(8 * j + (i & 1)) * kPrefillSumStride + 8 * (i >> 1)] = d[4 * j + i];
}

// This lane's four values of a block of 128 as fp16 in the order of a step.
__device__ __forceinline__ void store_prefill_block(const float (&v)[4], uint16_t* block,
                                                    int lane) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const int k = 4 * lane + i;
    const __half2 two = __floats2half2_rn(v[i], v[i + 1]);
    *reinterpret_cast<__half2*>(block + (k & 64) + prefill_place(k & 63)) = two;
  }
}

}  // namespace tensorfold::cuda
