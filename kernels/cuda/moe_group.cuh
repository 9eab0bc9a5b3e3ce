// The product of the MoE of generated rows: four warps of a thread block
// multiply 128 outputs of an expert's matrix at a time by at most eight rows; a
// fifth warp copies the codes.
//
// The rows lie in shared memory as the right operand that the matrix unit wants (the tile): every
// byte four times, since a weight is the four bytes of its product (exl3_step.cuh). A warp decodes
// 32 outputs. Codes come through a ring of slots, whole units of the order "lanes" by bulk copies,
// across outputs and phases: the copies run ahead of the products by the depth of the ring.
//
// What a thread block does is a range of units, in order: phases (entry,
// matrix, chunk of the inputs) of columns of 128 outputs. The range depends on
// the grid; no sum does.
#pragma once

#include "kernels/cuda/moe_decode_device.cuh"
#include "kernels/cuda/moe_ring.cuh"

namespace tensorfold::cuda {

inline constexpr int kGroupWarps = 4;  // that multiply
inline constexpr int kGroupThreads = 32 * (kGroupWarps + 1);
inline constexpr int kTileBlocks = 9;  // blocks of 128 inputs of four rows; half of eight rows
inline constexpr int kTileWords = kTileBlocks * 1024;
inline constexpr int kRingSlots = 3;
inline constexpr int kRingSlotBytes = 6144;  // of two strips: a block of up to 3 bits, or 64 inputs
inline constexpr int kDoneSlots = 4;         // columns between products and what follows them

// A tile's columns are (row, high byte), (row, low byte); RG groups of four
// rows.
struct GroupShared {
  alignas(128) uint32_t tile[kTileWords];
  alignas(128) uint8_t codes[kRingSlots][kRingSlotBytes];
  float2 scale[kTileBlocks * 4];  // scale and shift of [block][4 RG rows]
  float shift[8];                 // of the rows: the sum of shifts so far
  int32_t pair[8];
  uint64_t full[kRingSlots], empty[kRingSlots];
  uint64_t done[kDoneSlots], taken[kDoneSlots];
};

__device__ __forceinline__ void group_sync() {  // of the warps that multiply
  asm volatile("bar.sync 1, 128;" ::: "memory");
}
__device__ __forceinline__ void group_init(GroupShared& s) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kRingSlots; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], kGroupWarps);
    }
    for (int i = 0; i < kDoneSlots; ++i) {
      barrier_init(&s.done[i], kGroupWarps);
      barrier_init(&s.taken[i], 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
}

// Part of a range: columns [column, column + columns) of one matrix by input
// blocks [begin, begin + count) for the rows of one entry.
struct GroupPhase {
  Exl3Parts weight;
  MoeEntry entry;
  int number;  // of the entry
  int matrix, chunk;
  int column, columns, begin, count;

  // Widths that are not tuned are passed over: the caller keeps them away.
  __device__ __forceinline__ bool tuned() const {
    return weight.half_bits >= 4 && weight.half_bits <= 12 && weight.half_bits % 2 == 0;
  }
  __device__ __forceinline__ bool eight() const { return entry.count > 4; }
  __device__ __forceinline__ int step() const { return eight() ? kTileBlocks / 2 : kTileBlocks; }
};

// The units of this thread block. Neighbours on a multiprocessor get
// neighbouring ranges, so that the multiprocessors' sums of units differ by one
// at most.
struct GroupRange {
  int64_t first, end;
  __device__ __forceinline__ GroupRange(int64_t units, int multiprocessors) {
    const int grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    const int each = grid / multiprocessors;
    const int place = block % multiprocessors * each + block / multiprocessors;
    first = units * place / grid;
    end = units * (place + 1) / grid;
  }
};

// The codes of a range, slot by slot, started by one warp. step() starts the next slot's; unless it
// may wait, it returns false at once when the slot is still in use.
template <typename Job>
struct CodeCopier {
  GroupShared& s;
  const Job& job;
  int64_t at, end;
  GroupPhase p;
  Place<kRingSlots> place;
  const char* from;  // of the part of this column
  int sub, column, in;
  bool more = true;

  __device__ __forceinline__ CodeCopier(GroupShared& shared, const Job& j, const GroupRange& range)
      : s(shared), job(j), at(range.first), end(range.end) {
    place.parity = 1;  // every slot is empty at first
    next_phase();
  }
  __device__ __forceinline__ int64_t strip_bytes() const {
    return int64_t{p.weight.padded_in / 64} * (p.weight.half_bits * 256);
  }
  __device__ __forceinline__ void begin_part() {
    column = in = 0;
    from = static_cast<const char*>(p.weight.trellis) + 2 * p.column * strip_bytes() +
           int64_t{p.begin + sub} * p.weight.half_bits * 512;
  }
  __device__ __forceinline__ void next_phase() {
    do {
      if (at >= end) {
        more = false;
        return;
      }
      p = job.phase(at, end);
      at += p.columns;
    } while (!p.tuned());
    sub = 0;
    begin_part();
  }
  __device__ __forceinline__ bool step(bool wait, int lane) {
    if (!more) return false;
    uint64_t* empty = &s.empty[place.slot];
    if (wait)
      barrier_wait(empty, place.parity);
    else if (!barrier_passed(empty, place.parity))
      return false;
    const int bytes = p.weight.half_bits * (p.weight.half_bits <= 6 ? 512 : 256);  // of a strip
    if (lane == 0) {
      uint64_t* full = &s.full[place.slot];
      barrier_expect(full, 2 * bytes);
      copy_bulk(s.codes[place.slot], from + in, bytes, full);
      copy_bulk(s.codes[place.slot] + bytes, from + strip_bytes() + in, bytes, full);
    }
    place.next();
    in += bytes;
    if (in < min(p.step(), p.count - sub) * p.weight.half_bits * 512) return true;
    in = 0;
    from += 2 * strip_bytes();
    if (++column < p.columns) return true;
    sub += p.step();
    if (sub < p.count)
      begin_part();
    else
      next_phase();
    return true;
  }
};

// This lane's words of the rows for the tile: inputs 64 u + 16 t + 4 warp .. +
// 3 of a block, column 8 rg + lane / 4 of its group, t = lane % 4.
template <int RG>
using TileWords = uint32_t[kTileBlocks / RG][2][RG];

// Every byte four times. Of two steps of the matrix unit a lane's four words lie together: the
// halves of the first, the halves of the second.
template <int RG>
__device__ __forceinline__ void spread_tile(GroupShared& s, const TileWords<RG>& word, int blocks,
                                            int warp, int lane) {
  // Word w of a unit holds the inputs of steps 4 (w % 2) + w / 2 and that + 2, two each.
  uint32_t* to = s.tile + 2 * (warp & 1) * 128 * RG + 4 * lane + 2 * (warp >> 1);
#pragma unroll
  for (int b = 0; b < kTileBlocks / RG; ++b)
    if (b < blocks)
#pragma unroll
      for (int u = 0; u < 2; ++u)
#pragma unroll
        for (int rg = 0; rg < RG; ++rg)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const uint32_t w = word[b][u][rg];
            *reinterpret_cast<uint2*>(to + ((b * 2 + u) * 4 + i) * 128 * RG + rg * 128) =
                make_uint2(__byte_perm(w, 0, 0x2222u * static_cast<uint32_t>(i)),
                           __byte_perm(w, 0, 0x2222u * static_cast<uint32_t>(i) + 0x1111u));
          }
}

