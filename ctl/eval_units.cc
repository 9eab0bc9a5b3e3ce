// Unit vectors of hyper-connections, rope, formats, norms, pooling, SwiGLU and candidates.
// See eval_units.h; gate, Engram and attention are in eval_units_ops.cc.
#include "ctl/eval_units.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>

#include "ctl/eval_units_runner.h"
#include "kernels/backend.h"
#include "kernels/formats.h"
#include "kernels/hc_step.h"
#include "kernels/index_select.h"
#include "kernels/moe_experts.h"
#include "kernels/rope.h"
#include "kernels/row_functions.h"

namespace tensorfold::ctl {
namespace {

// V4.1's constants (its config.json); unit files do not carry them.
constexpr float kNormEps = 1e-20f;
constexpr float kHcEps = 1e-6f;
constexpr int kSinkhornIters = 20;
constexpr float kSwigluLimit = 10.0f;
constexpr double kTheta = 10000, kCompressTheta = 160000;
// Candidate pool of the vectors when no units_info.json beside them tells it.
constexpr int kCandidateBlocks = 4, kCandidateBlockSize = 8;

int to_int(int64_t v) { return static_cast<int>(v); }

// The exact distance in bf16 steps, for values that are both bf16.
double bf16_steps(float a, float b) {
  const auto place = [](float v) {
    const int bits = f32_to_bf16(v);
    return (bits & 0x8000) != 0 ? -(bits & 0x7FFF) : bits;
  };
  return std::abs(place(a) - place(b));
}

// A call of hc_step that mixes `streams` [rows][n][hidden] anew, and what comes of it. The caller
// adds what only its call has. It stays where it was made: params point into it.
struct Mixing {
  Mixing(int64_t rows, int64_t hidden, int64_t n, std::span<uint16_t> streams,
         const UnitMatrix& weight, std::span<const float> scale, std::span<const float> base)
      : mixes(static_cast<size_t>(rows * (2 + n) * n)),
        pre(static_cast<size_t>(rows * n)),
        post(pre.size()),
        comb(static_cast<size_t>(rows * n * n)) {
    params.rows = to_int(rows);
    params.hidden = to_int(hidden);
    params.hc = to_int(n);
    params.sinkhorn_iters = kSinkhornIters;
    params.norm_eps = kNormEps;
    params.hc_eps = kHcEps;
    params.streams = streams.data();
    params.fn = &weight.view;
    params.scale = scale.data();
    params.base = base.data();
    params.mixes = mixes.data();
    params.pre_out = pre.data();
    params.post_out = post.data();
    params.comb_out = comb.data();
  }
  Mixing(const Mixing&) = delete;
  Mixing& operator=(const Mixing&) = delete;

