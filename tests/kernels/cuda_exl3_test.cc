// EXL3 on a GPU: every width, codebook and order decodes to the codec's bits; class D products
// against fp64; the bits of a row whatever rows share its call.
#include <simdjson.h>

#include "kernels/cuda/exl3_dense.h"
#include "kernels/cuda/exl3_prefill.h"
#include "tests/kernels/cuda_exl3_support.h"

namespace tensorfold::test {
namespace {

using exl3::Codebook;
namespace dom = simdjson::dom;

BOOST_GLOBAL_FIXTURE(NeedsGpu);

constexpr double kFp32Bound = 3e-4;  // relative norm, fp32 outputs
constexpr double kBf16Bound = 3e-3;  // bf16 outputs: their own rounding is 1.7e-3

std::vector<uint16_t> codec_bits(const RandomLayer& layer) {
  std::vector<uint16_t> bits(static_cast<size_t>(layer.in) * static_cast<size_t>(layer.out));
  const auto words = static_cast<size_t>(exl3::tile_words(layer.half_bits));
  std::array<uint16_t, 256> tile;
  for (int kt = 0; kt < layer.in / 16; ++kt)
    for (int nt = 0; nt < layer.out / 16; ++nt) {
      const auto at = static_cast<size_t>(kt * (layer.out / 16) + nt);
      exl3::decode_tile_bits(std::span(layer.trellis).subspan(at * words, words), layer.half_bits,
                             layer.codebook, tile);
      for (size_t i = 0; i < 256; ++i)
        bits[(static_cast<size_t>(kt) * 16 + i / 16) * static_cast<size_t>(layer.out) +
             static_cast<size_t>(nt) * 16 + i % 16] = tile[i];
    }
  return bits;
}

void check_decode(int half_bits, Codebook codebook) {
  RandomLayer layer(256, 384, half_bits, codebook, 7u + static_cast<uint32_t>(half_bits));
  const std::vector<uint16_t> expected = codec_bits(layer);
  DeviceArray<uint16_t> out(expected.size());
  TF_CUDA(cuda::exl3_unpack(layer.parts(Exl3Order::kTiles), out.get(), true, nullptr));
  BOOST_CHECK(out.host() == expected);
  if (half_bits % 2 != 0) return;
  DeviceArray<uint32_t> repacked(layer.trellis.size() / 2);
  TF_CUDA(cuda::exl3_repack(layer.parts(Exl3Order::kTiles), repacked.get(), nullptr));
  BOOST_CHECK(repacked.host() == layer.to_lanes());
  for (const bool run_time : {false, true}) {
    DeviceArray<uint16_t> lanes(expected.size());
    TF_CUDA(cuda::exl3_unpack(layer.parts(Exl3Order::kLanes), lanes.get(), run_time, nullptr));
    BOOST_CHECK(lanes.host() == expected);
  }
}

struct Product {
  std::vector<float> f32;
  std::vector<uint16_t> bf16;
};

Product run(RandomLayer& layer, Exl3Order order, int in, int out, DeviceArray<uint16_t>& x,
            int first, int rows) {
  Product product;
  for (const ValueType type : {ValueType::kF32, ValueType::kBf16}) {
    cuda::Exl3DenseParams p;
    p.rows = rows;
    p.jobs = 1;
    DeviceArray<float> wide(static_cast<size_t>(rows) * static_cast<size_t>(out));
    DeviceArray<uint16_t> narrow(static_cast<size_t>(rows) * static_cast<size_t>(out));
    void* y = type == ValueType::kF32 ? static_cast<void*>(wide.get()) : narrow.get();
    const int64_t stride = (in + 3) / 4 * 4;
    p.job[0] = {layer.parts(order), in, out, x.get() + first * stride, stride, y, out, type};
    TF_CUDA(cuda::exl3_dense(p, nullptr));
    TF_CUDA(cudaDeviceSynchronize());
    if (type == ValueType::kF32)
      product.f32 = wide.host();
    else
      product.bf16 = narrow.host();
  }
  return product;
}

void check_product(int padded_in, int padded_out, int in, int out, int half_bits, Codebook codebook,
                   Exl3Order order) {
  BOOST_TEST_CONTEXT("in " << in << " out " << out << " half bits " << half_bits << " order "
                           << static_cast<int>(order)) {
    constexpr int kRows = 27;
    RandomLayer layer(padded_in, padded_out, half_bits, codebook, 91);
    const ExactLayer exact(layer);
    const size_t stride = (static_cast<size_t>(in) + 3) / 4 * 4;
    const std::vector<uint16_t> x = random_bf16(static_cast<int64_t>(kRows * stride), 5);
    DeviceArray<uint16_t> xd(x);
    const Product all = run(layer, order, in, out, xd, 0, kRows);
    RelativeNorm wide, narrow;
    for (size_t r = 0; r < kRows; ++r) {
      std::vector<double> row;
      for (size_t k = 0; k < static_cast<size_t>(in); ++k)
        row.push_back(static_cast<double>(bf16_to_f32(x[r * stride + k])));
      const std::vector<double> y = exact.times(row);
      for (size_t n = 0; n < static_cast<size_t>(out); ++n) {
        const size_t at = r * static_cast<size_t>(out) + n;
        wide.add(static_cast<double>(all.f32[at]), y[n]);
        narrow.add(static_cast<double>(bf16_to_f32(all.bf16[at])), y[n]);
        BOOST_REQUIRE_EQUAL(f32_to_bf16(all.f32[at]), all.bf16[at]);
      }
    }
    BOOST_TEST_MESSAGE("relative norm " << wide.value() << ", bf16 " << narrow.value());
    BOOST_CHECK(kFaulty || wide.value() <= kFp32Bound);
    BOOST_CHECK(kFaulty || narrow.value() <= kBf16Bound);
    // The same bits for any rows in the call.
    SameRows same("class D");
    for (const int rows : {1, 2, 3, 4, 5, 8, 9, 16})
      for (const int first : {0, kRows - rows}) {
        const Product some = run(layer, order, in, out, xd, first, rows);
        const auto n = static_cast<size_t>(rows) * static_cast<size_t>(out);
        const auto at = static_cast<size_t>(first) * static_cast<size_t>(out);
        same.compare(some.f32.data(), all.f32.data() + at, n);
      }
    same.check();
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_width_codebook_and_order_decodes_to_the_codec) {
  for (int bits = 1; bits <= 8; ++bits)
    for (const Codebook c : {Codebook::k3inst, Codebook::kMcg, Codebook::kMul1})
      check_decode(2 * bits, c);
  for (const int half : {3, 5, 7}) check_decode(half, Codebook::kMul1);
}

BOOST_AUTO_TEST_CASE(the_published_tiles_decode_on_the_device) {
  dom::parser parser;
  dom::element root = parser.load(std::string(TF_TEST_DATA) + "/exl3_vectors.json");
  int tiles = 0;
  for (dom::element item : dom::array(root["tiles"])) {
    std::vector<uint16_t> words, expected;
    for (dom::element v : dom::array(item["words16"]))
      words.push_back(static_cast<uint16_t>(uint64_t(v)));
    for (dom::element v : dom::array(item["wq_fp16_bits"]))
      expected.push_back(static_cast<uint16_t>(uint64_t(v)));
    Exl3Parts p;
    p.half_bits = static_cast<unsigned char>(words.size() / 8);
    p.codebook =
        static_cast<unsigned char>(*exl3::codebook_by_name(std::string_view(item["codebook"])));
    p.padded_in = p.padded_out = 16;  // one tile: the run-time decoder takes any multiple of 16
    DeviceArray<uint32_t> trellis(RandomLayer::as_words(words));
    p.trellis = trellis.get();
    DeviceArray<uint16_t> out(256);
    TF_CUDA(cuda::exl3_unpack(p, out.get(), true, nullptr));
    BOOST_CHECK(out.host() == expected);
    ++tiles;
  }
  BOOST_CHECK_GE(tiles, 27);
}

BOOST_AUTO_TEST_CASE(products_are_near_exact_and_rows_are_independent) {
  const auto lanes = Exl3Order::kLanes;
  check_product(1280, 512, 1280, 512, 10, Codebook::kMul1, lanes);  // cluster of 8, ragged
  check_product(640, 256, 600, 200, 6, Codebook::kMul1, lanes);     // trimmed and extended
  check_product(384, 3200, 384, 3200, 4, Codebook::kMul1, lanes);   // cluster of 3 at most
  check_product(2560, 128, 2560, 128, 8, Codebook::kMul1, lanes);
  check_product(128, 12416, 128, 12416, 12, Codebook::kMul1, lanes);  // no cluster
  check_product(2688, 3072, 2688, 3072, 6, Codebook::kMul1, lanes);
}

BOOST_AUTO_TEST_CASE(prompt_rows_are_near_exact_and_independent) {
  for (const int bits : {2, 3, 4, 5, 6}) {
    constexpr int kRows = 150, kIn = 384, kOut = 256, kTrueOut = 250;
    RandomLayer layer(kIn, kOut, 2 * bits, Codebook::kMul1, 40u + static_cast<uint32_t>(bits));
    const ExactLayer exact(layer);
    const std::vector<uint16_t> x = random_bf16(int64_t{kRows} * kIn, 6);
    DeviceArray<uint16_t> xd(x);
    DeviceArray<std::byte> workspace(
        static_cast<size_t>(cuda::exl3_prefill_workspace_bytes(kRows, kIn)));
    const auto run_rows = [&](int first, int rows) {
      DeviceArray<float> y(static_cast<size_t>(rows) * kTrueOut);
      TF_CUDA(cuda::exl3_prefill(
          {layer.parts(Exl3Order::kLanes), kIn, kTrueOut, xd.get() + int64_t{first} * kIn, kIn,
           y.get(), kTrueOut, ValueType::kF32},
          rows, workspace.get(), cuda::exl3_prefill_workspace_bytes(kRows, kIn), nullptr));
      TF_CUDA(cudaDeviceSynchronize());
      return y.host();
    };
    const std::vector<float> all = run_rows(0, kRows);
    RelativeNorm norm;
    for (size_t r = 0; r < kRows; ++r) {
      std::vector<double> row;
      for (size_t k = 0; k < kIn; ++k)
        row.push_back(static_cast<double>(bf16_to_f32(x[r * kIn + k])));
      const std::vector<double> y = exact.times(row);
      for (size_t n = 0; n < kTrueOut; ++n)
        norm.add(static_cast<double>(all[r * kTrueOut + n]), y[n]);
    }
    BOOST_TEST_MESSAGE("bits " << bits << ": relative norm " << norm.value());
    BOOST_CHECK(kFaulty || norm.value() <= kFp32Bound);
    SameRows same("class P");
    for (const int rows : {1, 63, 128, 149})
      for (const int first : {0, kRows - rows}) {
        const std::vector<float> some = run_rows(first, rows);
        same.compare(some.data(), all.data() + first * kTrueOut, some.size());
      }
    same.check();
  }
}

// Several tiles one after the other in a thread block, an odd number of output blocks: a row's bits
// are the same in all, and right.
BOOST_AUTO_TEST_CASE(prompt_rows_of_every_tile_and_type) {
  for (const int bits : {2, 3, 4, 5, 6}) {
    constexpr int kRows = 2048, kIn = 256, kOut = 65 * 128;
    RandomLayer layer(kIn, kOut, 2 * bits, Codebook::kMul1, 60u + static_cast<uint32_t>(bits));
    const ExactLayer exact(layer);
    const std::vector<uint16_t> x = random_bf16(int64_t{kRows} * kIn, 9);
    DeviceArray<uint16_t> xd(x);
    const int64_t bytes = cuda::exl3_prefill_workspace_bytes(kRows, kIn);
    const auto run_rows = [&](int first, int rows, void* y, ValueType type) {
      DeviceArray<std::byte> workspace(static_cast<size_t>(bytes));
      TF_CUDA(cuda::exl3_prefill({layer.parts(Exl3Order::kLanes), kIn, kOut,
                                  xd.get() + int64_t{first} * kIn, kIn, y, kOut, type},
                                 rows, workspace.get(), bytes, nullptr));
      TF_CUDA(cudaDeviceSynchronize());
    };
    DeviceArray<float> wide(size_t{kRows} * kOut);
    run_rows(0, kRows, wide.get(), ValueType::kF32);
    const std::vector<float> all = wide.host();
    RelativeNorm norm;
    for (const size_t r : {size_t{0}, size_t{255}, size_t{1000}, size_t{kRows - 1}}) {
      std::vector<double> row;
      for (size_t k = 0; k < kIn; ++k)
        row.push_back(static_cast<double>(bf16_to_f32(x[r * kIn + k])));
      const std::vector<double> y = exact.times(row);
      for (size_t n = 0; n < kOut; ++n) norm.add(static_cast<double>(all[r * kOut + n]), y[n]);
    }
    BOOST_TEST_MESSAGE("bits " << bits << ": relative norm " << norm.value());
    BOOST_CHECK(kFaulty || norm.value() <= kFp32Bound);
    SameRows same("class P");
    for (const int rows : {1, 64, 160, 333, 1000, kRows})
      for (const int first : {0, kRows - rows}) {
        DeviceArray<float> some(static_cast<size_t>(rows) * kOut);
        run_rows(first, rows, some.get(), ValueType::kF32);
        same.compare(some.host().data(), all.data() + int64_t{first} * kOut,
                     static_cast<size_t>(rows) * kOut);
      }
    same.check();
    DeviceArray<uint16_t> narrow(size_t{kRows} * kOut);
    run_rows(0, kRows, narrow.get(), ValueType::kBf16);
    const std::vector<uint16_t> rounded = narrow.host();
    size_t wrong = 0;
    for (size_t i = 0; i < rounded.size(); ++i) wrong += f32_to_bf16(all[i]) != rounded[i] ? 1 : 0;
    BOOST_CHECK_EQUAL(wrong, 0u);
  }
}

BOOST_AUTO_TEST_CASE(every_other_format_goes_through_the_run_time_decoder) {
  if (kFaulty) return;  // which holds no fault
  for (const int half : {3, 5, 7})
    check_product(256, 128, 256, 120, half, Codebook::kMul1, Exl3Order::kTiles);
  check_product(256, 128, 250, 128, 6, Codebook::kMcg, Exl3Order::kLanes);
  check_product(256, 128, 256, 128, 8, Codebook::k3inst, Exl3Order::kTiles);
  check_product(256, 128, 256, 128, 2, Codebook::kMul1, Exl3Order::kLanes);
  check_product(256, 256, 256, 256, 16, Codebook::kMul1, Exl3Order::kLanes);
}

BOOST_AUTO_TEST_CASE(grouped_weights_get_what_they_get_alone) {
  constexpr int kRows = 6, kIn = 1280;
  RandomLayer a(kIn, 1280, 12, Codebook::kMul1, 1), b(kIn, 512, 6, Codebook::kMul1, 2),
      c(kIn, 384, 7, Codebook::kMul1, 3), d(kIn, 6784, 10, Codebook::kMul1, 4);
  DeviceArray<uint16_t> x(random_bf16(int64_t{kRows} * kIn, 8));
  RandomLayer* layers[] = {&a, &b, &c, &d};
  cuda::Exl3DenseParams p;
  p.rows = kRows;
  std::vector<DeviceArray<float>> y;
  y.reserve(4);
  for (RandomLayer* l : layers) {
    y.emplace_back(static_cast<size_t>(kRows) * static_cast<size_t>(l->out));
    const auto order = l->half_bits % 2 == 0 ? Exl3Order::kLanes : Exl3Order::kTiles;
    p.job[p.jobs++] = {l->parts(order), kIn,    l->out,         x.get(), kIn,
                       y.back().get(),  l->out, ValueType::kF32};
  }
  TF_CUDA(cuda::exl3_dense(p, nullptr));
  TF_CUDA(cudaDeviceSynchronize());
  for (size_t i = 0; i < 4; ++i) {
    const auto order = layers[i]->half_bits % 2 == 0 ? Exl3Order::kLanes : Exl3Order::kTiles;
    const Product alone = run(*layers[i], order, kIn, layers[i]->out, x, 0, kRows);
    const std::vector<float> together = y[i].host();
    BOOST_CHECK(std::memcmp(alone.f32.data(), together.data(), together.size() * 4) == 0);
  }
}

}  // namespace tensorfold::test
