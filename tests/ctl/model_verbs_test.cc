// tfctl model inspect, prepare and dequantize on the recorded small model.
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ctl/verb.h"
#include "engine/base/json.h"
#include "engine/weights/weight_source.h"
#include "tests/temp_folder.h"

namespace tensorfold::ctl {
namespace {

namespace fs = std::filesystem;

struct Run {
  int code = 0;
  std::string out, err;
};

Run tfctl(std::vector<std::string> args) {
  std::istringstream in;
  std::ostringstream out, err;
  const int code = run_tfctl(args, in, out, err);
  return {code, out.str(), err.str()};
}

const std::string kModel = std::string(TF_TEST_DATA) + "/golden/mini_native";

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

BOOST_AUTO_TEST_CASE(inspect_shows_shapes_bits_and_bytes_per_rank) {
  const Run run = tfctl({"model", "inspect", kModel});
  BOOST_TEST(run.code == kExitOk, run.err);
  BOOST_TEST(has(run.out, "160 x layers.*.ffn.experts.*.w1  [128, 256]  fp4  4.25 bits"));
  BOOST_TEST(has(run.out, "10 x layers.*.attn.wq_b  [1024, 128]  fp8  8.01 bits"));
  BOOST_TEST(has(run.out, "10 x layers.*.attn.attn_sink  [8]  f32"));
  BOOST_TEST(has(run.out, "TP 4: world size 4 is not possible"));
  BOOST_TEST(!has(run.out, "missing"));
}

BOOST_AUTO_TEST_CASE(inspect_json_agrees_with_what_ranks_load) {
  const Run run = tfctl({"--json", "model", "inspect", kModel});
  BOOST_TEST(run.code == kExitOk, run.err);
  const Result<Json> json = parse_json(run.out);
  BOOST_REQUIRE(json.ok());
  BOOST_TEST(*json->find("schema_version")->as_int64() == 1);
  BOOST_TEST(json->find("weights")->as_array().size() == 870U);
  BOOST_TEST(json->find("missing")->as_array().empty());
  const Json::Array& ranks = json->find("ranks")->as_array();
  BOOST_REQUIRE_EQUAL(ranks.size(), 3U);
  for (int rank = 0; rank < 2; ++rank) {
    WeightSourceOptions options;
    options.model_path = kModel;
    options.rank = rank;
    options.world_size = 2;
    const auto source = WeightSource::open(options);
    BOOST_REQUIRE(source.ok());
    const Json& bytes = ranks[1].find("bytes")->as_array()[static_cast<size_t>(rank)];
    BOOST_TEST(*bytes.as_int64() == (*source)->rank_bytes());
  }
  BOOST_TEST(has(ranks[2].find("why_not")->as_string(), "o_groups"));
}

BOOST_AUTO_TEST_CASE(inspect_lists_what_is_missing_and_unknown) {
  const TempFolder scratch;
  const std::string folder = scratch.path("model");
  fs::create_directory(folder);
  fs::copy_file(kModel + "/config.json", folder + "/config.json");
  const std::string header =
      R"({"norm.weight": {"dtype": "BF16", "shape": [256], "data_offsets": [0, 512]},
          "surprise.weight": {"dtype": "U8", "shape": [1], "data_offsets": [512, 513]}})";
  const uint64_t length = header.size();
  std::ofstream(folder + "/model.safetensors", std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), 8) << header << std::string(513, '\0');
  const Run run = tfctl({"model", "inspect", folder});
  BOOST_TEST(run.code == kExitFailed);
  BOOST_TEST(has(run.out, "missing: layers.0.attn.wq_a\n"));
  BOOST_TEST(has(run.out, "unknown: surprise.weight\n"));
  BOOST_TEST(has(run.out, "Engram table layers.1.engram.embed: missing"));
  BOOST_TEST(!has(run.out, "missing: norm\n"));
}

BOOST_AUTO_TEST_CASE(errors_name_the_folder_and_misuse_is_exit_2) {
  const Run none = tfctl({"model", "inspect", "/nonexistent"});
  BOOST_TEST(none.code == kExitFailed);
  BOOST_TEST(has(none.err, "/nonexistent/config.json"));
  BOOST_TEST(tfctl({"model", "inspect"}).code == kExitUsage);
  BOOST_TEST(tfctl({"model", "dequantize", kModel}).code == kExitUsage);
  BOOST_TEST(tfctl({"model", "prepare", "--model", kModel}).code == kExitUsage);
  const Run world =
      tfctl({"model", "prepare", "--model", kModel, "--out", "/tmp/x", "--world", "x"});
  BOOST_TEST(world.code == kExitUsage);
  BOOST_TEST(has(world.err, "--world"));
}

BOOST_AUTO_TEST_CASE(prepare_writes_one_image_for_each_rank) {
  const TempFolder scratch;
  const std::string out = scratch.path("images");
  const Run refused = tfctl({"model", "prepare", "--model", kModel, "--out", out, "--world", "4"});
  BOOST_TEST(refused.code == kExitFailed);
  BOOST_TEST(has(refused.err, "2 o_groups cannot be dealt evenly"));
  const Run run =
      tfctl({"model", "prepare", "--model", kModel, "--out", out, "--world", "2", "--with-engram"});
  BOOST_TEST(run.code == kExitOk, run.err);
  for (int rank = 0; rank < 2; ++rank) {
    WeightSourceOptions options;
    options.prepared_path = out;
    options.rank = rank;
    options.world_size = 2;
    const auto source = WeightSource::open(options);
    BOOST_REQUIRE_MESSAGE(source.ok(), source.status().message());
    BOOST_TEST((*source)->load("layers.0.attn.wq_b")->out == 512);
    BOOST_TEST((*source)->open_engram(1).ok());
  }
}

BOOST_AUTO_TEST_CASE(dequantize_says_what_it_did) {
  const TempFolder scratch;
  const std::string out = scratch.path("twin");
  const Run run = tfctl({"model", "dequantize", kModel, out});
  BOOST_TEST(run.code == kExitOk, run.err);
  BOOST_TEST(has(run.out, "665 weights to bf16, 207 tensors copied"));
  const Run inspect = tfctl({"model", "inspect", out});
  BOOST_TEST(inspect.code == kExitOk);
  BOOST_TEST(!has(inspect.out, "fp8"));
  BOOST_TEST(!has(inspect.out, "fp4"));
  BOOST_TEST(tfctl({"model", "dequantize", kModel, out}).code == kExitFailed);
}

}  // namespace
}  // namespace tensorfold::ctl
