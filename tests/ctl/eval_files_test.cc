// What `tfctl model eval` reads: recorded results (plain and xz) and bounds, whole and damaged, and
// how its figures become verdicts.
#include <lzma.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "ctl/eval_bounds.h"
#include "ctl/eval_compare.h"
#include "ctl/eval_report.h"
#include "ctl/eval_teacher.h"
#include "ctl/eval_tensor_file.h"

namespace tensorfold::ctl {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "tensorfold-eval-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(name.data()) != nullptr);
    root_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string path = (root_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  fs::path root_;
};

std::string safetensors(const std::string& header, const std::string& payload) {
  std::string out(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(out.data(), &size, sizeof(size));
  return out + header + payload;
}

std::string compress(const std::string& bytes) {
  std::string out(lzma_stream_buffer_bound(bytes.size()), '\0');
  size_t at = 0;
  BOOST_REQUIRE_EQUAL(
      lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, nullptr,
                              reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(),
                              reinterpret_cast<uint8_t*>(out.data()), &at, out.size()),
      LZMA_OK);
  out.resize(at);
  return out;
}

const std::string kHeader =
    R"({"__metadata__":{"k":"7"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[16,20]}})";

std::string good_payload() {
  const float a[4] = {1, 2, 3, 4};
  std::string payload(20, '\0');
  std::memcpy(payload.data(), a, sizeof(a));
  payload[17] = 0x3f;  // little-endian 0x3f00: 0.5
  return payload;
}

Status read_status(const std::string& path) {
  const Result<TensorFile> file = TensorFile::read(path);
  return file.ok() ? ok_status() : file.status();
}

}  // namespace

BOOST_AUTO_TEST_CASE(plain_and_xz_files_read_the_same) {
  const Folder folder;
  const std::string bytes = safetensors(kHeader, good_payload());
  for (const std::string& path : {folder.write("plain.safetensors", bytes),
                                  folder.write("packed.safetensors.xz", compress(bytes))}) {
    const Result<TensorFile> file = TensorFile::read(path);
    BOOST_REQUIRE_MESSAGE(file.ok(), file.status().message());
    BOOST_CHECK_EQUAL(file->tensors().size(), 2u);
    BOOST_CHECK_EQUAL(file->metadata().at("k"), "7");
    BOOST_CHECK_EQUAL(file->find("a")->f32(3), 4.0f);
    BOOST_CHECK_EQUAL(file->find("b")->f32(0), 0.5f);
    BOOST_CHECK(file->need("a", {2, -1}).ok());
    BOOST_CHECK(!file->need("a", {3, -1}).ok());
  }
}

BOOST_AUTO_TEST_CASE(damaged_files_are_refused_by_name) {
  const Folder folder;
  const std::string good = safetensors(kHeader, good_payload());
  std::string packed = compress(good);
  std::string flipped = packed;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 0x55);
  const auto entry = [](const std::string& text) {
    return safetensors(R"({"t":)" + text + "}", std::string(16, '\0'));
  };
  const std::pair<std::string, std::string> cases[] = {
      {"", "too short"},
      {std::string(8, '\xff') + "x", "does not fit"},
      {safetensors("{", ""), "header"},
      {safetensors("[]", ""), "no JSON object"},
      {packed.substr(0, packed.size() / 2), "xz"},
      {flipped, "xz"},
      {good.substr(0, good.size() - 1), "'b'"},
      {entry(R"({"dtype":"F32","shape":[5],"data_offsets":[0,20]})"), "outside"},
      {entry(R"({"dtype":"F32","shape":[4],"data_offsets":[8,4]})"), "outside"},
      {entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,16]})"), "do not fit"},
      {entry(R"({"dtype":"F3","shape":[4],"data_offsets":[0,16]})"), "unknown dtype"},
      {entry(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})"), "bad shape"},
      {entry(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,16]})"),
       "overflows"},
      {entry(R"({"dtype":"F32","shape":[4],"data_offsets":[0]})"), "bad data_offsets"},
  };
  for (const auto& [bytes, words] : cases) {
    const std::string path = folder.write("damaged.safetensors", bytes);
    const Status status = read_status(path);
    BOOST_CHECK_MESSAGE(!status.ok(), "accepted: " + words);
    BOOST_CHECK_MESSAGE(status.message().find(path) != std::string::npos, status.message());
    BOOST_CHECK_MESSAGE(status.message().find(words) != std::string::npos,
                        words + " not in: " + status.message());
  }
  BOOST_CHECK(!read_status("/nonexistent/file").ok());
}