// The rows' shifts of the tile's blocks, in ascending order.
template <int RG>
__device__ __forceinline__ void add_shifts(GroupShared& s, int rows, int blocks) {
  if (threadIdx.x >= rows) return;
  float shift = s.shift[threadIdx.x];
  for (int b = 0; b < blocks; ++b) shift += s.scale[b * 4 * RG + threadIdx.x].y;
  s.shift[threadIdx.x] = shift;
}

// acc[i] += the warp's outputs 16 i .. by the 64 inputs of `run`'s codes; tile: this lane's words
// of the unit.
template <int K, int RG>
__device__ __forceinline__ void group_unit(const uint32_t (&run)[2][K + 1], const uint32_t* tile,
                                           int (&acc)[2][4 * RG]) {
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    uint4 b[RG];
#pragma unroll
    for (int rg = 0; rg < RG; ++rg)
      b[rg] = *reinterpret_cast<const uint4*>(tile + part * 128 * RG + rg * 128);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int v = part * 8 + h * 2;
        const uint32_t x0 = window_at(run[i], K, v) * kMul1;
        const uint32_t x1 = window_at(run[i], K, v + 4) * kMul1;
        const uint32_t x2 = window_at(run[i], K, v + 1) * kMul1;
        const uint32_t x3 = window_at(run[i], K, v + 5) * kMul1;
#pragma unroll
        for (int rg = 0; rg < RG; ++rg)
          mma_u8s8(reinterpret_cast<int(&)[4]>(acc[i][4 * rg]), x0, x1, x2, x3,
                   h == 0 ? b[rg].x : b[rg].z, h == 0 ? b[rg].y : b[rg].w);
      }
  }
}

