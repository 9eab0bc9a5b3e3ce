// The product of the MoE of generated rows: the four warps of a thread block multiply 128 outputs
// of an expert's matrix at a time by at most eight rows.
//
// The rows lie in shared memory as the right operand that the matrix unit wants (the tile): every
// byte four times, since a weight is the four bytes of its product (exl3_step.cuh). A warp decodes
// 32 outputs; a block's codes are on their way to its registers while it multiplies the last one's,
// across columns too.
//
// What a thread block does is a range of units, in order: phases (entry, matrix, piece of the
// inputs) of columns of 128 outputs. A piece is a chunk, or a leaf where there are few units. The
// range and the pieces depend on the grid and on the call; no sum does (moe_plan.h).
#pragma once

#include "kernels/cuda/exl3_windows.cuh"
#include "kernels/cuda/moe_decode_device.cuh"

namespace tensorfold::cuda {

inline constexpr int kGroupWarps = 4;
inline constexpr int kGroupThreads = 32 * kGroupWarps;
inline constexpr int kTileBlocks = 10;  // blocks of 128 inputs of four rows; half of eight rows
inline constexpr int kTileLeaves = 4;
inline constexpr int kSumStride = 132;  // floats between rows of finished columns

// A tile's columns are (row, high byte), (row, low byte); RG groups of four rows.
struct GroupShared {
  alignas(16) uint32_t tile[kTileBlocks * 1024];
  alignas(16) float sums[kMoeRowsPerEntry * kSumStride];  // a finished column
  float2 scale[kTileBlocks * 4];                          // scale, shift of [block][4 RG rows]
  float shift[kTileLeaves][kMoeRowsPerEntry];             // sums over a leaf's blocks
  int32_t pair[kMoeRowsPerEntry];
  int32_t key[kMoeRowsPerEntry][32];  // of the rows' experts: their ids, or none
  int32_t last;
  ShortList list;
};

// Thread blocks that a multiprocessor holds. A GB10 needs about 4 KB of reads in flight on each to
// fill its memory (273 GB/s, 0.7 us, 48 of them): two of its blocks have 12 KB of 3-bit codes.
constexpr int group_blocks(int major) { return major >= 12 ? 1 : 4; }
#ifdef __CUDA_ARCH__
#define TF_GROUP_BLOCKS group_blocks(__CUDA_ARCH__ / 100)
#else
#define TF_GROUP_BLOCKS 1
#endif
static_assert(sizeof(GroupShared) <= 228 * 1024 / 4 - 1024);

// Part of a range: columns [column, column + columns) of one matrix by input blocks [begin, begin +
// count) for the rows of one entry.
struct GroupPhase {
  Exl3Parts weight;
  MoeEntry entry;
  int number;  // of the entry
  int matrix, piece;
  int column, columns, begin, count, leaf_blocks;

