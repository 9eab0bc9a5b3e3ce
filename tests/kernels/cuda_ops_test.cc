// The CUDA operations against the CPU's over many small random shapes (tests/kernels/
// cuda_support.h has the measure). Where only exact steps are between input and output the bits
// must be equal; sums of products differ in order, sines and exponentials in the last bit.
#include "tests/kernels/cuda_support.h"

namespace tensorfold::test {
namespace {

constexpr int kRounds = 12;
constexpr double kFp32Sum = 3e-6;  // fp32 sums against fp64 ones
constexpr double kBf16 = 3e-3;     // where some values fall to the other side of a bf16 rounding

BOOST_TEST_GLOBAL_FIXTURE(GpuOrSkip);

int rows_of(int round) {
  constexpr int kRows[] = {1, 2, 5, 8, 9, 16, 17, 33, 64, 65, 129, 200};
  return kRows[round % 12];
}

}  // namespace

BOOST_AUTO_TEST_CASE(rope_tables_are_equal) {
  const auto stream = make_stream(1);
  Gpu& gpu = Gpu::get();
  for (int round = 0; round < kRounds; ++round) {
    RopeTableParams p;
    p.rows = rows_of(round);
    p.pairs = pick(1, 40);
    std::vector<int64_t> positions;
    for (int r = 0; r < p.rows; ++r) positions.push_back(pick(0, round < 6 ? 4096 : 1048575));
    Both<int64_t> at(positions);
    Both<float> freqs(rope_frequencies(coin() ? 10000 : 160000, 2 * p.pairs, nullptr));
    auto table = Both<float>::out(int64_t{p.rows} * p.pairs * 2);
    p.positions = at.cpu();
    p.freqs = freqs.cpu();
    p.table = table.cpu();
    cpu::rope_table(p, *stream);
    p.positions = at.gpu();
    p.freqs = freqs.gpu();
    p.table = table.gpu();
    gpu.ops().rope_table(p, gpu.stream());
    check_same(table, "rope_table");
  }
}

BOOST_AUTO_TEST_CASE(embedded_rows_are_equal) {
  const auto stream = make_stream(1);
  Gpu& gpu = Gpu::get();
  for (int round = 0; round < kRounds; ++round) {
    EmbedRowsParams p;
    p.rows = rows_of(round);
    p.hidden = 32 * pick(1, 20);
    p.hc = pick(1, 4);
    BothWeight table(37, p.hidden, WeightLayout::kRowsBf16);
    std::vector<int32_t> ids, images;
    for (int r = 0; r < p.rows; ++r) {
      ids.push_back(pick(0, 36));
      images.push_back(pick(-1, 3));
    }
    Both<int32_t> id(ids), image(images);
    Both<uint16_t> image_rows(bf16(fresh(4 * p.hidden)));
    auto streams = Both<uint16_t>::out(int64_t{p.rows} * p.hc * p.hidden);
    auto pre = Both<float>::out(int64_t{p.rows} * p.hc);
    const bool with_images = coin();
    p.ids = id.cpu();
    p.table = &table.cpu;
    if (with_images) p.image_index = image.cpu();
    p.image_rows = image_rows.cpu();
    p.streams = streams.cpu();
    p.pre = pre.cpu();
    cpu::embed_rows(p, *stream);
    p.ids = id.gpu();
    p.table = &table.gpu;
    if (with_images) p.image_index = image.gpu();
    p.image_rows = image_rows.gpu();
    p.streams = streams.gpu();
    p.pre = pre.gpu();
    gpu.ops().embed_rows(p, gpu.stream());
    check_same(streams, "streams");
    check_same(pre, "pre");
  }
}

// A row of a step that was made on the GPU, by itself: how many values are not the same bits.
int on_one_row(HcStepParams p, Both<uint16_t>& streams, Both<float>& pre_in, Both<float>& mixes,
               Both<uint16_t>& normed) {
  const std::vector<uint16_t> normed_all = normed.fetch();
  const std::vector<float> mixes_all = mixes.fetch();
  const int row = p.prompt_rows < p.rows ? p.prompt_rows : p.rows - 1;
  p.prompt_rows = p.prompt_rows < p.rows ? 0 : 1;
  p.y = nullptr;  // mixed already
  p.tap = nullptr;
  p.rows = 1;
  p.streams = streams.gpu() + int64_t{row} * p.hc * p.hidden;
  p.pre_in = pre_in.gpu() + int64_t{row} * p.hc;
  Gpu::get().ops().hc_step(p, Gpu::get().stream());
  const std::vector<uint16_t> normed_one = normed.fetch();
  const std::vector<float> mixes_one = mixes.fetch();
  int differing = 0;
  const int outs = (2 + p.hc) * p.hc;
  for (int i = 0; i < p.hidden; ++i)
    differing += normed_one[static_cast<size_t>(i)] !=
                         normed_all[static_cast<size_t>(row) * static_cast<size_t>(p.hidden) +
                                    static_cast<size_t>(i)]
                     ? 1
                     : 0;
  for (int i = 0; i < outs; ++i)
    differing += std::memcmp(&mixes_one[static_cast<size_t>(i)],
                             &mixes_all[static_cast<size_t>(row * outs + i)], sizeof(float)) != 0
                     ? 1
                     : 0;
  return differing;
}

BOOST_AUTO_TEST_CASE(hyper_connections) {
  const auto stream = make_stream(2);
  Gpu& gpu = Gpu::get();
  for (int round = 0; round < kRounds; ++round) {
    HcStepParams p;
    p.rows = rows_of(round);
    // Every other round: shapes that generated rows take in one launch.
    p.hidden = round % 2 == 0 ? 1024 * pick(1, 5) : 32 * pick(1, round % 3 == 0 ? 170 : 24);
    p.hc = round % 2 == 0 ? 4 : pick(1, 6);
    p.prompt_rows = pick(0, 2) == 0 ? pick(0, p.rows) : 0;
    p.sinkhorn_iters = pick(1, 20);
    p.norm_eps = 1e-20f;
    p.hc_eps = 1e-6f;
    p.tap_stride = p.hidden + 32;
    const int64_t n = p.rows, hc = p.hc, outs = (2 + hc) * hc;
    BothWeight fn(static_cast<int>(outs), p.hc * p.hidden, WeightLayout::kPanelF32);
    Both<uint16_t> streams(bf16(fresh(n * hc * p.hidden)));
    Both<float> y(fresh(n * p.hidden)), post(fresh(n * hc)), comb(fresh(n * hc * hc)),
        scale(fresh(3)), base(fresh(outs)), pre_in(fresh(n * hc)), norm(fresh(p.hidden));
    auto tap = Both<uint16_t>::out(n * p.tap_stride);
    auto mixes = Both<float>::out(n * outs), pre = Both<float>::out(n * hc),
         post_out = Both<float>::out(n * hc), comb_out = Both<float>::out(n * hc * hc);
    auto collapsed = Both<uint16_t>::out(n * p.hidden), normed = Both<uint16_t>::out(n * p.hidden);
    const bool mixing = coin(), tapped = coin();
    WorkspaceShape shape;
    shape.rows = p.rows;
    shape.hidden = p.hidden;
    shape.hc = p.hc;
    BothWorkspace workspace(shape, *stream);
    const auto run = [&](bool on_gpu) {
      const auto side = [on_gpu](auto& both) { return on_gpu ? both.gpu() : both.cpu(); };
      p.streams = side(streams);
      p.y = mixing ? side(y) : nullptr;
      p.post_in = side(post);
      p.comb_in = side(comb);
      p.tap = tapped ? side(tap) : nullptr;
      p.fn = on_gpu ? &fn.gpu : &fn.cpu;
      p.scale = side(scale);
      p.base = side(base);
      p.mixes = side(mixes);
      p.pre_out = side(pre);
      p.post_out = side(post_out);
      p.comb_out = side(comb_out);
      p.pre_in = side(pre_in);
      p.norm_weight = side(norm);
      p.collapsed = side(collapsed);
      p.normed = side(normed);
      p.workspace = on_gpu ? workspace.gpu() : workspace.cpu();
      on_gpu ? gpu.ops().hc_step(p, gpu.stream()) : cpu::hc_step(p, *stream);
    };
    run(false);
    run(true);
    check_same(streams, "streams");
    check_same(tap, "tap");
    check_same(collapsed, "collapsed");
    check_same(normed, "normed");
    check_near(mixes, kFp32Sum, "mixes");
    check_near(pre, 1e-5, "pre");
    check_near(post_out, 1e-5, "post");
    check_near(comb_out, 1e-4, "comb");
    BOOST_CHECK_EQUAL(on_one_row(p, streams, pre_in, mixes, normed), 0);
  }
}

BOOST_AUTO_TEST_CASE(projections) {
  const auto stream = make_stream(2);
  Gpu& gpu = Gpu::get();
  for (int round = 0; round < 2 * kRounds; ++round) {
    ProjectParams p;
    p.rows = rows_of(round);
    p.in = 32 * pick(1, round % 4 == 0 ? 160 : 20);
    p.x_stride = p.in + 8 * pick(0, 4);
    BothWeight plain(pick(1, 200), p.in), wide(pick(1, 50), p.in, WeightLayout::kPanelF32),
        fp8(pick(1, 140), p.in, WeightLayout::kPanelBf16, true);
    Both<uint16_t> x(bf16(fresh(p.rows * p.x_stride, 3)));
    Both<float> norm(fresh(p.in));
    const int stride = fp8.cpu.out + pick(0, 3);
    auto y0 = Both<uint16_t>::out(int64_t{p.rows} * plain.cpu.out);
    auto y1 = Both<float>::out(int64_t{p.rows} * wide.cpu.out);
    auto y2 = Both<float>::out(int64_t{p.rows} * stride);
    auto y3 = Both<float>::out(int64_t{p.rows} * plain.cpu.out);
    std::fill(y2.host.begin(), y2.host.end(), -7.0f);  // places past the outputs stay
    y2.push();
    WorkspaceShape shape;
    shape.rows = p.rows;
    shape.widest_input = p.in;
    BothWorkspace workspace(shape, *stream);
    const bool normed = coin();
    p.norm_eps = 1e-20f;
    p.outputs = 4;
    const auto run = [&](bool g) {
      p.x = g ? x.gpu() : x.cpu();
      p.norm_weight = !normed ? nullptr : g ? norm.gpu() : norm.cpu();
      p.output[0] = {g ? &plain.gpu : &plain.cpu, g ? y0.gpu() : y0.cpu(), plain.cpu.out,
                     ValueType::kBf16};
      p.output[1] = {g ? &wide.gpu : &wide.cpu, g ? y1.gpu() : y1.cpu(), wide.cpu.out,
                     ValueType::kF32};
      p.output[2] = {g ? &fp8.gpu : &fp8.cpu, g ? y2.gpu() : y2.cpu(), stride, ValueType::kF32};
      p.output[3] = {g ? &plain.gpu : &plain.cpu, g ? y3.gpu() : y3.cpu(), plain.cpu.out,
                     ValueType::kF32};
      p.workspace = g ? workspace.gpu() : workspace.cpu();
      g ? gpu.ops().project(p, gpu.stream()) : cpu::project(p, *stream);
    };
    run(false);
    run(true);
    const std::string where = "rows " + std::to_string(p.rows) + ", in " + std::to_string(p.in);
    check_near(y0, kBf16, where + ": bf16");
    check_near(y1, kFp32Sum, where + ": fp32 weights");
    check_near(y2, kFp32Sum, where + ": quantised input");
    check_near(y3, kFp32Sum, where + ": fp32 result");
  }
}

// Outputs that take parts of a wider row.
BOOST_AUTO_TEST_CASE(projections_of_parts) {
  const auto stream = make_stream(2);
  Gpu& gpu = Gpu::get();
  for (int round = 0; round < 2 * kRounds; ++round) {
    ProjectParams p;
    p.rows = rows_of(round);
    p.in = 32 * pick(1, 20);
    p.outputs = pick(2, 4);
    p.x_stride = int64_t{p.in} * p.outputs;
    std::vector<BothWeight> weights;
    const int out = pick(1, 100);
    for (int i = 0; i < p.outputs; ++i)
      weights.emplace_back(out, p.in, WeightLayout::kPanelBf16, round % 2 == 0 && i > 0);
    Both<uint16_t> x(bf16(fresh(p.rows * p.x_stride, 3)));
    auto y = Both<float>::out(int64_t{p.rows} * p.outputs * out);
    WorkspaceShape shape;
    shape.rows = p.rows;
    shape.widest_input = p.in;
    BothWorkspace workspace(shape, *stream);
    const auto run = [&](bool g) {
      p.x = g ? x.gpu() : x.cpu();
      for (int i = 0; i < p.outputs; ++i) {
        ProjectOutput& o = p.output[i];
        o.weight = g ? &weights[static_cast<size_t>(i)].gpu : &weights[static_cast<size_t>(i)].cpu;
        o.y = (g ? y.gpu() : y.cpu()) + i * out;
        o.y_stride = int64_t{p.outputs} * out;
        o.type = ValueType::kF32;
        o.x_offset = int64_t{i} * p.in;
      }
      p.workspace = g ? workspace.gpu() : workspace.cpu();
      g ? gpu.ops().project(p, gpu.stream()) : cpu::project(p, *stream);
    };
    run(false);
    run(true);
    check_near(y, kFp32Sum, "parts, rows " + std::to_string(p.rows));
  }
}

BOOST_AUTO_TEST_CASE(engram_gates) {
  const auto stream = make_stream(2);
  Gpu& gpu = Gpu::get();
  for (int round = 0; round < kRounds; ++round) {
    EngramGateParams p;
    p.rows = rows_of(round);
    p.hidden = 32 * pick(1, round % 3 == 0 ? 170 : 24);
    p.hc = pick(1, 6);
    p.eps = 1e-20f;
    const int64_t n = p.rows, h = p.hidden;
    Both<uint16_t> kv(bf16(fresh(n * (p.hc + 1) * h))), streams(bf16(fresh(n * p.hc * h)));
    Both<float> qw(fresh(p.hc * h)), kw(fresh(p.hc * h));
    std::vector<uint8_t> rows_dead;
    for (int r = 0; r < p.rows; ++r) rows_dead.push_back(static_cast<uint8_t>(pick(0, 1)));
    Both<uint8_t> dead(rows_dead);
    auto gates = Both<float>::out(n * p.hc);
    const auto run = [&](bool g) {
      p.kv = g ? kv.gpu() : kv.cpu();
      p.q_weight = g ? qw.gpu() : qw.cpu();
      p.k_weight = g ? kw.gpu() : kw.cpu();
      p.dead = g ? dead.gpu() : dead.cpu();
      p.streams = g ? streams.gpu() : streams.cpu();
      p.gates = g ? gates.gpu() : gates.cpu();
      g ? gpu.ops().engram_gate(p, gpu.stream()) : cpu::engram_gate(p, *stream);
    };
    run(false);
    run(true);
    check_near(gates, 1e-6, "gates");
    check_near(streams, kBf16, "streams");
  }
}

BOOST_AUTO_TEST_CASE(logits_and_markov_links) {
  const auto stream = make_stream(2);
  Gpu& gpu = Gpu::get();
  for (int round = 0; round < kRounds; ++round) {
    const int hidden = 32 * pick(1, 30), vocab = pick(1, 300), rank = 32 * pick(1, 4);
    const int64_t n = rows_of(round), total = n + 5;
    HeadLogitsParams p;
    p.rows = static_cast<int>(n);
    p.hidden = hidden;
    p.hc = pick(1, 6);
    p.norm_eps = 1e-20f;
    BothWeight head(vocab, hidden);
    Both<uint16_t> streams(bf16(fresh(total * p.hc * hidden)));
    Both<float> pre(fresh(total * p.hc)), norm(fresh(hidden));
    std::vector<int32_t> picked;
    for (int64_t i = 0; i < n; ++i) picked.push_back(pick(0, static_cast<int>(total) - 1));
    Both<int32_t> index(picked);
    auto collapsed = Both<uint16_t>::out(n * hidden);
    auto logits = Both<float>::out(n * vocab), chain = Both<float>::out(n * vocab),
         confidence = Both<float>::out(n);
    WorkspaceShape shape;
    shape.rows = p.rows;
    shape.hidden = hidden;
    shape.markov_rank = rank;
    BothWorkspace workspace(shape, *stream);
    BothWeight embed(vocab, rank, WeightLayout::kRowsBf16), markov(vocab, rank),
        confidence_weight(1, hidden + rank,
                          coin() ? WeightLayout::kPanelF32 : WeightLayout::kPanelBf16);
    std::vector<int32_t> previous;
    for (int64_t i = 0; i < n; ++i) previous.push_back(pick(0, vocab - 1));
    Both<int32_t> prev(previous);
    const bool indexed = coin();
    const auto run = [&](bool g) {
      p.row_index = !indexed ? nullptr : g ? index.gpu() : index.cpu();
      p.streams = g ? streams.gpu() : streams.cpu();
      p.pre = g ? pre.gpu() : pre.cpu();
      p.norm_weight = g ? norm.gpu() : norm.cpu();
      p.head = g ? &head.gpu : &head.cpu;
      p.collapsed = g ? collapsed.gpu() : collapsed.cpu();
      p.logits = g ? logits.gpu() : logits.cpu();
      p.logits_stride = vocab;
      p.workspace = g ? workspace.gpu() : workspace.cpu();
      g ? gpu.ops().head_logits(p, gpu.stream()) : cpu::head_logits(p, *stream);
      MarkovStepParams m;
      m.rows = p.rows;
      m.rank = rank;
      m.hidden = hidden;
      m.prev = g ? prev.gpu() : prev.cpu();
      m.embed = g ? &embed.gpu : &embed.cpu;
      m.head = g ? &markov.gpu : &markov.cpu;
      m.confidence = g ? &confidence_weight.gpu : &confidence_weight.cpu;
      m.x = p.collapsed;
      m.x_stride = hidden;
      m.base = p.logits;
      m.base_stride = vocab;
      m.logits = g ? chain.gpu() : chain.cpu();
      m.logits_stride = vocab;
      m.confidence_out = g ? confidence.gpu() : confidence.cpu();
      m.workspace = p.workspace;
      g ? gpu.ops().markov_step(m, gpu.stream()) : cpu::markov_step(m, *stream);
    };
    run(false);
    run(true);
    check_same(collapsed, "collapsed");
    check_near(logits, kFp32Sum, "logits");
    check_near(chain, kFp32Sum, "chain");
    check_near(confidence, 1e-5, "confidence");
  }
}

BOOST_AUTO_TEST_CASE(kept_rows_and_sums) {
  const auto stream = make_stream(1);
  Gpu& gpu = Gpu::get();
  for (int round = 0; round < kRounds; ++round) {
    const int rows = rows_of(round), row_bytes = coin() ? pick(1, 70) : 16 * pick(1, 80);
    std::vector<uint8_t> bytes;
    for (int i = 0; i < rows * row_bytes; ++i) bytes.push_back(static_cast<uint8_t>(pick(0, 255)));
    Both<uint8_t> data(bytes);
    std::vector<int32_t> kept;
    for (int r = 0; r < rows; ++r)
      if (coin()) kept.push_back(r);
    Both<int32_t> source(kept);
    const auto count = static_cast<int>(kept.size());
    cpu_device().keep_rows(data.cpu(), row_bytes, source.cpu(), count, *stream);
    gpu.device().keep_rows(data.gpu(), row_bytes, source.gpu(), count, gpu.stream());
    data.host.resize(static_cast<size_t>(count) * static_cast<size_t>(row_bytes));
    check_same(data, "kept rows");
    Both<float> y(fresh(rows * 7)), x(fresh(rows * 7));
    cpu_device().add(y.cpu(), x.cpu(), rows * 7, *stream);
    gpu.device().add(y.gpu(), x.gpu(), rows * 7, gpu.stream());
    check_same(y, "sum");
  }
}

// What ranks give each other: parts added in their order, narrowed, laid side by side.
BOOST_AUTO_TEST_CASE(parts_of_ranks) {
  const auto stream = make_stream(1);
  Gpu& gpu = Gpu::get();
  for (int round = 0; round < kRounds; ++round) {
    const int rows = rows_of(round), width = 4 * pick(1, 80), ranks = pick(1, 4);
    const int64_t count = int64_t{rows} * width;
    Both<float> parts(fresh(count * ranks));
    auto narrow = Both<uint16_t>::out(count * ranks);
    auto sum = Both<float>::out(count), narrow_sum = Both<float>::out(count);
    cpu_device().sum_parts(sum.cpu(), parts.cpu(), ValueType::kF32, ranks, count, *stream);
    gpu.device().sum_parts(sum.gpu(), parts.gpu(), ValueType::kF32, ranks, count, gpu.stream());
    check_same(sum, "sum of parts");
    cpu_device().narrow(narrow.cpu(), parts.cpu(), count * ranks, *stream);
    gpu.device().narrow(narrow.gpu(), parts.gpu(), count * ranks, gpu.stream());
    check_same(narrow, "narrowed parts");
    cpu_device().sum_parts(narrow_sum.cpu(), narrow.cpu(), ValueType::kBf16, ranks, count, *stream);
    gpu.device().sum_parts(narrow_sum.gpu(), narrow.gpu(), ValueType::kBf16, ranks, count,
                           gpu.stream());
    check_same(narrow_sum, "sum of narrowed parts");
    const int bytes = coin() ? 16 * pick(1, 60) : pick(1, 90);
    std::vector<uint8_t> values;
    for (int i = 0; i < ranks * rows * bytes; ++i)
      values.push_back(static_cast<uint8_t>(pick(0, 255)));
    Both<uint8_t> given(values);
    auto laid = Both<uint8_t>::out(int64_t{ranks} * rows * bytes);
    cpu_device().interleave(laid.cpu(), given.cpu(), ranks, rows, bytes, *stream);
    gpu.device().interleave(laid.gpu(), given.gpu(), ranks, rows, bytes, gpu.stream());
    check_same(laid, "interleaved rows");
  }
}

// The measure notices what it must notice: one weight of 64 x 96 off by a tenth of the deviation.
BOOST_AUTO_TEST_CASE(a_changed_weight_is_noticed) {
  std::vector<float> a = fresh(64), b = a;
  b[17] += 0.1f;
  BOOST_CHECK_GT(relative_norm(a, b), 2 * kBf16);
  b[17] = std::nanf("");
  BOOST_CHECK(!(relative_norm(a, b) <= 1.0));
}

}  // namespace tensorfold::test