// What a lane holds of a column: outputs 32 warp + 16 i + 8 h + lane / 4 of
// rows 4 rg + lane % 4.
template <int RG>
using ColumnSums = float[RG][2][2];

template <int K, int RG>
__device__ __forceinline__ void run_column(GroupShared& s, int blocks, Place<kRingSlots>& place,
                                           const int (&at)[K], int warp, int lane,
                                           ColumnSums<RG>& out) {
  constexpr int kStep = K <= 3 ? 0 : 1;  // a slot holds a block, or half of one
  const int strip = (warp >> 1) * K * (K <= 3 ? 1024 : 512);
  const uint32_t* tile = s.tile + 4 * lane;
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    int acc[2][4 * RG];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4 * RG; ++j) acc[i][j] = 0;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      if (u == 0 || kStep == 1) barrier_wait(&s.full[place.slot], place.parity);
      const uint8_t* codes = s.codes[place.slot] + strip + (kStep == 0 ? u * K * 512 : 0);
      uint32_t run[2][K + 1];
#pragma unroll
      for (int j = 0; j < K; ++j) {
        const uint2 two = *reinterpret_cast<const uint2*>(codes + at[j]);
        run[2 * j / K][2 * j % K + 1] = two.x;
        run[(2 * j + 1) / K][(2 * j + 1) % K + 1] = two.y;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) run[i][0] = __shfl_sync(0xffffffffu, run[i][K], (lane + 28) & 31);
      if (u == 1 || kStep == 1) {
        if (lane == 0) barrier_arrive(&s.empty[place.slot]);
        place.next();
      }
      group_unit<K, RG>(run, tile, acc);
      tile += 512 * RG;
    }
#pragma unroll
    for (int rg = 0; rg < RG; ++rg) {
      const float scale = s.scale[block * 4 * RG + 4 * rg + (lane & 3)].x;
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float high = static_cast<float>(acc[i][4 * rg + 2 * h]);
          const float both = fmaf(high, 256.0f, static_cast<float>(acc[i][4 * rg + 2 * h + 1]));
          out[rg][i][h] = fmaf(scale, both, out[rg][i][h]);
        }
    }
  }
}