  // Widths that are not tuned are passed over: the caller keeps them away.
  __device__ __forceinline__ bool tuned() const {
    return weight.half_bits >= 4 && weight.half_bits <= 12 && weight.half_bits % 2 == 0;
  }
  __device__ __forceinline__ bool eight() const { return entry.count > 4; }
  // Blocks of a tile: whole leaves.
  __device__ __forceinline__ int step() const {
    return (eight() ? kTileBlocks / 2 : kTileBlocks) / leaf_blocks * leaf_blocks;
  }
  __device__ __forceinline__ void set_piece(const MoeCut& cut, bool fine) {
    const int leaves = fine ? 1 : cut.chunk_leaves;
    begin = piece * leaves * cut.leaf_blocks;
    count = min(leaves * cut.leaf_blocks, cut.blocks - begin);
    leaf_blocks = cut.leaf_blocks;
  }
};

// The units of this thread block: first those of large entries, which count three where the others
// count two, about what they take. Neighbours on a multiprocessor get neighbouring ranges, so that
// the multiprocessors' sums differ by a unit at most.
struct GroupRange {
  int64_t first, end;
  __device__ __forceinline__ GroupRange(int64_t large, int64_t units, int multiprocessors) {
    const int grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    const int each = grid / multiprocessors;
    const int place = block % multiprocessors * each + block / multiprocessors;
    const int64_t cost = 2 * units + large;
    first = unit_at(cost * place / grid, large);
    end = unit_at(cost * (place + 1) / grid, large);
  }
  static __device__ __forceinline__ int64_t unit_at(int64_t cost, int64_t large) {
    return cost < 3 * large ? cost / 3 : (cost - large) / 2;
  }
};

// Whether pieces are leaves: thread blocks would get only a few chunks.
__device__ __forceinline__ bool fine_pieces(int entries, int64_t chunk_units) {
  return entries * kMoeRowsPerEntry <= kMoeFineSlots &&
         chunk_units < 6 * static_cast<int>(gridDim.x);
}

// This lane's words of the rows for the tile: inputs 64 u + 16 t + 4 warp .. + 3 of a block, column
// 8 rg + lane / 4 of its group, t = lane % 4.
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

// The rows' shifts, leaf by leaf, blocks in ascending order.
template <int RG>
__device__ __forceinline__ void add_shifts(GroupShared& s, const GroupPhase& p, int blocks) {
  const int row = static_cast<int>(threadIdx.x) % kMoeRowsPerEntry;
  const int leaf = static_cast<int>(threadIdx.x) / kMoeRowsPerEntry;
  if (leaf >= kTileLeaves || row >= p.entry.count) return;
  float shift = 0;
  for (int b = leaf * p.leaf_blocks; b < min(blocks, (leaf + 1) * p.leaf_blocks); ++b)
    shift += s.scale[b * 4 * RG + row].y;
  s.shift[leaf][row] = shift;
}

// A lane's words of 64 inputs: of two tile columns of the order "lanes", two words at a time.
template <int K>
struct LaneCodes {
  uint2 two[K];
  __device__ __forceinline__ void load(const char* even, const char* odd) {
#pragma unroll
    for (int j = 0; j < K; ++j)
      asm volatile("ld.global.nc.L2::256B.v2.u32 {%0,%1}, [%2];"
                   : "=r"(two[j].x), "=r"(two[j].y)
                   : "l"((j % 2 == 0 ? even : odd) + j / 2 * 512));
  }
  __device__ __forceinline__ uint32_t word(int i) const {
    return i % 2 == 0 ? two[i / 2].x : two[i / 2].y;
  }
};

// acc[i] += the warp's outputs 16 i .. by 64 inputs; tile: this lane's words of the unit.
template <int K, int RG>
__device__ __forceinline__ void group_unit(const LaneCodes<K>& codes, const uint32_t* tile,
                                           int lane, int (&acc)[2][4 * RG]) {
  uint32_t run[2][K + 1];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < K; ++j) run[i][j + 1] = codes.word(i * K + j);
    run[i][0] = __shfl_sync(0xffffffffu, run[i][K], (lane + 28) & 31);
  }
  const TwiceWindows<K> window[2] = {TwiceWindows<K>(run[0]), TwiceWindows<K>(run[1])};
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
        const uint32_t x0 = window[i].at(v) * kMul1Twice;
        const uint32_t x1 = window[i].at(v + 4) * kMul1Twice;
        const uint32_t x2 = window[i].at(v + 1) * kMul1Twice;
        const uint32_t x3 = window[i].at(v + 5) * kMul1Twice;
#pragma unroll
        for (int rg = 0; rg < RG; ++rg)
          mma_u8s8(reinterpret_cast<int(&)[4]>(acc[i][4 * rg]), x0, x1, x2, x3,
                   h == 0 ? b[rg].x : b[rg].z, h == 0 ? b[rg].y : b[rg].w);
      }
  }
}

// What a lane holds of a column: outputs 32 warp + 16 i + 8 h + lane / 4 of rows 4 rg + lane % 4.
template <int RG>
struct ColumnSums {
  float v[RG][2][2];
};

// Sums of a column to and from global memory: place(row) is the lane's first float.
template <int RG, typename Where>
__device__ __forceinline__ void load_column(int rows, int lane, ColumnSums<RG>& sums,
                                            const Where& place) {
#pragma unroll
  for (int rg = 0; rg < RG; ++rg) {
    const int row = 4 * rg + (lane & 3);
    if (row >= rows) continue;
    const float* from = place(row);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) sums.v[rg][i][h] = __ldcg(from + 16 * i + 8 * h);
  }
}
template <int RG, typename Where>
__device__ __forceinline__ void store_column(int rows, int lane, const ColumnSums<RG>& sums,
                                             const Where& place) {
#pragma unroll
  for (int rg = 0; rg < RG; ++rg) {
    const int row = 4 * rg + (lane & 3);
    if (row >= rows) continue;
    float* to = place(row);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) __stcg(to + 16 * i + 8 * h, sums.v[rg][i][h]);
  }
}

