// Hyper-connections between sublayers (kernels/hc_step.h), in the header's order.
#include "engine/base/check.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/hc_fused.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kMixThreads = 128;
constexpr int kRowThreads = 256;

// 1, 2. Mix and tap: a thread takes two neighboring channels of every stream.
__global__ void __launch_bounds__(kMixThreads) hc_mix_kernel(HcStepParams p) {
  const int64_t r = blockIdx.x, h = p.hidden;
  const int i = (blockIdx.y * kMixThreads + threadIdx.x) * 2;
  if (i >= p.hidden) return;
  const int n = p.hc;
  uint16_t* x = p.streams + r * n * h + i;
  float v[kHcMax][2];
  for (int j = 0; j < n; ++j) {
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(x + j * h);
    v[j][0] = bf16_low(pair);
    v[j][1] = bf16_high(pair);
  }
  if (p.y != nullptr) {
    const float* post = p.post_in + r * n;
    const float* comb = p.comb_in + r * n * n;
    const float y0 = round_bf16(p.y[r * h + i]), y1 = round_bf16(p.y[r * h + i + 1]);
    float mixed[kHcMax][2];
    for (int k = 0; k < n; ++k) {
      float s0 = v[0][0] * comb[k], s1 = v[0][1] * comb[k];
      for (int j = 1; j < n; ++j) {
        s0 += v[j][0] * comb[j * n + k];
        s1 += v[j][1] * comb[j * n + k];
      }
      mixed[k][0] = round_bf16(y0 * post[k] + s0);
      mixed[k][1] = round_bf16(y1 * post[k] + s1);
    }
    for (int k = 0; k < n; ++k) {
      v[k][0] = mixed[k][0];
      v[k][1] = mixed[k][1];
      *reinterpret_cast<uint32_t*>(x + k * h) = pack_bf16(v[k][0], v[k][1]);
    }
  }
  if (p.tap == nullptr) return;
  float s0 = v[0][0], s1 = v[0][1];
  for (int c = 1; c < n; ++c) {
    s0 += v[c][0];
    s1 += v[c][1];
  }
  const auto streams = static_cast<float>(n);
  *reinterpret_cast<uint32_t*>(p.tap + r * p.tap_stride + i) =
      pack_bf16(s0 / streams, s1 / streams);
}

// 3. Coefficients of one row from its mixes, by a block; comb is built in shared memory.
__device__ void hc_coefficients(const HcStepParams& p, int64_t r, float inverse, float* comb) {
  const int n = p.hc, t = static_cast<int>(threadIdx.x);
  float* m = p.mixes + r * (2 + n) * n;
  if (t < (2 + n) * n) m[t] *= inverse;
  __syncthreads();
  if (t < n) {
    p.pre_out[r * n + t] = sigmoid(m[t] * p.scale[0] + p.base[t]) + p.hc_eps;
    p.post_out[r * n + t] = 2.0f * sigmoid(m[n + t] * p.scale[1] + p.base[n + t]);
  }
  const bool mine = t < n * n;
  const int j = t / n, k = t % n;
  if (mine) comb[t] = m[2 * n + t] * p.scale[2] + p.base[2 * n + t];
  __syncthreads();
  float value = 0;
  if (mine) {  // softmax over k
    float largest = -INFINITY, sum = 0;
    for (int i = 0; i < n; ++i) largest = fmaxf(largest, comb[j * n + i]);
    for (int i = 0; i < n; ++i) sum += exp_near(comb[j * n + i] - largest);
    value = exp_near(comb[t] - largest) / sum + p.hc_eps;
  }
  for (int pass = 0; pass < 2 * p.sinkhorn_iters; ++pass) {
    const bool columns = pass % 2 == 1;
    if (pass == 0) continue;  // the first pass is columns only
    __syncthreads();
    if (mine) comb[t] = value;
    __syncthreads();
    if (!mine) continue;
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += columns ? comb[i * n + k] : comb[j * n + i];
    value /= sum + p.hc_eps;
  }
  if (mine) p.comb_out[r * n * n + t] = value;
}