  HcStepParams params;
  std::vector<float> mixes, pre, post, comb;
};

}  // namespace

void UnitRunner::run(HcStepParams& params) {
  params.workspace.bytes = hc_step_workspace_bytes(params.rows, params.hidden, params.hc);
  params.workspace.data = workspace(params.workspace.bytes);
  cpu::hc_step(params, stream_);
}

Status UnitRunner::hyper_connections() {
  if (!has("hc.X")) return ok_status();
  TF_ASSIGN_OR_RETURN(const StoredTensor* x, take("hc.X", {-1, -1, -1}));
  const int64_t rows = x->dim(0), n = x->dim(1), hidden = x->dim(2), outs = (2 + n) * n;
  TF_ASSIGN_OR_RETURN(const std::vector<float> fn, input("hc.fn", {outs, n * hidden}));
  TF_ASSIGN_OR_RETURN(const std::vector<float> scale, input("hc.scale", {3}));
  TF_ASSIGN_OR_RETURN(const std::vector<float> base, input("hc.base", {outs}));
  TF_ASSIGN_OR_RETURN(const std::vector<float> pre_in, input("hc.pre_in", {rows, n}));
  TF_ASSIGN_OR_RETURN(const std::vector<float> y, input("hc.y", {rows, hidden}));
  TF_ASSIGN_OR_RETURN(const std::vector<float> post, input("hc.post", {rows, n}));
  TF_ASSIGN_OR_RETURN(const std::vector<float> comb, input("hc.comb", {rows, n, n}));
  if (n > kHcMax) return data_loss(file_.path() + ": tensor 'hc.X' has too many streams");
  std::vector<uint16_t> streams = to_bf16(x->floats());
  const UnitMatrix weight =
      make_panels(fn, to_int(outs), to_int(n * hidden), WeightLayout::kPanelF32);
  std::vector<uint16_t> collapsed(static_cast<size_t>(rows * hidden));
  Mixing mixing(rows, hidden, n, streams, weight, scale, base);
  mixing.params.pre_in = pre_in.data();
  mixing.params.collapsed = collapsed.data();
  run(mixing.params);
  const std::optional<double> bound = bounds_.number("hc");
  TF_RETURN_IF_ERROR(compare("hc.mixes", mixing.mixes, "rel", bound));
  TF_RETURN_IF_ERROR(compare("hc.pre", mixing.pre, "rel", bound));
  TF_RETURN_IF_ERROR(compare("hc.post", mixing.post, "rel", bound));
  TF_RETURN_IF_ERROR(compare("hc.comb", mixing.comb, "rel", bound));
  TF_RETURN_IF_ERROR(compare("hc.collapsed", from_bf16(collapsed), "rel", bound));
  HcStepParams expand;
  expand.rows = to_int(rows);
  expand.hidden = to_int(hidden);
  expand.hc = to_int(n);
  expand.streams = streams.data();
  expand.y = y.data();
  expand.post_in = post.data();
  expand.comb_in = comb.data();
  cpu::hc_step(expand, stream_);
  return compare("hc.expanded", from_bf16(streams), "rel", bound);
}

// Mixes are an inner result of hc_step: rows that are one in one channel and zero elsewhere make it
// compute them exactly, from a weight whose column is the row of mixes divided by the root of the
// width (a power of two).
Status UnitRunner::sinkhorn() {
  if (!has("sinkhorn.mixes")) return ok_status();
  TF_ASSIGN_OR_RETURN(const std::vector<float> mixes, input("sinkhorn.mixes", {-1, -1}));
  const int64_t rows = file_.find("sinkhorn.mixes")->dim(0);
  const int64_t outs = file_.find("sinkhorn.mixes")->dim(1);
  int64_t n = 1;
  while ((2 + n) * n < outs) ++n;
  constexpr int64_t kWidth = 1024;
  constexpr float kRoot = 32;
  const int64_t hidden = kWidth / n;
  if ((2 + n) * n != outs || n > kHcMax || kWidth % n != 0 || rows > kWidth) {
    return data_loss(file_.path() + ": tensor 'sinkhorn.mixes' has the unexpected shape " +
                     file_.find("sinkhorn.mixes")->shape_text());
  }
  std::vector<float> fn(static_cast<size_t>(outs * kWidth)),
      streams_f32(static_cast<size_t>(rows * kWidth));
  for (int64_t r = 0; r < rows; ++r) {
    streams_f32[static_cast<size_t>(r * kWidth + r)] = 1;
    for (int64_t o = 0; o < outs; ++o) {
      fn[static_cast<size_t>(o * kWidth + r)] = mixes[static_cast<size_t>(r * outs + o)] / kRoot;
    }
  }
  std::vector<uint16_t> streams = to_bf16(streams_f32);
  const UnitMatrix weight = make_panels(fn, to_int(outs), to_int(kWidth), WeightLayout::kPanelF32);
  const std::vector<float> scale(3, 1.0f), base(static_cast<size_t>(outs), 0.0f);
  Mixing mixing(rows, hidden, n, streams, weight, scale, base);
  run(mixing.params);
  const std::optional<double> bound = bounds_.number("sinkhorn");
  TF_RETURN_IF_ERROR(compare("sinkhorn.pre", mixing.pre, "max_abs", bound));
  TF_RETURN_IF_ERROR(compare("sinkhorn.post", mixing.post, "max_abs", bound));
  return compare("sinkhorn.comb", mixing.comb, "max_abs", bound);
}

Status UnitRunner::rope(const std::string& name, double theta, bool yarn) {
  const std::string prefix = "rope." + name + ".";
  if (!has(prefix + "freqs")) return ok_status();
  TF_ASSIGN_OR_RETURN(const StoredTensor* stored, take("rope.positions", {-1}));
  const std::vector<int64_t> positions = stored->integers();
  TF_ASSIGN_OR_RETURN(const StoredTensor* stored_freqs, take(prefix + "freqs", {-1}));
  const int64_t pairs = stored_freqs->dim(0), rows = stored->count();
  const RopeYarn scaling;
  const std::vector<float> freqs =
      rope_frequencies(theta, to_int(2 * pairs), yarn ? &scaling : nullptr);
  std::vector<float> table(static_cast<size_t>(rows * pairs * 2));
  RopeTableParams p;
  p.rows = to_int(rows);
  p.pairs = to_int(pairs);
  p.positions = positions.data();
  p.freqs = freqs.data();
  p.table = table.data();
  cpu::rope_table(p, stream_);
  std::vector<float> angles, cosines, sines;
  for (size_t i = 0; i < table.size() / 2; ++i) {
    const size_t row = i / static_cast<size_t>(pairs), k = i % static_cast<size_t>(pairs);
    angles.push_back(static_cast<float>(positions[row]) * freqs[k]);
    cosines.push_back(table[2 * i]);
    sines.push_back(table[2 * i + 1]);
  }
  const std::optional<double> bound = bounds_.number("rope_tables_abs");
  TF_RETURN_IF_ERROR(compare(prefix + "freqs", freqs, "max_abs", bound));
  TF_RETURN_IF_ERROR(compare(prefix + "angles", angles, "max_abs", std::nullopt));
  TF_RETURN_IF_ERROR(compare(prefix + "cos", cosines, "max_abs", bound));
  TF_RETURN_IF_ERROR(compare(prefix + "sin", sines, "max_abs", bound));
  TF_ASSIGN_OR_RETURN(const std::vector<float> x, input(prefix + "x", {rows, 2 * pairs}));
  for (const bool inverse : {false, true}) {
    const std::string result = prefix + (inverse ? "inverse" : "rotated");
    if (!has(result)) continue;
    TF_ASSIGN_OR_RETURN(const std::vector<float> theirs, input(result, {rows, 2 * pairs}));
    std::vector<float> ours = x;
    Figure f;
    f.quantity = result;
    f.measure = "bf16_steps";
    if (bounds_.has_text("rope_rotated", "bf16 rounding")) f.bound = 1;
    for (int64_t r = 0; r < rows; ++r) {
      const size_t at = static_cast<size_t>(r * 2 * pairs);
      cpu_rotate_row(ours.data() + at, to_int(2 * pairs), table.data() + at, inverse);
    }
    for (size_t i = 0; i < ours.size(); ++i)
      f.value = std::max(f.value, bf16_steps(ours[i], theirs[i]));
    f.compared = static_cast<int64_t>(ours.size());
    report_.add(std::move(f));
  }
  return ok_status();
}

Status UnitRunner::pool() {
  if (!has("pool.a")) return ok_status();
  TF_ASSIGN_OR_RETURN(const StoredTensor* stored, take("pool.a", {-1, 2, -1}));
  const int64_t rows = stored->dim(0), d = stored->dim(2);
  const std::vector<float> a = stored->floats();
  TF_ASSIGN_OR_RETURN(const std::vector<float> g, input("pool.g", {rows, 2, d}));
  TF_ASSIGN_OR_RETURN(const std::vector<float> weight, input("pool.norm_w", {d}));
  if (d % 16 != 0) return data_loss(file_.path() + ": tensor 'pool.a': width is no multiple of 16");
  std::vector<float> pooled(static_cast<size_t>(rows * d)), latent(pooled.size());
  for (int64_t r = 0; r < rows; ++r) {
    const size_t in = static_cast<size_t>(r * 2 * d), out = static_cast<size_t>(r * d);
    const size_t second = in + static_cast<size_t>(d);
    cpu_pool_pair(&a[in], &g[in], &a[second], &g[second], to_int(d), &pooled[out]);
    cpu_rms_norm_row(&pooled[out], weight.data(), to_int(d), kNormEps, &latent[out]);
  }
  const std::optional<double> bound = bounds_.number("pool_rel");
  TF_RETURN_IF_ERROR(compare("pool.pooled", pooled, "rel", bound));
  return compare("pool.latent", latent, "rel", bound);
}

Status UnitRunner::rms_norm() {
  if (!has("rmsnorm.x")) return ok_status();
  TF_ASSIGN_OR_RETURN(const StoredTensor* stored, take("rmsnorm.x", {-1, -1}));
  const int64_t rows = stored->dim(0), d = stored->dim(1);
  std::vector<float> x = stored->floats();
  TF_ASSIGN_OR_RETURN(const std::vector<float> weight, input("rmsnorm.w", {d}));
  if (d % 16 != 0)
    return data_loss(file_.path() + ": tensor 'rmsnorm.x': width is no multiple of 16");
  for (int64_t r = 0; r < rows; ++r) {
    float* row = x.data() + r * d;
    cpu_rms_norm_row(row, weight.data(), to_int(d), kNormEps, row);
  }
  return compare("rmsnorm.out", x, "rel", bounds_.number("rmsnorm_rel"));
}

// Through moe_experts: one expert whose w1 and w3 pick the two halves of x = (g, u) and whose w2
// passes z on.
Status UnitRunner::swiglu() {
  if (!has("swiglu.g")) return ok_status();
  TF_ASSIGN_OR_RETURN(const StoredTensor* g, take("swiglu.g", {-1, -1}));
  const int64_t rows = g->dim(0), n = g->dim(1), hidden = 2 * n;
  TF_ASSIGN_OR_RETURN(const StoredTensor* u, take("swiglu.u", {rows, n}));
  TF_ASSIGN_OR_RETURN(const std::vector<float> weights, input("swiglu.w", {rows, 1}));
  std::vector<float> x(static_cast<size_t>(rows * hidden));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      x[static_cast<size_t>(r * hidden + i)] = g->f32(r * n + i);
      x[static_cast<size_t>(r * hidden + n + i)] = u->f32(r * n + i);
    }
  }
  std::vector<float> first(static_cast<size_t>(n * hidden)), second(first.size()),
      down(first.size());
  for (int64_t i = 0; i < n; ++i) {
    first[static_cast<size_t>(i * hidden + i)] = 1;
    second[static_cast<size_t>(i * hidden + n + i)] = 1;
    down[static_cast<size_t>(i * n + i)] = 1;
  }
  const UnitMatrix w1 = make_panels(first, to_int(n), to_int(hidden), WeightLayout::kPanelBf16);
  const UnitMatrix w3 = make_panels(second, to_int(n), to_int(hidden), WeightLayout::kPanelBf16);
  const UnitMatrix w2 = make_panels(down, to_int(hidden), to_int(n), WeightLayout::kPanelBf16);
  ExpertWeights expert{w1.view, w3.view, w2.view};
  const std::vector<uint16_t> bits = to_bf16(x);
  const std::vector<int32_t> ids(static_cast<size_t>(rows), 0);
  std::vector<float> y(static_cast<size_t>(rows * hidden)), z(static_cast<size_t>(rows * n));
  MoeExpertsParams p;
  p.rows = to_int(rows);
  p.hidden = to_int(hidden);
  p.intermediate = to_int(n);
  p.experts = 1;
  p.topk = 1;
  p.swiglu_limit = kSwigluLimit;
  p.round_outputs = true;
  p.x = bits.data();
  p.ids = ids.data();
  p.weights = weights.data();
  p.expert = &expert;
  p.y = y.data();
  p.workspace.bytes = moe_experts_workspace_bytes(p.rows, p.hidden, p.intermediate, 1, 1);
  p.workspace.data = workspace(p.workspace.bytes);
  cpu::moe_experts(p, stream_);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(y.begin() + r * hidden, n, z.begin() + r * n);
  }
  return compare("swiglu.z", z, "rel", bounds_.number("swiglu_rel"));
}

