// Dequantizing a model folder: exact values, what is copied, what is refused.
#include "engine/weights/convert.h"

#include <boost/test/unit_test.hpp>

#include "engine/weights/checkpoint.h"
#include "engine/weights/model_writer.h"
#include "engine/weights/weight_source.h"
#include "tests/engine/weights/weights_support.h"

namespace tensorfold {
namespace {

std::unique_ptr<WeightSource> open_whole(const std::string& folder) {
  WeightSourceOptions options;
  options.model_path = folder;
  Result<std::unique_ptr<WeightSource>> source = WeightSource::open(options);
  BOOST_REQUIRE_MESSAGE(source.ok(), source.status().message());
  return std::move(*source);
}

std::vector<float> values_of(const WeightSource& source, const std::string& name) {
  if (!name.ends_with(".attn.wo_a")) return *source.load_f32(name);
  std::vector<float> all;
  const Result<std::vector<Weight>> groups = source.load_groups(name);
  for (const Weight& group : *groups) {
    std::vector<float> part(static_cast<size_t>(group.out * group.in));
    dequantize(group, part);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void check_twin(const std::string& in, const std::string& out) {
  const auto a = open_whole(in), b = open_whole(out);
  BOOST_REQUIRE_EQUAL(a->weights().size(), b->weights().size());
  for (const WeightInfo& info : a->weights()) {
    const bool was_plain = info.kind == WeightKind::kF32 || info.kind == WeightKind::kBf16;
    const WeightKind kind = b->find(info.name)->kind;
    BOOST_TEST((kind == (was_plain ? info.kind : WeightKind::kBf16)), info.name);
    const std::vector<float> x = values_of(*a, info.name), y = values_of(*b, info.name);
    BOOST_REQUIRE_EQUAL(x.size(), y.size());
    size_t wrong = 0, lost = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const float rounded = was_plain ? x[i] : bf16_to_fp32(fp32_to_bf16(x[i]));
      wrong += rounded == y[i] ? 0U : 1U;
      lost += x[i] == y[i] ? 0U : 1U;
    }
    BOOST_TEST(wrong == 0U, info.name);
    BOOST_TEST((info.kind == WeightKind::kExl3 || lost == 0U), info.name);
  }
  for (int table = 0; table < static_cast<int>(a->config().engram.layers.size()); ++table) {
    const auto s = a->open_engram(table), t = b->open_engram(table);
    BOOST_REQUIRE(s.ok() && t.ok());
    const auto width = static_cast<size_t>((*s)->width());
    std::vector<float> x(width), y(width);
    for (int64_t row = 0; row < (*s)->rows().end; row += 13) {
      std::vector<std::byte> raw(static_cast<size_t>((*s)->row_bytes()));
      BOOST_REQUIRE((*s)->read({{row}}, raw).ok());
      (*s)->decode_row(raw, x);
      raw.resize(static_cast<size_t>((*t)->row_bytes()));
      BOOST_REQUIRE((*t)->read({{row}}, raw).ok());
      (*t)->decode_row(raw, y);
      BOOST_REQUIRE(x == y);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_recorded_model_becomes_its_bf16_twin) {
  const TempFolder folder;
  const std::string in = std::string(TF_TEST_DATA) + "/golden/mini_native";
  const std::string out = folder.path("twin");
  const Result<ConvertReport> report = dequantize_model(in, out, {});
  BOOST_REQUIRE_MESSAGE(report.ok(), report.status().message());
  BOOST_TEST(report->converted > 600);
  check_twin(in, out);
  const Result<Json> config = parse_json(test::read_file(out + "/config.json"));
  BOOST_TEST(config->find("quantization_config") == nullptr);
  BOOST_TEST(config->find("text_config")->find("hidden_size") != nullptr);
  BOOST_TEST(test::read_file(out + "/engram_token_map.i32") ==
             test::read_file(in + "/engram_token_map.i32"));
}

BOOST_AUTO_TEST_CASE(exl3_in_every_form_becomes_bf16) {
  const test::StoragePlan plans[] = {
      {.matrix = "exl3-10-mul1", .expert = "exl3-5-mul1", .wo_a_slices = true},
      {.matrix = "exl3-8-mcg", .expert = "fp4", .old_signs = true, .tables_fp8 = false},
  };
  for (const test::StoragePlan& plan : plans) {
    const TempFolder folder;
    test::write_model(folder.path("in"), test::small_config(),
                      test::model_tensors(test::small_config(), plan));
    test::write_file(folder.path("in/tokenizer.json"), "{\"version\": \"1.0\"}");
    test::write_file(folder.path("in/README.md"), "not part of a model");
    const Result<ConvertReport> report =
        dequantize_model(folder.path("in"), folder.path("out"), {});
    BOOST_REQUIRE_MESSAGE(report.ok(), report.status().message());
    check_twin(folder.path("in"), folder.path("out"));
    BOOST_TEST(test::read_file(folder.path("out/tokenizer.json")) == "{\"version\": \"1.0\"}");
    BOOST_TEST(!std::filesystem::exists(folder.path("out/README.md")));
  }
}

BOOST_AUTO_TEST_CASE(a_folder_with_a_model_or_the_same_folder_is_not_written) {
  const TempFolder folder;
  const auto tensors = test::model_tensors(test::small_config(), {});
  test::write_model(folder.path("a"), test::small_config(), tensors);
  test::write_model(folder.path("b"), test::small_config(), tensors);
  const auto same = dequantize_model(folder.path("a"), folder.path("a/."), {});
  BOOST_REQUIRE(!same.ok());
  BOOST_TEST(same.status().message().find("is the folder to read from") != std::string::npos);
  const auto other = dequantize_model(folder.path("a"), folder.path("b"), {});
  BOOST_REQUIRE(!other.ok());
  BOOST_TEST(other.status().message().find("holds a model already") != std::string::npos);
  const auto none = dequantize_model(folder.path("none"), folder.path("c"), {});
  BOOST_REQUIRE(!none.ok());
  BOOST_TEST(!std::filesystem::exists(folder.path("c")));
}

BOOST_AUTO_TEST_CASE(a_damaged_model_leaves_no_file_behind) {
  const TempFolder folder;
  auto tensors = test::model_tensors(test::small_config(), {.matrix = "fp8", .expert = "fp4"});
  test::tensor_named(tensors, "head.scale").bytes[3] = '\xff';
  test::write_model(folder.path("in"), test::small_config(), tensors);
  const auto report = dequantize_model(folder.path("in"), folder.path("out"), {});
  BOOST_REQUIRE(!report.ok());
  BOOST_TEST(report.status().message().find("tensor head.scale: a scale is NaN") !=
             std::string::npos);
  BOOST_TEST(std::filesystem::is_empty(folder.path("out")));
}

// Shards of a bounded size, an index that says where everything is, written last.
BOOST_AUTO_TEST_CASE(large_models_are_dealt_to_shards) {
  const TempFolder folder;
  std::vector<OutTensor> tensors;
  for (int i = 0; i < 10; ++i) {
    const std::string bytes(100, static_cast<char>('a' + i));
    OutTensor t;
    t.declaration.name = "t" + std::to_string(i);
    t.declaration.dtype = DType::kU8;
    t.declaration.shape.push_back(100);
    t.write = [bytes](SafetensorsWriter& writer) {
      return writer.append(std::as_bytes(std::span<const char>(bytes)));
    };
    tensors.push_back(std::move(t));
  }
  int lines = 0;
  BOOST_REQUIRE(
      write_model_files(folder.path(), tensors, 250, [&](std::string_view) { ++lines; }).ok());
  BOOST_TEST(lines == 5);
  BOOST_TEST(std::filesystem::exists(folder.path("model-00005-of-00005.safetensors")));
  const Result<Safetensors> files = Safetensors::open(folder.path());
  BOOST_REQUIRE_MESSAGE(files.ok(), files.status().message());
  BOOST_TEST(files->tensors().size() == 10U);
  std::filesystem::remove(folder.path("model-00003-of-00005.safetensors"));
  BOOST_TEST(!Safetensors::open(folder.path()).ok());
}

}  // namespace
}  // namespace tensorfold