// 3, 4. One block per row: coefficients, collapse, norm.
__global__ void __launch_bounds__(kRowThreads) hc_row_kernel(HcStepParams p) {
  extern __shared__ float shared[];
  const int64_t r = blockIdx.x, h = p.hidden;
  const int n = p.hc, width = n * p.hidden;
  float* comb = shared;                       // [n n]
  float* scratch = shared + kHcMax * kHcMax;  // of block_sum
  float* row = scratch + block_sum_floats(width);
  const uint16_t* x = p.streams + r * width;
  if (p.fn != nullptr) {
    const float squares = block_sum(width, scratch, [x](int i) {
      const float v = bf16_value(x[i]);
      return v * v;
    });
    hc_coefficients(p, r, inverse_rms(squares, width, p.norm_eps), comb);
  }
  if (p.collapsed == nullptr && p.normed == nullptr) return;
  const float* pre = p.pre_in + r * n;
  for (int i = threadIdx.x; i < p.hidden; i += kRowThreads) {
    float sum = bf16_value(x[i]) * pre[0];
    for (int c = 1; c < n; ++c) sum += bf16_value(x[c * h + i]) * pre[c];
    row[i] = round_bf16(sum);
    if (p.collapsed != nullptr) p.collapsed[r * h + i] = to_bf16(row[i]);
  }
  if (p.normed == nullptr) return;
  __syncthreads();
  const float squares = block_sum(p.hidden, scratch, [row](int i) { return row[i] * row[i]; });
  const float inverse = inverse_rms(squares, p.hidden, p.norm_eps);
  for (int i = threadIdx.x; i < p.hidden; i += kRowThreads)
    p.normed[r * h + i] = to_bf16(p.norm_weight[i] * (row[i] * inverse));
}

// `rows` of them, from `first` on.
HcStepParams rows_of(const HcStepParams& p, int first, int rows) {
  HcStepParams q = p;
  const int64_t n = p.hc, h = p.hidden, r = first;
  const auto move = [](auto*& at, int64_t by) {
    if (at != nullptr) at += by;
  };
  q.rows = rows;
  move(q.streams, r * n * h);
  move(q.y, r * h);
  move(q.post_in, r * n);
  move(q.comb_in, r * n * n);
  move(q.tap, r * p.tap_stride);
  move(q.mixes, r * (2 + n) * n);
  move(q.pre_out, r * n);
  move(q.post_out, r * n);
  move(q.comb_out, r * n * n);
  move(q.pre_in, r * n);
  move(q.collapsed, r * h);
  move(q.normed, r * h);
  return q;
}

void step_rows(const HcStepParams& p, CudaStream& s) {
  if (p.rows == 0) return;
  if (p.y != nullptr || p.tap != nullptr) {
    const dim3 grid(p.rows, blocks_of(p.hidden, 2 * kMixThreads));
    hc_mix_kernel<<<grid, kMixThreads, 0, s.handle()>>>(p);
    s.launched("hc_mix", p.rows, p.hidden, p.hc);
  }
  if (p.fn != nullptr) {
    DenseProduct m;
    m.w = p.fn;
    m.x = p.streams;
    m.x_stride = int64_t{p.hc} * p.hidden;
    m.rows = p.rows;
    m.y = p.mixes;
    m.y_stride = (2 + p.hc) * p.hc;
    dense_fp32(m, s);
  }
  if (p.fn == nullptr && p.collapsed == nullptr && p.normed == nullptr) return;
  const int floats = kHcMax * kHcMax + block_sum_floats(int64_t{p.hc} * p.hidden) + p.hidden;
  allow_shared(s, hc_row_kernel, floats * 4);
  hc_row_kernel<<<p.rows, kRowThreads, floats * 4, s.handle()>>>(p);
  s.launched("hc_row", p.rows, p.hidden, p.hc);
}

}  // namespace

void hc_step(const HcStepParams& p, Stream& stream) {
  TF_CHECK_LE(p.hc, kHcMax);
  TF_CHECK_LE(p.prompt_rows, p.rows);
  CudaStream& s = cuda_stream(stream);
  if (!hc_fuses(p)) return step_rows(p, s);
  if (p.prompt_rows > 0) hc_prompt(rows_of(p, 0, p.prompt_rows), s);
  if (p.prompt_rows < p.rows) hc_fused(rows_of(p, p.prompt_rows, p.rows - p.prompt_rows), s);
}

}  // namespace tensorfold::cuda