// Columns of a phase by the tile's blocks. Sums go where the job says: raw
// between parts of a chunk, less the rows' shifts after the last.
template <int K, int RG, typename Job>
__device__ __forceinline__ void run_columns(GroupShared& s, const Job& job, const GroupPhase& p,
                                            int sub, int blocks, Place<kRingSlots>& place,
                                            Place<kDoneSlots>& done, int warp, int lane) {
  const bool last = sub + blocks == p.count;
  const int rows = p.entry.count;
  int at[K];  // of the lane's words of a unit, two by two
#pragma unroll
  for (int j = 0; j < K; ++j) {
    const int word = 2 * K * (warp & 1) + 2 * j;
    at[j] = (word >> 2) * 512 + lane * 16 + (word & 3) * 4;
  }
#pragma unroll 1
  for (int column = p.column; column < p.column + p.columns; ++column) {
    ColumnSums<RG> out;
    float* to[RG];
#pragma unroll
    for (int rg = 0; rg < RG; ++rg) {
      const int row = 4 * rg + (lane & 3);
      to[rg] = job.sums(p, s.pair[row]) + column * 128 + 32 * warp + (lane >> 2);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          out[rg][i][h] = sub > 0 && row < rows ? __ldcg(to[rg] + 16 * i + 8 * h) : 0.0f;
    }
    run_column<K, RG>(s, blocks, place, at, warp, lane, out);
#pragma unroll
    for (int rg = 0; rg < RG; ++rg) {
      const int row = 4 * rg + (lane & 3);
      const float shift = last ? s.shift[row] : 0.0f;
      if (row < rows)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h) __stcg(to[rg] + 16 * i + 8 * h, out[rg][i][h] - shift);
    }
    if (Job::kFollowed && last) {
      barrier_wait(&s.taken[done.slot], done.parity ^ 1);
      __syncwarp();
      if (lane == 0) barrier_arrive(&s.done[done.slot]);
      done.next();
    }
  }
}

// The four warps that multiply.
template <typename Job>
__device__ __forceinline__ void group_multiply(GroupShared& s, const Job& job,
                                               const GroupRange& range, int warp, int lane) {
  Place<kRingSlots> place;
  Place<kDoneSlots> done;
#pragma unroll 1
  for (int64_t at = range.first; at < range.end;) {
    const GroupPhase p = job.phase(at, range.end);
    at += p.columns;
    if (!p.tuned()) continue;
#pragma unroll 1
    for (int sub = 0; sub < p.count; sub += p.step()) {
      const int blocks = min(p.step(), p.count - sub);
      group_sync();  // the tile and the pairs are no longer read
      if (sub == 0 && warp == 0 && lane < 8) {
        s.pair[lane] = job.slots()[p.entry.first + min(lane, p.entry.count - 1)];
        s.shift[lane] = 0;
      }
      group_sync();
      if (p.eight())
        job.template fill<2>(s, p, sub, blocks, warp, lane);
      else
        job.template fill<1>(s, p, sub, blocks, warp, lane);
      group_sync();
      switch (p.weight.half_bits) {
#define TF_CASE(K)                                                        \
  case 2 * K:                                                             \
    if (p.eight())                                                        \
      run_columns<K, 2>(s, job, p, sub, blocks, place, done, warp, lane); \
    else                                                                  \
      run_columns<K, 1>(s, job, p, sub, blocks, place, done, warp, lane); \
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
    }
  }
}

// Thread blocks that a multiprocessor holds: three on one of 227 KB of shared
// memory. A GB10 needs about 4 KB of reads in flight on each to fill its memory
// (273 GB/s, 0.7 us, 48 of them).
constexpr int group_blocks(int major) { return major >= 12 ? 1 : 4; }
#ifdef __CUDA_ARCH__
#define TF_GROUP_BLOCKS group_blocks(__CUDA_ARCH__ / 100)
#else
#define TF_GROUP_BLOCKS 1
#endif
static_assert(sizeof(GroupShared) <= 228 * 1024 / 4 - 1024);

// A kernel over all multiprocessors that may begin while the one before it
// ends.
template <typename Kernel>
cudaError_t launch_group(Kernel kernel, const MoeDecodeArgs& a, cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(sizeof(GroupShared)));
  if (error != cudaSuccess) return error;
  int each = 0;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kGroupThreads,
                                                        sizeof(GroupShared));
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(each * a.multiprocessors));
  config.blockDim = dim3(kGroupThreads);
  config.dynamicSmemBytes = sizeof(GroupShared);
  config.stream = stream;
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[0].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, a);
}

}  // namespace tensorfold::cuda
