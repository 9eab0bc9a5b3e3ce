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
#include "kernels/cuda/exl3_wgmma.cuh"
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

// Whether the GPU being compiled for has the shared memory of an instance; others stay empty.
constexpr bool prefill_fits(int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
  return bytes <= 99 * 1024;
#else
  return bytes <= 227 * 1024;
#endif
}

inline constexpr int kPrefillLoaders = 256;  // threads that fill one matrix's stages

// Keeps a value in its register: the compiler would compute it again in every step.
__device__ __forceinline__ void keep(uint32_t& v) { asm volatile("" : "+r"(v)); }

// One thread's share of the copies of a matrix, in order of steps: pieces of TN / 32 rows, and one
// or two of the codes. from(r): row r's first value.
template <int TN>
struct PrefillLoader {
  const uint16_t* row[TN / 32];
  const uint4* code[2];
  uint32_t row_to, code_to, code_step, codes;  // codes: copies of this thread

  template <typename From>
  __device__ __forceinline__ PrefillLoader(const Exl3Parts& w, int column, int thread,
                                           const From& from) {
    const int r = thread >> 3, piece = thread & 7, step = w.half_bits * 16;
#pragma unroll
    for (int j = 0; j < TN / 32; ++j) row[j] = from(r + 32 * j) + piece * 8;
    row_to = static_cast<uint32_t>(r * 128 + ((piece ^ (r & 7)) << 4));
    code_step = static_cast<uint32_t>(step) * 16;  // bytes
    codes = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = thread + j * kPrefillLoaders, strip = i >= step ? 1 : 0;
      code[j] = static_cast<const uint4*>(w.trellis) +
                int64_t{2 * column + strip} * (w.padded_in / 64) * step + i - strip * step;
      if (i < 2 * step) codes = static_cast<uint32_t>(j) + 1;
    }
    code_to = static_cast<uint32_t>(PrefillStage<TN>::kRowBytes + thread * 16);
    keep(row_to);
    keep(code_to);
    keep(code_step);
    keep(codes);
  }
  // The next step, into the stage at `to`.
  __device__ __forceinline__ void next(uint32_t to) {
#pragma unroll
    for (int j = 0; j < TN / 32; ++j) {
      copy16(to + row_to + j * 4096, row[j]);
      row[j] += 64;
    }
    if (codes > 0) copy16(to + code_to, code[0]);
    if (codes > 1) copy16(to + code_to + kPrefillLoaders * 16, code[1]);
#pragma unroll
    for (int j = 0; j < 2; ++j)
      code[j] = reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(code[j]) + code_step);
  }
};

__device__ __forceinline__ void mma_f16(float* c, const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four products of a step; `stage`: shared address of this matrix's part, code[j]: where in it this
// lane's word j lies. d[4 j + i]: output g (i = 0, 1) or g + 8 (2, 3), row 8 j + 2 t + i % 2.
template <int K, int TN>
__device__ __forceinline__ void prefill_step(uint32_t stage, const uint32_t (&code)[K], int lane,
                                             uint32_t (&a)[4][4], float (&d)[TN / 2]) {
  uint32_t run[K + 1];
#pragma unroll
  for (int j = 0; j < K; ++j)
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(run[j + 1]) : "r"(stage + code[j]));
  run[0] = __shfl_sync(0xffffffffu, run[K], (lane + 28) & 31);
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const int v = 8 * s;
    a[s][0] = mul1_pair(window_at(run, K, v), window_at(run, K, v + 1));
    a[s][2] = mul1_pair(window_at(run, K, v + 2), window_at(run, K, v + 3));
    a[s][1] = mul1_pair(window_at(run, K, v + 4), window_at(run, K, v + 5));
    a[s][3] = mul1_pair(window_at(run, K, v + 6), window_at(run, K, v + 7));
#if TF_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    wgmma_f16(d, a[s], row_descriptor(stage) + 2 * s);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    const int row = (lane & 7) + ((lane >> 4) << 3);
#pragma unroll
    for (int j = 0; j < TN / 16; ++j) {
      const int r = 16 * j + row, piece = (2 * s + ((lane >> 3) & 1)) ^ (r & 7);
      uint32_t b[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                   : "r"(stage + r * 128 + piece * 16));
      mma_f16(d + 8 * j, a[s], b[0], b[1]);
      mma_f16(d + 8 * j + 4, a[s], b[2], b[3]);
    }
#endif
  }
}