Status UnitRunner::candidates() {
  if (!has("cand.scores")) return ok_status();
  TF_ASSIGN_OR_RETURN(const StoredTensor* scores, take("cand.scores", {-1, -1}));
  const int64_t rows = scores->dim(0), entries = scores->dim(1);
  TF_ASSIGN_OR_RETURN(const StoredTensor* visible, take("cand.visible", {rows}));
  int64_t blocks = kCandidateBlocks, size = kCandidateBlockSize;
  const std::filesystem::path info =
      std::filesystem::path(file_.path()).parent_path() / "units_info.json";
  std::ifstream in(info, std::ios::binary);
  if (in) {
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const Result<Json> json = parse_json(text);
    const Json* cand = json.ok() ? json->find("cand") : nullptr;
    const Json* b = cand == nullptr ? nullptr : cand->find("topk_blocks");
    const Json* s = cand == nullptr ? nullptr : cand->find("block_size");
    if (b != nullptr && b->is_int()) blocks = b->as_int64().value_or(blocks);
    if (s != nullptr && s->is_int()) size = s->as_int64().value_or(size);
  }
  if (blocks < 1 || size < 1 || blocks > entries || size > entries) {
    return data_loss(info.string() + ": cand is out of range");
  }
  std::vector<int64_t> mask(static_cast<size_t>(rows * entries), 0);
  const std::vector<float> values = scores->floats();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t seen = std::clamp<int64_t>(visible->i64(r), 0, entries);
    std::vector<int32_t> kept(static_cast<size_t>(blocks));
    const int count = select_candidate_blocks(values.data() + r * entries, seen, to_int(size),
                                              to_int(blocks), kept.data());
    for (int i = 0; i < count; ++i) {
      const int64_t begin = kept[static_cast<size_t>(i)] * size;
      for (int64_t e = begin; e < std::min(begin + size, entries); ++e) {
        mask[static_cast<size_t>(r * entries + e)] = 1;
      }
    }
  }
  return compare_exact("cand.mask", mask, bounds_.is_exact("cand"));
}

Status compare_units(const TensorFile& file, EvalBounds& bounds, EvalReport& report) {
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, make_cpu_stream(1));
  UnitRunner runner(file, bounds, report, *stream);
  TF_RETURN_IF_ERROR(runner.hyper_connections());
  TF_RETURN_IF_ERROR(runner.sinkhorn());
  TF_RETURN_IF_ERROR(runner.rope("plain", kTheta, false));
  TF_RETURN_IF_ERROR(runner.rope("yarn", kCompressTheta, true));
  TF_RETURN_IF_ERROR(runner.quantisation());
  TF_RETURN_IF_ERROR(runner.gate());
  TF_RETURN_IF_ERROR(runner.engram_rows());
  TF_RETURN_IF_ERROR(runner.engram_gate());
  TF_RETURN_IF_ERROR(runner.attention());
  TF_RETURN_IF_ERROR(runner.pool());
  TF_RETURN_IF_ERROR(runner.rms_norm());
  TF_RETURN_IF_ERROR(runner.swiglu());
  TF_RETURN_IF_ERROR(runner.candidates());
  runner.list_untouched();
  return ok_status();
}

}  // namespace tensorfold::ctl