// out += one block of 128 inputs.
template <int K, int RG>
__device__ __forceinline__ void add_block(const int (&acc)[2][4 * RG], const float2* scale,
                                          ColumnSums<RG>& out) {
#pragma unroll
  for (int rg = 0; rg < RG; ++rg) {
    const float s = scale[4 * rg].x;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float high = static_cast<float>(acc[i][4 * rg + 2 * h]);
        const float both = fmaf(high, 256.0f, static_cast<float>(acc[i][4 * rg + 2 * h + 1]));
        out.v[rg][i][h] = fmaf(s, both, out.v[rg][i][h]);
      }
  }
}

// Columns of a phase by the tile's blocks. The job gets and keeps what there is of a column.
template <int K, int RG, typename Job>
__device__ __forceinline__ void run_columns(GroupShared& s, const Job& job, const GroupPhase& p,
                                            int sub, int blocks, int warp, int lane) {
  const int64_t block_bytes = K * 1024;
  const int64_t strip_bytes = int64_t{p.weight.padded_in / 128} * block_bytes;
  // Words 2 K (warp % 2) and on of a unit: pairs j = 0, 2 .. are 512 bytes apart, so are the
  // others.
  const int first = 2 * K * (warp & 1);
  const char* even = static_cast<const char*>(p.weight.trellis) +
                     (2 * p.column + (warp >> 1)) * strip_bytes + (p.begin + sub) * block_bytes +
                     16 * lane + (first >> 2) * 512 + (first & 3) * 4;
  const char* odd = even + ((first & 3) == 0 ? 8 : 504);
  LaneCodes<K> a, b;
  a.load(even, odd);
  b.load(even + K * 512, odd + K * 512);
#pragma unroll 1
  for (int column = p.column; column < p.column + p.columns; ++column) {
    ColumnSums<RG> total;
    if (sub > 0) job.resume(s, p, column, warp, lane, total);
    const uint32_t* tile = s.tile + 4 * lane;
    const float2* scale = s.scale + (lane & 3);
    int block = 0;
#pragma unroll 1
    for (int leaf = 0; block < blocks; ++leaf) {
      ColumnSums<RG> out = {};
      const int end = min(blocks, block + p.leaf_blocks);
#pragma unroll 1
      for (; block < end; ++block) {
        int acc[2][4 * RG];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int j = 0; j < 4 * RG; ++j) acc[i][j] = 0;
        const bool over = block + 1 == blocks;
        const bool more = !over || column + 1 < p.column + p.columns;
        const int64_t ahead = over ? 2 * strip_bytes - (blocks - 1) * block_bytes : block_bytes;
        even += ahead;
        odd += ahead;
        group_unit<K, RG>(a, tile, lane, acc);
        if (more) a.load(even, odd);
        group_unit<K, RG>(b, tile + 512 * RG, lane, acc);
        if (more) b.load(even + K * 512, odd + K * 512);
        add_block<K, RG>(acc, scale, out);
        tile += 1024 * RG;
        scale += 4 * RG;
      }
#pragma unroll
      for (int rg = 0; rg < RG; ++rg) {
        const float shift = s.shift[leaf][4 * rg + (lane & 3)];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const float v = out.v[rg][i][h] - shift;
            total.v[rg][i][h] = sub == 0 && leaf == 0 ? v : total.v[rg][i][h] + v;
          }
      }
    }
    job.keep(s, p, column, sub + blocks == p.count, warp, lane, total);
  }
}

// All of a range.
template <typename Job>
__device__ __forceinline__ void group_multiply(GroupShared& s, const Job& job,
                                               const GroupRange& range, int warp, int lane) {
#pragma unroll 1
  for (int64_t at = range.first; at < range.end;) {
    const GroupPhase p = job.phase(s, at, range.end);
    at += p.columns;
    if (!p.tuned()) continue;
#pragma unroll 1
    for (int sub = 0; sub < p.count; sub += p.step()) {
      const int blocks = min(p.step(), p.count - sub);
      __syncthreads();  // the tile is no longer read
      if (p.eight())
        job.template fill<2>(s, p, sub, blocks, warp, lane);
      else
        job.template fill<1>(s, p, sub, blocks, warp, lane);
      __syncthreads();
      switch (p.weight.half_bits) {
#define TF_CASE(K)                                           \
  case 2 * K:                                                \
    if (p.eight())                                           \
      run_columns<K, 2>(s, job, p, sub, blocks, warp, lane); \
    else                                                     \
      run_columns<K, 1>(s, job, p, sub, blocks, warp, lane); \
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

// A kernel over all multiprocessors that may begin while the one before it ends.
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