BOOST_AUTO_TEST_CASE(bounds_are_checked_and_unused_ones_are_known) {
  const Folder folder;
  const std::string path = folder.write(
      "bounds.json",
      R"({"readme": "x", "m_bf16": {"golden": {"X_by_layer": [1, 2], "e": "exact", "z": 3}},)"
      R"( "units": {"hc": 0.5}})");
  Result<EvalBounds> bounds = EvalBounds::read(path);
  BOOST_REQUIRE_MESSAGE(bounds.ok(), bounds.status().message());
  BOOST_CHECK(!bounds->choose("m_native", "golden").ok());
  BOOST_REQUIRE(bounds->choose("m_bf16", "golden").ok());
  BOOST_CHECK_EQUAL(bounds->by_layer("X_by_layer", 1).value(), 2);
  BOOST_CHECK(!bounds->by_layer("X_by_layer", 2));
  BOOST_CHECK(bounds->is_exact("e"));
  BOOST_REQUIRE_EQUAL(bounds->unused().size(), 1u);
  BOOST_CHECK_EQUAL(bounds->unused()[0], "z");
  bounds->choose_units();
  BOOST_CHECK_EQUAL(bounds->number("hc").value(), 0.5);
  const std::string bad = folder.write("bad.json", R"({"m": {"golden": {"X": {"a": 1}}}})");
  const Result<EvalBounds> refused = EvalBounds::read(bad);
  BOOST_REQUIRE(!refused.ok());
  BOOST_CHECK(refused.status().message().find("m.golden.X") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_value_that_is_no_number_is_past_every_bound) {
  EvalReport report;
  Figure f;
  f.bound = 1e300;
  f.value = std::nan("");
  report.add(f);
  Distance distance;
  distance.add(std::numeric_limits<double>::infinity(), 1);
  f.value = distance.rel();
  report.add(f);
  f.value = 0.5;
  f.at_least = true;
  f.bound = 0.6;
  report.add(f);
  BOOST_CHECK_EQUAL(report.count(Verdict::kPast), 3);
  BOOST_CHECK(!report.passed());
  std::ostringstream json;
  report.print_json(json);
  const Result<Json> parsed = parse_json(json.str());
  BOOST_REQUIRE(parsed.ok());
  BOOST_CHECK_EQUAL(parsed->find("schema_version")->as_int64().value(), kEvalSchemaVersion);
}

BOOST_AUTO_TEST_CASE(rows_that_the_model_did_not_give_are_a_failure) {
  const Folder folder;
  const Result<TensorFile> file =
      TensorFile::read(folder.write("f", safetensors(kHeader, good_payload())));
  BOOST_REQUIRE(file.ok());
  Grid grid;
  grid.tensor = file->find("a");
  grid.rows = 2;
  grid.width = 2;
  grid.offset = [](int64_t, int64_t row) { return row * 2; };
  const std::vector<float> rows[2] = {{1, 2}, {3, 4}};
  EvalReport whole, part;
  compare_f32(
      grid, [&](int64_t, int64_t row) { return &rows[row]; }, whole);
  BOOST_CHECK(whole.passed());
  BOOST_CHECK_EQUAL(whole.figures()[0].value, 0);
  compare_f32(
      grid, [&](int64_t, int64_t row) { return row == 0 ? &rows[0] : nullptr; }, part);
  BOOST_CHECK_EQUAL(part.count(Verdict::kMissing), 1);
  BOOST_CHECK(!part.passed());
}

// The outputs of SplitMix64 started at 0: its n-th output is the function of n * golden.
BOOST_AUTO_TEST_CASE(the_generator_is_splitmix64) {
  BOOST_CHECK_EQUAL(splitmix(1), 0xE220A8397B1DCDAFu);
  BOOST_CHECK_EQUAL(splitmix(2), 0x6E789E6AA1B965F4u);
  BOOST_CHECK_EQUAL(splitmix(3), 0x06C45D188009454Fu);
}

}  // namespace tensorfold::ctl