template <int TN>
inline constexpr bool kPrefillAhead = TN == 256;

// Waits until at most kPending products of this warp are under way. `a`: operands that are free
// then; until here they stay in their registers.
template <int kPending>
__device__ __forceinline__ void prefill_wait(const uint32_t (&a)[4][4]) {
#if TF_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#pragma unroll
  for (int s = 0; s < 4; ++s)
    asm volatile("" ::"r"(a[s][0]), "r"(a[s][1]), "r"(a[s][2]), "r"(a[s][3]));
#endif
}

// All steps of a tile, two at a time (inputs are a multiple of 128). `load(step, to)` starts this
// thread's copies of a step into the stage at shared address `to` (nothing past the end) and
// commits them. `ring`: this matrix's part of stage 0. With few rows the products of a step run on
// while the next is decoded.
template <int K, int TN, int kStages, typename Load>
__device__ __forceinline__ void prefill_run(uint32_t ring, uint32_t stage_bytes, int steps,
                                            int tile, int lane, Load& load, float (&d)[TN / 2]) {
  constexpr bool kAhead = kPrefillAhead<TN>;
  constexpr int kDistance = kStages - 2;
  uint32_t code[K];
#pragma unroll
  for (int j = 0; j < K; ++j) {
    const int mine = (tile & 3) * K + j;
    code[j] = static_cast<uint32_t>(PrefillStage<TN>::kRowBytes + (tile >> 2) * (K * 512) +
                                    (mine >> 2) * 512 + lane * 16 + (mine & 3) * 4);
    keep(code[j]);
  }
  const uint32_t end = ring + kStages * stage_bytes;
  uint32_t read = ring, write = ring + kDistance * stage_bytes;
  uint32_t even[4][4], odd[4][4];
  const auto begin = [&]() {
    copy_wait<kAhead ? kDistance - 1 : kStages / 2 - 2>();
#if TF_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
  };
  const auto start = [&](int step) {
    load(step + kDistance, write);
    write = write + stage_bytes == end ? ring : write + stage_bytes;
  };
  const auto multiply = [&](uint32_t(&a)[4][4]) {
    prefill_step<K, TN>(read, code, lane, a, d);
    read = read + stage_bytes == end ? ring : read + stage_bytes;
  };
#pragma unroll 1
  for (int step = 0; step < steps; step += 2) {
    begin();
    start(step);
    if constexpr (kAhead) {
      copy_commit();
      multiply(even);
      prefill_wait<4>(odd);
      begin();
      start(step + 1);
      copy_commit();
      multiply(odd);
      prefill_wait<4>(even);
    } else {
      start(step + 1);
      copy_commit();
      multiply(even);
      multiply(odd);
      prefill_wait<0>(even);
      prefill_wait<0>(odd);
    }
  }
  if constexpr (kAhead) prefill_wait<0>(odd);
}

// The width of the weight picks the instance. Every warp of the block makes the same number of
// steps, so the barriers inside match whatever the widths.
template <int TN, int kStages, typename Load>
__device__ __forceinline__ void prefill_product(int bits, uint32_t ring, uint32_t stage_bytes,
                                                int steps, int tile, int lane, Load& load,
                                                float (&d)[TN / 2]) {
  constexpr int kDistance = kStages - 2;
#pragma unroll
  for (int i = 0; i < TN / 2; ++i) d[i] = 0;
  for (int step = 0; step < kDistance; ++step) {
    load(step, ring + step * stage_bytes);
    if (kPrefillAhead<TN> || step % 2 != 0) copy_commit();
  }
  switch (bits) {
#define TF_CASE(K)                                                              \
  case K:                                                                       \
    prefill_run<K, TN, kStages>(ring, stage_bytes, steps, tile, lane, load, d); \
    break;
    TF_CASE(2)
    TF_CASE(3)
    TF_CASE(4)
    TF_CASE(5)
    TF_CASE(6)
#undef TF_CASE
    default:
      break;
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
