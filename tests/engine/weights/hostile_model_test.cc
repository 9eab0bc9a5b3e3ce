// Model folders with one thing wrong each: every one is refused by file and tensor, at open() where
// headers show it, at load() where only the data does.
#include <boost/test/unit_test.hpp>
#include <functional>

#include "engine/weights/checkpoint.h"
#include "engine/weights/weight_source.h"
#include "tests/engine/weights/weights_support.h"

namespace tensorfold {
namespace {

using test::Tensor;
using test::tensor_named;

using Tensors = std::vector<Tensor>;
using Change = std::function<void(Tensors&)>;

Change remove(const std::string& name) {
  return [name](Tensors& tensors) {
    BOOST_REQUIRE(std::erase_if(tensors, [&](const Tensor& t) { return t.name == name; }) == 1);
  };
}

Change retype(const std::string& name, DType dtype) {
  return [=](Tensors& tensors) {
    Tensor& t = tensor_named(tensors, name);
    const auto old_bytes = static_cast<int64_t>(t.bytes.size());
    t.dtype = dtype;
    int64_t elements = 1;
    for (int64_t n : t.shape) elements *= n;
    t.bytes.resize(static_cast<size_t>(elements * dtype_bytes(dtype)), '\0');
    BOOST_REQUIRE(old_bytes > 0);
  };
}

Change reshape(const std::string& name, std::vector<int64_t> shape) {
  return [=](Tensors& tensors) {
    Tensor& t = tensor_named(tensors, name);
    t.shape = shape;
    int64_t bytes = dtype_bytes(t.dtype);
    for (int64_t n : shape) bytes *= n;
    t.bytes.resize(static_cast<size_t>(bytes), '\0');
  };
}

Change add(Tensor t) {
  return [t = std::move(t)](Tensors& tensors) { tensors.push_back(t); };
}

Change poke(const std::string& name, size_t offset, const std::string& bytes) {
  return [=](Tensors& tensors) {
    tensor_named(tensors, name).bytes.replace(offset, bytes.size(), bytes);
  };
}

// Written in fp8 and fp4 unless `exl3`.
struct Case {
  const char* what;
  bool exl3;
  Change change;
  std::vector<std::string> said;
  const char* load = nullptr;  // the weight whose load() fails; nullptr: open() fails
};

const std::string kA = "layers.0.attn.wq_a";         // matrix
const std::string kE = "layers.1.ffn.experts.2.w1";  // expert
const std::string kInf16 = std::string("\x00\x7c", 2), kNanBf16 = std::string("\xc0\x7f", 2);

std::vector<Case> missing_and_unknown() {
  const std::string f32 = std::string(4, '\0');
  return {
      {"a missing norm",
       false,
       remove("layers.2.attn.q_norm.weight"),
       {"missing tensors: layers.2.attn.q_norm"}},
      {"a missing matrix with its scale left",
       false,
       remove(kA + ".weight"),
       {"tensor " + kA + ".scale", kA + ".trellis or .weight is missing"}},
      {"a missing scale",
       false,
       remove(kA + ".scale"),
       {"tensor " + kA + ".weight", "scale is missing"}},
      {"a missing expert scale",
       false,
       remove(kE + ".scale"),
       {"tensor " + kE + ".weight", "scale is missing"}},
      {"a missing trellis", true, remove(kA + ".trellis"), {"tensor " + kA + ".suh"}},
      {"a missing suh",
       true,
       remove(kA + ".suh"),
       {"tensor " + kA + ".trellis", ".suh is missing"}},
      {"a missing svh",
       true,
       remove(kE + ".svh"),
       {"tensor " + kE + ".trellis", ".svh is missing"}},
      {"an unknown tensor",
       false,
       add({"layers.0.attn.wq_c.weight", DType::kF32, {1}, f32}),
       {"unknown tensors: layers.0.attn.wq_c.weight"}},
      {"a layer too many",
       false,
       add({"layers.4.attn_norm.weight", DType::kF32, {1}, f32}),
       {"unknown tensors: layers.4.attn_norm.weight"}},
      {"an expert too many",
       false,
       add({"layers.0.ffn.experts.4.w1.weight", DType::kF32, {1}, f32}),
       {"unknown tensors"}},
      {"a missing table",
       false,
       remove("layers.1.engram.embed.weight"),
       {"missing Engram table layers.1.engram.embed"}},
      {"a table without scales",
       false,
       remove("layers.1.engram.embed.scale"),
       {"tensor layers.1.engram.embed.weight", "scale is missing"}},
      {"stored twice",
       true,
       add({kA + ".weight", DType::kBf16, {128, 256}, std::string(65536, '\0')}),
       {"tensor " + kA + ".weight", "also stored as " + kA + ".trellis"}},
      {"one slice of two",
       true,
       add({"layers.0.attn.wo_a.slice.0.trellis", DType::kI16, {1}, std::string(2, '\0')}),
       {"tensor layers.0.attn.wo_a.slice.0.trellis"}},
  };
}

std::vector<Case> wrong_types_and_shapes() {
  return {
      {"a norm of another size",
       false,
       reshape("norm.weight", {255}),
       {"tensor norm.weight", "shape is [255], expected [256]"}},
      {"a norm with two dimensions",
       false,
       reshape("norm.weight", {256, 1}),
       {"tensor norm.weight", "[256, 1]"}},
      {"a transposed matrix",
       false,
       reshape(kA + ".weight", {256, 128}),
       {"tensor " + kA + ".weight", "shape is [256, 128], expected [128, 256]"}},
      {"integers", false, retype("embed.weight", DType::kI64), {"tensor embed.weight", "I64"}},
      {"e5m2",
       false,
       retype(kA + ".weight", DType::kF8E5M2),
       {"tensor " + kA + ".weight", "F8_E5M2"}},
      {"scales of 128 x 128",
       false,
       reshape(kA + ".scale", {1, 2}),
       {"tensor " + kA + ".scale", "shape is [1, 2], expected [4, 8]"}},
      {"fp32 scales",
       false,
       retype(kA + ".scale", DType::kF32),
       {"tensor " + kA + ".scale", "F32"}},
      {"fp4 in a shared expert",
       false,
       [](Tensors& tensors) {
         Tensor& t = tensor_named(tensors, "layers.0.ffn.shared_experts.w1.weight");
         t = {t.name, DType::kI8, {256, 128}, std::string(32768, '\0')};
         Tensor& s = tensor_named(tensors, "layers.0.ffn.shared_experts.w1.scale");
         s = {s.name, DType::kF8E8M0, {256, 8}, std::string(2048, '\x7f')};
       },
       {"tensor layers.0.ffn.shared_experts.w1.weight", "stored as fp4"}},
      {"NVFP4",
       false,
       add({kE + ".weight_scale_2", DType::kF32, {}, std::string(4, '\0')}),
       {"tensor " + kE + ".weight_scale_2", "NVFP4"}},
      {"fp4 scales of another size",
       false,
       reshape(kE + ".scale", {256, 16}),
       {"tensor " + kE + ".scale", "expected [256, 8]"}},
      {"an fp8 router",
       false,
       [](Tensors& tensors) {
         Tensor& t = tensor_named(tensors, "layers.0.ffn.gate.weight");
         t = {t.name, DType::kF8E4M3, {4, 256}, std::string(1024, '\0')};
         tensors.push_back(
             {"layers.0.ffn.gate.scale", DType::kF8E8M0, {1, 8}, std::string(8, '\x7f')});
       },
       {"tensor layers.0.ffn.gate.weight", "stored as fp8"}},
  };
}

std::vector<Case> wrong_exl3() {
  const std::string word = std::string("\x2d\xd1\xdc\x83", 4);
  return {
      {"both markers",
       true,
       add({kA + ".mcg", DType::kI32, {}, word}),
       {"tensor " + kA + ".trellis", "both codebook markers"}},
      {"a marker that is no I32",
       true,
       retype(kA + ".mul1", DType::kI64),
       {"tensor " + kA + ".mul1", "one I32"}},
      {"nine bits",
       true,
       reshape(kA + ".trellis", {16, 8, 144}),
       {"tensor " + kA + ".trellis", "no width"}},
      {"a width between",
       true,
       reshape(kA + ".trellis", {16, 8, 84}),
       {"tensor " + kA + ".trellis", "no width"}},
      {"4.5 bits",
       true,
       reshape(kA + ".trellis", {16, 8, 72}),
       {"tensor " + kA + ".trellis", "no width"}},
      {"2.5 bits without mul1",
       true,
       [](Tensors& tensors) {
         reshape(kA + ".trellis", {16, 8, 40})(tensors);
         remove(kA + ".mul1")(tensors);
       },
       {"tensor " + kA + ".trellis", "no width of the 3inst codebook"}},
  };
}

std::vector<Case> wrong_exl3_shapes() {
  return {
      {"an unpadded trellis",
       true,
       reshape("head.trellis", {16, 31, 80}),
       {"tensor head.trellis", "expected [16, 32, 80]"}},
      {"a trellis of another type",
       true,
       retype(kA + ".trellis", DType::kI32),
       {"tensor " + kA + ".trellis", "I32"}},
      {"suh of another size",
       true,
       reshape(kA + ".suh", {128}),
       {"tensor " + kA + ".suh", "expected [256]"}},
      {"suh in fp32", true, retype(kA + ".suh", DType::kF32), {"tensor " + kA + ".suh", "F32"}},
      {"EXL3 with a scale",
       true,
       add({kA + ".scale", DType::kF16, {1}, std::string(2, '\0')}),
       {"tensor " + kA + ".scale", "not supported"}},
      {"an EXL3 norm",
       true,
       [](Tensors& tensors) {
         remove("layers.0.ffn.gate.weight")(tensors);
         WeightSpec spec;
         spec.name = "layers.0.ffn.gate";
         spec.out = 4;
         spec.in = 256;
         for (Tensor& t : test::weight_tensors(spec, "exl3-8-mul1", {}, 5)) tensors.push_back(t);
       },
       {"tensor layers.0.ffn.gate.trellis", "stored as exl3"}},
      {"a table of another size",
       false,
       reshape("layers.1.engram.embed.weight", {1235, 64}),
       {"tensor layers.1.engram.embed.weight", "[1248, 64]"}},
      {"a table of another type",
       false,
       retype("layers.1.engram.embed.weight", DType::kI16),
       {"tensor layers.1.engram.embed.weight", "I16"}},
  };
}

std::vector<Case> bad_values() {
  return {
      {"a NaN scale",
       false,
       poke(kA + ".scale", 5, "\xff"),
       {"tensor " + kA + ".scale", "NaN"},
       "layers.0.attn.wq_a"},
      {"a NaN expert scale",
       false,
       poke(kE + ".scale", 100, "\xff"),
       {"tensor " + kE + ".scale", "NaN"},
       "layers.1.ffn.experts.2.w1"},
      {"a NaN e4m3",
       false,
       poke(kA + ".weight", 77, "\x7f"),
       {"tensor " + kA + ".weight", "NaN"},
       "layers.0.attn.wq_a"},
      {"a negative NaN e4m3",
       false,
       poke(kA + ".weight", 0, "\xff"),
       {"tensor " + kA + ".weight", "NaN"},
       "layers.0.attn.wq_a"},
      {"a NaN norm",
       false,
       poke("norm.weight", 510, kNanBf16),
       {"tensor norm.weight", "not finite"},
       "norm"},
      {"an infinite sink",
       false,
       poke("layers.0.attn.attn_sink", 4, std::string("\x00\x00\x80\x7f", 4)),
       {"tensor layers.0.attn.attn_sink", "not finite"},
       "layers.0.attn.attn_sink"},
      {"an infinite suh",
       true,
       poke(kA + ".suh", 6, kInf16),
       {"tensor " + kA + ".suh", "not finite"},
       "layers.0.attn.wq_a"},
      {"a NaN svh",
       true,
       poke(kA + ".svh", 0, std::string("\x01\x7e", 2)),
       {"tensor " + kA + ".svh", "not finite"},
       "layers.0.attn.wq_a"},
      {"a marker of another value",
       true,
       poke(kA + ".mul1", 0, "\x2e"),
       {"tensor " + kA + ".mul1", "multiplier of the mul1 codebook"},
       "layers.0.attn.wq_a"},
  };
}

void run(const std::vector<Case>& cases) {
  const Tensors native =
      test::model_tensors(test::small_config(), {.matrix = "fp8", .expert = "fp4"});
  const Tensors exl3 = test::model_tensors(test::small_config(),
                                           {.matrix = "exl3-10-mul1", .expert = "exl3-6-mul1"});
  for (const Case& c : cases) {
    BOOST_TEST_CONTEXT(c.what) {
      Tensors tensors = c.exl3 ? exl3 : native;
      c.change(tensors);
      const TempFolder folder;
      test::write_model(folder.path(), test::small_config(), tensors);
      WeightSourceOptions options;
      options.model_path = folder.path();
      const Result<std::unique_ptr<WeightSource>> source = WeightSource::open(options);
      Status status = source.status();
      if (c.load != nullptr) {
        BOOST_REQUIRE_MESSAGE(source.ok(), status.message());
        status = (*source)->load(c.load).status();
      }
      BOOST_REQUIRE(!status.ok());
      BOOST_TEST(status.message().find(folder.path()) != std::string::npos, status.message());
      for (const std::string& part : c.said) {
        BOOST_TEST(status.message().find(part) != std::string::npos, status.message()
                                                                         << " lacks: " << part);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(missing_doubled_and_unknown_tensors) { run(missing_and_unknown()); }
BOOST_AUTO_TEST_CASE(wrong_types_and_wrong_shapes) { run(wrong_types_and_shapes()); }
BOOST_AUTO_TEST_CASE(wrong_exl3_layers) {
  run(wrong_exl3());
  run(wrong_exl3_shapes());
}
BOOST_AUTO_TEST_CASE(values_that_are_not_numbers) { run(bad_values()); }

BOOST_AUTO_TEST_CASE(the_unchanged_models_are_fine) {
  const auto nothing = [](Tensors&) {};
  for (bool exl3 : {false, true}) {
    Tensors tensors = test::model_tensors(
        test::small_config(),
        {.matrix = exl3 ? "exl3-10-mul1" : "fp8", .expert = exl3 ? "exl3-6-mul1" : "fp4"});
    nothing(tensors);
    const TempFolder folder;
    test::write_model(folder.path(), test::small_config(), tensors);
    WeightSourceOptions options;
    options.model_path = folder.path();
    BOOST_TEST(WeightSource::open(options).ok());
  }
}

BOOST_AUTO_TEST_CASE(vision_and_unused_drafter_tensors_are_no_fault) {
  Tensors tensors = test::model_tensors(test::small_config(), {});
  tensors.push_back({"vision.norm.weight", DType::kBf16, {2}, std::string(4, '\0')});
  tensors.push_back({"image_start", DType::kBf16, {2}, std::string(4, '\0')});
  std::string config = test::small_config();
  const std::string stages = "\"num_nextn_predict_layers\": 1";
  config.replace(config.find(stages), stages.size(), "\"num_nextn_predict_layers\": 0");
  const TempFolder folder;
  test::write_model(folder.path(), config, tensors);
  const Result<std::unique_ptr<Checkpoint>> model = Checkpoint::open(folder.path(), "");
  BOOST_REQUIRE_MESSAGE(model.ok(), model.status().message());
  BOOST_TEST((*model)->vision_tensors() == 2);
  BOOST_TEST((*model)->unknown().empty());
  BOOST_TEST((*model)->complete(true).ok());
}

// The table of a published model is far larger than memory: nothing of its size is taken before
// its claims were compared with the file.
BOOST_AUTO_TEST_CASE(a_giant_claim_costs_nothing) {
  const TempFolder folder;
  test::write_model(folder.path(), test::small_config(), {});
  test::write_raw_safetensors(folder.path("model.safetensors"),
                              R"({"embed.weight": {"dtype": "BF16", "shape": [500, 4611686018427],
                                  "data_offsets": [0, 4611686018427000]}})",
                              "");
  WeightSourceOptions options;
  options.model_path = folder.path();
  const Result<std::unique_ptr<WeightSource>> source = WeightSource::open(options);
  BOOST_REQUIRE(!source.ok());
  BOOST_TEST(source.status().message().find("tensor embed.weight: truncated") != std::string::npos,
             source.status().message());
}

}  // namespace
}  // namespace tensorfold
